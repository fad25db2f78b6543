"""A plan: how each parameter, input and activation lies, what that costs, and what other ways would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt_spmd.spec import Entry, ShardingError

if TYPE_CHECKING:
    from torch_pjrt_spmd.autoshard.chips import Chip
    from torch_pjrt_spmd.autoshard.comparing import Comparison
    from torch_pjrt_spmd.autoshard.spreading import PlannedValues
    from torch_pjrt_spmd.mesh import Mesh
    from torch_pjrt_spmd.reporting import ProgramReport


@dataclass(frozen=True, slots=True)
class Placement:
    """How one tensor, or the tensors at one place of layers that repeat, lies.

    name, names   the first one's, and all of them. role: parameter, optimizer state, input, activation, ...
    spec          for each dim an axis, some, or None. n_bytes: of one, whole; chip_bytes: of one, on a chip.
    alternative   the spec that would cost least otherwise, by how many seconds a step, and what of.
    """

    name: str
    names: tuple[str, ...]
    role: str
    shape: tuple[int, ...]
    dtype: str
    spec: tuple[Entry, ...]
    n_bytes: int
    chip_bytes: int
    alternative: tuple[Entry, ...] | None = None
    alternative_s: float | None = None
    because: str = ""
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """What chips exchange as planned: kind, axes, bytes that each gets, how often in a step, seconds of
    all."""

    kind: str
    axes: tuple[str, ...]
    n_bytes: int
    runs: int
    seconds: float
    what: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one chip at the fullest time of a step, by what they are for.

    between   buffers within the operator that runs then, and copies that were gathered for it.
    vector    of activations and between, what XLA may keep in the vector memory of a TPU's core instead.
    """

    parameters: int = 0
    states: int = 0
    inputs: int = 0
    others: int = 0
    activations: int = 0
    between: int = 0
    limit: int | None = None
    vector: int = 0

    @property
    def peak(self) -> int:
        """All of them, which are within the limit."""
        inputs = self.parameters + self.states + self.inputs + self.others
        return inputs + self.activations + self.between

    @property
    def main(self) -> int:
        """Those in the chip's main memory: what XLA's analysis counts."""
        return self.peak - self.vector


@dataclass(frozen=True, eq=False)
class Plan:
    """What `auto_shard` found.

    mesh          of each axis how many chips. figures: of the chip for which the estimates are. across: axes
                  over slices or nodes.
    placements    of parameters, optimizer state, inputs and buffers. activations: of modules' results.
    seconds       of a step, as estimated; compute_s: of these without exchanges. lower_bound_s: no plan costs
                  less by the same estimates, if `proven`.
    flops         of one chip in a step, in products.
    took          seconds that recording, building the problem and solving it took.
    gradients     of parameters, how they lie. values: how all values of the step do.
    names         of the parameters and buffers of the modules that ran, also of those that nothing read.
    unread        specs of these that were said.
    notes         what was not known, and so is done by each chip alike; what was left out.
    """

    mesh: Mapping[str, int]
    figures: Chip
    placements: Sequence[Placement]
    activations: Sequence[Placement]
    exchanges: Sequence[Exchange]
    memory: Memory
    seconds: float
    compute_s: float
    lower_bound_s: float
    proven: bool
    flops: int
    took: Mapping[str, float]
    rematerialized: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    across: tuple[str, ...] = ()
    input_specs: tuple[tuple[Entry, ...] | None, ...] = ()
    target: Mesh | None = field(default=None, repr=False)
    gradients: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    values: PlannedValues | None = field(default=None, repr=False)
    names: frozenset[str] = field(default=frozenset(), repr=False)
    unread: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)

    def spec(self, name: str) -> tuple[Entry, ...]:
        """Of a parameter, state, input or activation. `KeyError` for a name that the plan lacks."""
        for placement in (*self.placements, *self.activations):
            if name in placement.names:
                return placement.spec
        raise KeyError(name)

    @property
    def exchanged_s(self) -> float:
        """Seconds of a step in which chips exchange."""
        return sum(e.seconds for e in self.exchanges)

    def apply(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        within: str = "",
        activations: bool = True,
    ) -> None:
        """Mark what the plan is about: parameters, buffers, optimizer state that is there or comes.

        within        of a step with several outermost modules, which of them the model is: what the names of
                      its parameters begin with in the plan, "0" or "1".
        activations   also have what programs compute between lie as planned, where they are this step's.

        Raises `ShardingError` for a plan that was made for a mesh that is not here, and for a model with
        parameters that the plan does not know.
        """
        from torch_pjrt_spmd.autoshard.applying import apply

        modules = {} if model is None else {f"{within}." if within else "": model}
        optimizers = [] if optimizer is None else [optimizer]
        apply(self, modules, {}, optimizers, activations=activations)

    def place(self, *inputs: Any) -> Any:
        """Inputs of a step as the plan has them, each chip its part: tensors of the host or the device."""
        from torch_pjrt_spmd.autoshard.applying import placed

        return placed(self, inputs)

    def compare(self, report: ProgramReport | None = None) -> Comparison:
        """What was planned beside what a compiled program has.

        report   of `program_reports()`; that of the program that was compiled last, unless given.

        Raises `ShardingError` where no program on several chips is in memory.
        """
        from torch_pjrt_spmd.autoshard.comparing import compared
        from torch_pjrt_spmd.reporting import program_reports

        if report is None:
            reports = program_reports()
            if not reports:
                raise ShardingError(
                    "There is no program on several chips to compare a plan with.",
                    hint="run a step first",
                )
            report = reports[-1]
        return compared(self, report, self.across)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, which may be edited: `auto_shard(..., plan=path)` keeps what it says.

        What is taken out of `placements`, `activations` or `rematerialized`, or one of these as a whole, is
        found anew. `estimated` is for reading.
        """
        from torch_pjrt_spmd.autoshard.saved import as_json

        Path(path).write_text(json.dumps(as_json(self), indent=1) + "\n")

    def draw(self, path: str | Path) -> None:
        """Write a picture of the plan as SVG: memory over the chip, and time by what it is spent on."""
        from torch_pjrt_spmd.autoshard.showing import svg

        if Path(path).suffix != ".svg":
            raise ShardingError(
                "A plan is drawn as SVG.", saw=str(path), expected="a name that ends in .svg"
            )
        Path(path).write_text(svg(self))

    def __str__(self) -> str:
        from torch_pjrt_spmd.autoshard.showing import text

        return text(self)
