"""Drawing classes by their weights: what the CPU refuses is refused, weights after the device has seen them.

As indices out of range are: with the next read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt import operators
from torch_pjrt.overloads import aten
from torch_pjrt.run.deferred_checks import Refusal
from torch_pjrt.tensor.checks.bounds import RangeCheck, defer_check
from torch_pjrt.tensor.recording import record

_MOST_CLASSES = 1 << 24

# What `operators.weights_fault` finds, in the words of the CPU's kernels without and with replacement.
_RACE = {
    1: "probability tensor contains either `inf`, `nan` or element < 0",
    2: "probability tensor contains either `inf`, `nan` or element < 0",
    3: "invalid multinomial distribution (sum of probabilities <= 0)",
}
_SEARCH = {
    1: "invalid multinomial distribution (encountering probability entry < 0)",
    2: "invalid multinomial distribution (encountering probability entry = infinity or NaN)",
    3: "invalid multinomial distribution (sum of probabilities <= 0)",
}


def _refusal(texts: dict[int, str]) -> Refusal:
    return lambda fault: RuntimeError(texts[fault])


_refused_race, _refused_search = _refusal(_RACE), _refusal(_SEARCH)


def _kernel(op: Any) -> Callable[..., Any]:
    def multinomial(
        self: torch.Tensor, num_samples: int, replacement: bool = False, **named: Any
    ) -> torch.Tensor:
        n_classes = self.shape[-1] if self.ndim else 0
        is_possible = num_samples > 0 and (replacement or num_samples <= n_classes)
        if n_classes > _MOST_CLASSES and is_possible:
            raise RuntimeError("number of categories cannot exceed 2^24")
        result = record.call(op, (self, num_samples, replacement), named)
        if self.numel():
            refusal = _refused_search if replacement and num_samples > 1 else _refused_race
            fault = record.call(operators.weights_fault, (self,), {})
            defer_check(RangeCheck(fault, 0, 1, refusal))
        return result

    return multinomial


KERNELS: dict[Any, Any] = {
    op: _kernel(op) for op in (aten.multinomial.default, aten.multinomial.out)
}
