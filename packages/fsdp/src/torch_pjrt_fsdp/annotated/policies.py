"""Which modules are blocks, gathered and given back as one: policies of the user's, and PyTorch's.

wrap                                   blocks are
None                                   the model alone
a class, or several                    the modules of these classes
a number                               modules with that many parameters not in blocks within them
a text like "layers.*"                 the modules whose names match
function(module) -> bool               those of which it says so
function(module, recurse, numel)       PyTorch's older policies, mostly by `functools.partial`
ModuleWrapPolicy, CustomPolicy         PyTorch's newer policies
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import nn

from torch_pjrt.errors import SettingError

# Modules that are called by their children alone: a block of one would never be entered.
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)


def size_based_auto_wrap_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, min_num_params: int = 100_000_000
) -> bool:
    """Blocks of at least `min_num_params` elements: PyTorch's policy of that name, by `functools.partial`.

    Lists of modules are no blocks, and what is within `nn.MultiheadAttention` is none.
    """
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy as of_pytorch

    return of_pytorch(module, recurse, nonwrapped_numel, min_num_params)


def transformer_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    nonwrapped_numel: int,
    transformer_layer_cls: Collection[type[nn.Module]],
) -> bool:
    """Blocks are the modules of some classes, layers of a transformer: PyTorch's policy of that name."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """Blocks are the modules of which a function says so: PyTorch's policy of that name."""
    return recurse or bool(lambda_fn(module))


def blocks_of(
    model: nn.Module, wrap: Any, ignored: Collection[nn.Module]
) -> dict[nn.Module, dict[str, Any]]:
    """The modules within `model` that a policy makes blocks of, children first, with what it says of each.

    `model` itself is not one of them. `SettingError` for what is no policy, and for one that makes a block
    of a module that is never called, a list say.
    """
    if wrap is None:
        return {}
    found = {
        module: options
        for module, options in _found(model, wrap, set(ignored)).items()
        if module is not model and module not in ignored
    }
    names = {module: name for name, module in model.named_modules()}
    for module in found:
        if isinstance(module, _NEVER_CALLED):
            raise SettingError(
                f"`{names[module]}` is a {type(module).__name__}: it is never called, and so no block.",
                hint="wrap the modules within it",
            )
    order = {module: i for i, module in enumerate(_children_first(model))}
    return {module: found[module] for module in sorted(found, key=order.__getitem__)}


def _found(model: nn.Module, wrap: Any, ignored: set[nn.Module]) -> dict[nn.Module, dict[str, Any]]:
    if hasattr(wrap, "_run_policy"):
        return dict(wrap._run_policy(model, ignored, {}))
    if isinstance(wrap, str):
        chosen = [m for name, m in model.named_modules() if fnmatchcase(name, wrap)]
        if not chosen:
            raise SettingError(
                f"No module has a name like `{wrap}`.",
                saw=", ".join(name for name, _ in model.named_modules() if name) or "no modules",
            )
        return {module: {} for module in chosen}
    classes = _classes(wrap)
    if classes is not None:
        return {m: {} for m in model.modules() if isinstance(m, classes)}
    if isinstance(wrap, int) and not isinstance(wrap, bool):
        wrap = partial(size_based_auto_wrap_policy, min_num_params=wrap)
    if not callable(wrap):
        raise _no_policy(wrap)
    policy: Callable[..., Any] = wrap
    if _takes_one(wrap):
        return {m: {} for m in model.modules() if wrap(m)}
    found: dict[nn.Module, dict[str, Any]] = {}
    _recurse(model, policy, ignored, found, set())
    return found


def _classes(wrap: Any) -> tuple[type, ...] | None:
    many = wrap if isinstance(wrap, (tuple, list, set, frozenset)) else (wrap,)
    if not all(isinstance(c, type) for c in many):
        if many is wrap:
            raise _no_policy(wrap)
        return None
    if not many or not all(issubclass(c, nn.Module) for c in many):
        raise _no_policy(wrap)
    return tuple(many)


def _no_policy(wrap: Any) -> SettingError:
    return SettingError(
        "This is no policy of which modules are blocks.",
        saw=repr(wrap),
        expected="a class of modules or several, a number of parameters, a pattern of names, a function, or "
        "a policy of torch.distributed.fsdp.wrap",
    )


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether it is called with a module alone."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return True
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return False
    names = {p.name for p in parameters}
    return not {"recurse", "nonwrapped_numel"} & names and len(parameters) < 3


def _recurse(
    module: nn.Module,
    policy: Callable[..., Any],
    ignored: set[nn.Module],
    found: dict[nn.Module, dict[str, Any]],
    seen: set[nn.Module],
) -> int:
    """Ask an older policy of PyTorch's, children first; how many elements are in blocks of the module now."""
    seen.add(module)
    numel = sum(p.numel() for p in module.parameters())
    if not policy(module=module, recurse=True, nonwrapped_numel=numel):
        return 0
    wrapped = sum(
        _recurse(child, policy, ignored, found, seen)
        for child in module.children()
        if child not in ignored and child not in seen
    )
    if policy(module=module, recurse=False, nonwrapped_numel=numel - wrapped):
        found[module] = {}
        return numel
    return wrapped


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    return _unseen(module, set())


def _unseen(module: nn.Module, seen: set[nn.Module]) -> Iterator[nn.Module]:
    if module in seen:
        return
    seen.add(module)
    for child in module.children():
        yield from _unseen(child, seen)
    yield module
