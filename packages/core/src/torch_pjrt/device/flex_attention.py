"""`flex_attention` takes `pjrt` tensors: PyTorch's list of devices that it works on is in its code.

It is made longer there, as a function of ours in its place would be one that Dynamo does not trace. What
PyTorch does then serves any device: a composition of simpler operators, or the traced operator.
"""

from __future__ import annotations

from types import CodeType, ModuleType
from typing import Any

from torch_pjrt.device.imports import after_import

_MODULE = "torch.nn.attention.flex_attention"


def install() -> None:
    """Admit the device now, or when the module is imported."""
    after_import(_MODULE, _admit)


def _admit(module: ModuleType) -> None:
    check: Any = getattr(module, "_validate_device", None)
    if check is not None:
        check.__code__ = _with_device(check.__code__)


def _with_device(code: CodeType) -> CodeType:
    """The code with one name more in its set of devices; as it is where there is none."""
    constants = [
        c | {"pjrt"} if isinstance(c, frozenset) and {"cpu", "cuda"} <= c else c
        for c in code.co_consts
    ]
    return code.replace(co_consts=tuple(constants))
