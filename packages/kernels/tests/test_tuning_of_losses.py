"""What was measured for a loss, and for attention without a pattern, is what other functions have, too."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest
import torch

import torch_pjrt
from torch_pjrt_kernels import linear_cross_entropy, table
from torch_pjrt_kernels.attention.choice import Problem
from torch_pjrt_kernels.cross_entropy import chunked
from torch_pjrt_kernels.flex import operator, varlen
from torch_pjrt_kernels.flex.blocks import sizes_of
from torch_pjrt_kernels.tuning.cli import main
from torch_pjrt_kernels.tuning.tune_loss import Layer, candidates, tuned_loss


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of this test's own."""
    torch.zeros(1, device="pjrt")  # starts the device
    monkeypatch.setenv(table.VARIABLE, str(tmp_path / "blocks.json"))
    return tmp_path / "blocks.json"


def test_a_measured_chunk_is_that_of_the_loss_and_values_stay() -> None:
    hidden, weight = torch.randn(24, 8), torch.randn(640, 8)
    target = torch.randint(640, (24,))
    expected = torch.nn.functional.cross_entropy(hidden @ weight.T, target)
    table.keep({chunked.entry_of(24, 640): (96, 24)})

    loss = linear_cross_entropy(*(x.to("pjrt") for x in (hidden, weight, target)))

    assert "24x96" in torch_pjrt.to_stablehlo([loss])
    torch.testing.assert_close(loss.cpu(), expected)
    assert chunked.classes_of_chunk(24, 640) == 96
    assert chunked.classes_of_chunk(24, 640, measured=False) == 640
    assert chunked.classes_of_chunk(25, 640) == 640
    table.keep({chunked.entry_of(24, 640): (9999, 24)})
    assert chunked.classes_of_chunk(24, 640) == 640


def test_the_fastest_of_all_is_found_and_kept(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = Layer(64, 8, 4096)
    assert candidates(Layer(65536, 8, 4096)) == [256, 32, 64, 128, 512, 1024]

    ((entry, best, took),) = tuned_loss([layer], sizes=[512, 4096], repetitions=1)

    assert entry == chunked.entry_of(64, 4096)
    assert set(took) == {512, 4096}
    assert took[best] == min(took.values())
    assert main(["tune", "--op", "loss", "--shapes", "64x8x512", "--repetitions", "1"]) == 0
    assert "classes at a time" in capsys.readouterr().out
    assert table.entries()[chunked.entry_of(64, 512)][1] == 64
    with pytest.raises(SystemExit):
        main(["tune", "--op", "loss", "--shapes", "64x8"])
    assert main(["tune", "--op", "loss", "--shapes", "8x8x512", "--dry-run"]) == 0
    assert chunked.entry_of(8, 512) not in table.entries()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flex_attention_and_varlen_have_what_full_attention_of_their_dtype_has(
    dtype: torch.dtype,
) -> None:
    name = str(dtype).removeprefix("torch.")
    of_flex = Problem(2, 4, 4, 1024, 1024, 8, 8, name)
    of_varlen = Problem(1, 4, 4, 1024, 1024, 8, 8, name)
    table.keep({table.entry_of(of_flex): (96, 160), table.entry_of(of_varlen): (64, 320)})
    q = torch.empty(2, 4, 1024, 8, dtype=dtype)

    flex = sizes_of(operator._problem(q, q, q), None, {}, on_cpu=True)
    rows = jnp.zeros((1024, 4, 8), name)
    packed = varlen._sizes(rows, rows, rows)

    assert (flex.block_queries, flex.block_keys) == (96, 160)
    assert (packed.block_queries, packed.block_keys) == (64, 320)
