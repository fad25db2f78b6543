"""`torch_xla.core.xla_op_registry`: operators are written otherwise here."""

from __future__ import annotations

from torch_xla.absent import absent

_HOW = "`torch_pjrt.jax_function` makes an operator of a JAX function; `torch.library.custom_op` names it"

__getattr__ = absent(__name__, {"Op": _HOW, "register": _HOW})
