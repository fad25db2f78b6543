"""`scaled_dot_product_attention` within `torch.vmap`: one call whose batch has that of vmap, too.

PyTorch decomposes it there into simpler operators, which make all scores. (Within `torch.func.grad` they are
what is differentiated, `vmap(grad(f))` included.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.vmap import unwrap_batched, wrap_batched

from torch_pjrt.overloads import aten

Tensor = torch.Tensor
Optional = torch.Tensor | None

_OPERATOR = aten.scaled_dot_product_attention.default
# PyTorch's decomposition has this key, which comes before that of batching rules.
KEY = "FuncTorchVmapMode"
_OF_THIS_LEVEL = torch._C.DispatchKeySet(
    torch._C._dispatch_key_parse(KEY)  # pyright: ignore[reportAttributeAccessIssue]
) | torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The kernel for whatever device: other devices' calls, and what does not fit, are PyTorch's composition.

    What is dropped is another for each of the batch where vmap says `randomness="different"`, and else the
    composition says what the words of vmap mean.
    """
    interpreter: Any = retrieve_current_functorch_interpreter()
    dims = query.dim()
    options = {"scale": scale, "enable_gqa": enable_gqa}
    is_dropped = dropout_p > 0 and interpreter.randomness() != "different"
    if query.device.type != "pjrt" or not key.dim() == value.dim() == dims or is_dropped:
        return _OPERATOR.decompose(query, key, value, attn_mask, dropout_p, is_causal, **options)
    level, n = interpreter.level(), interpreter.batch_size()
    given, at = unwrap_batched((query, key, value, attn_mask), level)
    with torch._C._ExcludeDispatchKeyGuard(_OF_THIS_LEVEL):
        if all(dim is None for dim in at):  # the batch is that of another vmap
            return _OPERATOR(*given, dropout_p, is_causal, **options)
        parts = [
            x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(given[:3], at[:3], strict=True)
        ]
        mask = given[3]
        if mask is not None and at[3] is not None:
            mask = mask.movedim(at[3], 0)
            mask = mask.reshape(n, *(1,) * (dims + 1 - mask.dim()), *mask.shape[1:])
        out = _OPERATOR(*parts, mask, dropout_p, is_causal, **options)
    return wrap_batched((out,), (0,), level)[0]


BATCHED: dict[Any, Any] = {_OPERATOR: scaled_dot_product_attention}
