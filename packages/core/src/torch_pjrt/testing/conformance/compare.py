"""Compare what a device gave with what PyTorch's CPU kernels gave.

Values pass within PyTorch's own tolerance for their dtype (`torch.testing.assert_close`). Where both
are roundings of one exact result (sums in another order, fewer roundings in between), values pass also
if each is within that tolerance of the result computed in double precision, or if, by the rule by which
PyTorch judges its own compiler (`torch._dynamo.utils.same`), the root of their mean squared error is at
most twice that of the CPU's values, three times in half precision or for less than 1,000 elements. Elements
that are the same NaN or infinity as the CPU's, as where halves overflow on the way, have passed already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_flatten


def difference(
    actual: Any,
    expected: Any,
    exact: Callable[[], Any] | None = None,
    tolerance: tuple[float, float] | None = None,
) -> str | None:
    """What differs, in a line; None if nothing does.

    `exact` gives the result in double precision. `tolerance` is (rtol, atol) in place of PyTorch's.
    """
    ours, theirs = tree_flatten(actual)[0], tree_flatten(expected)[0]
    if type(actual) is not type(expected):
        return f"gave a {type(actual).__name__}, not a {type(expected).__name__}"
    if len(ours) != len(theirs):
        return f"gave {len(ours)} results, not {len(theirs)}"
    precise: Sequence[Any] | None = None
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        text = _leaf(a, b, tolerance)
        if text is None:
            continue
        if (
            text.startswith("values")
            and exact is not None
            and a.is_floating_point() | a.is_complex()
        ):
            precise = tree_flatten(exact())[0] if precise is None else precise
            if len(precise) == len(ours) and _is_as_exact(a, b, precise[i]):
                continue
        return text if len(ours) == 1 else f"result {i}: {text}"
    return None


def _leaf(a: Any, b: Any, tolerance: tuple[float, float] | None) -> str | None:
    if not isinstance(b, torch.Tensor) or not isinstance(a, torch.Tensor):
        same = type(a) is type(b) and (a == b or (a != a and b != b))
        if isinstance(a, (float, complex)) and isinstance(b, (float, complex)):
            same = bool(torch.isclose(torch.tensor(a), torch.tensor(b), equal_nan=True))
        return None if same else f"gave {a!r}, not {b!r}"
    if a.dtype != b.dtype:
        return f"dtype {a.dtype}, not {b.dtype}"
    if a.shape != b.shape:
        return f"shape {list(a.shape)}, not {list(b.shape)}"
    if a.layout != b.layout:
        return f"layout {a.layout}, not {b.layout}"
    if b.layout is torch.strided and a.is_contiguous() != b.is_contiguous():
        return f"strides {a.stride()}, not {b.stride()}"
    rtol, atol = tolerance or (None, None)
    try:
        torch.testing.assert_close(_plain(a), _plain(b), rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if "difference" in line]
        return f"values: {'; '.join(lines) or str(error).splitlines()[0]}"
    return None


def _plain(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().resolve_conj().resolve_neg()


def _is_as_exact(ours: torch.Tensor, cpu: torch.Tensor, exact: Any) -> bool:
    if not isinstance(exact, torch.Tensor) or exact.shape != ours.shape:
        return False
    rtol, atol = default_tolerances(ours.dtype)
    wide = torch.complex128 if ours.is_complex() else torch.float64
    rounded = _plain(exact).to(ours.dtype).to(wide)
    a, b, reference = _plain(ours).to(wide), _plain(cpu).to(wide), _plain(exact).to(wide)
    overflown = ~torch.isfinite(b) & ((a == b) | (a.isnan() & b.isnan()))
    unclear = ~torch.isfinite(rounded) & ~overflown
    if not torch.allclose(a[unclear], rounded[unclear], equal_nan=True):
        return False
    clear = ~unclear & ~overflown
    a, b, reference = a[clear], b[clear], reference[clear]
    if not a.isfinite().all():
        return False
    if bool(((a - reference).abs() <= atol + rtol * reference.abs()).all()):
        return True
    is_noisy = ours.dtype in (torch.float16, torch.bfloat16) or ours.numel() < 1000
    allowed = (3 if is_noisy else 2) * _root_mean_square(b - reference)
    return bool(_root_mean_square(a - reference) <= allowed)


def _root_mean_square(errors: torch.Tensor) -> torch.Tensor:
    return errors.abs().square().mean().sqrt()
