"""Whether a mask of padding leaves anything out: known without a read for one that came from the host.

Models ask it of each mask, and leave out a mask that does nothing. Integers that came from the host have a
known range: where the least is 1, nothing is padding; where it is 0, something is. And a model that was given
no mask may make one of ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt_ecosystem.for_transformers.recorded import nodes_behind
from torch_pjrt_ecosystem.replacing import wrap

_KNOWN = "_pjrt_leaves_nothing_out"
_ONES = ("aten.ones.default", "aten.new_ones.default", "aten.ones_like.default")
# What holds ones alone where its input does.
_KEPT = ("aten._to_copy.default", "aten.repeat.default", "pjrt.read")


def install(masking_utils: Any) -> None:
    """`masking_utils` is `transformers.masking_utils`."""
    wrap(masking_utils, "_preprocess_mask_arguments", _preprocess)
    wrap(masking_utils, "fast_all", _fast_all)
    wrap(masking_utils, "_ignore_causal_mask_sdpa", _ignore_causal)
    wrap(masking_utils, "_ignore_bidirectional_mask_sdpa", _ignore_bidirectional)
    wrap(masking_utils, "create_recurrent_attention_mask", _create_recurrent)


def is_all_ones(mask: object) -> bool | None:
    """Whether no element is 0, None where that takes a read."""
    if not isinstance(mask, torch.Tensor) or (known := _range_of(mask)) is None:
        return None
    least, most, is_whole = known
    if least > 0 or most < 0:
        return True
    return False if is_whole and 0 in (least, most) else None


def _range_of(mask: torch.Tensor) -> tuple[int, int, bool] | None:
    """Between which numbers its elements are, and whether both are there; None where that takes a read."""
    from torch_pjrt.extend import Uploaded, buffer_of, is_pjrt

    if not is_pjrt(mask) or (buffer := buffer_of(mask)).padded is not None:
        return None
    if isinstance(value := buffer.value, Uploaded):
        return *value.range, mask.numel() == value.spec.numel
    return (1, 1, True) if _was_made_of_ones(mask) else None


def _was_made_of_ones(mask: torch.Tensor) -> bool:
    for node in nodes_behind(mask):
        if (name := str(node.op)) not in _KEPT:
            return name in _ONES
    return False


def _preprocess(
    original: Callable[..., Any], config: Any, embeddings: Any, mask: Any, *args: Any, **kwargs: Any
) -> Any:
    """Has the mask of bools that it gives know what is known of the mask of integers."""
    found = original(config, embeddings, mask, *args, **kwargs)
    if torch.compiler.is_compiling():
        return found
    given, known = found[1], is_all_ones(mask)
    is_the_same = isinstance(given, torch.Tensor) and given.shape == getattr(mask, "shape", None)
    if known is not None and is_the_same:
        setattr(given, _KNOWN, (known, _version_of(given)))
    return found


def _known(mask: object) -> bool | None:
    """What `_preprocess` has noted of a mask that nobody has written to since."""
    if torch.compiler.is_compiling():
        return None  # nothing is noted there, and to ask for a version would end the graph
    known, version = getattr(mask, _KNOWN, (None, 0))
    return known if isinstance(mask, torch.Tensor) and _version_of(mask) == version else None


def _version_of(mask: torch.Tensor) -> int:
    """How often it was written to; tensors of `torch.inference_mode` do not say."""
    return 0 if mask.is_inference() else mask._version


def _fast_all(original: Callable[..., Any], tensor: torch.Tensor) -> Any:
    known = _known(tensor)
    return original(tensor) if known is None else known


def _ignore_causal(
    original: Callable[..., bool],
    padding_mask: Any,
    q_length: int,
    kv_length: int,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Without a mask it says what it says with ones, where there are as many queries as keys."""
    known = _known(padding_mask)
    if known is None or q_length != kv_length or padding_mask.shape[-1] != kv_length:
        return original(padding_mask, q_length, kv_length, *args, **kwargs)
    return known and original(None, q_length, kv_length, *args, **kwargs)


def _ignore_bidirectional(
    original: Callable[..., bool], padding_mask: Any, *args: Any, **kwargs: Any
) -> bool:
    known = _known(padding_mask)
    if known is None:
        return original(padding_mask, *args, **kwargs)
    return known and original(None, *args, **kwargs)


def _create_recurrent(
    original: Callable[..., Any],
    config: Any,
    inputs_embeds: torch.Tensor,
    attention_mask: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Of a model with states: the mask at the last positions, or None where it is 1 everywhere."""
    if torch.compiler.is_compiling() or getattr(attention_mask, "ndim", 0) != 2:
        return original(config, inputs_embeds, attention_mask, *args, **kwargs)
    known, length = _range_of(attention_mask), inputs_embeds.shape[1]
    is_ones = known is not None and known[:2] == (1, 1)
    if known is None or length == 1 or not (is_ones or known[2]):
        return original(config, inputs_embeds, attention_mask, *args, **kwargs)
    return None if is_ones else attention_mask[:, -length:].contiguous()
