"""The backend `xla` of `torch.distributed`: importing `torch_xla` registers it; it is `pjrt`."""

from __future__ import annotations

from torch_xla.process_groups import register

register()
