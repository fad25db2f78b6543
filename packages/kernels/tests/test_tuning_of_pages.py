"""What was measured for a cache in pages is what calls of its shapes have, and changes no value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt_kernels import paged_attention, ragged_paged_attention, table
from torch_pjrt_kernels.paged import measured, ragged_reference, ragged_tpu, reference
from torch_pjrt_kernels.paged.measured import Serving, entry_of
from torch_pjrt_kernels.tuning.cli import main
from torch_pjrt_kernels.tuning.tune_pages import candidates, tuned_pages

CALL = Serving(tokens=12, sequences=3, positions=64, heads=4, key_heads=2, width=8, page_size=16)
DECODING = CALL._replace(tokens=3)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of this test's own."""
    torch.zeros(1, device="pjrt")  # starts the device
    monkeypatch.setenv(table.VARIABLE, str(tmp_path / "blocks.json"))
    return tmp_path / "blocks.json"


def given(call: Serving) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    most = call.positions // call.page_size
    pages = (call.sequences * most, call.page_size, call.key_heads, call.width)
    q = torch.randn(call.tokens, call.heads, call.width, generator=generator)
    keys, values = (torch.randn(pages, generator=generator) for _ in range(2))
    of_sequences = torch.arange(pages[0]).reshape(call.sequences, most).int()
    lengths = torch.tensor([40, 64, 17][: call.sequences])
    return [q, keys, values, of_sequences, lengths]


STARTS = torch.tensor([0, 1, 2, 12])


def test_measured_blocks_are_those_of_ragged_attention_and_values_stay() -> None:
    arrays = [*given(CALL), STARTS]
    expected = ragged_reference.ragged_paged_attention(*arrays)
    usual = measured.chosen("ragged attention", CALL)
    table.keep({entry_of("ragged attention", CALL): (5, 32)})

    y = ragged_paged_attention(*(x.to("pjrt") for x in arrays))

    assert measured.chosen("ragged attention", CALL) == (5, 32) != usual
    assert "4x5x32x" in torch_pjrt.to_stablehlo([y])  # a block of scores: heads, queries, positions
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_a_measured_step_is_that_of_paged_attention_and_values_stay() -> None:
    q, *rest = given(DECODING)
    expected = reference.paged_attention(q[:, None], *rest)
    table.keep({entry_of("paged attention", DECODING): (1, 32)})

    y = paged_attention(q[:, None].to("pjrt"), *(x.to("pjrt") for x in rest))

    assert measured.chosen("paged attention", DECODING)[1] == 32
    assert measured.chosen("paged attention", CALL)[1] != 32
    assert "3x2x2x1x32x" in torch_pjrt.to_stablehlo([y])
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_jaxs_kernel_has_measured_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax.numpy as jnp

    seen: list[tuple[int, int]] = []

    class Kernel:
        @staticmethod
        def ragged_paged_attention(query: Any, *rest: Any, **sizes: Any) -> Any:
            seen.append((sizes["num_queries_per_block"], sizes["num_kv_pages_per_block"]))
            return query

    monkeypatch.setattr(ragged_tpu, "import_module", lambda name: Kernel)
    q, pages = jnp.zeros((12, 4, 8)), jnp.zeros((12, 16, 4, 8))
    rest = [jnp.asarray(x.numpy()) for x in (*given(CALL)[3:], STARTS)]

    def run() -> Any:
        form: Any = {"window": None, "soft_cap": None, "scale": None}
        return ragged_tpu.ragged_paged_attention(q, pages, *rest, **form)

    run()
    table.keep({entry_of("ragged kernel", CALL): (8, 2)})
    run()

    assert seen == [(12, 4), (8, 2)]  # the usual ones, within the call


@pytest.mark.parametrize(("op", "call"), [("ragged", CALL), ("paged", DECODING)])
def test_the_fastest_is_found(op: str, call: Serving) -> None:
    [(entry, best, took)] = tuned_pages(op, [call], sizes=[(4, 16), (4, 32)], repetitions=1)

    assert entry == entry_of(f"{op} attention", call)
    assert set(took) >= {(4, 16), (4, 32)}
    assert len(took) == 3  # and the usual ones
    assert took[best] == min(took.values())


def test_what_the_command_keeps_is_what_calls_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = "12x3x50x4:2x8x16"  # 50 positions are 4 pages: the table has 64
    assert main(["tune", "--op", "ragged", "--shapes", shape, "--repetitions", "1"]) == 0

    assert "queries and" in capsys.readouterr().out
    assert entry_of("ragged attention", CALL) in table.entries()
    for wrong in (["ragged", "2x3x64x4x8x16"], ["paged", "4x3x64x4x8x16"], ["paged", "3x64"]):
        with pytest.raises(SystemExit):
            main(["tune", "--op", wrong[0], "--shapes", wrong[1]])
    assert main(["tune", "--op", "paged", "--shapes", "3x3x64x4:2x8x16", "--dry-run",
                 "--repetitions", "1"]) == 0  # fmt: skip
    assert entry_of("paged attention", DECODING) not in table.entries()


def test_what_is_tried_fits_the_call() -> None:
    large = CALL._replace(tokens=64, positions=4096)

    assert candidates(large, "ragged attention")[0] == (8, 512)
    assert (64, 2048) in candidates(large, "ragged attention")
    assert (128, 512) not in candidates(large, "ragged attention")
    assert {q for q, _ in candidates(large, "paged attention")} == {21}
    assert all(n * 16 <= 4096 for _, n in candidates(large, "ragged kernel"))
