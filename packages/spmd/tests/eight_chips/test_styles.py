"""Styles of PyTorch's: what chips exchange for each, where its output lies, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

import torch_pjrt
from torch_pjrt.errors import UnsupportedError
from torch_pjrt_spmd import (
    Mesh,
    ShardingError,
    collectives,
    distribute_module,
    distribute_tensor,
    mark_sharding,
    parallelize_module,
    placements_of,
    use_mesh,
)
from torch_pjrt_spmd.arranging import steps

WHOLE, SUM = Replicate(), Partial()
ROWS, LENGTH, WIDTH, WIDE, WORDS = 4, 8, 16, 32, 64


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.norm(x)).relu())


class Sum(nn.Module):
    def forward(self, x: Any, n: int = 2, *, other: Any = None) -> Any:
        y = x * n if other is None else x * n + other
        return y, n


def mlp() -> nn.Module:
    return Mlp()


def up() -> nn.Module:
    return nn.Linear(WIDTH, WIDE)


def words() -> nn.Module:
    return nn.Embedding(WORDS, WIDTH)


def floats() -> torch.Tensor:
    return torch.arange(float(ROWS * LENGTH * WIDTH)).reshape(ROWS, LENGTH, WIDTH) / 500 - 0.5


def numbers() -> torch.Tensor:
    return torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) * 5 % WORDS


# Each chip has half of the batch.
NARROW = ROWS // 2 * LENGTH * WIDTH * 4
BROAD = ROWS // 2 * LENGTH * WIDE * 4
MODEL = ("model",)
GATHER, REDUCE = ("all-gather", MODEL), ("all-reduce", MODEL)
COLS, BY_ROWS = ColwiseParallel, RowwiseParallel

#   name                       module, input and plan, where the output lies, and what is exchanged
CASES: dict[str, tuple[Any, Any, Any, Any, Any]] = {
    "columns":                 (up, floats, COLS(), (Shard(0), Shard(2)), []),
    "columns, then whole":     (up, floats, COLS(output_layouts=WHOLE), (Shard(0), WHOLE),
                                [(*GATHER, BROAD)]),
    "columns of a sequence":   (up, floats, COLS(input_layouts=Shard(1)), (Shard(0), Shard(2)),
                                [(*GATHER, NARROW)]),
    "rows":                    (up, floats, BY_ROWS(), (Shard(0), WHOLE), [(*REDUCE, BROAD)]),
    "rows of a whole":         (up, floats, BY_ROWS(input_layouts=WHOLE), (Shard(0), WHOLE),
                                [(*REDUCE, BROAD)]),
    "rows, to a sequence":     (up, floats, BY_ROWS(output_layouts=Shard(1)), (Shard(0), Shard(1)),
                                [(*REDUCE, BROAD)]),
    "columns, then rows":      (mlp, floats, {"up": COLS(), "down": BY_ROWS()}, (Shard(0), WHOLE),
                                [(*REDUCE, NARROW)]),
    "the sum is left open":    (mlp, floats, {"up": COLS(), "down": BY_ROWS(output_layouts=SUM), "":
                                PrepareModuleOutput(output_layouts=SUM, desired_output_layouts=WHOLE)},
                                (Shard(0), WHOLE), [(*REDUCE, NARROW)]),
    "all of a sequence":       (mlp, floats, {"norm": SequenceParallel(),
                                "up": COLS(input_layouts=Shard(1)),
                                "down": BY_ROWS(output_layouts=Shard(1))}, (Shard(0), Shard(1)),
                                [(*GATHER, NARROW), (*REDUCE, NARROW)]),
    "a norm of a sequence":    (lambda: nn.LayerNorm(WIDTH), floats, SequenceParallel(),
                                (Shard(0), Shard(1)), []),
    "a norm of columns":       (lambda: nn.RMSNorm(WIDTH), floats, SequenceParallel(sequence_dim=-1),
                                (Shard(0), Shard(2)), [(*REDUCE, ROWS // 2 * LENGTH * 4)]),
    "words by columns":        (words, numbers, COLS(), (Shard(0), Shard(2)), []),
    "words, whole":            (words, numbers, COLS(output_layouts=WHOLE), (Shard(0), WHOLE),
                                [(*GATHER, NARROW)]),
    "words by rows":           (words, numbers, BY_ROWS(), (Shard(0), WHOLE), [(*REDUCE, NARROW)]),
    "words, to a sequence":    (words, numbers, BY_ROWS(output_layouts=Shard(1)),
                                (Shard(0), Shard(1)), [(*REDUCE, NARROW)]),
    "an input is gathered":    (mlp, floats, PrepareModuleInput(
                                input_layouts=Shard(1), desired_input_layouts=WHOLE),
                                (Shard(0), WHOLE), [(*GATHER, NARROW)]),
    "an output is scattered":  (mlp, floats, PrepareModuleOutput(
                                output_layouts=WHOLE, desired_output_layouts=Shard(1)),
                                (Shard(0), Shard(1)), []),
    "input and output":        (mlp, floats, PrepareModuleInputOutput(
                                input_layouts=Shard(1), desired_input_layouts=WHOLE,
                                output_layouts=WHOLE, desired_output_layouts=Shard(1)),
                                (Shard(0), Shard(1)), [(*GATHER, NARROW)]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_chips_exchange_what_the_style_says(case: str) -> None:
    make, batch, plan, lies, expected = CASES[case]
    torch.manual_seed(0)
    mesh, theirs = Mesh((2, 4), ("data", "model")), make()
    ours = copy.deepcopy(theirs).to("pjrt")
    x = distribute_tensor(batch(), mesh, ("data",))

    parallelize_module(ours, mesh["model"], plan)
    torch_pjrt.sync()
    with torch.no_grad():
        y = ours(x)
    torch_pjrt.sync()

    last = torch_pjrt.report().programs[-1].number
    # Whether numbers of words are in range is found out by exchanging them.
    checked = 0 if batch is floats else numbers().nbytes
    new = [c for c in collectives() if c.program == last and c.n_bytes > checked]
    found = [(c.kind, c.axes, c.n_bytes) for c in new]
    assert not any(c.resharding for c in new)
    assert sorted(found) == sorted(expected)
    torch.testing.assert_close(y.cpu(), theirs(batch()).detach(), rtol=1e-5, atol=1e-5)
    assert placements_of(y) == lies


#   given, wanted              which dim is spread, and whether the gradient's is
STEPS: list[tuple[Any, Any, list[tuple[int | None, bool]]]] = [
    (WHOLE, WHOLE,             [(None, True)]),
    (WHOLE, Shard(1),          [(None, True), (1, False)]),
    (Shard(1), WHOLE,          [(1, True), (None, False)]),
    (Shard(1), Shard(-1),      [(1, True), (-1, False)]),
    (Shard(1), None,           [(1, True)]),
    (SUM, Shard(1),            [(1, True)]),
    (SUM, WHOLE,               [(None, True)]),
    (Shard(1), SUM,            [(1, True)]),
    (SUM, SUM,                 []),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted", "expected"), STEPS, ids=str)
def test_gradients_lie_as_what_is_given(given: Any, wanted: Any, expected: Any) -> None:
    assert list(map(tuple, steps(given, wanted))) == expected


@pytest.mark.parametrize(("given", "lies"), [(Shard(1), Shard(1)), (WHOLE, WHOLE)], ids=str)
def test_the_gradient_of_an_input_lies_as_the_input_does(mesh: Mesh, given: Any, lies: Any) -> None:
    model = parallelize_module(up().to("pjrt"), mesh["model"], COLS(input_layouts=given))
    x = distribute_tensor(floats(), mesh, ("data",)).requires_grad_()
    gradients: list[torch.Tensor] = []
    inner = x * 2
    inner.register_hook(gradients.append)

    model(inner).tanh().sum().backward()

    assert placements_of(gradients[0]) == (Shard(0), lies)


@pytest.fixture
def mesh() -> Mesh:
    return Mesh((2, 4), ("data", "model"))


def test_styles_keep_how_weights_lie_along_other_axes(mesh: Mesh) -> None:
    model = Mlp().to("pjrt")
    for p in model.parameters():
        mark_sharding(p, mesh, ("data",))

    parallelize_module(model, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})

    assert placements_of(model.up.weight) == (Shard(0), Shard(0))
    assert placements_of(model.down.weight) == (Shard(0), Shard(1))
    assert placements_of(model.down.bias) == (Shard(0), WHOLE)
    assert placements_of(model.norm.weight) == (Shard(0), WHOLE)


def test_a_module_of_the_host_goes_to_the_device_in_parts(mesh: Mesh) -> None:
    words, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
    head.weight = words.weight
    expected = words.weight.detach().clone()
    model = nn.ModuleDict({"words": words, "head": head})

    parallelize_module(model, mesh["model"], {"words": RowwiseParallel()})

    assert head.weight is words.weight
    assert isinstance(words.weight, nn.Parameter)
    assert placements_of(words.weight) == (WHOLE, Shard(0))
    assert torch.equal(words.weight.detach().cpu(), expected)
    assert head.bias.device.type == "cpu"
    model.to("pjrt")
    (words.weight * 2).sum().backward()
    assert words.weight.grad is not None
    assert placements_of(words.weight.grad) == (WHOLE, Shard(0))


def test_a_parallel_module_is_copied_pickled_and_moved_to_the_host(mesh: Mesh) -> None:
    torch.manual_seed(0)
    model = Mlp()
    expected = model(floats()).detach()
    plan = {"norm": SequenceParallel(), "up": COLS(input_layouts=Shard(1)), "down": BY_ROWS()}
    parallelize_module(model.to("pjrt"), mesh["model"], plan)

    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model):
        torch.testing.assert_close(other(floats().to("pjrt")).detach().cpu(), expected)
    torch.testing.assert_close(model.cpu()(floats()).detach(), expected)


def test_inputs_are_arranged_by_position_and_by_name(mesh: Mesh) -> None:
    style = PrepareModuleInput(
        input_layouts=(Shard(1), None),
        desired_input_layouts=(Shard(2), None),
        input_kwarg_layouts={"other": Shard(1)},
        desired_input_kwarg_layouts={"other": Shard(2)},
    )
    whole = PrepareModuleOutput(
        output_layouts=(Shard(2), None), desired_output_layouts=(Shard(2), None)
    )
    model = parallelize_module(
        parallelize_module(Sum(), mesh["model"], style), mesh["model"], whole
    )
    x = distribute_tensor(floats(), mesh, ("data",))

    y, n = model(x, 3, other=x)

    assert n == 3
    assert placements_of(y) == (Shard(0), Shard(2))
    torch.testing.assert_close(y.cpu(), floats() * 4)
    assert placements_of(x) == (Shard(0), WHOLE)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_distributed_module_calls_its_functions(mesh: Mesh, compiled: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH))
    reference = copy.deepcopy(model)
    given = mesh.to_device_mesh()
    seen = []

    def partition(name: str, module: nn.Module, its_mesh: Any) -> None:
        seen.append((name, its_mesh is given))
        if name == "1":
            weight = module.weight
            assert isinstance(weight, nn.Parameter)
            placed = distribute_tensor(weight.detach(), its_mesh, (WHOLE, Shard(0)))
            module.weight = nn.Parameter(placed)

    distribute_module(
        model,
        given,
        partition,
        input_fn=lambda module, inputs, its_mesh: (
            mark_sharding(inputs[0], mesh, ("data", None)),
            *inputs[1:],
        ),
        output_fn=lambda module, output, its_mesh: mark_sharding(output, mesh, ("data", "model")),
    )

    assert seen == [("", True), ("0", True), ("1", True), ("2", True)]
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"pjrt"}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert placements_of(tensor) == (WHOLE, Shard(0) if name == "1.weight" else WHOLE)
    run = torch.compile(model, backend="pjrt", fullgraph=True) if compiled else model
    x = torch.randn(32, WIDTH)
    y = run(x.to("pjrt"))
    y.square().sum().backward()
    expected = reference(x)
    expected.square().sum().backward()
    torch.testing.assert_close(y.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]
        assert placements_of(p.grad) == placements_of(p)  # type: ignore[arg-type]


def test_without_functions_a_module_has_a_copy_on_each_chip(mesh: Mesh) -> None:
    model = Mlp()
    with use_mesh(mesh):
        assert distribute_module(model) is model
    assert all(placements_of(p) == (WHOLE, WHOLE) for p in model.parameters())


class Own(ColwiseParallel):
    pass


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDE).to("pjrt")


def applied_twice(mesh: Mesh) -> Any:
    model = parallelize_module(linear(), mesh["model"], ColwiseParallel())
    return parallelize_module(model, mesh["model"], RowwiseParallel())


def called(style: ParallelStyle, *inputs: Any, **named: Any) -> Callable[[Mesh], Any]:
    return lambda mesh: parallelize_module(Sum(), mesh["model"], style)(*inputs, **named)


GIVEN = {"input_layouts": (Shard(0),), "desired_input_layouts": (WHOLE,)}
#   what is wrong               raises            and says
WRONG: dict[str, tuple[Callable[[Mesh], Any], type[Exception], str]] = {
    "two axes":                 (lambda m: parallelize_module(linear(), m, ColwiseParallel()),
                                 ShardingError, r"for one axis.*\n.*data.*model.*\n.*mesh\['model'\]"),
    "no mesh":                  (lambda m: parallelize_module(linear(), None, ColwiseParallel()),
                                 ShardingError, "No mesh"),
    "no mesh for a module":     (lambda m: distribute_module(linear()), ShardingError, "No mesh"),
    "no plan":                  (lambda m: parallelize_module(linear(), m["model"], "colwise"),  # type: ignore[arg-type]
                                 TypeError, "saw str"),
    "a style of one's own":     (lambda m: parallelize_module(linear(), m["model"], Own()),
                                 UnsupportedError, "`Own` is no style"),
    "columns of a norm":        (lambda m: parallelize_module(
                                     Mlp(), m["model"], {"norm": ColwiseParallel()}),
                                 NotImplementedError, "`norm` .ColwiseParallel. is another module"),
    "rows of a block":          (lambda m: parallelize_module(Mlp(), m["model"], RowwiseParallel()),
                                 UnsupportedError, "saw: Mlp"),
    "two styles":               (applied_twice, ShardingError, "distributed once"),
    "a weight too small":       (lambda m: parallelize_module(
                                     nn.Linear(WIDTH, 6).to("pjrt"), m["model"], ColwiseParallel()),
                                 ShardingError, "Dim 0 has 6 elements, which 4 chips"),
    "a meta weight":            (lambda m: parallelize_module(
                                     nn.Linear(8, 8, device="meta"), m["model"], ColwiseParallel()),
                                 TypeError, "saw meta"),
    "a sequence too short":     (lambda m: parallelize_module(
                                     nn.Sequential(nn.LayerNorm(8)).to("pjrt"), m["model"],
                                     {"0": SequenceParallel()})(torch.ones(2, 3, 8).to("pjrt")),
                                 ShardingError, r"Dim 1 has 3.*\n.*the input of `0` .SequenceParallel."),
    "no such dim":              (lambda m: parallelize_module(
                                     nn.LayerNorm(8).to("pjrt"), m["model"],
                                     SequenceParallel(sequence_dim=2))(torch.ones(2, 8).to("pjrt")),
                                 ShardingError, "no dim 2"),
    "more inputs than layouts": (called(PrepareModuleInput(**GIVEN), torch.ones(8), 2),
                                 ValueError, "one layout for each of the inputs .*\n.*2 values, 1 lay"),
    "more outputs than layouts": (called(PrepareModuleOutput(
                                     output_layouts=WHOLE, desired_output_layouts=WHOLE), 1),
                                 ValueError, "each of the outputs .*\n.*2 values, 1 layouts"),
    "an input that is a number": (called(PrepareModuleInput(**GIVEN), 3),
                                 TypeError, "input 0 of .*saw int"),
    "two arguments":            (lambda m: distribute_module(linear(), m, None, lambda x, m: x),  # type: ignore[misc, arg-type]
                                 TypeError, "input_fn takes a module, a value and a mesh"),
    "one argument":             (lambda m: distribute_module(linear(), m, None, None, lambda x: x),  # type: ignore[misc, arg-type]
                                 TypeError, "output_fn takes"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_raises(mesh: Mesh, case: str) -> None:
    call, kind, says = WRONG[case]
    with pytest.raises(kind, match=says):
        call(mesh)


@pytest.mark.parametrize("pattern", ["left", "up.left", "[xy]*", "*.*"])
def test_a_name_that_matches_nothing_is_warned_of(mesh: Mesh, pattern: str) -> None:
    model = Mlp().to("pjrt")

    with pytest.warns(UserWarning, match="named as"):
        parallelize_module(model, mesh["model"], {pattern: ColwiseParallel()})

    assert placements_of(model.up.weight) == ()
    with pytest.warns(UserWarning, match="without a plan"):
        assert parallelize_module(model, mesh["model"]) is model
