"""Indices along a dim that is padded: they are checked against its true size, while the device runs."""

from __future__ import annotations

from torch_pjrt.extend.padding import (
    Dim,
    Sized,
    Unsuited,
    defer_check_of,
    has_padding,
    known_to_be_inside,
    leaves,
    one_factor,
    range_checks,
    takes_indices,
)
from torch_pjrt_dynamo.padded.sized import NodeCall


def check_indices(call: NodeCall) -> None:
    """Have the device look for indices that lie past the true elements.

    Operators check them by the size of the arrays that they are given, in which there is padding.
    """
    if not takes_indices(call.op):
        return
    sized = {id(x.tensor): x for x in leaves([*call.given.values()]) if isinstance(x, Sized)}
    for check in range_checks(call.op, {n: call.plain(x) for n, x in call.given.items()}):
        if check.along is None:
            raise Unsuited("its indices are of another kind")
        x, d = check.along
        dim: Dim = sized[id(x)].dims[d] if x.ndim else ()
        one_factor(dim)
        size = call.sizes.count(dim[0]) if has_padding(dim) else None
        if size is not None or not known_to_be_inside(check):
            indices = call.all_filled(sized[id(check.tensor)], 0)
            defer_check_of(check, indices.tensor, size)
