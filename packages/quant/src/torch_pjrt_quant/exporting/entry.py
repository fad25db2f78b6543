"""One entry point of an exported model, in steps: what is decomposed, given, computed and described.

decomposed     PyTorch's program in operators that have rules
given          where each of its inputs comes from: tensors of the model, the caller, the program itself
results        which are new values of buffers, and the structure of the others
program        the graph, interpreted while JAX traces it, exported for the platforms
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import export as jax_export
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import x64
from torch_pjrt.plugin import LoweringTable
from torch_pjrt.plugin.rules import to_jax
from torch_pjrt_quant.exporting.interpreter import Interpreter, without_checks
from torch_pjrt_quant.exporting.model import Entry, texts
from torch_pjrt_quant.exporting.rule_table import RANDOM, RULES
from torch_pjrt_quant.exporting.sizes import Sizes, named_dims, names_of
from torch_pjrt_quant.exporting.trees import Tree, tree_of

TENSORS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One way to call an exported module.

    args, kwargs      example arguments: their sizes are fixed where `dynamic_shapes` does not say otherwise;
                      numbers, strings and None among them are fixed in the program.
    dynamic_shapes    as `torch.export.export` takes them.
    method            which of the module's methods it calls.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    method: str = "forward"


@dataclass(frozen=True, slots=True)
class Named:
    """An entry point, and what its method calls its positional arguments."""

    point: EntryPoint
    names: tuple[str, ...]


class _Tensors:
    """Tensors by name; one that has two names, or that two entry points share, is there once."""

    def __init__(self) -> None:
        self.by_name: dict[str, torch.Tensor] = {}
        # By identity; each tensor is held, so that no other one has its id.
        self._names: dict[int, tuple[str, torch.Tensor]] = {}

    def name(self, wanted: str, entry: str, tensor: torch.Tensor) -> str:
        if (known := self._names.get(id(tensor))) is not None:
            return known[0]
        host = tensor.detach().cpu()
        others = 0
        name = wanted
        while name in self.by_name and not _same(self.by_name[name], host):
            name = f"{entry}.{wanted}" + "_" * others
            others += 1
        self.by_name.setdefault(name, host)
        self._names[id(tensor)] = name, tensor
        return name


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same bit by bit: 0.0 is not -0.0, and 1 not 1.0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    bits = [x.contiguous().reshape(-1).view(torch.uint8) for x in (one, other)]
    return torch.equal(*bits)


@dataclass(slots=True, eq=False)
class Shared:
    """What the entry points of a model share, and how all of them are exported.

    state       names of the buffers that some entry point writes to.
    gradient    whether the programs of derivatives are made.
    inside      whether tensors that are no state are constants of the programs.
    """

    rules: LoweringTable
    state: set[str]
    platforms: tuple[str, ...]
    gradient: bool
    inside: bool
    tensors: _Tensors = field(default_factory=_Tensors)


@dataclass(slots=True, eq=False)
class _Given:
    """Where the inputs of a program come from.

    sources      for each: "inside", "tensor" or "input" and a position there, or "constant" and the value.
    inside       arrays that are constants of the program.
    names        of tensors of the model that come before what the caller gives.
    inputs       what the caller gives, as the signature describes it, and specs of it.
    leaves       for each argument of the caller's, in order, its place among the inputs or its constant.
    """

    sources: list[tuple[str, Any]] = field(default_factory=list)
    inside: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    specs: list[jax.ShapeDtypeStruct] = field(default_factory=list)
    leaves: list[Tree] = field(default_factory=list)

    def arguments(self, arrays: Sequence[Any]) -> list[Any]:
        """What the graph is run with, of the arrays that the program is called with."""
        n = len(self.names)
        values = {"inside": self.inside, "tensor": arrays[:n], "input": arrays[n:]}
        return [v if kind == "constant" else values[kind][v] for kind, v in self.sources]


def exported_entry(
    name: str, original: ExportedProgram, point: Named | None, shared: Shared
) -> Entry:
    """An entry point, exported; its tensors are added to those that the model shares."""
    program = _decomposed(original, shared.rules)
    without_checks(program.graph_module)
    sizes = Sizes.of(program, names_of(program, _fakes(program), _named(point)))
    given = _given(name, original, program, sizes, shared)
    found = _results(name, program, given, shared.tensors, original)
    random = _draws(program, shared.rules)

    def function(*arrays: Any) -> tuple[Any, ...]:
        key = jax.random.key(arrays[-1], impl="threefry2x32") if random else None
        interpreter = Interpreter(shared.rules, sizes, key)
        values = interpreter.run(program.graph_module, given.arguments(arrays))
        return tuple(jnp.asarray(values[position]) for position in found.order)

    function.__name__ = name
    exported, derivative = _programs_of(function, given, random, shared)
    described = {
        "arguments": _arguments(program, point, iter(given.leaves)),
        "inputs": given.inputs,
        "dims": {n: {"min": r.least, "max": r.greatest} for n, r in sizes.ranges.items()},
        "tensors": given.names,
        "updates": found.updates,
        "results": found.structure,
        "writes": found.writes,
        "random": random,
    }
    return Entry(described, exported, derivative, sizes.constraints)


def _programs_of(
    function: Callable[..., Any], given: _Given, random: bool, shared: Shared
) -> tuple[jax_export.Exported, jax_export.Exported | None]:
    """The function as a program, and its derivative where one is asked for."""
    tensor_specs = [_struct(shared.tensors.by_name[n]) for n in given.names]
    seed = [jax.ShapeDtypeStruct((), jnp.uint32)] if random else []
    with x64():
        try:
            exported = jax_export.export(jax.jit(function), platforms=list(shared.platforms))(
                *tensor_specs, *given.specs, *seed
            )
        except NotImplementedError as error:
            if "not found for platforms" not in str(error):
                raise
            raise LoweringError(
                f"JAX lacks an operator on a platform: {error}",
                hint='give the platforms that have it, `platforms=["cpu"]` for example',
            ) from error
        return exported, exported.vjp() if shared.gradient else None


def _placeholders(program: ExportedProgram) -> Iterator[tuple[torch.fx.Node, Any]]:
    """The inputs of the graph, each with what the signature says of it."""
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    return zip(nodes, program.graph_signature.input_specs, strict=True)


def _fakes(program: ExportedProgram) -> list[Any]:
    return [
        node.meta["val"]
        for node, spec in _placeholders(program)
        if spec.kind is InputKind.USER_INPUT
    ]


def _given(
    name: str, original: ExportedProgram, program: ExportedProgram, sizes: Sizes, shared: Shared
) -> _Given:
    given = _Given()
    for node, spec in _placeholders(program):
        if spec.kind in TENSORS:
            target = str(spec.target)
            _add_tensor(given, name, target, _tensor(original, program, target), shared)
        elif spec.kind is InputKind.USER_INPUT:
            _add_input(given, node, spec.arg, sizes)
        elif spec.kind is InputKind.TOKEN:
            given.sources.append(("constant", None))
        else:
            raise LoweringError(
                f"`{node.name}` is a {spec.kind.name}, which a program cannot take."
            )
    return given


def _add_tensor(
    given: _Given, entry: str, target: str, tensor: torch.Tensor, shared: Shared
) -> None:
    if shared.inside and target not in shared.state:
        given.inside.append(_array(tensor))
        given.sources.append(("inside", len(given.inside) - 1))
        return
    given.names.append(shared.tensors.name(target, entry, tensor))
    given.sources.append(("tensor", len(given.names) - 1))


def _add_input(given: _Given, node: torch.fx.Node, argument: Any, sizes: Sizes) -> None:
    """What the caller gives: a tensor, or what the program takes as it was in the example."""
    if isinstance(argument, SymIntArgument):
        raise LoweringError(
            f"`{node.name}` is a Python number that may vary, which only tensors can in a program.",
            hint="give it as a tensor of int64 without dims",
        )
    if not isinstance(argument, TensorArgument):
        constant = argument.value if isinstance(argument, ConstantArgument) else None
        given.leaves.append({"constant": constant})
        given.sources.append(("constant", constant))
        return
    value = node.meta["val"]
    given.leaves.append({"leaf": len(given.inputs)})
    given.sources.append(("input", len(given.inputs)))
    spec = jax.ShapeDtypeStruct(sizes.shape(value.shape), to_jax(value.dtype))
    given.specs.append(spec)
    given.inputs.append({"name": node.name, "dtype": spec.dtype.name, "shape": texts(spec.shape)})


def _decomposed(program: ExportedProgram, rules: LoweringTable) -> ExportedProgram:
    """The program in operators that have rules: PyTorch's decompositions, of the others."""
    known = {*rules, *RULES, *RANDOM}
    decompositions = torch.export.default_decompositions()
    for op in list(decompositions):
        if op in known:
            decompositions.pop(op)
    from torch._decomp import decomposition_table

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = program.run_decompositions(decompositions)
        for _ in range(3):
            more = {
                node.target: decomposition_table[node.target]
                for node in program.graph.nodes
                if node.op == "call_function"
                and node.target not in known
                and node.target in decomposition_table
            }
            if not more:
                break
            program = program.run_decompositions(more)
    return program


