"""Variables of `torch_xla` that mean something here, as torch-pjrt's own; read when `torch_xla` is imported.

A variable of torch-pjrt that is set wins. What would change results if it were overlooked is a warning.
"""

from __future__ import annotations

import os
import warnings

#   variable of torch_xla           of torch-pjrt
RENAMED = {
    "XLA_PERSISTENT_CACHE_PATH": "TORCH_PJRT_CACHE_DIR",
    "PJRT_LIBRARY_PATH": "TORCH_PJRT_LIBRARY",
}
#   variable            what it would do, and what does so here
WITHOUT_MEANING = {
    "XLA_USE_BF16": "it made floats bfloat16: use `torch.autocast` or `model.bfloat16()`",
    "XLA_DOWNCAST_BF16": "it made floats bfloat16: use `torch.autocast` or `model.bfloat16()`",
    "XLA_USE_32BIT_LONG": "it made int64 int32: integers keep their dtypes here",
    "XLA_AUTO_SPMD": "it sharded automatically: call `torch_pjrt_spmd.auto_shard`",
}
#   PJRT_DEVICE: the same variable, and one name for another
DEVICES = {"CUDA": "GPU"}


def apply() -> None:
    """Set torch-pjrt's variables by torch_xla's, in `os.environ`; `UserWarning` for what has no meaning
    here."""
    for old, new in RENAMED.items():
        if old in os.environ:
            os.environ.setdefault(new, os.environ[old])
    device = os.environ.get("PJRT_DEVICE", "").upper()
    if device in DEVICES:
        os.environ["PJRT_DEVICE"] = DEVICES[device]
    if os.environ.get("PT_XLA_DEBUG") == "1" or os.environ.get("PT_XLA_DEBUG_LEVEL", "0") != "0":
        os.environ.setdefault("TORCH_PJRT_LOG", "recompile,sync")
    for name, why in WITHOUT_MEANING.items():
        if os.environ.get(name, "0") not in ("", "0"):
            warnings.warn(f"The variable {name} does nothing on torch-pjrt; {why}", stacklevel=3)
