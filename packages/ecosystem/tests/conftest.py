"""The module `torch_xla` is another road to the device, which the libraries take first: not in these tests.

Where the package is on the path and not installed, PyTorch does not call its entry point: it is called here.
"""

from __future__ import annotations

import os

os.environ["USE_TORCH_XLA"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: F401

from torch_pjrt_ecosystem.autoload import autoload

autoload()
