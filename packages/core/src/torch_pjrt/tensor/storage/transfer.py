"""Between host and device: uploading CPU tensors, reading values back.

An upload copies first, so that the caller may write to the CPU tensor at once. Reading never compiles
anything for the tensor that is read: the buffer's whole array comes to the host and the view is taken
there, by PyTorch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import ref

import jax
import numpy as np
import torch

from torch_pjrt import dtypes
from torch_pjrt.caches import Cache
from torch_pjrt.client import memory, partition
from torch_pjrt.client.client import client
from torch_pjrt.client.elsewhere import brought_here, is_elsewhere_too
from torch_pjrt.client.placing import placed
from torch_pjrt.client.shardings import Index, indices
from torch_pjrt.client.stack_elements import alone
from torch_pjrt.client.uploading import put
from torch_pjrt.client.wait import awaited
from torch_pjrt.graph.tape import Uploaded, Value, current, origin_on
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec, spec_of, storage_order
from torch_pjrt.observe.counters import counters
from torch_pjrt.observe.stops import stop
from torch_pjrt.run.deferred_checks import look
from torch_pjrt.run.sync import materialize
from torch_pjrt.session import session
from torch_pjrt.tensor.storage.buffer import Buffer, buffer_of, spec_and_offset, wrap_sized
from torch_pjrt.tensor.storage.padded_buffer import is_padded
from torch_pjrt.tensor.storage.parts import (
    ArrivingArray,
    array_of_parts,
    is_in_parts,
    joined,
    parts_here,
    parts_of,
)
from torch_pjrt.tensor.storage.view import content, store, value_of

# Told of each upload and each read: the value, and what is in it on the host. `replays/traffic.py` listens.
on_upload: list[Callable[[Value, np.ndarray], None]] = session.own("who is told of uploads", [])
on_read: list[Callable[[Value, np.ndarray], None]] = session.own("who is told of reads", [])

# Of so many integers the host finds the range, in microseconds; from larger tensors the device must.
_MOST_TO_LOOK_AT = 1 << 16

# Caches of keys and values begin as two tensors of no elements for each layer: each kind is uploaded once.
# A program takes no memory of an array that is held here.
_of_no_elements: Cache[tuple[TensorSpec, object], jax.Array] = Cache(
    "arrays of no elements", most=256
)


def upload(
    source: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    copy: bool = True,
    sharding: jax.sharding.Sharding | None = None,
) -> Value:
    """A value on the device with the content of a CPU tensor (any strides), in another dtype if one is given.

    Without `copy` the device may take the tensor's own memory: nobody may write to it from then on. With a
    sharding each chip gets its own part alone, and the host copies one part after the other.

        >>> upload(torch.arange(3), dtype=torch.float32).spec.dtype
        torch.float32
    """
    spec = contiguous_spec(source.shape, dtype or source.dtype)
    if not spec.numel and sharding is None and not on_upload:
        return _nothing(source, spec)
    if sharding is not None and spec.numel > _MOST_TO_LOOK_AT and not on_upload:
        return upload_parts(spec, sharding, lambda index: source[index], copy=copy)
    host = _host_copy(source, spec.dtype, copy)
    array = put(host, sharding)
    if 0 < host.size <= _MOST_TO_LOOK_AT and host.dtype.kind == "i":
        uploaded = Uploaded.of_array(spec, array)
        uploaded.range = (int(host.min()), int(host.max()))
        value: Value = uploaded
    else:
        value = Value.of_array(spec, array)
    for listener in on_upload:
        listener(value, host)
    return value


def _nothing(source: torch.Tensor, spec: TensorSpec) -> Value:
    """As `upload`, of no elements."""
    key = (spec, client().place())
    array = _of_no_elements.get(key)
    if array is None or array.is_deleted():  # by who has asked for it
        array = _of_no_elements[key] = put(_host_copy(source, spec.dtype, copy=True))
    return Value.of_array(spec, array)


def upload_parts(
    spec: TensorSpec,
    sharding: jax.sharding.Sharding,
    part_at: Callable[[Index], torch.Tensor],
    *,
    copy: bool = True,
) -> Value:
    """A value of this shape and dtype, each part of which is asked for once, as a CPU tensor of any dtype.

    `part_at` is given a slice for each dim. The host has two parts at a time, unless a step is being
    captured, for which all of it is noted. `copy` as for `upload`.

        >>> chip = jax.sharding.SingleDeviceSharding(client().chip)
        >>> spec = contiguous_spec((2, 2), torch.float32)
        >>> value = upload_parts(spec, chip, lambda index: torch.eye(2)[index])
        >>> wrap(value, spec)
        tensor([[1., 0.],
                [0., 1.]], device='pjrt:0')
    """
    spec = contiguous_spec(spec.shape, spec.dtype)
    if on_upload:
        source = torch.empty(spec.shape, dtype=spec.dtype, device="cpu")
        for index, _ in indices(sharding, spec.shape):
            source[index] = part_at(index)
        return upload(source, copy=False, sharding=sharding)

    def part(index: Index) -> np.ndarray:
        host = _host_copy(part_at(index), spec.dtype, copy)
        counters.uploads += 1
        counters.uploaded_bytes += host.nbytes
        return host

    with counters.timed("upload_s"):
        array = array_of_parts(spec.shape, sharding, part)
    memory.uploaded(array.nbytes)
    return Value.of_array(spec, array)


def _host_copy(source: torch.Tensor, dtype: torch.dtype, copy: bool) -> np.ndarray:
    """As `to_numpy`, of a tensor that may have another dtype, gradients and lazy bits."""
    here = source.detach().resolve_conj().resolve_neg()
    return (
        to_numpy(here, copy=copy) if here.dtype == dtype else to_numpy(here.to(dtype), copy=False)
    )


def overwrite(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Write a CPU tensor into one of the device, of the same shape; each chip gets its part."""
    store(tensor, upload(source, dtype=tensor.dtype, sharding=_sharding_for(tensor)))


