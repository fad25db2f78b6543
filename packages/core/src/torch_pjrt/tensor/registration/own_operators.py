"""Operators of other packages that have a rule: their calls are recorded; PyTorch would run their Python
body.

`torch.library.custom_op` registers its body for every device, in front of our fallback. So each operator
that has a rule gets a kernel of its own for ours. Gradients are PyTorch's: its formula, or the one that
was registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch_pjrt.client import client as running
from torch_pjrt.errors import LoweringError
from torch_pjrt.lowering.added import ADDED, note_source
from torch_pjrt.lowering.table import Rule
from torch_pjrt.overloads import Absent
from torch_pjrt.tensor.registration.registry import is_own, own_of, register_own


def lowers(
    *ops: Any,
    static: Iterable[str] = (),
    random: bool | str = False,
    fingerprint: str | None = None,
) -> Callable[[Rule], Rule]:
    """Give operators of a package's own a rule on every device, at any time; a decorator.

    ops          functional overloads: `torch.ops.mine.scale.default`, of a `torch.library.custom_op`
                 say. Their fake kernel says what the results look like; without one, the rule does.
    static, random    as of `LoweringTable.lowers`.
    fingerprint  a text that changes whenever the rule computes something else, for rules that are no
                 functions of a module's own (closures, partials): without one their programs are not
                 kept on disk.

    From then on calls are recorded by the rule, and the operator's Python body does not run on the
    device. Rules for one device alone come from the hook `torch_pjrt_lowerings`. Raises
    `DuplicateLowering` where there is a rule, `LoweringError` for operators of PyTorch's and for such as
    write to their arguments.

        >>> @torch.library.custom_op("mine::scale", mutates_args=())
        ... def scale(x: torch.Tensor, factor: float) -> torch.Tensor: ...
        >>> @lowers(torch.ops.mine.scale.default)
        ... def _scale(x: jax.Array, factor: float) -> jax.Array:
        ...     return x * factor
        >>> scale(torch.ones(2, device="pjrt"), 3.0)
        tensor([3., 3.], device='pjrt:0')
    """

    def register(rule: Rule) -> Rule:
        for op in ops:
            if not isinstance(op, Absent):
                _add(op, rule, static, random, fingerprint)
        return rule

    return register


def _add(
    op: Any, rule: Rule, static: Iterable[str], random: bool | str, fingerprint: str | None
) -> None:
    if not is_own(op) or op._schema.is_mutable:
        raise LoweringError(
            f"`{op}` is no operator that a package can give a rule while the process runs.",
            expected="a functional overload of the package's own: `torch.ops.mine.name.default`",
            hint="rules for PyTorch's operators come from the hook `torch_pjrt_lowerings`",
        )
    static = frozenset(static)
    started = running.started()
    if started is not None:
        started.lowerings.add(op, rule, static=static, random=random)
    ADDED.add(op, rule, static=static, random=random)
    note_source(op, rule, fingerprint)
    register_own(partial(own_of, [op]))
