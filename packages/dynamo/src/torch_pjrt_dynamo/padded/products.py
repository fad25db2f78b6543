"""Products of matrices: room along what is summed over is filled with 0, on both sides."""

from __future__ import annotations

from typing import Any

from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.padded.dims import Dim, NotProvable
from torch_pjrt_dynamo.padded.pointwise import broadcast
from torch_pjrt_dynamo.padded.sized import Call, Sized, only


def product(a: str, b: str, added: str | None = None) -> Any:
    """The rule of an operator that multiplies two of its arguments, and may add a third."""

    def rule(call: Call) -> Sized:
        only(call, a, b, *([added] if added else []))
        x, y = call[a], call[b]
        along = x.ndim - 1, max(y.ndim - 2, 0)
        if x.dims[along[0]] != y.dims[along[1]]:
            raise NotProvable("it sums over sizes that vary, merged in another order")
        dims = _joined(x, y)
        if added is not None:
            broadcast([call[added].dims, dims])
        filled = {
            a: call.sizes.filled(x, along[:1], 0),
            b: call.sizes.filled(y, along[1:], 0),
        }
        return call.sizes.sized(call.do(**filled), dims)

    return rule


def _joined(x: Sized, y: Sized) -> tuple[Dim, ...]:
    columns = y.dims[-1:] if y.ndim > 1 else ()
    if x.ndim < 3:
        return (*x.dims[:-1], *columns)
    if x.dims[0] != y.dims[0]:
        raise NotProvable("it joins sizes that vary in another order")
    return (x.dims[0], x.dims[1], *columns)


RULES: dict[Any, Any] = {
    aten.mm.default: product("self", "mat2"),
    aten.bmm.default: product("self", "mat2"),
    aten.mv.default: product("self", "vec"),
    aten.dot.default: product("self", "tensor"),
    aten.addmm.default: product("mat1", "mat2", "self"),
    aten.addmv.default: product("mat", "vec", "self"),
    aten.baddbmm.default: product("batch1", "batch2", "self"),
}
