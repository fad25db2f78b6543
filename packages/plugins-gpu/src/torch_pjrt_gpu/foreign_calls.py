"""The custom calls of programs for cards: JAX's kernels and solvers, and cuDNN's attention."""

from __future__ import annotations

from torch_pjrt.plugin import ForeignCalls

_HYBRID = "hybrid_"  # solvers that work on the host and on the card


def foreign_calls(stack: str) -> list[ForeignCalls]:
    """Those of `CUDA` or `ROCM`. JAX registers them when it is imported; the hybrid ones it fills in later.

    None of JAX's where this jaxlib has them in another place: programs with such calls are then not kept.
    """
    rows = [ForeignCalls(("__cudnn$fmha*",))]  # XLA's own
    try:
        from jaxlib import gpu_linalg, gpu_prng, gpu_solver, gpu_sparse

        modules = (gpu_linalg, gpu_prng, gpu_solver, gpu_sparse)
        names = [name for m in modules for name, *_ in m.registrations().get(stack, ())]
        rows.append(ForeignCalls([n for n in names if _HYBRID not in n]))
        hybrid = [n for n in names if _HYBRID in n]
        rows.append(ForeignCalls(hybrid, gpu_solver.initialize_hybrid_kernels))
    except (ImportError, AttributeError):
        pass
    return rows
