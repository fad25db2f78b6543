"""`scaled_dot_product_attention` is recorded as one operator, and gives what the CPU gives, gradients too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_pjrt
from quickly import compiled_quickly  # noqa: F401  all tests here
from sides import DEVICE, Tolerance, differences, moved, on_both
from torch_pjrt.graph.graph import graph_of
from torch_pjrt.graph.tape import number_on, state
from torch_pjrt.tensor.storage.view import value_of

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 7, 8

NARROW = Tolerance(
    1.6e-2, 2e-2, "16 bits; the CPU rounds weights and scores on its way, sums cancel"
)
NARROW_DTYPES = (torch.bfloat16, torch.float16)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def triple(dtype: torch.dtype = torch.float32, key_heads: int = HEADS, keys: int = KEYS) -> Any:
    return (
        normal(BATCH, HEADS, QUERIES, WIDTH, dtype=dtype),
        normal(BATCH, key_heads, keys, WIDTH, dtype=dtype, seed=1),
        normal(BATCH, key_heads, keys, WIDTH, dtype=dtype, seed=2),
    )


SEEN = normal(QUERIES, KEYS).detach() > -0.5
NOWHERE = SEEN & (torch.arange(QUERIES) != 1)[:, None]

#   what is special                its inputs
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nothing": (triple(), {}),
    "causal": (triple(keys=QUERIES), {"is_causal": True}),
    "causal, more keys": (triple(), {"is_causal": True}),
    "bool mask": (triple(), {"attn_mask": SEEN}),
    "bool mask of a batch": (triple(), {"attn_mask": SEEN.expand(BATCH, 1, QUERIES, KEYS)}),
    "nowhere to look": (triple(), {"attn_mask": NOWHERE}),
    "float mask": (triple(), {"attn_mask": normal(QUERIES, KEYS, seed=3).detach()}),
    "float mask with gradient": (triple(), {"attn_mask": normal(BATCH, HEADS, QUERIES, KEYS, seed=3)}),
    "scale": (triple(), {"scale": 0.3}),
    "grouped heads": (triple(key_heads=2), {"enable_gqa": True}),
    "grouped heads, causal": (triple(key_heads=1, keys=QUERIES), {"enable_gqa": True, "is_causal": True}),
    "float64": (triple(torch.float64), {}),
    "bfloat16": (triple(torch.bfloat16), {}),
    "bfloat16, causal": (triple(torch.bfloat16, keys=QUERIES), {"is_causal": True}),
    "float16": (triple(torch.float16), {}),
    "three dims": ((normal(3, 5, 8), normal(3, 6, 8, seed=1), normal(3, 6, 8, seed=2)), {}),
    "two dims": ((normal(5, 8), normal(6, 8, seed=1), normal(6, 8, seed=2)), {}),
    "five dims": (tuple(normal(2, 3, 2, 4, 8, seed=i) for i in range(3)), {}),
    "values of another width": ((normal(2, 4, 5, 8), normal(2, 4, 7, 8), normal(2, 4, 7, 3)), {}),
    "one key": (triple(keys=1), {}),
    "widths differ": ((normal(2, 4, 5, 8), normal(2, 4, 7, 6), normal(2, 4, 7, 8)), {}),
    "dtypes differ": ((normal(2, 4, 5, 8), normal(2, 4, 7, 8).double(), normal(2, 4, 7, 8)), {}),
    "heads differ": (triple(key_heads=2), {}),
}  # fmt: skip


def attended(device: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """Output and gradients of all that wants one."""
    memo: dict[int, torch.Tensor] = {}
    given, named = moved(args, device, memo), moved(kwargs, device, memo)
    y = F.scaled_dot_product_attention(*given, **named)
    weights = torch.linspace(0.5, 1.5, y.numel()).to(y.dtype).reshape(y.shape)
    leaves = [t for t in memo.values() if t.requires_grad]
    return {"output": y, "gradients": torch.autograd.grad(y, leaves, weights.to(device))}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", CALLS)
def test_output_and_gradients_are_those_of_the_cpu(name: str) -> None:
    args, kwargs = CALLS[name]

    case = on_both(
        name,
        lambda device: attended(device, args, kwargs),
        NARROW if args[0].dtype in NARROW_DTYPES else None,
        strides=False,  # of CPU's output: as its flash kernel lays it, heads inside positions
    )

    assert not differences([case])


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_lie_as_on_cpu(transposed: bool) -> None:
    def strides(device: str) -> list[tuple[int, ...]]:
        q, k, v = (x.detach().to(device) for x in triple())
        if transposed:
            q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        inputs = [x.requires_grad_() for x in (q, k, v)]
        y = F.scaled_dot_product_attention(*inputs)
        return [y.stride(), *[g.stride() for g in torch.autograd.grad(y.sum(), inputs)]]

    assert strides(DEVICE) == strides("cpu")


def test_mask_and_causal_together_are_refused_as_documented() -> None:
    """The CPU's flash kernel takes both; PyTorch's documentation and its other devices do not."""
    args, _ = moved(CALLS["nothing"], DEVICE)

    with pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal=True"):
        F.scaled_dot_product_attention(*args, attn_mask=SEEN.to(DEVICE), is_causal=True)


def recorded(*results: torch.Tensor) -> list[str]:
    """The names of the operators that make the results."""
    numbers = [number_on(state.tape, value_of(t)) for t in results]
    return [str(node.op) for node in graph_of(state.tape, numbers).nodes]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"enable_gqa": True}], ids=str)
def test_forward_and_backward_are_one_operator_each(options: dict[str, Any]) -> None:
    heads = 2 if options.get("enable_gqa") else HEADS
    q, k, v = moved(triple(key_heads=heads, keys=QUERIES), DEVICE)
    torch_pjrt.sync()

    y = F.scaled_dot_product_attention(q, k, v, **options)
    gradients = torch.autograd.grad(y, (q, k, v), y.detach())

    names = [n for n in recorded(*gradients) if "scaled_dot_product" in n]
    forward = "aten._scaled_dot_product_fused_attention_overrideable"
    assert names == [f"{forward}.default", f"{forward}_backward.default"]
    assert not any("softmax" in n or "mm" in n for n in recorded(*gradients))


def test_dropped_weights_are_the_same_in_the_backward() -> None:
    torch.manual_seed(0)
    q, k, v = moved((normal(2, 4, 64, 8), normal(2, 4, 64, 8), normal(2, 4, 64, 8)), DEVICE)

    y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    other = torch.randn_like(y)
    [gradient] = torch.autograd.grad(y, v, other)

    # The output is linear in the values: both sums are the same number, if the weights are.
    torch.testing.assert_close((gradient * v).sum(), (y * other).sum(), rtol=1e-4, atol=1e-3)


def test_dropout_keeps_the_mean() -> None:
    torch.manual_seed(0)
    q, k = moved((normal(8, 8, 128, 8), normal(8, 8, 128, 8)), DEVICE)

    y = F.scaled_dot_product_attention(q, k, torch.ones_like(k), dropout_p=0.3)

    assert y.mean().item() == pytest.approx(1, abs=0.01)
    assert y.std().item() > 0.01


def test_all_weights_dropped_give_zeros_and_no_gradient() -> None:
    inputs = moved(triple(), DEVICE)

    y = F.scaled_dot_product_attention(*inputs, dropout_p=1.0)
    gradients = torch.autograd.grad(y.sum(), inputs)

    assert not any(x.any() or x.isnan().any() for x in (y, *gradients))


def test_no_probability_of_dropout_is_refused_as_on_cpu() -> None:
    errors = []
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError) as raised:
            F.scaled_dot_product_attention(*moved(triple(), device), dropout_p=1.5)
        errors.append(str(raised.value))

    assert errors[0] == errors[1]


def test_a_chosen_backend_of_another_device_changes_nothing() -> None:
    args, kwargs = CALLS["causal"]
    plain = attended(DEVICE, args, kwargs)["output"]

    with sdpa_kernel(SDPBackend.MATH):
        ours = attended(DEVICE, args, kwargs)["output"]

    torch.testing.assert_close(ours.cpu(), plain.cpu())


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_no_allowed_backend_is_refused(device: str) -> None:
    q, k, v = moved(triple(torch.float32), device)

    with sdpa_kernel(SDPBackend.ERROR):
        with pytest.raises(RuntimeError, match="No viable backend"):
            F.scaled_dot_product_attention(q, k, v)
        with pytest.raises(RuntimeError, match="No viable backend"):
            torch._fused_sdp_choice(q, k, v)


def test_second_derivative_is_that_of_the_cpu() -> None:
    results = []
    for device in ("cpu", DEVICE):
        q, k, v = moved(triple(torch.float64), device)
        with sdpa_kernel(SDPBackend.MATH):
            y = F.scaled_dot_product_attention(q, k, v)
        [gradient] = torch.autograd.grad((y**2).sum(), q, create_graph=True)
        results.append([g.cpu() for g in torch.autograd.grad((gradient**2).sum(), (q, k, v))])

    torch.testing.assert_close(results[1], results[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # on CPU
def test_gradient_of_each_sample_is_that_of_the_cpu() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (F.scaled_dot_product_attention(x, x, x) ** 2).sum()

    x = normal(3, BATCH, HEADS, QUERIES, WIDTH, dtype=torch.float64).detach()
    each = torch.func.vmap(torch.func.grad(loss))

    torch.testing.assert_close(each(x.to(DEVICE)).cpu(), each(x))


def test_attention_without_dropout_draws_no_random_numbers() -> None:
    query = torch.randn(2, 2, 4, 8, device="pjrt", requires_grad=True)
    torch.manual_seed(3)
    F.scaled_dot_product_attention(query, query, query).sum().backward()
    after = torch.rand(3, device="pjrt")

    torch.manual_seed(3)

    assert torch.equal(after, torch.rand(3, device="pjrt"))
