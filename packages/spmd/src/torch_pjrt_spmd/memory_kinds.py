"""Where the chips of a mesh can keep arrays: in memory of their own, and in some of the host's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt.errors import UnsupportedError

if TYPE_CHECKING:
    from torch_pjrt_spmd.mesh import Mesh

# JAX's name of the host's memory that chips read and write directly.
HOST = "pinned_host"


def memory_kinds(mesh: Mesh) -> tuple[str, ...]:
    """JAX's names of the kinds of memory that each chip of the mesh can reach; none where it does not say."""
    here = [chip for chip in mesh.jax_mesh.devices.flat if mesh.target or _is_here(chip)]
    try:
        return tuple(memory.kind for memory in here[0].addressable_memories())
    except (IndexError, AttributeError, NotImplementedError, RuntimeError):
        return ()


def _is_here(chip: Any) -> bool:
    return chip.process_index == chip.client.process_index()


def check_memory(mesh: Mesh, kind: str, tensor: torch.Tensor | None = None) -> None:
    """`UnsupportedError` where tensors on the mesh do not lie in memory of this kind.

    That is so on one chip, in compiled functions, and for a tensor that is an activation.
    """
    if mesh.size == 1:
        raise UnsupportedError("What lies on one chip lies in its own memory.", saw=repr(kind))
    known = memory_kinds(mesh)
    if kind != HOST or kind not in known:
        chip = mesh.jax_mesh.devices.flat[0]
        raise UnsupportedError(
            f"Nothing lies in memory of the kind {kind!r} on `{chip.device_kind}`.",
            saw=f"memory of the kinds {', '.join(known) or '(it does not say)'}",
            expected=repr(HOST),
        )
    if torch.compiler.is_compiling() or (
        tensor is not None and tensor.requires_grad and not tensor.is_leaf
    ):
        raise UnsupportedError(
            "An activation lies in the chips' memory.",
            saw=f"memory_kind={kind!r}",
            expected="a parameter, a gradient, or another tensor that lasts",
        )
