"""`flash_attention` within `torch.vmap`: one call whose batch has that of vmap, too."""

from __future__ import annotations

from typing import Any

import torch

_SLOPES, _SINKS, _BIAS, _DROPOUT = 4, 7, 3, 13
_N_ARRAYS = 8


def attention(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
    """What the operator gives of the batch, and where that is in its results.

    Raises `RuntimeError` where weights are dropped and vmap is not told `randomness="different"`.
    """
    if args[_DROPOUT] and info.randomness != "different":
        raise RuntimeError(
            "flash_attention drops other weights in each call of a vmap: "
            f'expected randomness="different", saw "{info.randomness}"'
        )
    op, n = torch.ops.torch_pjrt_kernels.attention, info.batch_size
    arrays: list[Any] = [
        x if x is None or at is None else x.movedim(at, 0)
        for x, at in zip(args[:_N_ARRAYS], in_dims, strict=False)
    ]
    are_batched = [at is not None for at in in_dims[:_N_ARRAYS]]
    rest = args[_N_ARRAYS:]
    if are_batched[_SLOPES] or are_batched[_SINKS]:  # of heads, which all batches of a call share
        each = [
            op(*[x[i] if b else x for x, b in zip(arrays, are_batched, strict=True)], *rest)
            for i in range(n)
        ]
        return tuple(torch.stack(found) for found in zip(*each, strict=True)), (0, 0, 0)
    batch = arrays[0].shape[1 if are_batched[0] else 0]

    def together(i: int, x: Any) -> Any:
        if x is None or i in (_SLOPES, _SINKS):
            return x
        if i == _BIAS and not are_batched[i] and x.shape[0] == 1:
            return x
        whole = x if are_batched[i] else x.expand(n, *x.shape)
        return whole.expand(n, batch, *whole.shape[2:]).flatten(0, 1)

    out, logsumexp, seed = op(*(together(i, x) for i, x in enumerate(arrays)), *rest)
    apart = (out.unflatten(0, (n, batch)), logsumexp.unflatten(0, (n, batch)), seed)
    return apart, (0, 0, None)