def _named(given: Named | None) -> list[Any]:
    if given is None or given.point.dynamic_shapes is None:
        return []
    point = given.point
    shapes = point.dynamic_shapes
    if isinstance(shapes, dict):
        shapes = list(shapes.values()) if not point.kwargs else shapes
    arguments: Any = [*point.args, *point.kwargs.values()]
    if isinstance(shapes, dict):
        in_order = [v for k, v in shapes.items() if k not in point.kwargs]
        shapes = [*in_order, *[shapes.get(k) for k in point.kwargs]]
    return named_dims(list(shapes), arguments)


def _tensor(original: ExportedProgram, program: ExportedProgram, target: str) -> torch.Tensor:
    for there in (original.state_dict, original.constants, program.state_dict, program.constants):
        if isinstance(tensor := there.get(target), torch.Tensor):
            return tensor
    raise LoweringError(f"the program lacks the tensor `{target}`")


def _array(tensor: torch.Tensor) -> Any:
    with x64():
        return jnp.asarray(jax.dlpack.from_dlpack(tensor.detach().cpu().contiguous()))


def _struct(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(tensor.shape), to_jax(tensor.dtype))


@dataclass(slots=True, eq=False)
class _Results:
    """What becomes of the results of a graph.

    order        their places in the graph: new values of buffers, what the caller gets, new values of
                 arguments.
    updates      names of those buffers.
    structure    of what the caller gets.
    writes       the places of those arguments among the inputs.
    """

    order: list[int]
    updates: list[str]
    structure: Tree
    writes: list[int]


