"""PyTorch's operators by name: `aten.exp.default`. Those that this PyTorch lacks have a name, too.

PyTorch's own `torch.ops.aten` raises for an operator that it does not have, and so would every table that
names one. Here such an operator is an `Absent`: a table that meets one leaves its row out, and lists it.
So one table serves every PyTorch, and no row needs a condition around it.

PyTorch is imported only when a name is asked for: `import torch` loads the device at its end, and that this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch_pjrt.errors import AbsentOperator

Row = TypeVar("Row")

# Operators that are named as Python's methods are. Python asks objects for others of that form.
_METHODS = frozenset(("__and__", "__or__", "__xor__", "__lshift__", "__rshift__"))


class Absent:
    """Stands for an operator that this PyTorch lacks. It equals no operator, and to call it is an error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        raise AbsentOperator(
            f"PyTorch {torch.__version__} has no operator `{self}`.",
            hint="another version of PyTorch has it",
        )

    def __repr__(self) -> str:
        return self._name


class Packet:
    """An operator, whose attributes are its overloads: PyTorch's own, or `Absent`."""

    def __init__(self, name: str, packet: Any) -> None:
        self._name = name
        self._packet = packet

    def __getattr__(self, overload: str) -> Any:
        found = _attribute(self._packet, overload)
        if found is None:
            _refuse_special(self, overload)
            found = Absent(f"{self}.{overload}")
        setattr(self, overload, found)  # found at once from now on
        return found

    def overloads(self) -> list[str]:
        """The names of those that this PyTorch has."""
        return self._packet.overloads() if self._packet is not None else []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._packet or self.default)(*args, **kwargs)

    def __repr__(self) -> str:
        return self._name


class Namespace:
    """A namespace of operators, which are its attributes.

    >>> aten.add.Tensor.name()
    'aten::add.Tensor'
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        import torch

        packet = _attribute(getattr(torch.ops, self._name), name)
        if packet is None:
            _refuse_special(self, name)
        found = Packet(f"{self}.{name}", packet)
        setattr(self, name, found)
        return found

    def __repr__(self) -> str:
        return self._name


# Whose operators have PyTorch's CPU kernels, or ours, for an oracle. Others are packages' own.
PYTORCHS = frozenset(("aten", "prims", "torch_pjrt"))

aten: Any = Namespace("aten")
prims: Any = Namespace("prims")


def named(name: str) -> Any:
    """The overload of a name as PyTorch's schemas have it: `mm`, `norm.Scalar`."""
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base), overload or "default")


def present(rows: Mapping[Any, Row]) -> dict[Any, Row]:
    """The rows whose operators this PyTorch has."""
    return {op: row for op, row in rows.items() if not isinstance(op, Absent)}


def absent(rows: Mapping[Any, Any]) -> list[Absent]:
    """The operators of the rows that `present` leaves out."""
    return [op for op in rows if isinstance(op, Absent)]


def absent_operator(error: BaseException) -> AbsentOperator | None:
    """What to say in place of `error`, if it is PyTorch's own about an operator that it lacks."""
    import torch

    if not isinstance(error, AttributeError):
        return None
    if isinstance(error.obj, torch._ops._OpNamespace):
        owner = error.obj.name
    elif isinstance(error.obj, torch._ops.OpOverloadPacket):
        owner = str(error.obj)
    else:
        return None
    return AbsentOperator(
        f"PyTorch {torch.__version__} has no operator `{owner}.{error.name}`.",
        hint="`aten` of `torch_pjrt.plugin`, in place of `torch.ops.aten`, has a name for it, "
        "and tables leave its row out",
    )


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except (AttributeError, RuntimeError):  # TorchScript's own have no object for an overload
        return None


def _refuse_special(owner: object, name: str) -> None:
    """`__len__`, `__deepcopy__` and so on are no operators."""
    if name.startswith("__") and name not in _METHODS:
        raise AttributeError(f"`{owner}` has no attribute `{name}`", name=name, obj=owner)
