"""The strings "xla" and "xla:0", and the device of that type, mean `pjrt:0`."""

from __future__ import annotations

import copy
import io
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._prims.context import torch_to_refs_map
from torch._utils import _rebuild_device_tensor_from_cpu_tensor
from torch.utils._device import _device_constructors

import torch_xla
import warm
from torch_pjrt.errors import UnsupportedError


def sparse_coo_tensor(*args: Any, **options: Any) -> torch.Tensor:
    return torch.sparse_coo_tensor(*args, **options)  # as it is at the call


MAKERS: dict[str, Callable[[Any], torch.Tensor]] = {
    "ones": lambda d: torch.ones(2, device=d),
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d).fill_(1),
    "arange": lambda d: torch.arange(3, device=d),
    "full": lambda d: torch.full((2,), 3.0, device=d),
    "eye": lambda d: torch.eye(2, device=d),
    "tensor": lambda d: torch.tensor([1.0, 2.0], device=d),
    "as_tensor": lambda d: torch.as_tensor(np.ones(2), device=d),
    "asarray": lambda d: torch.asarray([1.0, 2.0], device=d),
    "asarray of NumPy": lambda d: torch.asarray(np.ones(2), device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(2.0, device=d),
    "new_ones": lambda d: torch.ones(1).new_ones(2, device=d),
    "new_zeros": lambda d: torch.ones(1).new_zeros(2, device=d),
    "new_full": lambda d: torch.ones(1).new_full((2,), 3.0, device=d),
    "new_empty": lambda d: torch.ones(1).new_empty(2, device=d).fill_(1),
    "new_empty_strided": lambda d: torch.ones(1).new_empty_strided((2,), (3,), device=d).fill_(1),
    "new_tensor": lambda d: torch.ones(1).new_tensor([1.0, 2.0], device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2), device=d),
    "full_like": lambda d: torch.full_like(torch.ones(2), 3.0, device=d),
    "empty_permuted": lambda d: torch.empty_permuted((2, 3), (1, 0), device=d).fill_(1),
    "zeros": lambda d: torch.zeros(2, device=d),
    "empty": lambda d: torch.empty(2, device=d).fill_(1),
    "linspace": lambda d: torch.linspace(0, 1, 3, device=d),
    "logspace": lambda d: torch.logspace(0, 1, 2, device=d),
    "rand": lambda d: torch.rand(2, device=d) * 0,
    "randn": lambda d: torch.randn(2, device=d) * 0,
    "randint": lambda d: torch.randint(1, (2,), device=d),
    "normal": lambda d: torch.normal(1.0, 0.0, (2,), device=d),
    "randperm": lambda d: torch.randperm(1, device=d),
    "tril_indices": lambda d: torch.tril_indices(2, 2, device=d),
    "triu_indices": lambda d: torch.triu_indices(2, 2, device=d),
    "bartlett_window": lambda d: torch.bartlett_window(4, device=d),
    "blackman_window": lambda d: torch.blackman_window(1, device=d),
    "hamming_window": lambda d: torch.hamming_window(1, device=d),
    "hann_window": lambda d: torch.hann_window(1, device=d),
    "kaiser_window": lambda d: torch.kaiser_window(1, device=d),
    "kaiser_window of a period": lambda d: torch.kaiser_window(1, False, device=d),
    "kaiser_window of a beta": lambda d: torch.kaiser_window(1, False, 2.0, device=d),
    "fft_fftfreq": lambda d: torch.fft.fftfreq(4, device=d),
    "fft_rfftfreq": lambda d: torch.fft.rfftfreq(4, device=d),
    "nested_tensor": lambda d: torch.nested.nested_tensor(
        [torch.ones(2)], layout=torch.jagged, device=d
    ).values(),
    "torch.load": lambda d: loaded(torch.ones(2), d),
    "torch.load with a function": lambda d: loaded(torch.ones(2), lambda storage, _: storage).to(d),
    "safetensors": lambda d: from_safetensors(torch.ones(2), d),
    "to": lambda d: torch.ones(2).to(d),
    "to device=": lambda d: torch.ones(2).to(device=d),
    "to with a dtype": lambda d: torch.ones(2).to(d, torch.bfloat16),
    "to from the device": lambda d: torch.ones(2, device="pjrt").to(d),
    "a layer's device": lambda d: nn.init.ones_(nn.Linear(2, 2, device=d).weight),
    "a layer moved": lambda d: nn.init.ones_(nn.Linear(2, 2).to(d).weight),
    "a Parameter moved": lambda d: nn.Parameter(torch.ones(2)).to(d),
}
SPARSE: dict[str, Callable[[Any], torch.Tensor]] = {
    "sparse_coo_tensor": lambda d: sparse_coo_tensor([[0]], [1.0], (2,), device=d),
    "sparse_csr_tensor": lambda d: torch.sparse_csr_tensor([0, 1, 1], [0], [1.0], (2, 2), device=d),
    "sparse_csc_tensor": lambda d: torch.sparse_csc_tensor([0, 1, 1], [0], [1.0], (2, 2), device=d),
    "sparse_bsr_tensor": lambda d: torch.sparse_bsr_tensor([0, 1], [0], [[[1.0]]], device=d),
    "sparse_bsc_tensor": lambda d: torch.sparse_bsc_tensor([0, 1], [0], [[[1.0]]], device=d),
    "sparse_compressed_tensor": lambda d: torch.sparse_compressed_tensor(
        [0, 1, 1], [0], [1.0], (2, 2), layout=torch.sparse_csr, device=d
    ),
}
# What `_device_constructors` has and no row of `MAKERS` calls, and why.
WITHOUT_ROW = {
    "empty_quantized": "quantized tensors of PyTorch's older kind are for the CPU",
    "range": "it warns that it is deprecated: it has a test of its own",
}