def _results(
    name: str, program: ExportedProgram, given: _Given, tensors: _Tensors, original: ExportedProgram
) -> _Results:
    updates, writes = {}, {}
    picked: list[int] = []
    leaves: list[Tree] = []
    inputs = [x["name"] for x in given.inputs]
    output = next(iter(reversed(program.graph.nodes)))
    for position, (spec, node) in enumerate(
        zip(program.graph_signature.output_specs, output.args[0], strict=True)
    ):
        if spec.kind is OutputKind.BUFFER_MUTATION:
            target = str(spec.target)
            updates[position] = tensors.name(target, name, _tensor(original, program, target))
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            writes[position] = inputs.index(str(spec.target))
        elif spec.kind is OutputKind.TOKEN:
            continue
        elif spec.kind is not OutputKind.USER_OUTPUT:
            raise LoweringError(
                f"`{name}` writes to `{spec.target}` ({spec.kind.name}), which no program can.",
                hint="return the new value, or keep it in a buffer",
            )
        elif isinstance(spec.arg, ConstantArgument):
            leaves.append({"constant": spec.arg.value})
        else:
            leaf: Tree = {"leaf": len(picked)}
            if not isinstance(getattr(node, "meta", {}).get("val"), torch.Tensor):
                leaf["number"] = True
            leaves.append(leaf)
            picked.append(position)
    out_spec = program.call_spec.out_spec
    rest = iter(leaves)
    structure = tree_of(out_spec, lambda: next(rest)) if out_spec is not None else {"list": leaves}
    order = [*updates, *picked, *writes]
    return _Results(order, [*updates.values()], structure, [*writes.values()])


def _draws(program: ExportedProgram, rules: LoweringTable) -> bool:
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    return any(
        target in RANDOM or ((row := rules.get(target)) is not None and row.random)
        for target in targets - set(RULES)
    )


def _arguments(
    program: ExportedProgram, point: Named | None, leaves: Iterator[Tree]
) -> dict[str, Tree]:
    """The structure of each argument, by the names that the method gives them."""
    spec = program.call_spec.in_spec
    assert spec is not None
    positional, named = spec.children()
    trees = [tree_of(child, lambda: next(leaves)) for child in positional.children()]
    names = point.names if point is not None else ()
    found = {
        (names[n] if n < len(names) else f"argument_{n}"): tree for n, tree in enumerate(trees)
    }
    children = zip(named.context, named.children(), strict=True)
    found.update({str(key): tree_of(child, lambda: next(leaves)) for key, child in children})
    return found
