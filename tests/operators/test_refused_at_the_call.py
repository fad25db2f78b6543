"""What is refused where it is called, in the words of the CPU: least squares that read, segments."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

Call = Callable[[str], Any]


def lengths(device: str, *numbers: Any) -> torch.Tensor:
    return torch.tensor(numbers, device=device)


def data(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(6, device=device).view(shape or (6,)).to(dtype)


def parts(device: str, how: str) -> dict[str, Any]:
    """Two segments of six elements, by their `lengths` or their `offsets`."""
    return {how: lengths(device, 2, 4) if how == "lengths" else lengths(device, 0, 2, 6)}


SEGMENTS: dict[str, Call] = {
    "neither lengths nor offsets": lambda d: torch.segment_reduce(data(d), "sum"),
    "another fold": lambda d: torch.segment_reduce(data(d), "foo", lengths=lengths(d, 6)),
    "indices": lambda d: torch.segment_reduce(data(d), "sum", indices=lengths(d, 0)),
    "no such axis": lambda d: torch.segment_reduce(data(d), "sum", lengths=lengths(d, 6), axis=1),
    "another axis": lambda d: torch.segment_reduce(
        data(d, 2, 3), "sum", lengths=lengths(d, 2), axis=1
    ),
    "another axis from the end": lambda d: torch.segment_reduce(
        data(d, 2, 3), "sum", lengths=lengths(d, 2), axis=-1
    ),
    "offsets of another axis": lambda d: torch.segment_reduce(
        data(d, 2, 3), "sum", offsets=lengths(d, 0, 2), axis=1
    ),
    "more dims": lambda d: torch.segment_reduce(data(d, 2, 3), "sum", lengths=lengths(d, [[1]])),
    "more dims than data": lambda d: torch.segment_reduce(
        data(d, 2, 3), "sum", lengths=lengths(d, [[1]])[None]
    ),
    "offsets of more dims": lambda d: torch.segment_reduce(
        data(d), "sum", offsets=lengths(d, [0, 6])
    ),
    "no lengths": lambda d: torch.segment_reduce(
        data(d)[:0], "sum", lengths=lengths(d, 1)[:0]
    ),
    "lengths of floats": lambda d: torch.segment_reduce(data(d), "sum", lengths=lengths(d, 6.0)),
    **{
        f"{dtype} by {how}": lambda d, dtype=dtype, how=how: torch.segment_reduce(
            data(d, dtype=dtype), "sum",
            **parts(d, how),
        )
        for dtype, how in product(
            (torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16, torch.bool, torch.complex64,
             torch.float16, torch.bfloat16, torch.float64),
            ("lengths", "offsets"),
        )
    },
}  # fmt: skip


def outcome(call: Call, device: str) -> Any:
    try:
        return call(device).cpu().tolist()
    except (RuntimeError, IndexError, NotImplementedError) as error:
        return type(error), str(error).splitlines()[0]


@pytest.mark.parametrize("name", SEGMENTS)
def test_segments_are_refused_in_the_words_of_the_cpu(name: str) -> None:
    assert outcome(SEGMENTS[name], "pjrt") == outcome(SEGMENTS[name], "cpu")


@pytest.mark.parametrize("driver", ["gelsd", "gelss"])
def test_least_squares_that_read_the_ranks_raise_at_the_call(driver: str) -> None:
    a = torch.eye(4, 3)
    a[1, 1] = float("nan")
    with pytest.raises(RuntimeError, match="illegal value"):
        torch.linalg.lstsq(a.to("pjrt"), torch.ones(4, 2, device="pjrt"), driver=driver)
    torch.pjrt.synchronize()  # type: ignore[attr-defined]


GAPS: dict[str, Call] = {
    "each second": lambda d: torch.arange(24.0, device=d).view(4, 6)[:, ::2],
    "transposed": lambda d: torch.arange(24.0, device=d).view(4, 6)[:, ::2].t(),
    "three dims": lambda d: torch.arange(48.0, device=d).view(2, 4, 6)[:, 1:3, 1:4].transpose(0, 2),
    "expanded": lambda d: torch.arange(3.0, device=d)[:, None].expand(3, 4),
    "dense": lambda d: torch.arange(24.0, device=d).view(4, 6).t(),
    "empty": lambda d: torch.arange(24.0, device=d).view(4, 6)[2:, :0:2],
    "one row": lambda d: torch.arange(24.0, device=d).view(4, 6)[:1, 1:5:2],
}
SCATTERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda a: torch.select_scatter(a, a.select(0, 0) * 2, 0, 0),
    "slice": lambda a: torch.slice_scatter(a, a[:2] * 2, 0, 0, 2),
    "diagonal": lambda a: torch.diagonal_scatter(a, a.diagonal() * 2),
}


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("like", GAPS)
def test_what_is_put_into_a_tensor_with_gaps_has_its_strides(name: str, like: str) -> None:
    for requires_grad in (False, True):
        ours, theirs = (
            SCATTERS[name](GAPS[like](d).requires_grad_(requires_grad)) for d in ("pjrt", "cpu")
        )
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())
        assert ours.stride() == theirs.stride()
