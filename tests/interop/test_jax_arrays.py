"""Tensors and JAX arrays become each other without a copy, and neither changes or loses the other."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils import dlpack

import torch_pjrt
from torch_pjrt import from_jax, to_jax
from torch_pjrt.dtypes import _JAX

DTYPES = [dtype for dtype in _JAX if dtype is not torch.complex32]  # that becomes complex64


def address(array: jax.Array) -> int:
    return array.unsafe_buffer_pointer()  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_goes_there_and_back(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 3]).to(dtype)

    array = to_jax(x.to("pjrt"))
    back = from_jax(array)

    assert array.shape == (3,) and array.dtype == _JAX[dtype]
    assert back.dtype == dtype and back.device.type == "pjrt"
    assert back.cpu().double().tolist() == x.double().tolist() if not dtype.is_complex else True


def test_nothing_is_copied() -> None:
    x = torch.ones(1000, device="pjrt")
    array = to_jax(x)

    assert to_jax(x) is array
    assert address(to_jax(from_jax(array))) == address(array)


def test_pending_tensor_is_computed() -> None:
    assert to_jax(torch.ones(3, device="pjrt") * 2).tolist() == [2, 2, 2]


def test_view_gives_its_own_elements() -> None:
    x = torch.arange(6.0, device="pjrt").view(2, 3)

    assert to_jax(x.t()[1:]).tolist() == [[1, 4], [2, 5]]


def test_strides_of_the_tensor_are_not_those_of_the_array() -> None:
    x = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)

    assert np.array_equal(to_jax(x.to("pjrt")), x.numpy())


def test_host_tensor_is_uploaded_and_a_parameter_needs_no_detaching() -> None:
    assert to_jax(torch.ones(2)).tolist() == [1, 1]
    assert to_jax(torch.nn.Parameter(torch.ones(2, device="pjrt"))).tolist() == [1, 1]


def test_array_that_the_user_holds_survives_writing_to_its_tensor() -> None:
    x = torch.ones(1000, device="pjrt")
    array = to_jax(x)

    for _ in range(3):
        x.add_(1)
        torch_pjrt.sync()

    assert not array.is_deleted()
    assert array.sum() == 1000
    assert x.sum().item() == 4000


def test_array_that_a_tensor_was_made_of_survives_writing_to_the_tensor() -> None:
    array = jnp.ones(1000)
    x = from_jax(array)

    for _ in range(3):
        x.mul_(2)
        torch_pjrt.sync()

    assert array.sum() == 1000
    assert x.sum().item() == 8000


def test_array_inside_a_container_of_the_user_survives() -> None:
    tree = {"a": [jnp.ones(10)]}
    x = from_jax(tree["a"][0])

    x.mul_(2)
    torch_pjrt.sync()

    assert tree["a"][0].sum() == 10


def test_array_that_nobody_else_holds_is_given_up() -> None:
    before = torch_pjrt.report().as_dict()["donated"]
    x = from_jax(jnp.ones(1000))
    x.add_(1)

    torch_pjrt.sync()

    assert torch_pjrt.report().as_dict()["donated"] == before + 1
    assert x.sum().item() == 2000


def test_numpy_view_of_the_array_survives_its_donation() -> None:
    x = torch.ones(1000, device="pjrt")
    views = [
        np.asarray(to_jax(x)),
        np.from_dlpack(to_jax(x)),  # type: ignore[arg-type]
        np.from_dlpack(x),
    ]

    for _ in range(3):
        x.add_(1)
        torch_pjrt.sync()

    assert [v.sum() for v in views] == [1000] * 3


def test_gradients_flow_from_a_tensor_that_was_an_array() -> None:
    x = from_jax(jnp.arange(3.0)).requires_grad_()

    (x * x).sum().backward()

    assert x.grad is not None and x.grad.tolist() == [0, 2, 4]


def test_array_is_freed_with_the_last_of_both() -> None:
    x = torch.ones(77, device="pjrt")
    array = weakref.ref(to_jax(x))
    y = from_jax(array())  # type: ignore[arg-type]
    del x
    gc.collect()
    assert array() is not None

    del y

    gc.collect()
    assert array() is None


def test_array_of_another_client_is_copied() -> None:
    from torch_pjrt.plugin.jax_backend import separate_cpu_chips

    array = jax.device_put(np.arange(3.0, dtype=np.float32), separate_cpu_chips()[0])

    assert (from_jax(array) + 1).tolist() == [1, 2, 3]


def test_sharded_array_is_refused(python: Any) -> None:
    script = """
import jax, torch, torch_pjrt
mesh = jax.make_mesh((2,), ("x",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
array = jax.device_put(jax.numpy.arange(4.0), sharding)
try:
    torch_pjrt.from_jax(array)
except NotImplementedError as error:
    print(error)
one = jax.device_put(array, jax.sharding.SingleDeviceSharding(jax.devices()[1]))
print(torch_pjrt.from_jax(one) + 1)
"""
    text = python(script, XLA_FLAGS="--xla_force_host_platform_device_count=2").stdout

    assert "spread over several chips" in text
    assert "[1., 2., 3., 4.]" in text


@pytest.mark.parametrize(
    "wrong",
    [np.ones(2), [1.0], jax.random.key(0), jnp.ones(2, jnp.int4)],
    ids=lambda x: str(type(x)),
)
def test_what_has_no_tensor_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        from_jax(wrong)


def test_tracer_is_refused() -> None:
    with pytest.raises(TypeError, match="jax_function"):
        jax.jit(lambda x: to_jax(from_jax(x)))(1.0)


def test_dlpack_shares_memory_with_numpy_and_jax() -> None:
    x = torch.arange(6.0, device="pjrt").view(2, 3) + 1
    pointer = address(to_jax(x))

    shared = np.from_dlpack(x)  # type: ignore[arg-type]

    assert shared.ctypes.data == address(jax.dlpack.from_dlpack(x)) == pointer
    assert shared.tolist() == x.tolist()
    assert not shared.flags.writeable


def test_capsules_of_both_kinds_can_be_read() -> None:
    x = torch.arange(3.0, device="pjrt")

    of_utils = dlpack.to_dlpack(x)  # type: ignore[attr-defined]
    for capsule in (of_utils, torch.to_dlpack(x), x.__dlpack__()):
        assert torch.from_dlpack(capsule).tolist() == [0, 1, 2]
    assert x.__dlpack_device__() == (dlpack.DLDeviceType.kDLCPU, 0)


def test_what_dlpack_has_no_word_for_is_refused() -> None:
    x = torch.arange(3.0, device="pjrt")

    with pytest.raises(BufferError, match="Unsupported device_type: 16"):
        x.__dlpack__(dl_device=(dlpack.DLDeviceType.kDLHexagon, 0))
    with pytest.raises(BufferError, match="Unsupported device_type: 2"):
        x.__dlpack__(dl_device=(dlpack.DLDeviceType.kDLCUDA, 0))
    with pytest.raises(BufferError, match="holds complex32 as complex64"):
        dlpack.to_dlpack(x.to(torch.complex32))  # type: ignore[attr-defined]


def test_what_others_export_can_be_brought_to_the_device() -> None:
    for other in (np.arange(3.0), jnp.arange(3.0), torch.arange(3.0)):
        assert torch.from_dlpack(other, device="pjrt").tolist() == [0, 1, 2]


def test_host_tensors_export_as_before() -> None:
    x = torch.arange(3.0)

    assert np.from_dlpack(x).ctypes.data == x.data_ptr()  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="detach"):
        torch.ones(2, device="pjrt", requires_grad=True).__dlpack__()
