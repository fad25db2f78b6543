"""What packages add to programs: operators of their own, and annotations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torch_pjrt
from fixture_types import Count, Run
from torch_pjrt import extend
from torch_pjrt.errors import DuplicateLowering, LoweringError, SettingError
from torch_pjrt.plugin import Builder, Graph, LoopOp, Node, Ref, rewritten

bodies: list[str] = []


# An operator of a package's own: the Python body is the CPU's.


@torch.library.custom_op("extend_test::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    bodies.append(x.device.type)
    return x * factor


@scale.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


scale.register_autograd(lambda ctx, g: (scale(g, ctx.factor), None), setup_context=_keep)


@extend.lowers(torch.ops.extend_test.scale.default)
def _scale(x: jax.Array, factor: Any) -> jax.Array:
    return x * factor


@torch.library.custom_op("extend_test::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """It has no fake kernel: the rule says what the results look like."""
    bodies.append(x.device.type)
    return x[: len(x) // 2].clone(), x[len(x) // 2 :].long()


@extend.lowers(torch.ops.extend_test.halves.default)
def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x[: len(x) // 2], x[len(x) // 2 :].astype("int64")


@torch.library.custom_op("extend_test::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("its body ran")


@extend.lowers(torch.ops.extend_test.noise.default, random=True)
def _noise(key: jax.Array, x: jax.Array) -> jax.Array:
    return jax.random.normal(key, x.shape, x.dtype)


@torch.library.custom_op("extend_test::counted_up", mutates_args=())
def counted_up(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("its body ran")


@extend.lowers(torch.ops.extend_test.counted_up.default)
@extend.without_x64
def _counted_up(x: jax.Array) -> jax.Array:
    assert jnp.arange(3).dtype == "int32"
    return x + jnp.arange(len(x))


lowerings: list[Any] = []


@torch.library.custom_op("extend_test::plus_sines", mutates_args=())
def plus_sines(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("its body ran")


@plus_sines.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def sines_of(module: Any) -> int:
    return str(module).count("stablehlo.sine")


@extend.lowers(torch.ops.extend_test.plus_sines.default)
def _plus_sines(x: jax.Array) -> jax.Array:
    """The array, and how many sines its program has."""
    now = extend.lowering_now()
    lowerings.append((now.n_asked, found := now.ask(sines_of)))
    return x + (0 if found is None else found)


@pytest.fixture(autouse=True)
def no_bodies() -> Iterator[None]:
    bodies.clear()
    yield
    assert "pjrt" not in bodies


def test_call_is_recorded_by_the_rule_and_the_body_does_not_run(compiled: Count):
    x = torch.randn(4, device="pjrt")

    y = scale(x, 2.5) + 1

    assert not bodies
    torch.testing.assert_close(y.cpu(), x.cpu() * 2.5 + 1)
    assert compiled() == 1


def test_number_that_changes_becomes_an_input_of_the_program(compiled: Count):
    x = torch.ones(4, device="pjrt")

    made = [float(scale(x, factor).sum()) for factor in (1.5, 2.5, 3.5, 4.5)]

    assert made == [6, 10, 14, 18]
    assert compiled() == 2


def test_gradient_is_the_registered_one():
    x = torch.randn(3, device="pjrt", requires_grad=True)

    scale(x * 2, 3.0).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [6, 6, 6]
    assert not bodies


def test_operator_without_a_fake_kernel_looks_as_its_rule_says():
    x = torch.arange(4.0, device="pjrt")

    low, high = halves(x)

    assert (low.tolist(), high.tolist(), high.dtype) == ([0, 1], [2, 3], torch.int64)
    assert not bodies


def test_random_rule_draws_from_the_generator_of_the_device():
    x = torch.zeros(64, device="pjrt")
    torch.manual_seed(3)
    first, second = noise(x), noise(x)
    torch.manual_seed(3)

    assert torch.equal(noise(x), first)
    assert not torch.equal(first, second)


def test_rule_without_x64_has_32_bits():
    assert counted_up(torch.zeros(3, device="pjrt")).tolist() == [0, 1, 2]


def test_rule_that_asks_of_its_program_is_told_when_it_is_lowered_again(compiled: Count):
    lowerings.clear()
    x = torch.zeros(3, device="pjrt")

    y = plus_sines(plus_sines(x.sin()) * x.sin().sin())

    assert y.tolist() == [2, 2, 2]  # equal ones are merged
    assert lowerings == [(0, None), (1, None), (0, 2), (1, 2)]
    assert compiled() == 1
    assert (extend.lowering_now().n_asked, len(extend.lowering_now().chips)) == (0, 0)


def test_wrong_call_raises_what_the_fake_kernel_raises():
    with pytest.raises((TypeError, RuntimeError)):
        scale(torch.zeros(3, device="pjrt"), "a")  # type: ignore[arg-type]


def test_compiled_function_keeps_the_operator():
    x = torch.randn(4, device="pjrt", requires_grad=True)
    compiled = torch.compile(lambda x: scale(x, 2.0).relu(), backend="pjrt", fullgraph=True)

    y = compiled(x)
    y.sum().backward()

    torch.testing.assert_close(y.cpu(), (x.cpu() * 2).relu())
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), (x.cpu() > 0) * 2.0)
    assert not bodies


def test_cpu_runs_the_body():
    assert scale(torch.ones(2), 2.0).tolist() == [2, 2]
    assert bodies == ["cpu"]


def test_second_rule_and_rules_for_operators_of_pytorch_are_refused():
    with pytest.raises(DuplicateLowering, match=r"extend_test\.scale"):
        extend.lowers(torch.ops.extend_test.scale.default)(_scale)
    with pytest.raises(LoweringError, match=r"hint: .*torch_pjrt_lowerings"):
        extend.lowers(torch.ops.aten.sin.default)(_scale)


# Annotations.

extend.define_annotation("extend_test.named")
extend.define_annotation("extend_test.times", lambda x, factor: x * factor, gradient=False)
extend.define_annotation("extend_test.back", lambda x, factor: x * factor, gradient=False)
extend.define_annotation("extend_test.there", gradient="extend_test.back")


class Seen:
    """A pass that notes annotations, and replaces those of one kind."""

    name = "see-annotations"

    def __init__(self) -> None:
        self.found: list[Any] = []

    def __call__(self, graph: Graph) -> Graph:
        return rewritten(graph, self.rewrite)

    def rewrite(self, node: Node, build: Builder) -> Ref | None:
        found = extend.annotation_of(node)
        if found is None:
            return None
        self.found.append(found)
        return build.inputs[0]


def test_annotation_keeps_the_value_and_passes_see_it(compiled: Count):
    graphs: list[Graph] = []
    x = torch.randn(3, device="pjrt")

    with extend.add_program_hooks(before_compile=graphs.append):
        y = extend.annotate(x * 2, "extend_test.named", "scores", (0, ["a", None]), 1.5)
        torch.testing.assert_close(y.cpu(), x.cpu() * 2)

    seen = Seen()
    after = seen(graphs[0])
    assert seen.found == [extend.Annotation("extend_test.named", ("scores", (0, ("a", None)), 1.5))]
    assert len(after.nodes) == len(graphs[0].nodes) - 1


def test_annotations_that_differ_are_programs_that_differ(compiled: Count):
    x = torch.ones(3, device="pjrt")
    torch_pjrt.sync()

    made = [extend.annotate(x, "extend_test.times", n).tolist()[0] for n in (2, 3, 2)]

    assert made == [2, 3, 2]
    assert compiled() == 2


@pytest.mark.parametrize(("kind", "args", "times"), [("named", (), 2), ("times", (3,), 1)])
def test_gradient_gets_the_annotation_where_its_kind_says_so(
    compiled: Count, kind: str, args: Any, times: int
):
    graphs: list[Graph] = []
    x = torch.ones(3, device="pjrt", requires_grad=True)

    with extend.add_program_hooks(before_compile=graphs.append):
        y = extend.annotate(x * 1, f"extend_test.{kind}", *args)
        y.sum().backward()
        torch_pjrt.sync()

    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1]
    assert sum(extend.annotation_of(n) is not None for g in graphs for n in g.nodes) == times


@pytest.mark.parametrize("in_a_graph", [False, True])
def test_gradient_gets_the_annotation_of_another_kind_where_its_kind_says_so(in_a_graph: bool):
    def f(x: torch.Tensor) -> torch.Tensor:
        return extend.annotate(x * 1, "extend_test.there", 5).sum()

    x = torch.ones(3, device="pjrt", requires_grad=True)

    y = (torch.compile(f, backend="pjrt", fullgraph=True) if in_a_graph else f)(x)
    y.backward()

    assert y.item() == 3
    assert x.grad is not None
    assert x.grad.tolist() == [5, 5, 5]


def test_annotation_within_a_compiled_function_breaks_no_graph():
    def f(x: torch.Tensor) -> torch.Tensor:
        return extend.annotate(x.sin(), "extend_test.times", 4).sum()

    x = torch.randn(5, device="pjrt", requires_grad=True)

    y = torch.compile(f, backend="pjrt", fullgraph=True)(x)
    y.backward()

    torch.testing.assert_close(y.cpu(), x.cpu().sin().sum() * 4)
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), x.cpu().cos())


def test_annotation_in_a_captured_step_stays():
    w = torch.ones(3, device="pjrt")

    @torch_pjrt.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        w.add_(x)
        return extend.annotate(w, "extend_test.times", 2).sum()

    assert [float(step(torch.ones(3, device="pjrt"))) for _ in range(5)] == [12, 18, 24, 30, 36]


def test_cpu_tensor_may_be_annotated():
    assert extend.annotate(torch.ones(2), "extend_test.times", 2).tolist() == [1, 1]


def test_unknown_kind_taken_name_and_other_arguments_are_refused():
    x = torch.ones(2, device="pjrt")

    with pytest.raises(SettingError, match=r"No annotation of the kind `extend_test\.nothing`"):
        extend.annotate(x, "extend_test.nothing")
    with pytest.raises(TypeError, match="not object"):
        extend.annotate(x, "extend_test.named", object())
    with pytest.raises(TypeError, match="not float"):
        extend.annotate(x, "extend_test.named", float("nan"))
    with pytest.raises(SettingError, match="already"):
        extend.define_annotation("extend_test.times", lambda x: x)


def test_own_operators_and_annotations_are_in_rolled_layers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch_pjrt.config, "roll_layers", "on")
    graphs: list[Graph] = []
    weights = torch.randn(6, 4, 4)

    def losses(device: str, times: Callable[..., torch.Tensor]) -> list[float]:
        layers = [torch.nn.Parameter(w.clone().to(device)) for w in weights]
        optimizer = torch.optim.SGD(layers, lr=0.01)
        made = []
        for _ in range(3):
            x = torch.ones(2, 4, device=device)
            for layer in layers:
                x = times(scale((x @ layer).tanh(), 1.5))
            loss = x.square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.append(loss.detach())
        return [float(loss) for loss in made]

    expected = losses("cpu", lambda x: x)
    bodies.clear()
    with extend.add_program_hooks(
        after_compile=lambda program: graphs.append(program.graph),
    ):
        found = losses("pjrt", lambda x: extend.annotate(x, "extend_test.named", "layer"))

    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    loops = [n.op.body for g in graphs for n in g.nodes if isinstance(n.op, LoopOp)]
    assert any(extend.annotation_of(n) is not None for body in loops for n in body.nodes)
    assert any(n.op is torch.ops.extend_test.scale.default for body in loops for n in body.nodes)


def test_vmap_and_checkpoint_take_them():
    x = torch.randn(3, 4, device="pjrt", requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        return extend.annotate(scale(x, 2.0), "extend_test.named")

    checkpoint(f, x, use_reentrant=False).sum().backward()

    assert x.grad is not None
    assert x.grad.unique().tolist() == [2]
    mapped = torch.func.vmap(f)(x.detach())  # PyTorch's loop over the batch
    torch.testing.assert_close(mapped.cpu(), x.detach().cpu() * 2)


def test_nested_tape_refuses_a_value_that_is_pending_outside():
    x = torch.ones(3, device="pjrt") + 1
    scratch = extend.Tape(nested=True)

    with extend.onto(scratch), pytest.raises(LoweringError):
        _ = x * 2

    assert x.tolist() == [2, 2, 2]


# On disk, in a process that adds its rules before the device has started.

PACKAGE = """
import torch
from torch_pjrt import extend

