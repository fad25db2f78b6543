"""Kernels in Triton are compiled for a card, here or not, and are calls of programs with results in place."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.errors import LoweringError

triton: Any = pytest.importorskip("triton", reason="the extra `triton` is not installed")
tl: Any = importlib.import_module("triton.language")
from torch.library import triton_op, wrap_triton  # noqa: E402

from torch_pjrt_kernels.triton import operators  # noqa: E402
from torch_pjrt_kernels.triton.compiled import Pointer, Scalar, compiled  # noqa: E402

HAS_PLUGIN = find_spec("jax_plugins") is not None and any(
    find_spec(f"jax_plugins.xla_cuda{n}") for n in (12, 13)
)
needs_plugin = pytest.mark.skipif(
    not HAS_PLUGIN or os.environ.get("JAX_PLATFORMS") != "cpu",
    reason="JAX's CUDA plugin is not installed (`hatch run aot:run` does), or JAX_PLATFORMS is not `cpu`",
)
pytestmark = pytest.mark.filterwarnings("ignore:.*TRITON_DEFAULT_FP_FUSION")


@triton.jit
def axpy_kernel(x_ptr, out_ptr, y_ptr, alpha, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < n
    y = alpha * tl.load(x_ptr + at, mask=here) + tl.load(y_ptr + at, mask=here)
    tl.store(out_ptr + at, y, mask=here)


@triton_op("triton_test::axpy", mutates_args={})
def axpy(x: torch.Tensor, y: torch.Tensor, alpha: float) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    wrap_triton(axpy_kernel)[(triton.cdiv(n, 128),)](x, out, y, alpha, n, BLOCK=128)
    return out


def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    """`x += y`, by a kernel that reads and writes one array."""
    wrap_triton(axpy_kernel)[(triton.cdiv(x.numel(), 128),)](y, x, x, 1.0, x.numel(), BLOCK=128)


POINTERS = {name: Pointer(torch.float32) for name in ("x_ptr", "out_ptr", "y_ptr")}

#   alpha  n     parameters of the launch behind x_ptr, out_ptr, y_ptr
NUMBERS: list[tuple[Any, Any, tuple[Scalar, ...]]] = [
    (0.5, 1000, (Scalar(0.5, "fp32"), Scalar(1000, "i32"))),
    (2, 1024, (Scalar(2, "i32"), Scalar(1024, "i32"))),
    (0.5, 1, (Scalar(0.5, "fp32"),)),
    (1, 7, (Scalar(7, "i32"),)),
    (0.5, 2**40, (Scalar(0.5, "fp32"), Scalar(2**40, "i64"))),
]


@pytest.mark.parametrize(("alpha", "n", "numbers"), NUMBERS)
def test_arguments_are_specialized_as_triton_does(
    alpha: Any, n: Any, numbers: tuple[Scalar, ...]
) -> None:
    arguments = {**POINTERS, "alpha": alpha, "n": n, "BLOCK": 128}

    launch = compiled(axpy_kernel, arguments, (8, 2), (9, 0))

    assert launch.parameters == (None, None, None, *numbers)
    assert launch.grid == (8, 2, 1)


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a")]
)
def test_code_is_for_the_card_that_is_asked_for(capability: tuple[int, int], target: str) -> None:
    arguments = {**POINTERS, "alpha": 0.5, "n": 1000, "BLOCK": 128}

    launch = compiled(axpy_kernel, arguments, (8,), capability)

    assert f".target {target}\n" in launch.code
    assert ".version 8.7\n" in launch.code
    assert f".entry {launch.name}(" in launch.code


def test_first_configuration_of_an_autotuned_kernel_is_taken() -> None:
    configurations = [triton.Config({"BLOCK": n}, num_warps=w) for n, w in ((64, 2), (256, 8))]
    tuned = triton.autotune(configs=configurations, key=["n"])(axpy_kernel)

    launch = compiled(tuned, {**POINTERS, "alpha": 0.5, "n": 1000}, (16,), (9, 0))

    assert launch.num_warps == 2


def test_what_is_no_kernel_or_lacks_arguments_is_refused() -> None:
    with pytest.raises(LoweringError, match=r"lacks arguments(?s:.*)none for alpha, n"):
        compiled(axpy_kernel, {**POINTERS, "BLOCK": 128}, (1,), (9, 0))
    with pytest.raises(LoweringError, match=r"Only kernels of `@triton.jit`"):
        compiled(len, {}, (1,), (9, 0))
    with pytest.raises(LoweringError, match=r"does not compile the kernel `axpy_kernel` for"):
        compiled(axpy_kernel, {**POINTERS, "alpha": 0.5, "n": 9, "BLOCK": 100}, (1,), (9, 0))


def by_jax(call: Any, written: tuple[int, ...], *arrays: Any) -> list[Any]:
    """What the kernel computes, in its place: no CPU runs it."""
    assert call.kernel is axpy_kernel
    given = dict(call.arguments)
    names = [name for name, value in call.arguments if isinstance(value, Pointer)]
    assert [names[i] for i in written] == ["out_ptr"]
    x, y = (arrays[names.index(name)] for name in ("x_ptr", "y_ptr"))
    return [given["alpha"] * x + y]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls are recorded as they are, and computed on the CPU."""
    monkeypatch.setattr(operators, "launched", by_jax)
    operators._op_of.cache_clear()
    yield
    operators._op_of.cache_clear()


