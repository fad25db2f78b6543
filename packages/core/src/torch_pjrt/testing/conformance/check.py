"""Check a case: every run on the CPU and on the device, compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves

from torch_pjrt.errors import LostValue
from torch_pjrt.graph.graph import graph_of
from torch_pjrt.graph.tape import state
from torch_pjrt.observe.counters import counters
from torch_pjrt.run.sync import sync
from torch_pjrt.testing.conformance.cases import ERROR, FORWARD, OUT, Case
from torch_pjrt.testing.conformance.compare import difference
from torch_pjrt.testing.conformance.invariants import determined
from torch_pjrt.testing.conformance.runs import CPU, DOUBLE, META, Placement, Run, runs_of

_BATCH = 48  # runs whose results are computed by one program
_MOST_DESCRIBED = 4  # failures of a case that are described

# What these give was never written, so that there are no values to compare.
UNINITIALIZED = frozenset(
    ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
     "resize_", "resize_as_")
)  # fmt: skip
# Reading a value is what these are for, wherever it happens.
_READERS = ("aten.equal.", "aten._local_scalar_dense.", "aten.is_nonzero.")


@dataclass(slots=True)
class Result:
    """What came of a case.

    samples   how many runs it had; failed, how many of them differ.
    rounded   runs that passed as at least as exact as the CPU, not within tolerance of it.
    chance    runs that draw random numbers: dtype and shape were compared, values were not.
    failures  the first differences, in words.
    on_cpu    the operators that ran on the CPU; expanded, those that PyTorch decomposed.
    compiled  how many programs XLA compiled; loaded, how many came from disk.
    """

    operator: str
    dtype: str
    kind: str
    samples: int = 0
    failed: int = 0
    rounded: int = 0
    chance: int = 0
    failures: list[str] = field(default_factory=list)
    on_cpu: list[str] = field(default_factory=list)
    expanded: list[str] = field(default_factory=list)
    compiled: int = 0
    loaded: int = 0

    @property
    def case(self) -> Case:
        return Case(self.operator, self.dtype, self.kind)

    @property
    def passed(self) -> bool:
        return not self.failed

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def fail(self, what: str) -> None:
        self.failed += 1
        if len(self.failures) < _MOST_DESCRIBED:
            self.failures.append(what)


@dataclass(slots=True)
class _Outcome:
    """What a call returned or raised."""

    value: Any = None
    error: Exception | None = None


def check(
    case: Case,
    device: str,
    tolerance: tuple[float, float] | None = None,
    *,
    compares: bool = True,
) -> Result:
    """All runs of a case, on the CPU and on `device`. Raises nothing but what ends the process.

    With `compares=False` they run on the device alone: what is compiled for them is the same.
    """
    result = Result(case.operator, case.dtype, case.kind)
    on_cpu, before = (
        counters.fallbacks.copy(),
        (counters.programs_compiled, counters.programs_loaded),
    )
    expanded: set[str] = set()
    try:
        # What only the device sees is an error of the batch: whose it is, is known of a batch of one.
        for batch in _batches(runs_of(case), 1 if case.kind == ERROR else _BATCH):
            pairs = [
                (
                    run,
                    _outcome(run.at, CPU) if compares else _Outcome(),
                    _outcome(run.at, Placement(device)),
                )
                for run in batch
            ]
            expanded |= _expanded()
            failure = _settle()
            for run, theirs, ours in pairs:
                result.samples += 1
                ours.error = ours.error or _outcome(_touch, ours.value).error
                if not compares:
                    continue
                is_lost = isinstance(ours.error, LostValue)
                if failure is not None and (is_lost or (case.kind == ERROR and not ours.error)):
                    ours.error = failure
                what = _difference(case, run, ours, theirs, tolerance, result)
                if what is not None:
                    result.fail(f"{run.label}: {what}")
    except Exception as error:
        result.fail(f"the samples could not be made: {_in_words(error)}")
    result.on_cpu = sorted(
        name for name in counters.fallbacks - on_cpu if not name.startswith(_READERS)
    )
    result.expanded = sorted(expanded)
    result.compiled = counters.programs_compiled - before[0]
    result.loaded = counters.programs_loaded - before[1]
    return result


def _batches(runs: Iterator[Run], size: int) -> Iterator[list[Run]]:
    while batch := list(islice(runs, size)):
        yield batch


def _outcome(function: Callable[[Any], Any], argument: Any, seed: int = 0) -> _Outcome:
    try:
        _seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # samples are full of them
            return _Outcome(function(argument))
    except Exception as error:
        return _Outcome(error=error.with_traceback(None))


def _seed(seed: int) -> None:
    """As `torch.manual_seed`, which writes down its callers for CUDA's sake: a tenth of a run's time."""
    torch.default_generator.manual_seed(seed)
    torch.pjrt.manual_seed_all(seed)  # type: ignore[attr-defined]


def _settle() -> Exception | None:
    """Compute what was recorded. What cannot be raises when it is read; this is why."""
    return _outcome(sync, "conformance").error


def _touch(tree: Any) -> None:
    """Read every tensor: what could not be computed raises."""
    for x in tree_leaves(tree):
        if isinstance(x, torch.Tensor):
            x.detach().cpu()


def _difference(
    case: Case,
    run: Run,
    ours: _Outcome,
    theirs: _Outcome,
    tolerance: tuple[float, float] | None,
    result: Result,
) -> str | None:
    if ours.error is not None or theirs.error is not None:
        return _different_error(case, run, ours.error, theirs.error)
    if case.kind == ERROR:
        return None  # the CPU does not raise either
    what = difference(ours.value, theirs.value, None, tolerance)
    if what is None or "values" not in what:
        return what
    part = determined(case.operator, theirs.value) if case.kind in (FORWARD, OUT) else None
    ours_part = part and determined(case.operator, ours.value)
    if part is not None and difference(ours_part, part, None, tolerance) is None:
        return None
    # One other seed shows most random operators; of a rounding all 19 would be half of the time.
    if case.operator in UNINITIALIZED or _is_random(run, theirs.value, range(1, 2)):
        result.chance += 1
        return None
    if difference(ours.value, theirs.value, lambda: _exact(run), tolerance) is None:
        result.rounded += 1
        return None
    if _is_random(run, theirs.value, range(2, 20)):  # few elements are often the same by chance
        result.chance += 1
        return None
    return what


def _exact(run: Run) -> Any:
    exact = _outcome(run.at, DOUBLE)
    return () if exact.error else exact.value


def _is_random(run: Run, value: Any, seeds: Iterable[int]) -> bool:
    """Whether the CPU itself gives other values after one of these seeds; `value` came after 0."""
    seed_it = torch.manual_seed
    for seed in seeds:
        # Some entries of op_db seed the generator themselves.
        with mock.patch("torch.manual_seed", lambda _, seed=seed: seed_it(seed)):
            again = _outcome(run.at, CPU, seed)
        if again.error is None and difference(again.value, value) is not None:
            return True
    return False


def _different_error(
    case: Case, run: Run, ours: Exception | None, theirs: Exception | None
) -> str | None:
    if ours is None:
        return f"raised nothing, not {_in_words(theirs)}"
    if theirs is None:
        return f"raised {_in_words(ours)}"
    if type(ours) is not type(theirs):
        return f"raised {_in_words(ours)}, not {_in_words(theirs)}"
    if case.kind == ERROR and str(ours) != str(theirs):
        shared = _outcome(run.at, META).error
        if type(shared) is type(theirs) and str(shared) == str(theirs):
            return f"said {_in_words(ours)}, not {_in_words(theirs)}"
    return None


def _in_words(error: Exception | None) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"


def _expanded() -> set[str]:
    """The operators on the tape that PyTorch's decompositions stand for."""
    nodes = graph_of(state.tape, ()).nodes
    return {str(n.op) for n in nodes if n.signature.expansion is not None}
