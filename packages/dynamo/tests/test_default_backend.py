"""With no backend named, graphs of the device are ours, whatever leads to them; others are Inductor's."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends import registry
from torch.fx.experimental.proxy_tensor import make_fx

import torch_pjrt_dynamo
from torch_pjrt.errors import UnsupportedError
from torch_pjrt_dynamo import backend
from torch_pjrt_dynamo.options import options_of

Tensor = torch.Tensor
# What `torch.compile` takes: its annotation knows fewer kinds of values.
Options = dict[str, Any]
Way = Callable[[Callable[..., Any]], Callable[..., Any]]


class Alone(nn.Module):
    """Has tensors of its own, and takes none."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6))
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self) -> Tensor:
        return self.weight.tanh() * self.scale


class Tanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.tanh()


def chosen(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


def inner_compiled(x: Tensor) -> Tensor:
    return torch.compile(lambda y: y.sin())(x) + 1


def stepped(x: Tensor) -> Tensor:
    w = x.detach().clone().requires_grad_()
    (w * w).sum().backward()
    assert w.grad is not None
    return w.grad * 2


def written(x: Tensor) -> Tensor:
    x[1:].mul_(2)
    return x.view(2, -1)


PROGRAMS: dict[str, Callable[[str], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "function": lambda d: (lambda x: (x @ x.T).relu(), (matrix(d),)),
    "module": lambda d: (model().to(d), (matrix(d),)),
    "module without inputs": lambda d: (Alone().to(d), ()),
    "factories": lambda d: (lambda: torch.arange(5, device=d) * 2.5, ()),
    "control flow": lambda d: (chosen, (matrix(d),)),
    "compiled inside": lambda d: (inner_compiled, (matrix(d),)),
    "with a backward": lambda d: (stepped, (matrix(d),)),
    "writes": lambda d: (written, (matrix(d),)),
    "brought there": lambda d: (lambda x: x.to(d) + 1, (matrix("cpu"),)),
    "there and back": lambda d: (lambda x: (x.to(d) + 1).cpu(), (matrix("cpu"),)),
    "on both": lambda d: (
        lambda x, y: (x * 2, x.to(d) * y, y.cpu()),
        (matrix("cpu"), matrix(d)),
    ),
    "a number of the host": lambda d: (lambda x, s: x * s, (matrix(d), torch.tensor(3.0))),
}

WAYS: dict[str, Way] = {
    "torch.compile": torch.compile,
    "decorator": torch.compile(dynamic=False),
    "fullgraph": lambda f: torch.compile(f, fullgraph=f is not stepped),
    "dynamic": lambda f: torch.compile(f, dynamic=True),
    "reduce-overhead": lambda f: torch.compile(f, mode="reduce-overhead"),
    "max-autotune": lambda f: torch.compile(f, mode="max-autotune"),
    "by its name": lambda f: torch.compile(f, backend="inductor"),
}


def matrix(device: str) -> Tensor:
    return torch.linspace(-1, 2, 24).reshape(4, 6).to(device)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 2))


