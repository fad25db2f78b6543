"""A device that lacks something gets programs that it can run, and the results are PyTorch's.

The device is a CPU client of its own that checks what it is given, where JAX hands the program over: it
raises for an operation, an element type or a donation that it did not declare.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixture_types import Run
from torch_pjrt.plugin.capabilities import LEAST
from written_plugins import with_plugin
from written_training import trained_as_on_cpu

pytestmark = pytest.mark.slow

PLUGIN = """
import re
from torch_pjrt.plugin import Capabilities, Device, impl

OPERATIONS = {operations}

class Small(Device):
    name = "SMALL"
    priority = -1

    def objection(self):
        return None

    def start(self):
        from jax._src import compiler
        from torch_pjrt.plugin.jax_backend import separate_cpu_chips

        chips = separate_cpu_chips()
        compile_and_load = compiler.backend_compile_and_load

        def checked(backend, module, *args, **kwargs):
            if backend is chips[0].client:
                check(module)
            return compile_and_load(backend, module, *args, **kwargs)

        compiler.backend_compile_and_load = checked
        return chips

    def capabilities(self):
        import torch
        return Capabilities({capabilities})

def check(module):
    for operation in walked(module.operation):
        name = operation.name.removeprefix("stablehlo.")
        is_structure = name.startswith(("func.", "builtin.", "sdy.")) or name in ("return", "mesh")
        if OPERATIONS is not None and not is_structure and name not in OPERATIONS:
            raise AssertionError("was given " + operation.name)
        for result in operation.results:
            if re.search("[<x](" + "|".join({lacks!r}) + ")>", str(result.type)):
                raise AssertionError(f"was given values of {{result.type}} by {{operation.name}}")
    if not {donates} and re.search("jax.buffer_donor|tf.aliasing_output", str(module)):
        raise AssertionError("was given a donation")

def walked(operation):
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from walked(inner.operation)

@impl
def torch_pjrt_devices():
    return [Small()]
"""
# What the device takes beside what every device must.
_SOME = """
    dot_general exponential log sqrt rsqrt divide power tanh sine cosine xor shift_left shift_right_logical
    not abs sign floor
    """
SOME = _SOME.split()

TRAIN = (
    """
import warnings
warnings.filterwarnings("ignore", ".*runs on the CPU")
"""
    + trained_as_on_cpu("torch.nn.GELU(), torch.nn.LayerNorm(16)")
    + """import torch_pjrt
counts = torch_pjrt.report().counts
print(counts["donated"], sorted(counts["fallbacks"]))
"""
)


def small(
    folder: Path, capabilities: str, *, lacks: tuple[str, ...] = ("none",), donates: bool = True
) -> dict[str, str]:
    operations = "None"
    if "operations" in capabilities:
        operations = repr(sorted([*SOME, *LEAST]))
    source = PLUGIN.format(
        capabilities=capabilities, operations=operations, lacks=lacks, donates=donates
    )
    return {"PJRT_DEVICE": "SMALL", **with_plugin(folder, "small", source)}


def test_checking_device_sees_what_it_is_given(python: Run, tmp_path: Path) -> None:
    lying = small(tmp_path, "", lacks=("i64",))

    done = python(TRAIN, returncode=1, **lying)

    assert "AssertionError: was given values of tensor<" in done.stderr


def test_device_without_donation_is_given_none(python: Run, tmp_path: Path) -> None:
    done = python(TRAIN, **small(tmp_path, "donation=False", donates=False))

    assert done.stdout.split()[0] == "0"


def test_device_that_donates_is_given_donations(python: Run, tmp_path: Path) -> None:
    done = python(TRAIN, returncode=1, **small(tmp_path, "donation=True", donates=False))

    assert "AssertionError: was given a donation" in done.stderr


WIDE = ("i64", "ui64", "f64", "complex<f64>")


def test_device_without_64_bits_trains_and_says_so_once(python: Run, tmp_path: Path) -> None:
    done = python(TRAIN, **small(tmp_path, "has_64_bits=False", lacks=WIDE))

    assert done.stdout.split()[1:] == ["[]"]
    assert done.stderr.count("has no 64-bit types") == 1
    assert "Explicitly requested dtype" not in done.stderr


NARROW = """
import torch
from torch_pjrt.tensor.storage.view import value_of

for values in ([3, -2, 2**31 - 1], [1.5, 1e300, -2.0], [1 + 2j]):
    host = torch.tensor(values, dtype=torch.complex128 if values == [1 + 2j] else None)
    host = host.double() if host.dtype == torch.float32 else host
    there = host.to("pjrt")
    back = there.cpu()
    same = there.dtype == host.dtype == back.dtype
    print(same, value_of(there).array.dtype, back.tolist())
