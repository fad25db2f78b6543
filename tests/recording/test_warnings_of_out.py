"""An `out=` that has elements and is resized: each call warns as often as on the CPU, for all of `op_db`."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from torch_pjrt import sync
from torch_pjrt.testing.pytorch_suite.there_and_here import moved

SHAPE = (2, 3, 1, 1, 1, 1, 1)  # which no sample gives


def warned(op: Any, sample: tuple[Any, Any, Any], results: Any, device: str) -> int:
    """How often a call warns whose like has been made before."""

    def resized() -> None:
        outs = [torch.empty(SHAPE, dtype=x.dtype, device=device) for x in results]
        out = outs[0] if isinstance(results, list) and len(outs) == 1 else tuple(outs)
        op(sample[0], *sample[1], **sample[2], out=out)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resized()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resized()
    return sum("was resized" in str(w.message) for w in caught)


def tried(op: Any) -> tuple[int, int] | None:
    """How often the device and the CPU warn; None where the CPU takes no such `out=`."""
    dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(op.dtypes))
    for sample in op.sample_inputs("cpu", dtype):
        given = (sample.input, sample.args, sample.kwargs)
        try:
            results = op(given[0], *given[1], **given[2])
            results = [results] if isinstance(results, torch.Tensor) else results
            theirs = warned(op, given, results, "cpu")
        except (RuntimeError, TypeError, AttributeError):
            return None
        return warned(op, moved(given, "pjrt"), results, "pjrt"), theirs
    return None


@pytest.mark.slow("file")
@pytest.mark.filterwarnings("ignore")
def test_a_resized_out_is_warned_of_as_on_the_cpu() -> None:
    n, differ = 0, []
    for op in op_db:
        if op.supports_out and (said := tried(op)) is not None:
            n += bool(said[1])
            if said[0] != said[1]:
                differ.append((op.formatted_name, *said))
        sync()

    assert not differ
    assert n > 250
