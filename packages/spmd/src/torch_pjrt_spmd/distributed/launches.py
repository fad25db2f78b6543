"""Programs over the chips of several processes: launched once all of these are about to launch the same.

Each process records and compiles by itself. Where one has taken another path, XLA's collectives would hang
or mix up values. So before each launch the processes compare a digest of the program and of the numbers that
it is given; where they differ, each says which operator is the first that does.
"""

from __future__ import annotations

import hashlib
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch_pjrt.errors import TorchPjrtError
from torch_pjrt.extend import add_program_hooks, note_lines, outline
from torch_pjrt_spmd.distributed import same_content
from torch_pjrt_spmd.distributed.errors import PeersDiffer
from torch_pjrt_spmd.distributed.run import peers_of
from torch_pjrt_spmd.settings import config

if TYPE_CHECKING:
    from torch_pjrt.extend import Program
    from torch_pjrt_spmd.distributed.peers import Peers

# Lines of what a process says that come before those of its program's operators.
_HEAD = 4
_HINT = (
    "seeds, branches and Python numbers must not depend on the rank; what a process computes alone it "
    "computes on tensors that are on no mesh. What was recorded stays: to go on without it, drop its tensors "
    "and call torch_pjrt.sync()"
)
_digests: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


@cache
def watch_launches() -> None:
    """Have launches compared, from the first mesh of a run on; and lines noted, to name them."""
    if config.note_lines:
        note_lines("processes", with_modules=False)
    add_program_hooks(before_launch=_agree)


def agree_on(chips: Any, what: str, about: str = "programs") -> None:
    """Return once all processes that have these chips say the same. For what is no program of core's.

    about   what else than programs it is, if another thread may ask at the same time.
    """
    if (peers := peers_of(chips, about)) is not None:
        peers.agree(what)


def _agree(program: Program) -> None:
    peers = peers_of(program.chips)
    if peers is None:
        return
    numbers = hashlib.sha256(b"".join(n.tobytes() for n in program.numbers)).hexdigest()[:16]
    call = f"run program {_digest_of(program)} with numbers {numbers}"
    uploads = same_content.of_processes(peers.ranks)
    if uploads.each:
        call += f" after {len(uploads.each)} uploads {uploads.checksum:08x}"
    try:
        peers.agree(call)
    except PeersDiffer as error:
        raise _explained(peers, program, uploads.each) from error
    finally:
        same_content.are_same(peers.ranks)


def _digest_of(program: Program) -> str:
    known = _digests.get(program)
    if known is None:
        text = "\n".join([*_ground(program), *outline(program.recorded)])
        known = _digests[program] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return known


def _ground(program: Program) -> list[str]:
    """What the program depends on beside its nodes."""
    graph = program.recorded
    specs = [repr(getattr(s, "spec", None)) for s in program.shardings]
    return [f"inputs {graph.inputs} {specs}", f"outputs {graph.outputs} {program.donated}"]


def _explained(peers: Peers, program: Program, uploads: list[str]) -> TorchPjrtError:
    """What differs first, from what each process is about to run, or has uploaded."""
    nodes = program.recorded.nodes
    said = [
        f"{text}\t{node.op}\t{node.line.described() if node.line else ''}"
        for text, node in zip(outline(program.recorded), nodes, strict=True)
    ]
    numbers = " ".join(str(n.tolist()) for n in program.numbers)
    where = program.compilation.cause
    mine = "\n".join([where, numbers, " ".join(_ground(program)), "; ".join(uploads), *said])
    all_said = [text.split("\n") for text in peers.exchange(mine)]
    longest = max(map(len, all_said))
    for i in range(_HEAD, longest):
        here = [
            lines[i].split("\t") if i < len(lines) else ["", "nothing more", ""]
            for lines in all_said
        ]
        if len({text for text, _, _ in here}) > 1:
            alike = len({op for _, op, _ in here}) == 1  # then something else in the text differs
            seen = [
                f"{text if alike else op}{f' at {line}' if line else ''}" for text, op, line in here
            ]
            return _differ(
                peers,
                f"operator {i - _HEAD} of their programs is the first that differs",
                seen,
                all_said,
            )
    numbers_differ = len({lines[1] for lines in all_said}) > 1
    if not numbers_differ and len({lines[3] for lines in all_said}) > 1:
        return _uploads_differ(peers, [lines[3].split("; ") for lines in all_said], all_said)
    what = (
        "the numbers that their programs are given differ"
        if numbers_differ
        else "inputs or results differ"
    )
    seen = [lines[1 if numbers_differ else 2][:300] for lines in all_said]
    return _differ(peers, f"{what} differ", seen, all_said)


def _uploads_differ(
    peers: Peers, uploads: list[list[str]], all_said: list[list[str]]
) -> PeersDiffer:
    """The first upload that differs, by its number since the last launch."""
    i = next(i for i, here in enumerate(zip_longest(*uploads)) if len(set(here)) > 1)
    seen = [some[i] if i < len(some) else "no further upload" for some in uploads]
    return _differ(
        peers,
        f"upload {i} since the last launch is the first that differs, of what lies on the chips of each",
        seen,
        all_said,
        "draw or load the same on each process (a seed, a file), or give each its own part "
        "(`make_global_batch`, `DeviceLoader`); torch_pjrt_spmd.config.compare_uploads = False compares none",
    )


def _differ(
    peers: Peers, what: str, seen: list[str], all_said: list[list[str]], hint: str = _HINT
) -> PeersDiffer:
    lines = [
        f"rank {rank}: {text}, in the program at the sync by {said[0]}"
        for rank, text, said in zip(peers.ranks, seen, all_said, strict=True)
    ]
    return PeersDiffer(
        f"The processes of a run are about to launch different programs: {what}.",
        saw="\n    ".join(lines),
        expected="the same operators, on tensors of the same shapes, in each process that shares a mesh",
        hint=hint,
    )
