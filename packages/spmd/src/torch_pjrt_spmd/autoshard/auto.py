"""`auto_shard`: one call that finds how to spread a model or a training step, and marks it so."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt_spmd import marks
from torch_pjrt_spmd.autoshard import solver
from torch_pjrt_spmd.autoshard.alternatives import polished
from torch_pjrt_spmd.autoshard.building import Built, build
from torch_pjrt_spmd.autoshard.chips import Chip, chip_named
from torch_pjrt_spmd.autoshard.estimates import plan_of
from torch_pjrt_spmd.autoshard.needs import memory_of
from torch_pjrt_spmd.autoshard.network import network_of
from torch_pjrt_spmd.autoshard.none_fits import least_choice, least_lives, no_plan
from torch_pjrt_spmd.autoshard.operators import Operators, operators_of
from torch_pjrt_spmd.autoshard.plan import Plan, read_specs
from torch_pjrt_spmd.autoshard.recording import Recorded, record
from torch_pjrt_spmd.autoshard.repeats import Tied, tied
from torch_pjrt_spmd.autoshard.solver.problem import Infeasible, Problem, Solution
from torch_pjrt_spmd.autoshard.specs import Layout, layout_of
from torch_pjrt_spmd.spec import Entry, ShardingError, checked

if TYPE_CHECKING:
    from torch_pjrt_spmd.mesh import Mesh

MakeOptimizer = Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer]
Specs = Mapping[str, Sequence[Any]]
_MOST_TRIES = 4  # with smaller limits
_LIMITS = (1.0, 1.5)  # of what must live at least
_NEARLY_FULL = 0.8  # of the memory: plans that compute layers again are looked at, too


def auto_shard(
    model: torch.nn.Module | Callable[..., Any],
    example_inputs: Any,
    mesh: Mesh | Mapping[str, int],
    *,
    optimizer: torch.optim.Optimizer | MakeOptimizer | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    memory_per_device: int | None = None,
    chip: str | Chip | None = None,
    across: Sequence[str] = (),
    plan: str | Path | Specs | None = None,
    seconds: float = 6.0,
    apply: bool = True,
) -> Plan:
    """Find how to spread a model, or a training step, over a mesh; nobody has to mark anything.

    model           a module, of any device; or a function: a training step, with the model and the optimizer
                    that it closes over on the device `pjrt`. Nothing is computed; its Python runs twice.
    example_inputs  a tensor, or a tuple of what it takes. Of tensors only shape and dtype matter.
    mesh            a `Mesh`. Or sizes of axes, `{"data": 4, "model": 8}`: a plan to look at.
    optimizer       of the module: with one, the plan is of a training step. An optimizer of the module's
                    parameters, or what makes one of parameters: `torch.optim.AdamW`.
    loss            a scalar of what the module returns; the sum of it, unless given.
    memory_per_device   bytes that a chip may use; nine tenths of what it has, unless given.
    chip            whose figures count: `v5e`, `h100`, a `Chip` of your own; that of the mesh, unless given.
    across          axes that go over slices or nodes, by the slower network.
    plan            a file that `Plan.save` wrote, or specs by name: these are kept, the rest is found. So are
                    marks that the model's parameters have already (`mark_sharding`).
    seconds         for the solver.
    apply           mark what the plan is about: the module's parameters, and those that a step's optimizer
    has.

    Returns the `Plan`. Raises `NoPlan` where the memory does not do, which says what would; `ShardingError`
    for specs that do not fit; `LoweringError` where the function needs the value of a tensor.

        plan = auto_shard(model, x, Mesh((2, 4), ("data", "model")), optimizer=torch.optim.AdamW)
        print(plan)
    """
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    sizes = dict(mesh) if isinstance(mesh, Mapping) else mesh.root.sizes
    figures = chip_named(chip if chip is not None else _chip_of(mesh))
    limit = int(0.9 * figures.memory_bytes) if memory_per_device is None else memory_per_device
    began = time.perf_counter()
    if isinstance(model, torch.nn.Module):
        recorded = record(_step(model, optimizer, loss), inputs)
        already = _marks_of(model.named_parameters(), mesh)
    else:
        recorded = record(model, inputs)
        already = _marks_of(recorded.parameters.items(), mesh)
    recorded = _with_gradients(recorded, mesh)
    took = {"recording": time.perf_counter() - began}
    said: dict[str, Sequence[Any]] = dict(already)
    if isinstance(plan, Mapping):
        said.update(plan)
    elif plan is not None:
        said.update(read_specs(plan, sizes))
    began = time.perf_counter()
    search = _Search(recorded, sizes, figures, limit, across, said, seconds, _is_of_cpus(mesh))
    built = search.built(sizes, False)
    took["building"] = time.perf_counter() - began
    began = time.perf_counter()
    built, solution = search.best(built, model, optimizer, loss, inputs)
    took["solving"] = time.perf_counter() - began
    target = None if isinstance(mesh, Mapping) else mesh.root
    found = plan_of(
        built, solution, took, target, frozenset(said), len(tree_leaves(list(inputs))), across
    )
    if apply and target is not None:
        _apply(found, model, optimizer, recorded)
    return found


def solve(problem: Problem, seconds: float) -> Solution:
    """The solver's answer, or the choice that needs least memory where it finds none within the limit.

    The limit is one that this choice keeps.
    """
    try:
        found = solver.solve(problem, seconds=seconds)
    except Infeasible:
        choice = least_choice(problem)
        found = Solution(choice, problem.cost(choice), 0, False, seconds)
    if found.proven:
        return found
    choice = polished(problem, found.choice, max(1.0, 0.3 * seconds))
    return replace(found, choice=choice, cost=problem.cost(choice))


def _fitting(built: Built, limit: int, seconds: float) -> tuple[Solution, int]:
    """The cheapest plan found that fits with what operators need besides, and its memory; else the smallest.

    The solver knows of what lives only. Where there is too much besides, it gets a smaller limit.
    """
    problem = built.problem
    for _ in range(_MOST_TRIES):
        if least_lives(problem) > (problem.usage_limit or limit):
            break
        found = solve(problem, seconds)
        peak = memory_of(built, found.choice).peak
        if peak <= limit:
            return found, peak
        problem = replace(problem, usage_limit=(problem.usage_limit or limit) - (peak - limit))
    least = least_lives(built.problem)
    tight = [replace(built.problem, usage_limit=int(least * times)) for times in _LIMITS]
    small = [solve(p, min(1.0, seconds / len(tight))) for p in tight]
    return min(
        ((s, memory_of(built, s.choice).peak) for s in small), key=lambda of_plan: of_plan[1]
    )


@dataclass(slots=True)
class _Search:
    """What is planned, and the ways in which it can be: layers computed again or not."""

    recorded: Recorded
    sizes: Mapping[str, int]
    chip: Chip
    limit: int
    across: Sequence[str]
    said: Specs
    seconds: float
    on_cpus: bool = False
    traced: tuple[Operators, Tied] | None = None

    def built(self, sizes: Mapping[str, int], again: bool) -> Built:
        """The problem on axes of such sizes."""
        if self.traced is None:
            operators = operators_of(self.recorded.graph)
            self.traced = operators, tied(operators, self.recorded.inputs)
        operators, classes = self.traced
        axes = {name: n for name, n in sizes.items() if n > 1}
        network = network_of(list(axes), list(axes.values()), self.chip, self.across)
        allowed = _Allowed(self.recorded, operators, classes, axes, self.said)
        return build(
            self.recorded,
            operators,
            classes,
            network,
            self.chip,
            self.limit,
            allowed,
            again,
            self.on_cpus,
        )

    def best(
        self, built: Built, model: Any, optimizer: Any, loss: Any, inputs: tuple[Any, ...]
    ) -> tuple[Built, Solution]:
        """The cheapest plan that fits. `NoPlan` where none does."""
        found, peak = _fitting(built, self.limit, self.seconds)
        if not built.choices or peak < _NEARLY_FULL * self.limit:
            again, of_again, peak_again = built, found, peak
        else:
            again = self.built(self.sizes, True)
            less = self.seconds if peak > self.limit else self.seconds / 2
            of_again, peak_again = _fitting(again, self.limit, less)
        fits = peak <= self.limit
        if peak_again <= self.limit and (not fits or of_again.cost < found.cost):
            return again, of_again
        if fits:
            return built, found
        raise no_plan(
            again,
            peak_again,
            self.limit,
            lambda sizes: self.built(sizes, again.again),
            lambda: self._of_half(model, optimizer, loss, inputs),
        )

    def _of_half(
        self, model: Any, optimizer: Any, loss: Any, inputs: tuple[Any, ...]
    ) -> Built | None:
        """The problem of half the batch; None where the function does not take it."""

        def half(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not x.dim() or x.shape[0] % 2:
                return x
            return torch.empty((x.shape[0] // 2, *x.shape[1:]), dtype=x.dtype, device="meta")

        smaller = tree_map(half, inputs)
        fn = _step(model, optimizer, loss) if isinstance(model, torch.nn.Module) else model
        try:
            recorded = record(fn, smaller)
        except Exception:  # whatever a function says of a batch that it does not take
            return None
        search = _Search(
            recorded,
            self.sizes,
            self.chip,
            self.limit,
            self.across,
            self.said,
            self.seconds,
            self.on_cpus,
        )
        traced = search.built(self.sizes, False)
        return search.built(self.sizes, True) if traced.choices else traced


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Of an input's layouts those that it may have: the one that was said, or all."""

    recorded: Recorded
    operators: Operators
    classes: Tied
    axes: Mapping[str, int]
    said: Specs

    def __call__(self, i: int, layouts: Sequence[Layout]) -> Sequence[Layout]:
        members = self.classes.inputs[self.classes.of_input[i]]
        names = [self.recorded.inputs[m].name for m in members]
        spec = next((self.said[name] for name in names if name in self.said), None)
        if spec is None:
            return layouts
        atoms = self.operators.atoms[-i - 1]
        found = layout_of(tuple(spec), atoms, list(self.axes), list(self.axes.values()))
        if found is None:
            raise ShardingError(
                f"`{self.recorded.inputs[i].name}` cannot lie as it is said to.",
                saw=f"a tensor of {list(self.operators.specs[-i - 1].shape)}, the spec {tuple(spec)}",
                expected=f"a spec for dims that are made of {list(map(list, atoms))}",
            )
        return [found]


