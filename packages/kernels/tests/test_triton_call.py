"""`triton_call`: kernels with what other devices compute, with heuristics, with measured configurations."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import torch_pjrt
from torch_pjrt.errors import LoweringError
from torch_pjrt_kernels import table, triton_call

triton: Any = pytest.importorskip("triton", reason="the extra `triton` is not installed")
tl: Any = importlib.import_module("triton.language")

from torch_pjrt_kernels.triton import call, operators, own_call  # noqa: E402
from torch_pjrt_kernels.triton.compiled import Pointer, compiled  # noqa: E402
from torch_pjrt_kernels.triton.configurations import chosen  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*TRITON_DEFAULT_FP_FUSION")


def _axpy(x_ptr, out_ptr, y_ptr, alpha, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < n
    y = alpha * tl.load(x_ptr + at, mask=here) + tl.load(y_ptr + at, mask=here)
    tl.store(out_ptr + at, y, mask=here)


def by_jax(x_ptr: jax.Array, y_ptr: jax.Array, alpha: float, **rest: Any) -> jax.Array:
    assert set(rest) >= {"out_ptr", "n"}
    return alpha * x_ptr + y_ptr


def kernel() -> Any:
    """One of each test's own, as a fallback belongs to it."""
    return triton.jit(_axpy)


def configurations() -> list[Any]:
    return [triton.Config({"BLOCK": n}, num_warps=w) for n, w in ((64, 2), (256, 8))]


def grid(arguments: Any) -> tuple[int]:
    return (triton.cdiv(arguments["n"], arguments["BLOCK"]),)


def given(device: str = "pjrt") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.arange(10.0).to(device)
    return x, torch.zeros_like(x), x + 1


def test_other_devices_compute_the_fallback_lazily_and_compiled() -> None:
    launch = triton_call(kernel(), fallback=by_jax)[(1,)]
    x, out, y = given()
    expected = 0.5 * x.cpu() + y.cpu()

    launch(x, out, y, 0.5, 10, BLOCK=16)
    assert torch.equal(out.cpu(), expected)

    @torch.library.triton_op("triton_call_test::axpy", mutates_args={})
    def axpy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        launch(x, out, y, 0.5, 10, BLOCK=16)
        return out

    twice = torch.compile(lambda x, y: axpy(x, y) * 2, fullgraph=True)
    assert torch.equal(twice(x, y).cpu(), 2 * expected)


def test_a_fallback_that_gives_something_else_and_no_fallback_are_refused() -> None:
    x, out, y = given()
    triton_call(kernel(), fallback=lambda x_ptr, **rest: x_ptr[:3])[(1,)](
        x, out, y, 1.0, 10, BLOCK=16
    )
    with pytest.raises(LoweringError, match=r"(?s)`_axpy`.*float32\[3\].*float32\[10\]"):
        out.tolist()
    x, out, y = given()
    triton_call(kernel())[(1,)](x, out, y, 1.0, 10, BLOCK=16)
    with pytest.raises(LoweringError, match=r"fallback=\.\.\."):
        out.tolist()
    with pytest.raises(LoweringError, match=r"Only kernels of `@triton.jit`"):
        triton_call(len)


def test_heuristics_around_a_kernel_are_asked_at_the_call() -> None:
    seen: list[Any] = []

    def fallback(x_ptr: jax.Array, BLOCK: int, **rest: Any) -> jax.Array:
        seen.append(BLOCK)
        return x_ptr

    chosen_by = triton.heuristics({"BLOCK": lambda arguments: 2 * arguments["n"]})(kernel())
    x, out, y = given()
    triton_call(chosen_by, fallback=fallback)[grid](x, out, y, 1.0, 8)

    assert torch.equal(out.cpu(), x.cpu())
    assert seen == [16]


def test_heuristics_within_an_autotuned_kernel_see_its_configuration() -> None:
    inner = triton.heuristics({"alpha": lambda arguments: float(arguments["BLOCK"])})(kernel())
    tuned = triton.autotune(configs=configurations(), key=["n"])(inner)
    pointers = {name: Pointer(torch.float32) for name in ("x_ptr", "out_ptr", "y_ptr")}

    launch = compiled(tuned, {**pointers, "n": 1000}, (4,), (9, 0), configuration=1)

    assert launch.num_warps == 8
    assert launch.parameters[3] == (256.0, "fp32")


