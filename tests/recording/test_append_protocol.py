"""Between the look at whether the tape is closed and the last append nothing is called or made.

`graph/tape.py` says why: at a call, a loop or the making of an object another thread, a signal's handler or a
finalizer may have its turn, and record. Each place that appends is read as bytecode: what lies on a way
from that look to something that changes the tape, without another look.
"""

from __future__ import annotations

import dis
from types import CodeType, FunctionType

import pytest
import torch

from torch_pjrt.graph import append
from torch_pjrt.graph.tape import Tape, push
from torch_pjrt.lowering import CORE
from torch_pjrt.tensor.recording import composed, record
from torch_pjrt.tensor.recording.kernel_source import kernel_of

# So that the device has started.
torch.ones(1, device="pjrt")

PLACES = (
    *(append.append, append._numbered, Tape.take, Tape.take_back),
    *(record.record, composed.record, push),
)
CHANGED = (
    *("code", "values", "inputs", "ints", "floats", "size"),
    *("next_input", "n_further", "number", "tape", "unnumbered"),
)
MAKES = (
    "BUILD_", "MAKE_", "LIST_", "MAP_", "SET_", "DICT_", "UNPACK_", "FORMAT_", "CONVERT_", "GET_ITER",
    "FOR_ITER", "CALL", "JUMP_BACKWARD", "RESUME", "SEND", "YIELD", "IMPORT", "BEFORE_WITH", "LOAD_BUILD",
)  # fmt: skip
ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")


class Flow:
    """The instructions of a function, and which may come after which."""

    def __init__(self, code: CodeType) -> None:
        self.all = [x for x in dis.get_instructions(code) if x.opname != "CACHE"]
        at = {x.offset: i for i, x in enumerate(self.all)}
        self.after: list[list[int]] = []
        for i, x in enumerate(self.all):
            jumps = x.opcode in dis.hasjrel or x.opcode in dis.hasjabs
            goes_on = x.opname not in ENDS and not x.opname.startswith(
                ("JUMP_F", "JUMP_B", "JUMP_A")
            )
            self.after.append([at[x.argval]] if jumps else [])
            if goes_on and i + 1 < len(self.all):
                self.after[i].append(i + 1)
        self.before: list[list[int]] = [[] for _ in self.all]
        for i, targets in enumerate(self.after):
            for target in targets:
                self.before[target].append(i)
        self.looks = [i for i, x in enumerate(self.all) if self._reads(x, "closed")]
        self.changes = [i for i in range(len(self.all)) if self._changes(i)]

    @staticmethod
    def _reads(x: dis.Instruction, name: str) -> bool:
        return x.opname.startswith("LOAD_ATTR") and x.argval == name

    def _changes(self, i: int) -> bool:
        """Whether this changes the tape or a value's number: a store, a deletion, `pending.append`."""
        x = self.all[i]
        if x.opname in ("STORE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR"):
            return x.argval in CHANGED or x.opname != "STORE_ATTR"
        return x.opname.startswith("CALL") and self.appends(i)

    def appends(self, i: int) -> bool:
        """Whether this call is that of a list's own method: `pending.append(made)`, or `values.append`."""
        near = [x.argval for x in self.all[max(0, i - 5) : i]]
        return "append" in near and ("pending" in near or "values" in near)

    def reached(self, start: list[int], steps: list[list[int]], stop: set[int]) -> set[int]:
        found: set[int] = set()
        left = list(start)
        while left:
            for i in steps[left.pop()]:
                if i not in found and i not in stop:
                    found.add(i)
                    left.append(i)
        return found


def found_between(code: CodeType) -> tuple[list[str], int]:
    """What may let others in, between the look and a change; and how many changes there are."""
    flow = Flow(code)
    looks = set(flow.looks)
    # The last look alone counts: from it, without another, a change is reached.
    after = flow.reached(flow.looks, flow.after, looks)
    ahead = flow.reached(flow.changes, flow.before, looks)
    guarded = [i for i in flow.changes if i in after]
    wrong = [
        f"{flow.all[i].opname} {flow.all[i].argrepr} at {flow.all[i].offset}"
        for i in sorted(after & ahead)
        if flow.all[i].opname.startswith(MAKES) and not flow.appends(i)
    ]
    unguarded = flow.reached([0], flow.after, looks).intersection(flow.changes)
    return wrong + [f"a change before any look at {flow.all[i].offset}" for i in unguarded], len(
        guarded
    )


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__qualname__)
def test_nothing_comes_between(place: FunctionType) -> None:
    wrong, n_changes = found_between(place.__code__)

    assert n_changes >= 4
    assert not wrong


def test_nothing_comes_between_in_kernels_that_are_written_out() -> None:
    wrong, tried = [], 0
    for op in CORE:
        kernel = kernel_of(op)
        if isinstance(kernel, FunctionType) and kernel.__code__.co_filename.endswith(
            f"<kernel of {op}>"
        ):
            found, n_changes = found_between(kernel.__code__)
            tried += 1
            wrong += [f"{op}: {one}" for one in found]
            assert n_changes >= 3, op

    assert tried > 300
    assert not wrong


def test_a_call_between_is_found() -> None:
    def appends(tape: Tape, code: list[int]) -> None:
        if tape.closed:
            return
        tape.code += code
        tape.size = len(code)

    wrong, _ = found_between(appends.__code__)

    assert len(wrong) == 1 and wrong[0].startswith("CALL")


def test_a_list_made_between_is_found() -> None:
    def appends(tape: Tape, n: int) -> None:
        if not tape.closed:
            tape.code += [n]

    wrong, _ = found_between(appends.__code__)

    assert len(wrong) == 1 and wrong[0].startswith("BUILD_LIST")
