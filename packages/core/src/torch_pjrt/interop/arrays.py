"""`torch_pjrt.to_jax` and `torch_pjrt.from_jax`: a tensor's array, and a tensor on an array, without a copy.

Arrays never change: an in-place write to the tensor gives it another one. The array's memory is not
donated either, as long as somebody holds the array.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import torch

from torch_pjrt import dtypes
from torch_pjrt.client import partition
from torch_pjrt.client.client import client
from torch_pjrt.client.stack_elements import alone
from torch_pjrt.errors import UnsupportedError
from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import contiguous_spec
from torch_pjrt.run.sync import materialize
from torch_pjrt.tensor.storage.buffer import is_pjrt, wrap_sized
from torch_pjrt.tensor.storage.view import value_of


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """The content of a tensor as a JAX array of its shape and dtype (complex64 for complex32), on the device.

    Runs what is pending, and waits for nothing. Of a `pjrt` tensor that is no view it is the array behind it;
    of one that lies in a stack, as weights of rolled layers do, a copy. A CPU tensor is uploaded. Autograd
    does not follow; `jax_function` differentiates. `TypeError` for what is no tensor.

        >>> torch_pjrt.to_jax(torch.ones(2, device="pjrt") + 1)
        Array([2., 2.], dtype=float32)
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"to_jax takes a torch.Tensor, saw {type(tensor).__name__}")
    tensor = tensor.detach()
    value = value_of(tensor if is_pjrt(tensor) else tensor.to("pjrt"))
    if value.array is None:
        materialize(value)
    return alone(value.array)


def from_jax(array: jax.Array) -> torch.Tensor:
    """A `pjrt` tensor with the content, shape and dtype of a JAX array.

    An array that is on the device already is not copied; one of another device or client is. One that is
    spread over several chips of the device stays so, where `torch_pjrt_spmd` has a mesh. `TypeError` for
    what is no array, for a tracer and for a dtype that PyTorch lacks; `UnsupportedError` for an array that
    is spread over several chips where no mesh is, or over others than this device's.

        >>> torch_pjrt.from_jax(jnp.arange(3)) + 1
        tensor([1, 2, 3], device='pjrt:0', dtype=torch.int32)
    """
    if isinstance(array, jax.core.Tracer):
        raise TypeError(
            "from_jax takes an array, saw a tracer: PyTorch cannot run within a JAX transformation. "
            "`torch_pjrt.jax_function` is the other way round."
        )
    if not isinstance(array, jax.Array):
        raise TypeError(f"from_jax takes a jax.Array, saw {type(array).__name__}")
    spec = contiguous_spec(array.shape, torch_dtype(array.dtype))
    if len(array.sharding.device_set) > 1:
        _check_chips(array)
        return wrap_sized(Value.of_array(spec, array), spec)
    chip = client().chip
    if array.sharding != jax.sharding.SingleDeviceSharding(chip):
        with dtypes.x64():
            array = jax.device_put(array, chip)
    return wrap_sized(Value.of_array(spec, array), spec)


def _check_chips(array: jax.Array) -> None:
    """Raise for an array on several chips, unless somebody spreads tensors over these."""
    if partition.chosen.partitioner is None:
        happened = "The array is spread over several chips; a tensor is on one."
        hint = (
            "`torch_pjrt_spmd.use_mesh(mesh)` first; or `jax.device_put(array, jax.devices()[0])`"
        )
    elif not array.sharding.device_set <= set(client().chip.client.devices()):
        happened = "The array is spread over chips that are not this device's."
        hint = "`jax.device_put(array, jax.devices()[0])` gathers it"
    else:
        return
    raise UnsupportedError(happened, saw=str(array.sharding), hint=hint)


def torch_dtype(dtype: Any) -> torch.dtype:
    """The dtype of tensors for one of arrays; `TypeError` where there is none (keys, 4-bit integers, ...)."""
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):  # pyright: ignore[reportPrivateImportUsage]
        raise TypeError(
            f"{dtype} has no PyTorch equivalent; jax.random.key_data gives integers of a key"
        )
    return dtypes.to_torch(dtype)