def test_heuristics_within_an_autotuned_kernel_see_arrays_but_no_values() -> None:
    def of_array(arguments: Any) -> float:
        x = arguments["x_ptr"]
        return float(x.numel() + x.stride(0) + x.shape[-1] + x.element_size())

    def of_values(arguments: Any) -> float:
        return float(arguments["x_ptr"].max())

    pointers = {name: Pointer(torch.float32, (6, 5)) for name in ("x_ptr", "out_ptr", "y_ptr")}

    def launch(heuristic: Any) -> Any:
        inner = triton.heuristics({"alpha": heuristic})(kernel())
        tuned = triton.autotune(configs=configurations(), key=["n"])(inner)
        return compiled(tuned, {**pointers, "n": 30}, (1,), (9, 0))

    assert launch(of_array).parameters[3] == (30.0 + 5 + 5 + 4, "fp32")
    with pytest.raises(LoweringError, match=r"(?s)heuristic for `alpha` fails.*no values"):
        launch(of_values)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.zeros(1, device="pjrt")  # starts the device
    monkeypatch.setenv(table.VARIABLE, str(tmp_path / "blocks.json"))
    return tmp_path / "blocks.json"


def test_the_fastest_configuration_is_kept_and_taken_from_then_on(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card that is none: what runs is JAX's, and what each took is said by the test."""
    tried: list[Any] = []

    def launched(of: call.Call, written: Any, *arrays: Any) -> list[Any]:
        tried.append((of.configuration, of.grids))
        return [2 * arrays[0]]

    def least_s(steps: Any, repetitions: int) -> dict[str, float]:
        held = {name: step()["out_ptr"].tolist() for name, step in steps.items()}
        assert set(map(tuple, held.values())) == {tuple(2.0 * n for n in range(10))}
        return {name: 1 / (1 + int(name)) for name in steps}

    monkeypatch.setattr(operators, "launched", launched)
    monkeypatch.setattr(own_call, "least_s", least_s)
    monkeypatch.setattr(own_call, "capability", lambda: (9, 0))
    tuned = triton.autotune(configs=configurations(), key=["n"])(kernel())
    x, out, y = given()
    table.keep({"another": (1, 2)})

    best = triton_call(tuned).tune(grid, x, out, y, 1.0, 10)

    assert best is tuned.configs[1]
    assert tried == [(0, ((1, 1, 1), (1, 1, 1))), (1, ((1, 1, 1), (1, 1, 1)))]
    assert out.tolist() == [0.0] * 10  # copies were written to
    pointers = {name: Pointer(torch.float32) for name in ("x_ptr", "out_ptr", "y_ptr")}
    assert chosen(tuned, {**pointers, "alpha": 1.0, "n": 10}) == 1
    assert chosen(tuned, {**pointers, "alpha": 1.0, "n": 11}) == 0
    assert chosen(tuned, {**pointers, "x_ptr": Pointer(torch.bfloat16), "n": 10}) == 0
    assert table.entries()["another"] == [1, 2]
    tuned.configs.pop()
    assert chosen(tuned, {**pointers, "alpha": 1.0, "n": 10}) == 0  # the measured one is gone


def test_without_a_card_or_configurations_there_is_nothing_to_tune(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(LoweringError, match="on this device"):
        triton_call(kernel()).tune(grid, *given(), 1.0, 10, BLOCK=16)
    monkeypatch.setattr(own_call, "capability", lambda: (9, 0))
    with pytest.raises(LoweringError, match="`_axpy` has no configurations"):
        triton_call(kernel()).tune(grid, *given(), 1.0, 10, BLOCK=16)


def test_the_configuration_of_a_program_for_a_card_is_the_measured_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = triton.autotune(configs=configurations(), key=["n"])(kernel())
    pointers = {name: Pointer(torch.float32) for name in ("x_ptr", "out_ptr", "y_ptr")}
    arguments = {**pointers, "alpha": 1.0, "n": 1000}
    of = call.Call(tuned, tuple(arguments.items()), ((16, 1, 1), (4, 1, 1)))
    made: list[Any] = []
    monkeypatch.setattr(call, "capability", lambda: (9, 0))
    monkeypatch.setattr(call, "_launched", lambda launch, *rest: made.append(launch))

    call.launched(of, (1,))
    second = {"BLOCK": 256, "num_warps": 8, "num_stages": 3, "num_ctas": 1}
    table.keep({own_call.entry_of(tuned, arguments): second})
    call.launched(of, (1,))

    assert [(x.num_warps, x.grid[0]) for x in made] == [(2, 16), (8, 4)]
    assert torch_pjrt.config.cache_dir is None or table.path() == file
