"""All that an operator refuses by value: indices, other values, numbers, matrices that cannot be factored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.checks.bounds import checked
from torch_pjrt.tensor.checks.numbers import with_numbers_tried
from torch_pjrt.tensor.checks.values import looked_at
from torch_pjrt.tensor.checks.warned import with_warnings
from torch_pjrt.tensor.recording.schema import functional_form

Kernel = Callable[..., Any]

# Factorizations that report errors as numbers, unless `check_errors` asks for an exception: as who.
_FACTORIZATIONS: dict[Any, tuple[str, str]] = {
    aten._linalg_solve_ex.default: ("torch.linalg.solve_ex", "A"),
    aten.linalg_cholesky_ex.default: ("linalg.cholesky_ex", "self"),
    aten.linalg_inv_ex.default: ("linalg.inv_ex", "A"),
    aten.linalg_ldl_factor_ex.default: ("torch.linalg.ldl_factor_ex", "self"),
    aten.linalg_lu_factor_ex.default: ("torch.linalg.lu_factor_ex", "A"),
}

# What is looked at though it has no rule.
CHECKED = (
    aten.linalg_ldl_factor_ex.default,
    aten.linalg_ldl_factor_ex.out,
    aten.max_unpool2d.default,
    aten.max_unpool2d.out,
    aten.max_unpool3d.default,
    aten.max_unpool3d.out,
)


def refusing(op: Any, kernel: Kernel) -> Kernel:
    """The kernel of `op`, which refuses and warns as the CPU does; the kernel itself if that is nothing."""
    looking = looked_at(op, checked(op, _with_errors(op, with_warnings(op, kernel))))
    return with_numbers_tried(op, looking)


def _with_errors(op: Any, kernel: Kernel) -> Kernel:
    functional = functional_form(op)
    if functional not in _FACTORIZATIONS:
        return kernel
    name, matrix = _FACTORIZATIONS[functional]
    names = [a.name for a in op._schema.arguments if not a.kwarg_only]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if not given.get("check_errors", False):
            return kernel(*args, **kwargs)
        results = kernel(**{**given, "check_errors": False})
        torch._linalg_check_errors(results[-1], name, is_matrix=given[matrix].ndim == 2)  # pyright: ignore[reportPrivateImportUsage]
        return results

    return run