x = torch.arange(5, device="pjrt")
print((x * 3 + x.sum()).tolist(), (x / 2).dtype, x.double().mean().dtype, x.sum().item())
print(x[x > 2].tolist())
print(torch.stack([x, x]).argmax(1).dtype, torch.searchsorted(x, torch.tensor([3]).to("pjrt")).item())
big = torch.full((), 2**31 - 1, device="pjrt", dtype=torch.int64)
print(big.item())
for seed in (1, 2**40 + 1, 2**63 + 1):
    torch.manual_seed(seed)
    a = torch.rand(3, device="pjrt").tolist()
    torch.manual_seed(seed)
    print(a == torch.rand(3, device="pjrt").tolist(), a[0])
for attempt in (
    lambda: torch.tensor([1, -2**40]).to("pjrt"),
    lambda: x.view(torch.int32),
    lambda: x + 2**40,
):
    try:
        print(attempt().cpu())
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
q = torch.randn(1, 2, 4, 8, requires_grad=True, device="pjrt")
torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5).sum().backward()
print(q.grad.isfinite().all().item())
for _ in range(3):
    torch.manual_seed(5)
    first = torch.nn.functional.dropout(torch.ones(1000, device="pjrt"), 0.25)
print(0.65 < (first > 0).float().mean().item() < 0.85)
"""


def test_halved_types_keep_their_dtype_for_pytorch_and_refuse_what_does_not_fit(
    python: Run, tmp_path: Path
) -> None:
    done = python(NARROW, **small(tmp_path, "has_64_bits=False", lacks=WIDE))

    lines = done.stdout.splitlines()
    assert lines[0] == "True int32 [3, -2, 2147483647]"
    assert lines[1] == "True float32 [1.5, inf, -2.0]"
    assert lines[2] == "True complex64 [(1+2j)]"
    assert lines[3] == "[10, 13, 16, 19, 22] torch.float32 torch.float64 10"
    assert lines.pop(4) == "[3, 4]"
    assert lines[4] == "torch.int64 3"
    assert lines[5] == "2147483647"
    draws = [line.split() for line in lines[6:9]]
    assert [same for same, _ in draws] == ["True"] * 3
    assert len({value for _, value in draws}) == 3  # no bit of a seed is lost
    assert lines[9] == (
        "OverflowError The device holds torch.int64 in 32 bits: -1099511627776 does not fit."
    )
    assert lines[10].startswith("UnsupportedError view(torch.int32) of torch.int64")
    assert lines[11] == (
        "OverflowError The device holds integers in 32 bits: 1099511627776 does not fit."
    )
    assert lines[12:] == ["True", "True"]


def test_operators_beyond_the_declared_operations_are_decomposed_or_run_on_the_host(
    python: Run, tmp_path: Path
) -> None:
    done = python(TRAIN, **small(tmp_path, f"operations=frozenset({SOME!r})"))

    fallbacks = done.stdout.split(maxsplit=1)[1]
    assert "aten.nll_loss_forward.default" in fallbacks  # `gather` is not among them
    assert "addmm" not in fallbacks
    assert "layer_norm" not in fallbacks


def test_device_that_lacks_nearly_everything_trains_like_the_cpu(
    python: Run, tmp_path: Path
) -> None:
    least = f"has_64_bits=False, donation=False, operations=frozenset({SOME!r}), memory_statistics=False"

    done = python(TRAIN, **small(tmp_path, least, lacks=WIDE, donates=False))

    assert done.stdout.split()[0] == "0"


def test_dtype_that_the_device_lacks_is_refused_by_name(python: Run, tmp_path: Path) -> None:
    code = """
import torch
torch.ones(2, device="pjrt")
for make in (lambda: torch.ones(2).half().to("pjrt"), lambda: torch.ones(2, device="pjrt").half()):
    try:
        make()
    except Exception as error:
        print(error)
print(torch.float16 in torch.accelerator.get_device_capability("pjrt")["supported_dtypes"])
"""
    lacking = small(tmp_path, "lacks_dtypes=frozenset([torch.float16])", lacks=("f16",))

    done = python(code, **lacking)

    assert done.stdout.splitlines() == [
        "The device `SMALL` has no torch.float16",
        "The device `SMALL` has no torch.float16",
        "False",
    ]


def test_memory_is_what_the_device_declares(python: Run, tmp_path: Path) -> None:
    code = """
import torch
x = torch.ones(1000, device="pjrt")
torch.pjrt.synchronize()
free, total = torch.pjrt.mem_get_info()
print(total, total - free >= 4000)
"""
    declared = small(tmp_path, "memory_statistics=False, memory_bytes=123456")

    assert python(code, **declared).stdout.split() == ["123456", "True"]


def test_device_without_loops_leaves_the_users_setting(python: Run, tmp_path: Path) -> None:
    code = """
import torch
import torch_pjrt
torch_pjrt.config.roll_layers = "on"
x = torch.ones(4, device="pjrt")
for _ in range(40):
    x = x.sin() + 1
x.tolist()
print(torch_pjrt.config.roll_layers, torch_pjrt.report().as_dict()["loops"])
"""
    done = python(code, **small(tmp_path, f"operations=frozenset({SOME!r})"))

    assert done.stdout.split() == ["on", "0"]