def _is_of_cpus(mesh: Mesh | Mapping[str, int]) -> bool:
    if isinstance(mesh, Mapping) or mesh.root.target is not None:
        return False
    return mesh.root.jax_mesh.devices.flat[0].platform == "cpu"


def _with_gradients(recorded: Recorded, mesh: Mesh | Mapping[str, int]) -> Recorded:
    """With gradients among the results, where a program ends with the optimizer's step, while they are there.

    A program that is compiled ahead ends with the function.
    """
    if not isinstance(mesh, Mapping) and mesh.root.target is not None:
        return recorded
    return replace(recorded, results=tuple({*recorded.results, *recorded.gradients.values()}))


def _chip_of(mesh: Mesh | Mapping[str, int]) -> str:
    """The name of the mesh's chips, as far as the table knows them."""
    if isinstance(mesh, Mapping):
        return "cpu"
    if mesh.root.target is not None:
        return mesh.root.target
    kind = str(getattr(mesh.root.jax_mesh.devices.flat[0], "device_kind", "cpu")).lower()
    named = {"v5 lite": "v5e", "v5litepod": "v5e", "v6 lite": "v6e", "tpu v4": "v4", "v5": "v5p"}
    for text, name in {**named, "h100": "h100", "h200": "h200", "b200": "b200"}.items():
        if text in kind:
            return name
    return "cpu"