def loaded(tensor: torch.Tensor, where: Any) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file, map_location=where)


def from_safetensors(tensor: torch.Tensor, where: Any) -> torch.Tensor:
    torch_of = pytest.importorskip("safetensors.torch")
    with tempfile.TemporaryDirectory() as folder:
        torch_of.save_file({"a": tensor}, f"{folder}/a.safetensors")
        return torch_of.load_file(f"{folder}/a.safetensors", device=str(where))["a"]


@pytest.mark.parametrize(
    "device", ["xla", "xla:0", torch.device("xla"), torch.device("xla:0")], ids=str
)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_tensor_is_on_pjrt_with_the_cpus_values(maker: str, device: Any) -> None:
    made, wanted = MAKERS[maker](device), MAKERS[maker]("cpu")

    assert made.device == torch.device("pjrt:0")
    assert (made.dtype, made.stride(), made.requires_grad) == (
        wanted.dtype,
        wanted.stride(),
        wanted.requires_grad,
    )
    assert torch.equal(made.detach().cpu(), wanted.detach())


def test_every_factory_that_a_default_device_reaches_has_a_row() -> None:
    names = {factory.__name__ for factory in _device_constructors()}

    assert names - MAKERS.keys() - SPARSE.keys() == WITHOUT_ROW.keys()


@pytest.mark.filterwarnings("ignore:Sparse .*:UserWarning")
@pytest.mark.parametrize("device", ["xla", torch.device("xla:0")], ids=str)
@pytest.mark.parametrize("maker", SPARSE)
def test_a_sparse_tensor_is_on_pjrt(maker: str, device: Any) -> None:
    made = SPARSE[maker](device)

    assert made.device == torch.device("pjrt:0")
    assert torch.equal(made.cpu().to_dense(), SPARSE[maker]("cpu").to_dense())


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_range_is_on_pjrt() -> None:
    assert torch.range(0, 2, device="xla").tolist() == [0.0, 1.0, 2.0]


UNDER_A_DEVICE: dict[str, Callable[[], torch.Tensor]] = {
    "ones": lambda: torch.ones(2),
    "tensor": lambda: torch.tensor([1.0, 2.0]),
    "as_tensor": lambda: torch.as_tensor([1.0, 2.0]),
    "asarray": lambda: torch.asarray([1.0, 2.0]),
    "tril_indices": lambda: torch.tril_indices(2, 2),
    "sparse_coo_tensor": lambda: sparse_coo_tensor([[0]], [1.0], (2,)),
    "a layer": lambda: nn.Linear(2, 2).weight,
}


@pytest.mark.filterwarnings("ignore:Sparse .*:UserWarning")
@pytest.mark.parametrize("device", ["pjrt", "xla", "xla:0", "meta", "cpu"])
@pytest.mark.parametrize("maker", UNDER_A_DEVICE)
def test_a_default_device_reaches_all_factories(maker: str, device: str) -> None:
    wanted = "pjrt" if device.startswith("xla") else device

    with torch.device(device):
        within = UNDER_A_DEVICE[maker]()
    torch.set_default_device(device)
    try:
        made = UNDER_A_DEVICE[maker]()
    finally:
        torch.set_default_device(None)

    assert within.device.type == made.device.type == wanted


FIRST = """
import torch
from torch.utils._device import _device_constructors
{before}
import torch_xla
with torch.device("pjrt"):
    print(torch.tensor([1.0]).device, torch.as_tensor([1.0]).device, torch.ones(1).device)
"""


@pytest.mark.parametrize("before", ["", "_device_constructors()"])
def test_a_default_device_reaches_them_whatever_was_asked_before(
    before: str,
) -> None:
    done = warm.run(["-c", FIRST.format(before=before)], dict(os.environ))

    assert done.stdout.split() == ["pjrt:0"] * 3, done.stderr


def test_what_torch_xla_has_saved_is_loaded_on_the_device() -> None:
    saved = _OfTorchXla(torch.arange(3.0))

    assert loaded(saved, None).device.type == "pjrt"  # type: ignore[arg-type]
    assert loaded(saved, "cpu").tolist() == [0.0, 1.0, 2.0]  # type: ignore[arg-type]