@pytest.fixture
def no_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor compiles nothing."""
    import torch._inductor.compile_fx as inductor

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("Inductor compiles a graph.")

    monkeypatch.setattr(inductor, "_maybe_wrap_and_compile_fx_main", refuse)


@pytest.mark.usefixtures("no_inductor")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_device_does_what_it_does_without_a_compiler(name: str, way: str) -> None:
    wanted_of, host = PROGRAMS[name]("cpu")
    plain, given = PROGRAMS[name]("pjrt")
    with torch.compiler.set_stance("force_eager"):
        wanted = wanted_of(*host)
        devices = [x.device.type for x in leaves(plain(*given))]
    function, given = PROGRAMS[name]("pjrt")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")
        saw = WAYS[way](function)(*given)

    torch.testing.assert_close(
        [x.detach().cpu() for x in leaves(saw)], [x.detach() for x in leaves(wanted)]
    )
    assert [x.device.type for x in leaves(saw)] == devices
    torch.testing.assert_close([x.cpu() for x in given], list(host))


def leaves(x: Any) -> list[Tensor]:
    return list(x) if isinstance(x, tuple) else [x]


@pytest.mark.usefixtures("no_inductor")
def test_a_module_is_compiled_in_place_and_trains() -> None:
    ours, theirs = model().to("pjrt"), model()
    ours.compile()

    for m, x in ((ours, matrix("pjrt")), (theirs, matrix("cpu"))):
        m(x).square().sum().backward()

    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad)


def test_gradients_are_where_their_tensors_are() -> None:
    x = matrix("cpu").requires_grad_()
    w = matrix("pjrt").requires_grad_()

    a, b = torch.compile(lambda x, w: (x * 2, x.to("pjrt") * w))(x, w)
    (a.sum() + b.sum().cpu()).backward()

    assert x.grad is not None and w.grad is not None
    torch.testing.assert_close(x.grad, matrix("cpu") + 2)
    torch.testing.assert_close(w.grad.cpu(), matrix("cpu"))


def test_graphs_of_the_host_go_to_inductor_with_its_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch._inductor.compile_fx as inductor

    seen: list[bool] = []

    def compiled(module: torch.fx.GraphModule, *_: Any, **__: Any) -> Any:
        seen.append(inductor.config.epilogue_fusion)
        return module.forward

    monkeypatch.setattr(inductor, "_maybe_wrap_and_compile_fx_main", compiled)
    x = matrix("cpu")

    for fuses in (False, True):
        saw = torch.compile(lambda x: x.sin() + 1, options={"epilogue_fusion": fuses})(x)
        torch.testing.assert_close(saw, x.sin() + 1)

    assert seen == [False, True]


@pytest.mark.usefixtures("no_inductor")
def test_inductors_options_are_named_in_a_warning() -> None:
    compiled = torch.compile(lambda x: x + 1, options={"epilogue_fusion": True})

    with pytest.warns(UserWarning, match="do nothing .*`pjrt`: epilogue_fusion"):
        compiled(matrix("pjrt"))


OURS: dict[str, Any] = {
    "memory_budget": 0.0,
    "precision": "medium",
    "buckets": False,
    "donate": ["x"],
}


@pytest.mark.usefixtures("no_inductor")
@pytest.mark.parametrize("way", ["torch.compile", "by its name", "model.compile"])
@pytest.mark.parametrize("name", OURS)
def test_our_options_need_no_backends_name(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        backend, "options_of", lambda given: seen.append(given) or options_of(given)
    )
    options = Options({name: OURS[name]})
    x = matrix("pjrt")
    if way == "model.compile":
        torch._dynamo.reset()
        module = Tanh()
        module.compile(options=options)
        saw = module(x)
    else:
        named: Options = {"backend": "inductor"} if way == "by its name" else {}
        saw = torch.compile(lambda x: x.tanh(), options=options, **named)(x)

    torch.testing.assert_close(saw.cpu(), matrix("cpu").tanh())
    assert [list(given) for given in seen] == [[name]]


@pytest.mark.usefixtures("no_inductor")
def test_our_options_do_what_they_do_with_the_backends_name() -> None:
    def kept(**how: Any) -> list[Any]:
        torch._dynamo.reset()
        x = matrix("pjrt").requires_grad_()
        torch.compile(lambda x: x.tanh().exp().sin(), **how)(x).sum().backward()
        return [p.kept for p in torch_pjrt_dynamo.partitions()[-1:]]

    for budget in (0.0, 1.0):
        options = {"memory_budget": budget}
        assert kept(options=options) == kept(options=options, backend="pjrt")
    assert kept(options={"memory_budget": 0.0}) != kept()


@pytest.mark.usefixtures("no_inductor")
def test_a_function_that_is_compiled_with_other_options_is_compiled_again() -> None:
    def function(x: Tensor) -> Tensor:
        return x.tanh().exp().sin()

    x = matrix("pjrt").requires_grad_()
    for budget in (0.0, 1.0, 0.0):
        torch.compile(function, options=Options(memory_budget=budget))(x).sum().backward()

    assert [p.budget for p in torch_pjrt_dynamo.partitions()[-2:]] == [0.0, 1.0]


@pytest.mark.usefixtures("no_inductor")
def test_a_bad_option_is_refused_in_words() -> None:
    x = matrix("pjrt")
    with pytest.raises(Exception, match="`memory_budget` cannot be that"):
        torch.compile(lambda x: x + 1, options={"memory_budget": 3})(x)
    with pytest.raises(RuntimeError, match="no_such") as error:
        torch.compile(lambda x: x + 1, options={"no_such": 3})
    assert "memory_budget" in " ".join(error.value.__notes__)


def test_a_graph_of_the_host_goes_to_inductor_without_our_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch._inductor.compile_fx as inductor

    monkeypatch.setattr(
        inductor, "_maybe_wrap_and_compile_fx_main", lambda module, *_, **__: module.forward
    )
    options = Options(memory_budget=0.5, max_autotune=False)
    compiled = torch.compile(lambda x: x + 1, options=options)

    with pytest.warns(UserWarning, match="do nothing for a graph of the CPU: memory_budget"):
        saw = compiled(matrix("cpu"))

    torch.testing.assert_close(saw, matrix("cpu") + 1)


@pytest.mark.skipif(
    not hasattr(registry, "set_default_backend"), reason="users of this PyTorch can set none"
)
@pytest.mark.usefixtures("no_inductor")
def test_a_default_backend_that_the_user_sets_is_taken() -> None:
    seen: list[str] = []

    def own(module: torch.fx.GraphModule, _: Any) -> Any:
        seen.append(next(iter(module.graph.nodes)).op)
        return module.forward

    registry.set_default_backend(own)
    try:
        torch.compile(lambda x: x + 1)(matrix("pjrt"))
    finally:
        registry.set_default_backend(None)

    assert seen == ["placeholder"]


@pytest.mark.usefixtures("no_inductor")
def test_aotinductor_is_refused_in_words() -> None:
    program = torch.export.export(model().to("pjrt"), (matrix("pjrt"),))
    compiled = torch.compile(lambda x: x + 1, options={"use_aoti": True})

    with pytest.raises(UnsupportedError, match="AOTInductor"):
        torch._inductor.aoti_compile_and_package(program)
    with pytest.raises(Exception, match="AOTInductor makes no code"):
        compiled(matrix("pjrt"))


@pytest.mark.usefixtures("no_inductor")
def test_a_graph_given_to_inductor_by_hand_is_ours_too() -> None:
    graph = make_fx(lambda x: (x.exp(),))(matrix("pjrt"))

    compiled: Any = torch._inductor.compile(graph, [matrix("pjrt")])
    (saw,) = compiled(matrix("pjrt"))

    torch.testing.assert_close(saw.cpu(), matrix("cpu").exp())


def test_without_our_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.list_backends()
    monkeypatch.delitem(registry._BACKENDS, "pjrt")

    with pytest.raises(Exception, match=r"torch-pjrt-dynamo(.|\n)*pip install"):
        torch.compile(lambda x: x + 1)(matrix("pjrt"))


@pytest.mark.slow
def test_a_process_that_compiles_nothing_imports_neither_inductor_nor_our_package() -> None:
    program = """
import sys, torch
assert "torch._dynamo" not in sys.modules
torch.ones(2, device="pjrt").add(1).tolist()
assert not {"torch._inductor.compile_fx", "torch_pjrt_dynamo"} & set(sys.modules)
import torch._inductor.compile_fx as inductor
assert "torch_pjrt_dynamo" not in sys.modules
assert inductor.compile_fx.__module__ == "torch._inductor.compile_fx"
assert hasattr(inductor.compile_fx, "stands_before")
assert type(inductor.__spec__.loader).__name__ == "SourceFileLoader"
waiting = [f._name for f in sys.meta_path if type(f).__module__.startswith("torch_pjrt")]
assert "torch._inductor.compile_fx" not in waiting, waiting
"""
    subprocess.run([sys.executable, "-c", program], check=True)
