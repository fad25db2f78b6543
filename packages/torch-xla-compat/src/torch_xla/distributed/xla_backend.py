"""The backend `xla` of `torch.distributed`: importing `torch_xla` registers it; it is `pjrt`."""

from __future__ import annotations

from torch_xla.absent import absent
from torch_xla.process_groups import register

register()

_HOW = '`torch.distributed.init_process_group("xla", init_method="xla://")` makes the group'
__getattr__ = absent(__name__, {"ProcessGroupXla": _HOW, "new_xla_process_group": _HOW})
