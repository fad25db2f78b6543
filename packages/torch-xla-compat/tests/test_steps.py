"""Syncs, closures of a step, compiled regions, counters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from hangs import HANGS_S
from torch_pjrt.errors import SettingError, UnsupportedError
from torch_pjrt.extend import counters


@pytest.fixture(autouse=True)
def counters_from_zero() -> Iterator[None]:
    xm.mark_step()
    met.clear_all()
    yield
    met.clear_all()


def test_closures_run_after_the_sync_in_order_and_once() -> None:
    seen: list[float] = []
    x = torch.ones(2, device="xla") * 2
    xm.add_step_closure(lambda t: seen.append(t.sum().item()), (x,))
    xm.add_step_closure(seen.append, (1.0,))

    assert seen == []
    xm.mark_step()
    torch_xla.sync()
    assert seen == [4.0, 1.0]


def test_closures_on_another_thread_run_in_order() -> None:
    import threading

    done, seen = threading.Event(), []
    for i in range(3):
        xm.add_step_closure(seen.append, (i,), run_async=True)
    xm.add_step_closure(done.set, run_async=True)

    xm.mark_step()

    assert done.wait(HANGS_S)
    assert seen == [0, 1, 2]


def test_a_compiled_function_is_one_program() -> None:
    @torch_xla.compile(full_graph=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum()

    assert double(torch.ones(3, device="xla")).item() == 6.0


def test_in_eager_mode_a_compiled_function_is_one_program_too() -> None:
    @torch_xla.compile(full_graph=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp().sum()

    x = torch.ones(3, device="xla")
    torch_xla.sync()
    with torch_xla.experimental.eager_mode_context(True):
        ran = counters.programs_run
        y = x * 2 + 1
        assert counters.programs_run == ran + 2
        total = double(x)
        assert counters.programs_run == ran + 3
        assert torch_xla.experimental.is_eager_mode()

    assert not torch_xla.experimental.is_eager_mode()
    assert total.item() == pytest.approx(3 * math.exp(2.0))
    assert y.tolist() == [3.0] * 3


def test_eager_mode_lasts_until_it_is_ended() -> None:
    x = torch.ones(3, device="xla")
    torch_xla.experimental.eager_mode(True)
    torch_xla.experimental.eager_mode(True)
    ran = counters.programs_run
    y = x.exp().sum()
    in_eager_mode = counters.programs_run - ran
    torch_xla.experimental.eager_mode(False)
    z = y * 2 + 1

    assert in_eager_mode == 2
    assert counters.programs_run == ran + 2
    assert z.item() == pytest.approx(6 * math.e + 1)


def test_a_read_within_a_whole_graph_raises() -> None:
    @torch_xla.compile(full_graph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if (x * 3).sum() > 0 else x

    with pytest.raises(UnsupportedError, match="2 programs ran"):
        step(torch.ones(3, device="xla"))


def test_too_many_graphs_raise() -> None:
    @torch_xla.compile(max_different_graphs=1)
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x * 5).cos()

    step(torch.ones(11, device="xla"))
    with pytest.raises(UnsupportedError, match="2 programs were compiled"):
        step(torch.ones(12, device="xla"))


def test_a_step_is_a_block_with_a_sync_behind_it() -> None:
    with torch_xla.step():
        x = torch.ones(3, device="xla") * 7

    assert met.metric_data("ExecuteTime") is not None
    assert x.tolist() == [7.0] * 3


def test_metrics_count_programs_transfers_and_marked_steps() -> None:
    x = torch.arange(6.0).to("xla") + 1
    xm.mark_step()
    x.exp().sum().item()

    executed, seconds, samples = met.metric_data("ExecuteTime") or (0, 0.0, None)
    assert (executed, samples) == (2, ())  # one up to the mark, one for the read
    assert seconds > 0
    assert met.counter_value("MarkStep") == 1
    assert met.metric_data("TransferFromDeviceTime") is not None
    assert "Metric: ExecuteTime\n  TotalSamples: 2" in met.metrics_report()
    assert met.counter_value("no such counter") is None


def test_an_operator_on_the_cpu_is_a_counter() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first time in a process it is told
        torch.linalg.ldl_factor(torch.eye(2, device="xla"))

    names = [name for name in met.counter_names() if name.startswith("aten::")]
    assert names == met.executed_fallback_ops() == ["aten::linalg_ldl_factor_ex.default"]
    assert met.counter_value(names[0]) == 1


def test_random_state_comes_back() -> None:
    state = xm.get_rng_state()
    first = torch.rand(3, device="xla").tolist()
    xm.set_rng_state(state)
    assert torch.rand(3, device="xla").tolist() == first

    xm.set_rng_state(5)
    seeded = torch.rand(3, device="xla").tolist()
    torch_xla.manual_seed(5)
    assert torch.rand(3, device="xla").tolist() == seeded

    with xm.fork_rng():
        torch.rand(3, device="xla")
    after = torch.rand(3, device="xla").tolist()
    torch_xla.manual_seed(5)
    torch.rand(3, device="xla")
    assert torch.rand(3, device="xla").tolist() == after


def test_precision_of_products_has_torch_xlas_words() -> None:
    before = torch_xla.backends.get_mat_mul_precision()
    try:
        for word in ("default", "high", "highest"):
            torch_xla.backends.set_mat_mul_precision(word)
            assert torch_xla.backends.get_mat_mul_precision() == word
        with pytest.raises(SettingError, match="'default' or 'high' or 'highest'"):
            torch_xla.backends.set_mat_mul_precision("best")
    finally:
        torch_xla.backends.set_mat_mul_precision(before)


def test_a_barrier_leaves_values_as_they_are() -> None:
    x, y = torch.ones(2, device="xla") * 3, torch.zeros(3, device="xla")

    xm.optimization_barrier_([x, y])

    assert (x.tolist(), y.tolist()) == ([3.0, 3.0], [0.0, 0.0, 0.0])


def test_the_program_of_tensors_is_text() -> None:
    assert "stablehlo.cosine" in xm.get_stablehlo([torch.ones(2, device="xla").cos()])
    with pytest.raises(SettingError, match="tensors whose program is wanted"):
        xm.get_stablehlo()


def test_memory_is_counted_in_bytes() -> None:
    kept = torch.ones(1024, device="xla")
    xm.mark_step()

    info = xm.get_memory_info("xla:0")

    assert kept.nbytes <= info["bytes_used"] <= info["peak_bytes_used"] <= info["bytes_limit"]


def test_spmd_for_whole_processes_is_not_chosen() -> None:
    with pytest.raises(UnsupportedError, match="auto_shard"):
        torch_xla.runtime.use_spmd(auto=True)
    assert not torch_xla.runtime.is_spmd()
