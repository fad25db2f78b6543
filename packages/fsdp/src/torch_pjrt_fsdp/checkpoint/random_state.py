"""The random state of this process, as a part of a checkpoint."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


class RandomState:
    """Of PyTorch on the CPU and on the device, of NumPy and of Python: what each draws next.

    Has `state_dict` and `load_state_dict`, with nothing but numbers, texts and tensors.
    """

    def state_dict(self) -> dict[str, Any]:
        """What they draw next."""
        name, keys, *numbers = np.random.get_state()
        version, internal, gauss = random.getstate()
        found: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "numpy": {
                "name": str(name),
                "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
                "numbers": [float(n) if isinstance(n, float) else int(n) for n in numbers],
            },
            "python": {
                "version": version,
                "internal": torch.tensor(internal, device="cpu"),
                "gauss": gauss,
            },
        }
        pjrt: Any = torch.pjrt  # type: ignore[attr-defined]
        if pjrt.is_initialized():
            found["pjrt"] = pjrt.get_rng_state()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have them draw that again."""
        torch.set_rng_state(state["torch"])
        of_numpy, of_python = state["numpy"], state["python"]
        keys = of_numpy["keys"].numpy().astype(np.uint32)
        np.random.set_state((of_numpy["name"], keys, *of_numpy["numbers"]))
        internal = tuple(of_python["internal"].tolist())
        random.setstate((of_python["version"], internal, of_python["gauss"]))
        if "pjrt" in state:
            torch.pjrt.set_rng_state(state["pjrt"])  # type: ignore[attr-defined]
