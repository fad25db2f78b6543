"""FSDP is asked for, so it is what trains: FSDP2 over several processes, or an error.

Accelerate leaves a plugin of FSDP aside, without a word, where it has found no process group.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from inspect import signature
from typing import Any

from torch_pjrt.errors import UnsupportedError
from torch_pjrt_ecosystem.replacing import wrap

_ASKED = "ACCELERATE_USE_FSDP"


def install(module: Any) -> None:
    """`module` is `accelerate.state`, then `accelerate.accelerator`."""
    if module.__name__ == "accelerate.accelerator":
        wrap(module.Accelerator, "__init__", _as_it_was_where_refused)
    else:
        _refuse(module)


def _as_it_was_where_refused(
    original: Callable[..., None], self: Any, *args: Any, **kwargs: Any
) -> None:
    """`Accelerator` notes a plugin that it is given in the environment, where the next one finds it."""
    before = os.environ.get(_ASKED)
    try:
        original(self, *args, **kwargs)
    except UnsupportedError:
        if before is None:
            os.environ.pop(_ASKED, None)
        else:
            os.environ[_ASKED] = before
        raise


def _refuse(state: Any) -> None:
    sharded = state.DistributedType.FSDP

    def init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature(original).bind(self, *args, **kwargs).arguments.get("fsdp_plugin")
        original(self, *args, **kwargs)
        if self.device.type != "pjrt" or not (given is not None or _by_the_environment()):
            return
        try:
            _check(self, self.distributed_type is sharded, given)
        except UnsupportedError:
            self._reset_state()  # as if it had not been made
            raise

    wrap(state.AcceleratorState, "__init__", init)


def _by_the_environment() -> bool:
    return os.environ.get(_ASKED, "false").lower() == "true"


def _check(state: Any, is_sharded: bool, given: Any) -> None:
    if not is_sharded:
        raise UnsupportedError(
            "FSDP is asked for, and Accelerate would train an unsharded model.",
            saw=f"{state.num_processes} process, {state.distributed_type}",
            expected="several processes, as torchrun starts them, before anything else of Accelerate's",
            hint="for the chips of one process call `fully_shard` on the model before `prepare` "
            "(docs/fsdp.md), and leave out Accelerate's FSDP",
        )
    plugin = given or state.fsdp_plugin
    if plugin is not None and plugin.fsdp_version != 2:
        raise UnsupportedError(
            "Accelerate's FSDP1 is not supported on `pjrt`.",
            saw=f"fsdp_version={plugin.fsdp_version}",
            expected="fsdp_version=2",
            hint='`FullyShardedDataParallelPlugin(fsdp_version=2)`, `fsdp_config={"version": 2}`, or '
            "FSDP_VERSION=2",
        )
