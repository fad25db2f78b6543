"""What our packages name of PyTorch and JAX is in every version of them, or is asked for before it is used.

A name is `torch.x` or `jax.x` as it is written. What lies behind objects nobody sees without running it.
"""

from __future__ import annotations

import ast
import warnings
from functools import cache
from pathlib import Path

import pytest

from names_in_use import Use, found, misfit, uses, uses_in

# Imported only by one who asks for the module of torch_xla that it belongs to.
OF_OTHERS = ("torch.utils.tensorboard",)
LACKING = {
    f"{module}.{name}": module
    for line in Path(__file__).with_name("names_that_versions_lack.txt").read_text().splitlines()
    for module, _, names in [line.partition(": ")]
    for name in names.split()
}


@cache
def unasked() -> list[Use]:
    """The uses that nothing asks about before."""
    return [use for use in uses() if not use.guarded]


def lacking(use: Use) -> str | None:
    """The part of its name that some version lacks."""
    parts = use.name.split(".")
    names = (".".join(parts[:n]) for n in range(2, len(parts) + 1))
    return next((name for name in names if name in LACKING), None)


@pytest.mark.slow("file")
def test_each_name_is_in_the_installed_versions() -> None:
    absent = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for use in unasked():
            try:
                found(use.name)
            except AttributeError:
                absent += [str(use)] if not use.name.startswith(OF_OTHERS) else []

    assert absent == []


@pytest.mark.slow("file")
def test_no_name_is_one_that_the_oldest_or_the_newest_version_lacks() -> None:
    assert [str(use) for use in unasked() if lacking(use)] == []


@pytest.mark.slow("file")
def test_no_name_is_deprecated() -> None:
    said = []
    for name in sorted({use.name for use in unasked() if not use.name.startswith(OF_OTHERS)}):
        try:
            found(name)
        except (DeprecationWarning, FutureWarning) as warning:
            said.append(f"{name}: {warning}")
        except AttributeError:
            pass

    assert said == []


@pytest.mark.slow("file")
def test_each_call_fits_its_function() -> None:
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for use in unasked():
            if use.call is None:
                continue
            try:
                why = misfit(found(use.name), use.call)
            except AttributeError:
                continue  # another test says so
            wrong += [f"{use}: {why}"] if why else []

    assert wrong == []


# What the tests above stand on.


def named(text: str) -> dict[str, bool]:
    return {use.name: use.guarded for use in uses_in(text, "file.py")}


def test_names_are_those_of_imports_and_of_attributes() -> None:
    text = (
        "import torch\nimport jax.numpy as jnp\nfrom jax import lax\njnp.sum(torch._C.x, lax.add)"
    )

    assert set(named(text)) == {
        *("torch", "jax.numpy", "jax.lax"),
        *("jax.numpy.sum", "torch._C.x", "jax.lax.add"),
    }


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        ("import torch\ntorch.new()", False),
        ("import torch\nif hasattr(torch, 'new'):\n    torch.new()", True),
        ("import torch\nx = torch.new() if hasattr(torch, 'new') else None", True),
        ("import torch\ntry:\n    torch.new()\nexcept AttributeError:\n    pass", True),
        ("import torch\ntry:\n    torch.new()\nexcept ValueError:\n    pass", False),
        ("import torch\ntry:\n    pass\nexcept AttributeError:\n    torch.new()", False),
    ],
)
def test_a_use_is_guarded_where_its_absence_is_thought_of(text: str, guarded: bool) -> None:
    assert named(text)["torch.new"] is guarded


def test_an_absent_name_and_a_wrong_call_are_found() -> None:
    with pytest.raises(AttributeError):
        found("jax.errors.NoSuchError")
    with pytest.raises(AttributeError):
        found("jax.no_such_module.name")
    call = ast.parse("full((), 1, no_such=2)").body[0].value  # type: ignore[attr-defined]
    assert misfit(found("jax.numpy.full"), call) is not None
