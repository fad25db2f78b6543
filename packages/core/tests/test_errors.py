"""The tree at the top of `errors.py` is the truth, and every message has the same layout."""

from __future__ import annotations

import builtins
import inspect
import re

import pytest

from torch_pjrt import errors
from torch_pjrt.errors import NoDevice, TorchPjrtError

LINE = re.compile(r"(?P<branch>[│ ├└─]*)(?P<name>\w+)(?: \((?P<builtin>[\w, ]+)\))?(?P<words>.*)")


def classes() -> dict[str, type[TorchPjrtError]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind)
        and issubclass(kind, TorchPjrtError)
        and kind.__module__ == errors.__name__
    }


def tree() -> dict[str, tuple[str | None, str | None, str]]:
    """For each name in the tree: the one above it, the builtin in brackets, and the words."""
    drawn = (errors.__doc__ or "").split("\n\n")[1]
    found: dict[str, tuple[str | None, str | None, str]] = {}
    above: list[str] = []
    for line in drawn.splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        depth = len(match["branch"]) // 4
        above[depth:] = [match["name"]]
        parent = above[depth - 1] if depth else None
        found[match["name"]] = (parent, match["builtin"], match["words"].strip())
    return found


def test_tree_lists_every_class_in_the_order_of_the_file() -> None:
    assert list(tree()) == list(classes())


def test_tree_shows_what_each_class_is_derived_from() -> None:
    for name, (parent, builtin, _) in tree().items():
        kind = classes()[name]
        bases = [classes()[parent]] if parent else [Exception]
        bases += [getattr(builtins, b.strip()) for b in builtin.split(",")] if builtin else []
        assert list(kind.__bases__) == bases, name


def test_tree_says_a_word_on_each_class_and_so_does_its_docstring() -> None:
    for name, (parent, _, words) in tree().items():
        assert bool(words) == (parent is not None), name
        assert classes()[name].__doc__, name


def test_every_error_is_also_a_builtin_that_a_caller_of_pytorch_would_catch() -> None:
    kinds = (
        *(RuntimeError, ValueError, NotImplementedError),
        *(TypeError, IndexError, ImportError),
    )

    assert [n for n, k in classes().items() if not issubclass(k, kinds)] == ["TorchPjrtError"]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "It broke."),
        ({"saw": "a"}, "It broke.\n  saw: a"),
        ({"hint": "c"}, "It broke.\n  hint: c"),
        ({"saw": "", "expected": "b"}, "It broke.\n  expected: b"),
        (
            {"hint": "c", "expected": "b", "saw": "a"},
            "It broke.\n  saw: a\n  expected: b\n  hint: c",
        ),
    ],
    ids=["nothing", "saw", "hint", "empty-saw", "all"],
)
def test_message_is_what_happened_saw_expected_hint(parts: dict[str, str], text: str) -> None:
    assert str(NoDevice("It broke.", **parts)) == text


def test_parts_of_the_message_can_be_read_one_by_one() -> None:
    error = NoDevice("It broke.", saw="a", expected="b", hint="c")

    assert (error.happened, error.saw, error.expected, error.hint) == ("It broke.", "a", "b", "c")
