"""A graph ends before `loss.backward()`, and Dynamo is told so when it comes there.

Dynamo leaves backward to the autograd engine. It finds out by an error of its own, throws away what it has
traced, and traces the function again, with a note of where the graph is to end. For a step of training that
is half of the time that it takes. Here it gets the note in time: the one that it would have written, by the
same error.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch._dynamo import config, symbolic_convert
from torch._dynamo.exc import Unsupported
from torch._dynamo.variables import TensorVariable

_NEEDED = ("speculate", "should_compile_partial_graph", "maybe_has_backedge", "log_graph_break")


def end_graphs_before_them() -> None:
    """From now on, for losses on the device. Nothing changes where Dynamo works in another way."""
    translator: Any = getattr(symbolic_convert, "InstructionTranslatorBase", None)
    reason: Any = getattr(symbolic_convert, "GraphCompileReason", None)
    if reason is None or not all(hasattr(translator, name) for name in _NEEDED):
        return
    speculate = translator.speculate
    if getattr(speculate, "knows_backward", False):
        return

    @wraps(speculate)
    def knowing(self: Any) -> Any:
        entry = speculate(self)
        if entry.inst.opname in ("CALL", "CALL_KW") and entry.reason is None:
            loss = _loss_of(self, entry.inst)
            if loss is not None and _ends_graphs(self):
                _note(self, entry, loss, reason)
        return entry

    knowing.knows_backward = True  # type: ignore[attr-defined]
    translator.speculate = knowing


def _loss_of(translator: Any, call: Any) -> Any:
    """The tensor of the device whose `backward` is about to be called, as Dynamo has it; else None."""
    for called in _on_stack(translator, call)[:2]:  # the other one is a null
        loss = getattr(called, "obj", None)
        if getattr(called, "name", "") == "backward" and isinstance(loss, TensorVariable):
            return loss if getattr(loss.device, "type", "") == "pjrt" else None
    return None


def _on_stack(translator: Any, call: Any) -> list[Any]:
    """What the instruction takes: a function and a null, and arguments, those with names last."""
    end = len(translator.stack)
    if call.opname == "CALL_KW":  # Python 3.13 has the names behind them
        end -= 1
    return translator.stack[end - call.arg - 2 : end]


def _ends_graphs(translator: Any) -> bool:
    """Whether Dynamo would end the graph here, and neither fail nor leave the whole function alone."""
    return not (
        getattr(config, "trace_autograd_ops", False)
        or translator.one_graph
        or translator.error_on_graph_break
        or translator.active_generic_context_managers
        or not translator.should_compile_partial_graph()
        or translator.maybe_has_backedge()
    )


def _note(translator: Any, entry: Any, loss: Any, reason: Any) -> None:
    """Do what Dynamo does at an error there, but for the second try."""
    given = _on_stack(translator, entry.inst)[2:]
    names = translator.stack[-1] if entry.inst.opname == "CALL_KW" else translator.kw_names
    names = names.as_python_constant() if names is not None else ()
    n = len(given) - len(names)
    try:
        loss.method_backward(translator, *given[:n], **dict(zip(names, given[n:], strict=True)))
    except TypeError:  # no such argument: Dynamo says so
        pass
    except Unsupported as error:
        text = f"Encountered graph break when attempting to trace a call of backward:\n\n{error}"
        translator.log_graph_break(translator.code_options, reason=text, exc=error)
        error.remove_from_stats()
        error.add_to_stats("graph_break")
        entry.reason = reason(error.msg, error.real_stack)
        entry.error_on_graph_break = translator.error_on_graph_break
        entry._failed = True
