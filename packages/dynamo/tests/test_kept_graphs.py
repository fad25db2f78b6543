"""Compiled functions that PyTorch keeps on disk: what is loaded computes what the CPU computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

import torch_pjrt
import warm
from torch_pjrt.errors import DonatedTensor, UnsupportedError
from torch_pjrt.extend import add_program_hooks

Tensor = torch.Tensor
Function = Callable[..., Any]
Arguments = Callable[[str], tuple[Any, ...]]

CONSTANT = [2.0, 3.0, 4.0]


def matrices(device: str, *, n: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(3, 3, generator=generator).to(device) for _ in range(n)]
    return tuple(x.requires_grad_() for x in made)


def without_gradients(device: str) -> tuple[Tensor, ...]:
    return tuple(x.detach() for x in matrices(device))


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh().sum(0)


def several(x: Tensor, w: Tensor) -> tuple[Tensor, dict[str, Tensor], int]:
    return x * 2, {"b": (x @ w).exp(), "same": x}, 3


def views(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    return y[0], y.t()


def writes(x: Tensor, w: Tensor) -> Tensor:
    x.add_(w)
    w[0] = 1
    return x * w


def written_results(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y[1] = x[0]
    y.mul_(2)
    return y


def constants(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.tensor(CONSTANT, device=x.device) + torch.arange(3.0, device=x.device) @ w


def branches(x: Tensor, w: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x, w: (x @ w).sin(), lambda x, w: x - w, (x, w))


def without_gradients_within(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        scale = (x @ w).abs().mean()
    return (x * w) / scale


def in_bfloat16(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return (x @ w).float().sin()


def checkpointed(x: Tensor, w: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(product, x, w, use_reentrant=False)  # type: ignore[attr-defined]


def attention(x: Tensor, w: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(
        x[None, None], w[None, None], x[None, None], is_causal=True
    )


class Doubled(torch.autograd.Function):
    """With a gradient that is none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 7 * ctx.saved_tensors[0]


def with_its_own_backward(x: Tensor, w: Tensor) -> Tensor:
    return Doubled.apply(x @ w).sin()  # type: ignore[no-untyped-call]


class Net(nn.Module):
    """With parameters, and buffers that a call changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def of_a_module(net: Net, x: Tensor) -> Tensor:
    return net(x).square().mean()


def net_and_matrix(device: str) -> tuple[Any, ...]:
    return Net().to(device), matrices(device)[0]


CASES: dict[str, tuple[Function, Arguments]] = {
    f.__name__: (f, matrices)
    for f in (product, several, views, written_results, constants, branches, without_gradients_within,
              in_bfloat16, checkpointed, attention, with_its_own_backward)
} | {
    f"{f.__name__}, no gradients": (f, without_gradients)
    for f in (product, several, views, writes, constants, branches, attention)
} | {"of_a_module": (of_a_module, net_and_matrix)}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    settings: Any = torch._dynamo.config
    asked_for = hasattr(settings, "enable_aot_compile")  # by PyTorch 2.11
    torch._dynamo.reset()
    with settings.patch(enable_aot_compile=True) if asked_for else nullcontext():
        yield
    torch._dynamo.reset()


def compiled_ahead(function: Function, args: tuple[Any, ...], **how: Any) -> Any:
    compiled: Any = torch.compile(function, fullgraph=True, backend="pjrt", **how)
    return compiled.aot_compile((args, {}))


def kept_and_loaded(compiled: Any, path: Path) -> Function:
    compiled.save_compiled_function(str(path))
    torch._dynamo.reset()
    with path.open("rb") as file:
        return torch.compiler.load_compiled_function(file)


def called(function: Function, args: tuple[Any, ...]) -> list[Any]:
    """What a call gives, what it makes of its arguments, and the gradients of those."""
    results = function(*args)
    tensors = [x for x in tree_leaves(results) if isinstance(x, Tensor)]
    if any(x.requires_grad for x in tensors):
        sum((x * x).sum() for x in tensors).backward()  # type: ignore[union-attr]
    given: list[Tensor] = []
    for arg in args:
        given += [*arg.parameters(), *arg.buffers()] if isinstance(arg, nn.Module) else [arg]
    found = [results, *given, *[x.grad for x in given]]
    return tree_map_only(Tensor, lambda x: x.detach().cpu(), found)


def skip_unless_pytorch_can_load(function: Function, path: Path) -> None:
    """Of PyTorch's own backend: 2.13 cannot load the guards of a function with branches."""
    compiled: Any = torch.compile(function, fullgraph=True, backend="eager")
    try:
        kept_and_loaded(compiled.aot_compile((without_gradients("cpu"), {})), path)
    except RuntimeError as error:
        pytest.skip(f"PyTorch cannot load it on the CPU either: {error}")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by Dynamo
