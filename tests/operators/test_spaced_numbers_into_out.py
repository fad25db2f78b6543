"""`arange` and its like write to `out=` in its order, through its strides, as on CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Tensor = torch.Tensor

# Of sizes that change, and of `range`.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "arange(4)": lambda out: torch.arange(4, out=out),
    "arange(1, 5)": lambda out: torch.arange(1, 5, out=out),
    "arange(0, 2, .5)": lambda out: torch.arange(0, 2, 0.5, out=out),
    "arange(1)": lambda out: torch.arange(1, out=out),
    "arange(0)": lambda out: torch.arange(0, out=out),
    "range(1, 4)": lambda out: torch.range(1, 4, out=out),
    "linspace(0, 9, 4)": lambda out: torch.linspace(0, 9, 4, out=out),
    "linspace(2, 3, 1)": lambda out: torch.linspace(2, 3, 1, out=out),
    "linspace of a tensor": lambda out: torch.linspace(
        torch.tensor(0.0, device=out.device), 3, 4, out=out
    ),
    "logspace(0, 3, 4)": lambda out: torch.logspace(0, 3, 4, base=2, out=out),
    "logspace(2, 3, 1)": lambda out: torch.logspace(2, 3, 1, base=2, out=out),
}

#        shape of the base, and the part of it that is `out`
OUTS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "as long": ((4,), lambda x: x),
    "a matrix": ((2, 2), lambda x: x),
    "a column": ((4, 3), lambda x: x[:, 1]),
    "every other": ((8,), lambda x: x[::2]),
    "columns": ((2, 3), lambda x: x[:, 1:]),
    "transposed": ((2, 2), lambda x: x.t()),
    "part, transposed": ((3, 2), lambda x: x[1:].t()),
    "from an offset on": ((6,), lambda x: x[2:]),
    "expanded": ((1,), lambda x: x.expand(4)),
    "of three dims": ((1, 4, 1), lambda x: x),
    "permuted, of four dims": ((2, 2, 1, 2), lambda x: x.permute(0, 3, 1, 2)[:, :1]),
    "of no dims": ((), lambda x: x),
    "too short": ((3,), lambda x: x),
    "too long": ((6,), lambda x: x),
    "empty": ((0,), lambda x: x),
    "too long, columns": ((2, 4), lambda x: x[:, 1:]),
    "too long, transposed": ((2, 5), lambda x: x.t()),
}
DTYPES = (torch.float32, torch.int32)


def seen(
    call: Callable[[Tensor], Tensor], out: str, dtype: torch.dtype, device: str
) -> tuple[object, ...]:
    """What the call does to `out` and to the memory behind it, or the kind of its error."""
    shape, part = OUTS[out]
    base = torch.full(shape, 7, dtype=dtype, device=device)
    target = part(base)
    try:
        result = call(target)
    except (RuntimeError, ValueError) as error:
        return (type(error),)
    looks = [(x.shape, x.stride(), x.storage_offset(), x.tolist()) for x in (target, base)]
    return (result is target, *looks)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("out", OUTS)
def test_out_is_written_as_on_the_cpu(out: str, call: str) -> None:
    for dtype in DTYPES:
        expected = seen(CALLS[call], out, dtype, "cpu")

        assert seen(CALLS[call], out, dtype, "pjrt") == expected, dtype
