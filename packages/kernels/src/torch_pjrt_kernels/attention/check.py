"""What `flash_attention` refuses, in words."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor
Optional = torch.Tensor | None


def numbers(window: Any, first_position: Any, soft_cap: Any, dropout_p: Any) -> None:
    """What is no array. Raises `ValueError`.

    Bounds below 0 are refused: FlashAttention's -1 means that there is none, which is None here.
    """
    pair = isinstance(window, (tuple, list)) and len(window) == 2
    if not pair or not all(x is None or (_is_count(x) and x >= 0) for x in window):
        raise ValueError(
            "flash_attention takes for a window how many positions are seen before a query and behind it, "
            f"None for all; saw {window!r}"
        )
    if not _is_count(first_position):
        raise ValueError(
            f"flash_attention takes a whole number for first_position; saw {first_position!r}"
        )
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"flash_attention takes a soft_cap above 0; saw {soft_cap!r}")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"flash_attention takes a dropout_p between 0 and 1; saw {dropout_p!r}")


def _is_count(x: Any) -> bool:
    return isinstance(x, (int, torch.SymInt)) and not isinstance(x, bool)


def arrays(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional, slopes: Optional,
    of_queries: Optional, of_keys: Optional, sinks: Optional,
) -> None:  # fmt: skip
    """Shapes, dtypes and devices. Raises `ValueError`."""
    if not query.dim() == key.dim() == value.dim() == 4 or not query.is_floating_point():
        raise ValueError(_wrong("four dims of floats each", query, key, value))
    if not query.dtype == key.dtype == value.dtype:
        dtypes = ", ".join(str(x.dtype) for x in (query, key, value))
        raise ValueError(
            f"flash_attention takes a query, keys and values of one dtype; saw {dtypes}"
        )
    given = {"key": key, "value": value, "bias": bias, "slopes": slopes, "sinks": sinks,
             "segments of queries": of_queries, "segments of keys": of_keys}  # fmt: skip
    for name, x in given.items():
        if x is not None and x.device != query.device:
            raise ValueError(
                f"flash_attention takes tensors of one device; saw the query on {query.device} "
                f"and {name} on {x.device}"
            )
    if slopes is not None and slopes.requires_grad and torch.is_grad_enabled():
        raise ValueError("flash_attention has no gradient of slopes: detach them")
    batch, heads, queries, width = query.shape
    key_heads, keys = key.shape[1:3]
    if key.shape != (batch, key_heads, keys, width) or value.shape[:3] != key.shape[:3]:
        raise ValueError(_wrong("keys and values that fit the query", query, key, value))
    if heads % max(key_heads, 1) or 0 in (*query.shape, *key.shape, *value.shape):
        raise ValueError(_wrong("query heads that share key heads evenly", query, key, value))
    wanted: dict[str, tuple[Optional, tuple[int, ...]]] = {
        "slopes": (slopes, (heads,)),
        "sinks": (sinks, (heads,)),
        "segments of queries": (of_queries, (batch, queries)),
        "segments of keys": (of_keys, (batch, keys)),
    }
    for name, (x, shape) in wanted.items():
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} have shape {list(x.shape)}; expected {list(shape)}")
    if bias is not None:
        whole = (batch, heads, queries, keys)
        fits = bias.dim() == 4 and all(n in (1, w) for n, w in zip(bias.shape, whole, strict=True))
        if not fits:
            raise ValueError(
                f"the bias has shape {list(bias.shape)}; expected {list(whole)}, each or 1"
            )


def _wrong(expected: str, *tensors: Tensor) -> str:
    saw = ", ".join(f"{x.dtype} {list(x.shape)}" for x in tensors)
    return f"flash_attention takes {expected}; saw {saw}"