@pytest.mark.parametrize("name", CASES)
def test_loaded_functions_compute_what_the_cpu_computes(name: str, tmp_path: Path) -> None:
    function, arguments = CASES[name]
    compiled = compiled_ahead(function, arguments("pjrt"))
    wanted = called(function, arguments("cpu"))

    found = called(compiled, arguments("pjrt"))
    if function is branches:
        skip_unless_pytorch_can_load(branches, tmp_path / "of PyTorch")
    loaded = kept_and_loaded(compiled, tmp_path / "function")
    again = [called(loaded, arguments("pjrt")) for _ in range(2)]

    tolerance = 0.02 if function is in_bfloat16 else 1e-5
    for x in (found, *again):
        torch.testing.assert_close(x, wanted, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(again, [found, found], rtol=0, atol=0)


def test_tensors_of_the_host_are_brought_to_the_device(tmp_path: Path) -> None:
    loaded = kept_and_loaded(compiled_ahead(product, matrices("cpu")), tmp_path / "function")

    found, wanted = called(loaded, matrices("cpu")), called(product, matrices("cpu"))

    torch.testing.assert_close(found, wanted)


def test_options_are_kept(tmp_path: Path) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return x @ w + 1

    options = {"donate": ["x"], "precision": "highest"}
    compiled = compiled_ahead(function, without_gradients("pjrt"), options=options)
    x, w = without_gradients("pjrt")
    torch_pjrt.sync()
    y = kept_and_loaded(compiled, tmp_path / "function")(x, w)

    torch.testing.assert_close(y.cpu(), function(*without_gradients("cpu")))
    with pytest.raises(DonatedTensor):
        x.cpu()


def test_random_numbers_are_those_of_the_seed(tmp_path: Path) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(x @ w, 0.5) + torch.rand_like(x)

    compiled = compiled_ahead(function, matrices("pjrt"))

    def drawn(function: Function) -> list[Any]:
        torch.manual_seed(3)
        return called(function, matrices("pjrt"))

    found = drawn(compiled)
    again = drawn(kept_and_loaded(compiled, tmp_path / "function"))

    torch.testing.assert_close(again, found, rtol=0, atol=0)


def test_a_function_that_no_other_process_finds_is_refused(tmp_path: Path) -> None:
    @torch._dynamo.allow_in_graph
    def local(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    def function(x: Tensor, w: Tensor) -> Tensor:
        return local(x, w) + 1

    compiled = compiled_ahead(function, without_gradients("pjrt"))

    wanted = function(*without_gradients("cpu"))
    torch.testing.assert_close(compiled(*without_gradients("pjrt")).cpu(), wanted)
    with pytest.raises(UnsupportedError, match="local"):
        compiled.save_compiled_function(str(tmp_path / "function"))


def test_a_size_that_varies_is_refused_where_it_would_be_kept(tmp_path: Path) -> None:
    compiled = compiled_ahead(product, matrices("pjrt"), dynamic=True)

    torch.testing.assert_close(
        called(compiled, matrices("pjrt")), called(product, matrices("cpu")), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(UnsupportedError, match="a size that varies"):
        compiled.save_compiled_function(str(tmp_path / "function"))


def test_lines_and_modules_are_kept(tmp_path: Path) -> None:
    def lines() -> list[str]:
        found: list[str] = []

        def note(program: Any) -> None:
            found.extend(
                sorted({f"{n.line} {n.line.module}" for n in program.graph.nodes if n.line})
            )

        with add_program_hooks(before_launch=note):
            torch_pjrt.sync()
        return found

    net, x = net_and_matrix("pjrt")
    net.eval()
    with torch.no_grad():
        compiled = compiled_ahead(of_a_module, (net, x))
        torch_pjrt.sync()
        results = [compiled(net, x)]
        wanted = lines()
        results.append(kept_and_loaded(compiled, tmp_path / "function")(net, x))
        found = lines()

    assert any("Net/layers/0" in line for line in wanted)
    assert found == wanted


OF_A_CACHE = """
import sys
import torch
from torch._dynamo.utils import counters

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x.sum()

torch.manual_seed(0)
net = Net().to("pjrt")
compiled = torch.compile(net, backend="pjrt")
for _ in range(2):
    compiled(torch.ones(2, 4, device="pjrt")).backward()
print("%.6f" % net.layers[0].weight.grad.sum().item())
print(dict(counters["dynamo_cache"]), counters["frames"]["total"])
torch.compiler.save_cache_artifacts()
"""


def test_a_later_process_traces_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(OF_A_CACHE)
    environment = {
        **os.environ,
        "TORCH_CACHING_PRECOMPILE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }

    first, second = (warm.run([str(script)], environment) for _ in range(2))

    assert first.returncode == second.returncode == 0, (first.stderr, second.stderr)
    (gradient, traced), (again, loaded) = (x.stdout.splitlines() for x in (first, second))
    assert gradient == again
    assert traced == "{'dynamo_cache_miss': 1} 1"
    assert loaded == "{'dynamo_cache_hit': 1} 0"
