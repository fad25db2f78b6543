"""Keys and values of `generate` in arrays of a fixed size, with lengths that the host knows.

Transformers' static cache counts on the device. To make a mask, the host would read that number in each step.
Here each layer has its length as a Python number. The positions that a step writes are one small tensor, sent
once for all layers, so neither they nor the length are in the program.
"""

from __future__ import annotations

from typing import Any

import torch

LEAST = 16  # a power of two


def rounded_up(n: int, most: int) -> int:
    """`n`, or the next power of two from `LEAST` on, which is at most `most`."""
    return min(max(LEAST, 1 << max(n - 1, 0).bit_length()), max(most, n))


class Positions:
    """The positions `start .. start + n` as a tensor on the device; the last that were asked for are kept."""

    def __init__(self) -> None:
        self._range = (0, 0)
        self._tensor = torch.empty(0, device="cpu")

    def __call__(self, start: int, n: int, device: torch.device) -> torch.Tensor:
        """It."""
        if (start, n) != self._range:
            positions = torch.arange(start, start + n, device="cpu").to(device)
            self._range, self._tensor = (start, n), positions
        return self._tensor


def with_known_lengths(cache: Any, static_layer: type, sliding_layer: type, length: int) -> bool:
    """Give each layer of a new static cache a known length. False, and nothing is changed, where one cannot.

    A layer with a sliding window keeps all `length` keys, of which the mask leaves out those before the
    window: so a step has the same sizes before and after the window is full.
    """
    if not all(type(layer) in (static_layer, sliding_layer) for layer in cache.layers):
        return False
    known, positions = _layer_class(static_layer), Positions()
    for i, old in enumerate(cache.layers):
        cache.layers[i] = known(length, positions, is_sliding=type(old) is sliding_layer)
    return True


def set_length(cache: Any, length: int) -> None:
    """Have each layer forget what is behind that; what follows is written over it."""
    for layer in cache.layers:
        layer.length = length


def has_known_lengths(cache: Any) -> bool:
    """Whether `with_known_lengths` has changed it."""
    return bool(getattr(cache, "layers", None)) and all(
        hasattr(layer, "positions") for layer in cache.layers
    )


_classes: dict[type, type] = {}


def _layer_class(base: Any) -> Any:
    if base not in _classes:
        _classes[base] = _made(base)
    return _classes[base]


def _made(base: Any) -> type:
    class KnownLengthLayer(base):
        """A static layer whose length is a Python number."""

        def __init__(self, max_cache_len: int, positions: Positions, is_sliding: bool) -> None:
            super().__init__(max_cache_len)
            self.positions = positions
            self.is_sliding = is_sliding
            self.length = 0

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            """Write them behind what is there."""
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            n = key_states.shape[-2]
            at = self.positions(self.length, n, self.keys.device)
            self.length += n
            self.keys.index_copy_(2, at, key_states)
            self.values.index_copy_(2, at, value_states)
            return self.keys, self.values

        def get_seq_length(self) -> int:
            """How many tokens it has."""
            return self.length

        def crop(self, tokens_to_remove: int) -> None:
            """Forget the last ones; the number is negative, as Transformers gives it."""
            self.length -= abs(tokens_to_remove)

        def reset(self) -> None:
            """Forget all."""
            super().reset()
            self.length = 0

    return KnownLengthLayer
