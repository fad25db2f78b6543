"""LAPACK, which XLA's CPU programs call for decompositions: SciPy's, whose addresses jaxlib asks for."""

from __future__ import annotations

from torch_pjrt.plugin import ForeignCalls


def foreign_calls() -> list[ForeignCalls]:
    """jaxlib's functions, which are at address zero until `initialize`: JAX calls it as it lowers one.

    None where this jaxlib has them in another place: programs that call LAPACK are then not kept on disk.
    """
    try:
        from jaxlib import lapack

        names = [name for name, *_ in lapack.registrations()["cpu"]]
        return [ForeignCalls(names, lapack._lapack.initialize)]  # pyright: ignore[reportPrivateImportUsage]
    except (ImportError, AttributeError, KeyError):
        return []
