"""Measured sizes of blocks are kept in a file that the choice reads; the commands print what they took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_pjrt
from torch_pjrt_kernels import table
from torch_pjrt_kernels.attention.choice import Problem, sizes_of
from torch_pjrt_kernels.tuning import by_tokamax
from torch_pjrt_kernels.tuning.bench import cases, timed
from torch_pjrt_kernels.tuning.by_tokamax import is_installed as has_tokamax
from torch_pjrt_kernels.tuning.cli import main
from torch_pjrt_kernels.tuning.tune import candidates, tuned

LONG = Problem(1, 4, 4, 1024, 1024, 8, 8)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of this test's own."""
    torch.zeros(1, device="pjrt")  # starts the device
    monkeypatch.setenv(table.VARIABLE, str(tmp_path / "blocks.json"))
    return tmp_path / "blocks.json"


def blocks(problem: Problem) -> tuple[int, int]:
    sizes = sizes_of(problem, on_cpu=True)
    return sizes.block_queries, sizes.block_keys


def test_measured_sizes_are_those_of_blocks_from_then_on(file: Path) -> None:
    before = blocks(LONG)

    assert table.keep({table.entry_of(LONG): (64, 256)}) == file

    assert before != (64, 256)
    assert blocks(LONG) == (64, 256)
    table.keep({"another": (1, 2)})
    assert blocks(LONG) == (64, 256)


def test_values_are_the_same_with_measured_sizes() -> None:
    q = torch.randn(1, 4, 1024, 8, device="pjrt")
    x = q.cpu()
    expected = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    table.keep({table.entry_of(replace(LONG, is_causal=True)): (96, 160)})

    y = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    assert "96" in torch_pjrt.to_stablehlo([y])
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changed", [{"dtype": "bfloat16"}, {"is_causal": True}, {"keys": 2048}])
def test_sizes_count_for_calls_that_are_like_what_was_measured(changed: dict[str, Any]) -> None:
    other = replace(LONG, **changed)
    before = blocks(other)

    table.keep({table.entry_of(LONG): (64, 256)})

    assert blocks(LONG) == (64, 256)
    assert blocks(other) == before


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '{"a": [1]}'])
def test_a_file_that_is_no_table_counts_for_nothing(file: Path, text: str) -> None:
    before = blocks(LONG)

    file.write_text(text)

    assert blocks(LONG) == before


def test_entries_with_sizes_that_no_block_has_are_left_out(file: Path) -> None:
    before = blocks(LONG)

    file.write_text(f'{{"{table.entry_of(LONG)}": [0, 128]}}')

    assert blocks(LONG) == before


def test_an_empty_variable_and_no_cache_mean_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(table.VARIABLE, "")
    assert table.path() is None
    with pytest.raises(ValueError, match=table.VARIABLE):
        table.keep({"x": (1, 1)})
    monkeypatch.delenv(table.VARIABLE)
    monkeypatch.setattr(torch_pjrt.config, "cache_dir", Path("/somewhere"))
    assert table.path() == Path("/somewhere/kernel-blocks.json")


def test_tuning_says_what_each_size_took() -> None:
    short = Problem(1, 1, 1, 64, 64, 8, 8)

    [(entry, best, took)] = tuned([short, LONG], sizes=[(256, 256)], repetitions=1)

    assert entry == table.entry_of(LONG)
    assert set(took) == {blocks(LONG), (256, 256)}
    assert took[best] == min(took.values())
    assert (256, 256) in candidates(LONG)
    assert all(q <= 1024 and k <= 1024 for q, k in candidates(LONG))


def test_bench_times_kernel_and_both_others() -> None:
    [(name, length, took)] = timed([64], ["flash_attention"], repetitions=1)

    assert (name, length) == ("flash_attention", 64)
    assert set(took) == {"kernel", "plain", "CPU", *(["tokamax"] if has_tokamax() else [])}
    assert all(0 < seconds < 60 for seconds in took.values())


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", cases(128))
def test_what_is_timed_computes_the_same_in_all_ways(name: str) -> None:
    """The sums of what they give, and all gradients."""
    case = cases(128)[name]

    def found(function: Any, device: str) -> list[torch.Tensor]:
        given = [x.to(device) for x in case.arguments]
        leaves = [x.requires_grad_() for x in given[: case.n_leaves]]
        y = function(*leaves, *given[case.n_leaves :])
        return [y.detach(), *(torch.autograd.grad(y.sum(), leaves) if leaves else ())]

    ours = found(case.kernel, "pjrt")
    for theirs in (found(case.plain, "pjrt"), found(case.on_cpu or case.plain, "cpu")):
        for mine, its in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.cpu(), its.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["flash_attention", "linear_cross_entropy"])
def test_tokamax_is_timed_on_what_the_package_computes(name: str) -> None:
    """The sums of what both give, and all gradients, are the same."""
    pytest.importorskip("tokamax", reason="tokamax is not installed")
    case = cases(128)[name]

    step = by_tokamax.step(name, case.arguments, case.n_leaves)
    assert step is not None
    total, gradients = step()

    leaves = [x.clone().requires_grad_() for x in case.arguments[: case.n_leaves]]
    expected = (case.on_cpu or case.plain)(*leaves, *case.arguments[case.n_leaves :]).sum()
    torch.testing.assert_close(float(total), float(expected.detach()), rtol=1e-4, atol=1e-3)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(torch.from_numpy(np.array(ours)), theirs, rtol=1e-3, atol=1e-4)


def test_commands_print_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--lengths", "64", "--op", "rotary", "--repetitions", "1"]) == 0
    assert "rotary" in capsys.readouterr().out
    assert main(["tune", "--shapes", "1x1x64x8"]) == 0
    assert "nothing to tune" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["tune", "--shapes", "4x4"])
    assert "'4x4' is no shape" in capsys.readouterr().err