def _marks_of(tensors: Any, mesh: Mesh | Mapping[str, int]) -> dict[str, tuple[Entry, ...]]:
    """What the user has marked for the mesh already."""
    if isinstance(mesh, Mapping):
        return {}
    found = {}
    for name, tensor in tensors:
        how = marks.mark_for(tensor, mesh.root.target)
        if how is not None and tuple(how.mesh.axis_names) == mesh.root.axis_names:
            found[name] = checked(tuple(tensor.shape), mesh.root, tuple(how.spec))
    return found


def _step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | MakeOptimizer | None,
    loss: Callable[[Any], torch.Tensor] | None,
) -> Callable[..., Any]:
    """A step on a copy of the module without content, on the device."""
    twin = _without_content(model)
    if optimizer is None:

        def forward(*inputs: Any) -> Any:
            with torch.no_grad():
                return twin(*inputs)

        return forward
    of_twin = _optimizer_of(twin, model, optimizer)

    def step(*inputs: Any) -> torch.Tensor:
        result = twin(*inputs)
        value = loss(result) if loss is not None else _summed(result)
        value.backward()
        of_twin.step()
        of_twin.zero_grad()
        return value.detach()

    return step


def _summed(result: Any) -> torch.Tensor:
    tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    return torch.stack([x.sum() for x in tensors]).sum() if len(tensors) != 1 else tensors[0].sum()


def _without_content(model: torch.nn.Module) -> torch.nn.Module:
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        meta = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, torch.nn.Parameter):
            meta = torch.nn.Parameter(meta, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = meta
    return copy.deepcopy(model, memo).to_empty(device="pjrt")


def _optimizer_of(
    twin: torch.nn.Module,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | MakeOptimizer,
) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        return optimizer([p for p in twin.parameters() if p.requires_grad])
    twins = dict(zip(map(id, model.parameters()), twin.parameters(), strict=True))
    groups = [
        {**group, "params": [twins[id(p)] for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    make: Any = type(optimizer)
    return make(groups)


def _apply(plan: Plan, model: Any, optimizer: Any, recorded: Recorded) -> None:
    of_step = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    if isinstance(model, torch.nn.Module):
        plan.apply(model, of_step)
        return
    for root in recorded.roots:
        plan.apply(root, next(iter(recorded.optimizers), None))