def overwrite_on_device(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """The same of a tensor of the device, of the same dtype, too: nothing is computed.

    What is there already, on one chip say, goes to where the tensor lies: a chip gets its part alone.
    """
    value = value_of(source)
    array = value.array
    if array is not None and (sharding := _sharding_for(tensor)) is not None:
        same_chips = array.sharding.device_set <= sharding.device_set
        if same_chips and not array.sharding.is_equivalent_to(sharding, array.ndim):
            value = Value.of_array(value.spec, placed(array, sharding))
    buffer = buffer_of(tensor)
    if value.array is not None or buffer.__class__ is not Buffer:
        store(tensor, value)
        return
    tape, old = current(), buffer.value
    origin = None if old is None else origin_on(tape, old)
    store(tensor, value)
    if buffer.value is value and value.tape is tape:
        tape.shared.append((ref(buffer), buffer.spec, origin))


def _sharding_for(tensor: torch.Tensor) -> jax.sharding.Sharding | None:
    """How an array is to lie that is written over all of a tensor, which may be a view; None: as it likes."""
    partitioner = partition.chosen.partitioner
    if partitioner is None:
        return None
    sharding = partitioner.of_buffer(buffer_of(tensor))
    return sharding if sharding is not None and _divides(sharding, tensor) else None


def _divides(sharding: jax.sharding.Sharding, tensor: torch.Tensor) -> bool:
    """Whether a tensor, which may be a view of what lies like this, can lie like this, too."""
    if tensor.dim() != len(buffer_of(tensor).spec.shape):
        return False
    try:
        sharding.shard_shape(tuple(tensor.shape))
    except ValueError:
        return False
    return True


def download(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor of its own memory with the content, shape and strides order of a `pjrt` tensor."""
    view, is_own = _viewed_on_host(tensor)
    return view if is_own else view.clone()


def download_parts(tensor: torch.Tensor) -> Iterator[tuple[Index, torch.Tensor]]:
    """A `pjrt` tensor's content as CPU tensors to be read only, and where each lies, a slice for each dim.

    What lies on several chips comes part by part; other tensors, views among them, as one.

        >>> [(index, part)] = download_parts(torch.ones(2, device="pjrt"))
        >>> index, part
        ((slice(0, 2, None),), tensor([1., 1.]))
    """
    buffer = buffer_of(tensor)
    is_all = not is_padded(buffer) and spec_and_offset(tensor) == (buffer.spec, 0)
    if is_all and not (tensor.is_conj() or tensor.is_neg()):
        value = content(buffer)
        if value.array is None:
            materialize(value)
        array: Any = value.array
        if is_in_parts(array) and not on_read and not is_elsewhere_too(array.sharding):
            awaited(value.array, "computing what is read")
            for index, part in parts_of(value.array):
                yield index, from_numpy(part, tensor.dtype)
            look(for_value=value)
            return
    yield tuple(slice(0, n) for n in tensor.shape), host_view(tensor)


class PartsHere:
    """The content of `pjrt` tensors by the parts that chips of this process have, each part once.

    Copies to the host begin with `of`, and are waited for where a part is read.

        >>> [(index, read)] = PartsHere().of(torch.ones(2, device="pjrt"))
        >>> index, read()
        ((slice(0, 2, None),), tensor([1., 1.]))
    """

    def __init__(self) -> None:
        self._begun: dict[int, Any] = {}

    def of(self, tensor: torch.Tensor) -> list[tuple[Index, Callable[[], torch.Tensor]]]:
        """Where each part lies, a slice for each dim, and what gives it, as a CPU tensor to be read only.

        Runs what is pending. What does not fill its memory in the usual way, a view say, is one part.
        """
        array = own_array(tensor)
        if array is None:
            return [(tuple(slice(0, n) for n in tensor.shape), lambda: host_view(tensor))]
        dtype = tensor.dtype
        return [
            (index, lambda read=read: from_numpy(read(), dtype))
            for index, read in parts_here(array, self._begun)
        ]


class ArrivingParts:
    """New content of a `pjrt` tensor, which comes part by part, in any order.

    new       a dtype: the content is that of another tensor, which lies as this one does.
    indices   where the parts lie that chips of this process have, a slice for each dim. Those of several
              processes each bring their own.
    tensor    the one that has the content, once all parts have come; each has gone to its chips at once.

        >>> x = torch.zeros(3, device="pjrt")
        >>> arriving = ArrivingParts(x)
        >>> [index] = arriving.indices
        >>> arriving.put(index, torch.ones(3)), x
        (True, tensor([1., 1., 1.], device='pjrt:0'))
    """

    def __init__(self, tensor: torch.Tensor, *, new: torch.dtype | None = None) -> None:
        self.tensor = tensor if new is None else None
        self._dtype = new or tensor.dtype
        self._like = tensor
        self.indices: list[Index] = [tuple(slice(0, n) for n in tensor.shape)]
        self._array = None
        array = None if on_upload else own_array(tensor)
        if array is not None:
            self._array = ArrivingArray(array.shape, array.sharding)
            self.indices = [tuple(slice(*b) for b in bounds) for bounds in self._array.expected]

    def put(self, index: Index, part: torch.Tensor) -> bool:
        """Bring a part, of any dtype, to its chips; whether it was the last. `KeyError` for another one."""
        if self._array is None:
            if self.tensor is None:
                self.tensor = torch.empty_like(self._like, dtype=self._dtype)
            overwrite(self.tensor, part)
            return True
        host = _host_copy(part, self._dtype, copy=True)
        counters.uploads += 1
        counters.uploaded_bytes += host.nbytes
        array = self._array.put(index, host)
        if array is None:
            return False
        memory.uploaded(array.nbytes)
        value = Value.of_array(contiguous_spec(self._like.shape, self._dtype), array)
        if self.tensor is None:
            self.tensor = wrap_sized(value, value.spec)
        else:
            store(self.tensor, value)
        return True


def own_array(tensor: torch.Tensor, *, wait: bool = True) -> Any:
    """The array behind a tensor that is all of it, waited for unless told otherwise; else None."""
    buffer = buffer_of(tensor)
    if is_padded(buffer) or spec_and_offset(tensor) != (buffer.spec, 0):
        return None
    if tensor.is_conj() or tensor.is_neg() or tensor.dtype is torch.complex32:
        return None
    value = content(buffer)
    if value.array is None:
        materialize(value)
    client()  # raises in a forked process
    if wait:
        awaited(value.array, "computing what is read")
        look(for_value=value)
    return value.array


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """The content of a `pjrt` tensor as a CPU tensor that may share the array's memory: read it only."""
    return _viewed_on_host(tensor)[0]


def _viewed_on_host(tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """As `host_view`, and whether the memory is the tensor's alone."""
    buffer = buffer_of(tensor)
    spec, offset = spec_and_offset(tensor)
    base = buffer.spec
    whole, is_own = _host_content(buffer)
    if spec is base and not offset and base.contiguous:
        view = whole
        if whole.stride() != spec.strides and whole.is_contiguous():  # in dims of one element alone
            view = whole.as_strided(spec.shape, spec.strides)
    else:
        flat = whole.permute(storage_order(base)).contiguous().view(-1)
        if spec.dtype != base.dtype:
            ratio = max(spec.dtype.itemsize // base.dtype.itemsize, 1)
            flat = flat[: len(flat) // ratio * ratio].view(spec.dtype)
        view = flat.as_strided(spec.shape, spec.strides, offset)
        is_own = is_own and spec.dense and spec.numel == len(flat)
    view = view.conj().resolve_conj() if tensor.is_conj() else view
    return view.neg() if tensor.is_neg() else view, is_own


def host_storage(buffer: Buffer) -> torch.Tensor:
    """What is in a storage, in its order, as a CPU tensor of one dim and its own memory."""
    whole, is_own = _host_content(buffer)
    flat = whole.permute(storage_order(buffer.spec)).contiguous().view(-1)
    return flat if is_own else flat.clone()


def _host_content(buffer: Buffer) -> tuple[torch.Tensor, bool]:
    """A buffer's content on the host, in the shape of its spec, and whether its memory is nobody else's."""
    if is_padded(buffer):
        whole = from_numpy(host_array(buffer.padded), buffer.spec.dtype)
        return buffer.cut_on_host(whole), False
    value = content(buffer)
    whole = from_numpy(host_array(value), buffer.spec.dtype)
    return whole, value.array is not None and is_in_parts(value.array)


def array_of(value: Value) -> jax.Array:
    """The value's array on the device, an array of its own; runs what is pending first.

    >>> array_of(value_of(torch.ones(2, device="pjrt") + 1))
    Array([2., 2.], dtype=float32)
    """
    if value.array is None:
        materialize(value)
    client()  # raises in a forked process
    return alone(value.array)


def host_array(value: Value) -> np.ndarray:
    """The value's content; runs what is pending first.

    >>> host_array(value_of(torch.ones(2, device="pjrt") + 1))
    array([2., 2.], dtype=float32)
    """
    if value.array is None:
        materialize(value)
    client()  # raises in a forked process, in which reading may hang
    before = counters.download_s
    with counters.timed("download_s"):
        host = _read(value.array)
    here = stop()
    here.reads += 1
    here.seconds += counters.download_s - before
    counters.downloads += 1
    counters.downloaded_bytes += host.nbytes
    for listener in on_read:
        listener(value, host)
    look(for_value=value)
    return host


def _read(array: Any) -> np.ndarray:
    """The array's content, waited for."""
    doing = "computing what is read"
    try:
        array = _readable(array)
        awaited(array, doing)
        return joined(array) if is_in_parts(array) else np.asarray(array)
    except jax.errors.JaxRuntimeError as error:
        memory.raise_if_exhausted(error, doing)
        raise


def _readable(array: Any) -> Any:
    """The array, or where other processes have parts of it that this one lacks, one that is all here."""
    return brought_here(alone(array)) if is_elsewhere_too(array.sharding) else array


def spec_on_device(
    source: torch.Tensor, memory_format: torch.memory_format | None = None
) -> TensorSpec:
    """What a CPU tensor looks like on the device: its own strides, or their order where they leave gaps."""
    spec = spec_of(source.shape, source.dtype, source.stride())
    if memory_format in (None, torch.preserve_format) and spec.dense:
        return spec
    laid_out = torch.empty_like(spec.meta(), memory_format=memory_format or torch.preserve_format)
    return spec_of(source.shape, source.dtype, laid_out.stride())


def to_numpy(source: torch.Tensor, *, copy: bool = True) -> np.ndarray:
    """A CPU tensor's content as a contiguous array, in the NumPy dtype that JAX uses for its dtype.

    Without `copy` it may share the tensor's memory.
    """
    whole = source.clone() if copy and source.is_contiguous() else source.contiguous()
    carrier = dtypes.CARRIED_AS.get(source.dtype)
    if carrier is not None:
        return whole.view(carrier).numpy().view(dtypes.to_jax(source.dtype))
    if source.dtype is torch.complex32:
        return whole.to(torch.complex64).numpy()
    dtypes.to_jax(source.dtype)  # a TypeError here names a dtype that XLA lacks
    if dtypes.is_halved(source.dtype):
        return dtypes.halved(whole.numpy(), source.dtype)
    return whole.numpy()


def from_numpy(host: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor on the same memory as a NumPy array (read only if that is); complex32 is a copy."""
    if not host.size:  # NumPy's strides say nothing then, and PyTorch's must be right
        return torch.empty(host.shape, dtype=dtype, device="cpu")
    carrier = dtypes.CARRIED_AS.get(dtype)
    if carrier is not None:
        host = host.view(dtypes.to_jax(carrier))
    if not host.flags.writeable:  # from_numpy would warn; the callers copy or only read
        host = _writeable(host)
    with untraced():
        tensor = torch.from_numpy(host)
    if dtype is torch.complex32 or dtypes.is_halved(dtype):
        return tensor.to(dtype)
    return tensor.view(dtype) if carrier is not None else tensor


def untraced() -> AbstractContextManager[None]:
    """`torch.jit.trace` does not warn of what is done within: it is ours, and what is read was warned of."""
    return nullcontext() if torch._C._get_tracing_state() is None else _without_its_warnings()


@contextmanager
def _without_its_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # pyright: ignore[reportPrivateImportUsage]
        yield


class _Holder:
    """Memory of an array that claims to be writable, for NumPy; keeps the array."""

    def __init__(self, owner: np.ndarray) -> None:
        self.owner = owner
        interface = dict(owner.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _writeable(host: np.ndarray) -> np.ndarray:
    """The same memory as an array that claims to be writable."""
    if not host.flags.c_contiguous or host.size == 0:
        return host.copy()
    return np.asarray(_Holder(host))
