"""Keeping Dynamo out of our code: `torch.compile` traces the user's program, whatever its backend.

A kernel of ours is Python that PyTorch's C++ calls while a compiled function runs, so Dynamo would take it,
JAX below it, and the standard library below both, for programs to be compiled. It is told better when it is
imported, and not imported here.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import CodeType, FrameType, FunctionType
from typing import Any

from torch_pjrt.device.imports import after_import, during_import
from torch_pjrt.interrupts.quiet import uncollected
from torch_pjrt.session import session

_DYNAMO = "torch._dynamo"
_RULES = "torch._dynamo.trace_rules"
_CONVERTING = "torch._dynamo.convert_frame"
_packages = session.own("packages that Dynamo traces nothing in", ["torch_pjrt", "jax", "jaxlib"])
# Nothing that these call is the user's. Elsewhere in ours it may be: a captured function, a hook of backward.
PARTS = ("client", "compile", "graph", "lowering", "observe", "passes", "run", "tensor")
_LEAVES = ("jax", "jaxlib", *(f"torch_pjrt.{part}" for part in PARTS))
_registered: set[str] = session.own("those of them that Dynamo knows", set())
_When = Callable[[Mapping[str, Any]], bool]
_calls: dict[CodeType, _When] = session.own("functions some of whose calls Dynamo leaves alone", {})


def install() -> None:
    """Tell Dynamo now, or when it is imported."""
    if _DYNAMO not in sys.modules:
        during_import(_DYNAMO, _importing)
    after_import(_RULES, _register)
    after_import(_CONVERTING, _skip_calls)
    after_import(_DYNAMO, _allow_annotations)


@contextmanager
def _importing() -> Iterator[None]:
    """Import Dynamo without looking for garbage, and then let go of frames.

    `torch.fx.wrap` leaves a cycle, for each module, of its frame and all that called it. Where an operator's
    first call imports Dynamo, those hold its tensors, and their memory is not reused. They are young: nothing
    was collected meanwhile. To find them takes 15 ms, a collection 60.
    """
    with uncollected():
        yield
        from torch.fx import wrap

        for one in gc.get_objects(generation=0):
            if type(one) is FrameType and one.f_code is wrap.__code__:
                with suppress(RuntimeError):  # another thread's, that runs
                    one.clear()


def keep_out(packages: Iterable[str]) -> None:
    """Let Dynamo trace nothing in these packages or modules.

    >>> keep_dynamo_out(["my_package"])
    """
    _packages.extend(sorted(set(packages).difference(_packages)))
    if _RULES in sys.modules:  # else it is told with the others
        _register(sys.modules[_RULES])


def keep_out_of_calls(function: FunctionType, when: _When) -> None:
    """Let Dynamo compile nothing within a call of a function, where `when(its local variables)` says so.

    That is asked at each call that Dynamo sees: not of calls that it traces as part of their caller, nor
    where the function itself is compiled with `fullgraph=True`.

    >>> def report(values):
    ...     return values.sum()
    >>> keep_dynamo_out_of_calls(report, lambda names: names["values"].device.type == "pjrt")
    """
    _calls[function.__code__] = when


def _register(rules: Any) -> None:
    add = getattr(rules, "add", None)
    if add is None:  # another PyTorch
        return
    for package in _packages:
        if package not in _registered:
            _registered.add(package)
            add(package)


def _allow_annotations(dynamo: Any) -> None:
    """A call of `annotate` is a node of Dynamo's graphs, in which AOTAutograd sees the operator.

    Dynamo is asked once it is whole. It looks then for all functions that it has rules for, once and for all:
    those of its own that are not imported yet would have none (`torch._dynamo.mark_static`).
    """
    allow = getattr(dynamo, "allow_in_graph", None)
    if allow is not None:  # else another PyTorch
        from torch_pjrt.lowering.value_annotations import annotate

        allow(annotate)


def _skip_calls(converting: Any) -> None:
    """Have Dynamo compile nothing that a function of `_LEAVES` calls: `inspect.signature`, JAX's dataclasses.

    By its rules it passes over the frames of our files alone, and watches the standard library's below them.
    Nor does it compile what calls of `_calls` call, unless they want to be left to it.
    """
    try:
        wrapper, answer = converting.CatchErrorsWrapper, converting.ConvertFrameReturn
        strategy, skip = converting.FrameExecStrategy, converting.FrameAction.SKIP
        convert = wrapper.__call__
    except AttributeError:  # another PyTorch
        return

    def converted(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        code = frame.f_code
        if code.co_filename.startswith(_folders()):
            return answer(frame_exec_strategy=strategy(skip, skip))
        when = _calls.get(code)
        if when is not None and not _is_of_one_graph(self) and when(frame.f_locals):
            return answer(frame_exec_strategy=strategy(skip, skip), apply_to_code=False)
        return convert(self, frame, *args, **kwargs)

    wrapper.__call__ = converted


def _is_of_one_graph(converter: Any) -> bool:
    """Whether `fullgraph=True` was asked for: what is compiled then is the frame of the function itself."""
    return bool(getattr(getattr(converter, "_torchdynamo_orig_backend", None), "_one_graph", False))


def _folders() -> tuple[str, ...]:
    """Those of `_LEAVES` that are imported: JAX may come after Dynamo."""
    modules = [sys.modules.get(name) for name in _LEAVES]
    return tuple(os.path.dirname(m.__file__) + os.sep for m in modules if m and m.__file__)