@torch.library.custom_op("on_disk::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("its body ran")

@twice.register_fake
def _(x):
    return torch.empty_like(x)

@extend.lowers(torch.ops.on_disk.twice.default)
def _twice(x):
    return x * 2

def marked(x, factor):
    return x * factor

extend.define_annotation("on_disk.marked", marked)
"""
USE = """
import json
import torch, torch_pjrt
import written
from torch_pjrt import extend

x = torch.ones(3, device="pjrt")
made = extend.annotate(written.twice(x), "on_disk.marked", 5).tolist()
print(json.dumps([made, {k: torch_pjrt.report().as_dict()[k] for k in
    ("programs_compiled", "programs_loaded", "not_kept")}]))
"""
CLOSURE = USE.replace(
    "x = torch",
    'extend.define_annotation("on_disk.closed", (lambda n: lambda x: x * n)(3)FINGERPRINT)\nx = torch',
).replace('"on_disk.marked", 5', '"on_disk.closed"')


@pytest.mark.slow
def test_programs_with_them_are_kept_on_disk_until_the_package_changes(python: Run, tmp_path: Path):
    package, cache = tmp_path / "package", tmp_path / "cache"
    package.mkdir()
    (package / "written.py").write_text(PACKAGE)
    paths = {"PYTHONPATH": f"{package}:{_paths()}", "TORCH_PJRT_CACHE_DIR": str(cache)}

    def ran(script: str) -> Any:
        return json.loads(python(script, **paths).stdout.splitlines()[-1])

    first, second = ran(USE), ran(USE)
    (package / "written.py").write_text(PACKAGE.replace("x * 2", "x * 3"))
    third = ran(USE)
    unknown = ran(CLOSURE.replace("FINGERPRINT", ""))

    assert first == [[10, 10, 10], {"programs_compiled": 1, "programs_loaded": 0, "not_kept": {}}]
    assert second == [[10, 10, 10], {"programs_compiled": 0, "programs_loaded": 1, "not_kept": {}}]
    assert third[0] == [15, 15, 15]
    assert unknown[0] == [9, 9, 9]
    assert "on_disk.closed" in str(unknown[1]["not_kept"])


def _paths() -> str:
    import os

    return os.environ.get("PYTHONPATH", "")