@pytest.mark.usefixtures("computed")
def test_result_is_what_the_kernel_wrote_lazily_and_compiled() -> None:
    x, y = (torch.arange(10.0) + i for i in range(2))

    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return axpy(x, y, 0.5) * 2 + axpy(y, x, 2.0)

    expected = (0.5 * x + y) * 2 + 2 * y + x
    for called in (both, torch.compile(both, fullgraph=True)):
        assert torch.equal(called(x.to("pjrt"), y.to("pjrt")).cpu(), expected)


@pytest.mark.usefixtures("computed")
def test_arguments_that_a_kernel_writes_change_also_through_views() -> None:
    table = torch.zeros(3, 4, device="pjrt")
    whole = table * 1
    for row in range(3):
        add_to(table[row], torch.full((4,), float(row), device="pjrt"))
    add_to(table[2], table[1].clone())

    assert table.tolist() == [[0.0] * 4, [1.0] * 4, [3.0] * 4]
    assert whole.tolist() == [[0.0] * 4] * 3


@pytest.mark.usefixtures("computed")
def test_equal_calls_are_one_operator_and_others_are_not() -> None:
    x = torch.ones(4, device="pjrt")
    texts = [torch_pjrt.to_stablehlo([axpy(x, x, alpha)]) for alpha in (0.5, 0.5, 0.25)]

    assert operators._op_of.cache_info().misses == 2
    assert texts[0] == texts[1] != texts[2]


def test_tensor_with_gaps_and_one_of_the_cpu_are_refused() -> None:
    x = torch.ones(4, 4, device="pjrt")
    with pytest.raises(LoweringError, match=r"`y_ptr` of pjrt:0, with strides \[1, 4\]"):
        axpy(x, x.T, 0.5)
    with pytest.raises(LoweringError, match=r"`y_ptr` of cpu"):
        axpy(x, torch.ones(4, 4), 0.5)


def test_on_a_cpu_the_error_says_what_to_do_when_it_is_computed() -> None:
    y = axpy(torch.ones(4, device="pjrt"), torch.ones(4, device="pjrt"), 0.5)

    with pytest.raises(LoweringError, match=r"on this device(?s:.*)NVIDIA(?s:.*)pallas_op"):
        y.tolist()


@needs_plugin
@pytest.mark.parametrize("target", ["a100", "h100", "b200"])
def test_kernel_is_in_programs_for_cards_with_its_result_in_place(target: str) -> None:
    x = torch.empty(1000, device="meta")

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return axpy(x, y, 0.5) * 2

    for function in (step, torch.compile(step, fullgraph=True)):
        text = torch_pjrt.compile_for(target, function, x, x).text()

        [call] = [line for line in text.splitlines() if "custom-call(" in line]
        assert 'custom_call_target="triton_kernel_call"' in call
        assert "output_to_operand_aliasing={{}: (1, {})}" in call
        assert " copy(" not in text


@needs_plugin
def test_array_that_is_read_afterwards_is_copied_first() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        new = x.clone()
        add_to(new, y)
        return new - x

    x = torch.empty(1000, device="meta")
    text = torch_pjrt.compile_for("h100", step, x, x).text()

    assert text.count("custom-call(") == 1
    assert " copy(" in text