class _OfTorchXla:
    """It is written as torch_xla writes a tensor of its own: as one of the CPU, with the device's name."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        rebuild = _rebuild_device_tensor_from_cpu_tensor
        return rebuild, (self.tensor, torch.float32, "xla:1", False)


@pytest.mark.parametrize("replaced", ["tensor", "as_tensor", "asarray", "sparse_coo_tensor"])
def test_a_function_that_is_replaced_is_copied_and_pickled_as_pytorchs(replaced: str) -> None:
    function = getattr(torch, replaced)

    assert copy.deepcopy(function) is function
    assert pickle.loads(pickle.dumps(function)) is function
    assert torch.overrides.resolve_name(function) == f"torch.{replaced}"
    assert function.__wrapped__ in {function: 1} and function in {function.__wrapped__: 1}


def test_a_generator_of_xla_is_refused_as_one_of_the_device() -> None:
    for device in ("xla", torch.device("xla:0")):
        with pytest.raises(UnsupportedError, match="CPU generator"):
            torch.Generator(device)
        with pytest.raises(UnsupportedError, match="CPU generator"):
            torch.Generator(device=device)
    assert torch.Generator().device.type == "cpu"


COMPILED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tensor": lambda x: x * torch.tensor([1.0, 2.0], device="xla"),
    "as_tensor": lambda x: x * torch.as_tensor([1.0, 2.0], device="xla"),
    "asarray": lambda x: x * torch.asarray([1.0, 2.0], device="xla"),
    "new_tensor": lambda x: x * x.new_tensor([1.0, 2.0], device="xla"),
    "tensor of the device": lambda x: x * torch.tensor([1.0, 2.0], device=x.device),
    "a number": lambda x: (
        x * torch.tensor(2.0, device="pjrt") / 2 * torch.arange(1, 3, device="pjrt")
    ),
}


@pytest.mark.parametrize("function", COMPILED)
def test_a_compiled_function_makes_tensors(function: str) -> None:
    compiled = torch.compile(COMPILED[function], backend="pjrt", fullgraph=True)

    assert compiled(torch.ones(2, device="pjrt")).tolist() == [1.0, 2.0]


def test_other_devices_are_left_alone() -> None:
    assert torch.ones(2).to("cpu").device.type == "cpu"
    assert torch.ones(2).to("meta").device.type == "meta"
    assert torch.ones(2).to(torch.float64).dtype == torch.float64
    assert torch.tensor([1], device="cpu").device.type == "cpu"


def test_gradients_come_back_to_a_cpu_parameter() -> None:
    weight = torch.ones(2, requires_grad=True)

    (weight.to("xla") * 3).sum().backward()

    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0]


def test_autocast_of_xla_is_autocast_of_the_device() -> None:
    layer = nn.Linear(4, 2).to("xla")

    with torch.autocast("xla", dtype=torch.bfloat16):
        inside = layer(torch.ones(1, 4, device="xla"))

    assert inside.dtype == torch.bfloat16
    assert layer(torch.ones(1, 4, device="xla")).dtype == torch.float32


@pytest.mark.parametrize("device", ["cpu", "pjrt", "xla"])
def test_a_module_without_a_size_is_moved(device: str) -> None:
    module = nn.LazyLinear(3).to(device).double()

    assert module(torch.ones(2, 4, dtype=torch.float64, device=device)).shape == (2, 3)


def test_the_method_is_in_the_tables_that_have_pytorchs() -> None:
    original = torch.Tensor.to.__wrapped__  # type: ignore[attr-defined]
    without_size: Any = nn.parameter.UninitializedParameter
    tables = [
        without_size._allowed_methods,
        torch.overrides.get_testing_overrides(),
        torch_to_refs_map(),
        {original: 1},
    ]

    assert original is not torch.Tensor.to and original == torch.Tensor.to
    assert all(original in table and torch.Tensor.to in table for table in tables)
    assert torch.overrides.is_tensor_method_or_property(torch.Tensor.to)
    assert torch.Tensor.to != torch.Tensor.cpu
    assert torch.Tensor.to(torch.ones(2), "xla").device.type == "pjrt"


def test_a_subclass_that_knows_pytorchs_method_is_asked_with_it() -> None:
    original, asked = torch.Tensor.to.__wrapped__, []  # type: ignore[attr-defined]

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            asked.append({original: "to"}.get(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    assert torch.ones(2).as_subclass(Sub).to("pjrt").device.type == "pjrt"
    assert "to" in asked


def test_a_compiled_function_moves_to_xla() -> None:
    compiled = torch.compile(lambda x: x.to("xla", torch.float32) * 2, backend="pjrt")

    assert compiled(torch.ones(2, device="pjrt")).tolist() == [2.0, 2.0]


def test_subclasses_and_copies_go_to_the_device() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    copied = copy.deepcopy(model).to("xla")

    assert {p.device.type for p in [*copied.parameters(), *copied.buffers()]} == {"pjrt"}


def test_the_device_of_the_module_is_pjrt() -> None:
    assert torch_xla.device() == torch.device("pjrt:0")
    assert torch_xla.devices() == [torch_xla.device()]
    assert torch_xla.device_count() == 1


def test_torchscript_still_knows_the_functions() -> None:
    @torch.jit.script
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(2.0) + torch.as_tensor(1.0)

    assert doubled(torch.ones(2)).tolist() == [3.0, 3.0]
