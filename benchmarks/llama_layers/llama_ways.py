"""The contestants: one function each, which imports what it needs and gives a step of a batch of NumPy's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llama import Sizes, model_of, step_of

Train = Callable[[np.ndarray, np.ndarray], Any]


@dataclass(frozen=True)
class Way:
    """A contestant's name in tables, and what makes its step; the folder keeps compiled programs."""

    title: str
    make: Callable[[Sizes, Path], Train]


def by_jax(sizes: Sizes, folder: Path) -> Train:
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder / "jax"))
    from llama_jax import stepping

    return stepping(sizes)


def _by_pytorch(
    sizes: Sizes, device: str, wrap: Any = None, compiled: Any = None, **how: Any
) -> Train:
    import torch

    train = step_of(model_of(sizes, device), compiled, **how)
    train = wrap(train) if wrap else train

    def step(tokens: np.ndarray, targets: np.ndarray) -> Any:
        return train(*(torch.from_numpy(a).long().to(device) for a in (tokens, targets)))

    return step


def by_pjrt(sizes: Sizes, folder: Path) -> Train:
    os.environ["TORCH_PJRT_CACHE_DIR"] = str(folder / "pjrt")
    return _by_pytorch(sizes, "pjrt")


def by_capture(sizes: Sizes, folder: Path) -> Train:
    os.environ["TORCH_PJRT_CACHE_DIR"] = str(folder / "pjrt")
    import torch_pjrt

    return _by_pytorch(sizes, "pjrt", torch_pjrt.capture, capturable=True)


def by_compiled(sizes: Sizes, folder: Path) -> Train:
    os.environ["TORCH_PJRT_CACHE_DIR"] = str(folder / "pjrt")
    import torch

    return _by_pytorch(sizes, "pjrt", compiled=lambda f: torch.compile(f, backend="pjrt"))


def by_inductor(sizes: Sizes, folder: Path) -> Train:
    """On CUDA where PyTorch has it, else on the CPU, which checks this program and measures nothing."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return _by_pytorch(sizes, device, compiled=torch.compile, fused=device == "cuda")


WAYS = {
    "jax": Way("JAX, hand-written, layers scanned", by_jax),
    "pjrt": Way('PyTorch, "pjrt"', by_pjrt),
    "captured": Way('PyTorch, "pjrt", captured', by_capture),
    "compiled": Way('PyTorch, torch.compile(backend="pjrt")', by_compiled),
    "inductor": Way("PyTorch, torch.compile", by_inductor),
}
