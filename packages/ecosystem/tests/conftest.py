"""The module `torch_xla` is another road to the device, which the libraries take first: not in these tests.

Where the package is on the path and not installed, PyTorch does not call its entry point: it is called here.

The tests ask what libraries record and read on the way; XLA compiles it quickly.
"""

from __future__ import annotations

import os

os.environ["USE_TORCH_XLA"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: F401

from quickly import compiled_quickly
from torch_pjrt_ecosystem.autoload import autoload

autoload()

__all__ = ["compiled_quickly"]
