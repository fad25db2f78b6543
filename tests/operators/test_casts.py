"""Every dtype becomes every other as on CPU, bit by bit.

Left out is what C leaves undefined: floats out of the range of an integer dtype, infinite ones and nan. Of
nan the payload is not compared. Numbers that are subnormal in bfloat16, float32 or float64 are left out, too:
XLA may take them for 0. Dtypes that no array has are refused in words.
"""

from __future__ import annotations

import math

import pytest
import torch

import torch_pjrt

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    *(torch.complex64, torch.complex128, torch.complex32),
)
REFUSED = (torch.float4_e2m1fn_x2, torch.bits8)

FLOATS = [
    *(0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5),
    *(-2.5, 3.7, -7.25, 0.1, 1 / 3, 100.0, 127.0, 128.0),
    *(200.5, 240.0, 255.0, 256.0, -128.0, -129.0, 448.0, 449.0),
    *(464.0, 465.0, 479.0, 480.0, 500.0, -500.0, 57344.0, 60000.0),
    *(61440.0, 65504.0, 65519.0, 65520.0, 65536.0, 1e6, -1e9, 2.0**31),
    *(2.0**32, 2.0**53 + 2, 1e30, 3.4028235e38, 3.5e38, 1e300, -1e300, 1e-3),
    *(2.0**-6, 2.0**-9, 2.0**-10, 2.0**-10 * 1.0001, 2.0**-11, 2.0**-16, 2.0**-17, 2.0**-18),
    *(-(2.0**-18), 6e-8, 3e-8, 2.9e-8, 3 * 2.0**-10, 5 * 2.0**-10, 3 * 2.0**-17, 5 * 2.0**-17),
    *(1.0000001, 1 + 2.0**-8, 1 + 2.0**-9 + 2.0**-24, 1 + 2.0**-11, math.inf, -math.inf, math.nan),
]
INTEGERS = [
    *(0, 1, -1, 2, 100, 127, 128, 129),
    *(200, 255, 256, 257, -128, -129, 32767, 32768),
    *(65535, 65536, -32768, -32769, 448, 465, 480, 500),
    *(65520, 61440, 2049, 2051, 2**24 + 1, 2**24 + 3, 2**31 - 1, 2**31),
    *(2**32 - 1, 2**32, 2**53 + 1, 2**62 + 1, 2**63 - 1, -(2**63), -(2**31), -(2**31) - 1),
]


def of(dtype: torch.dtype) -> torch.Tensor:
    """Values worth trying, in a dtype."""
    if dtype == torch.bool:
        return torch.tensor([True, False])
    floats = torch.tensor(FLOATS, dtype=torch.float64)
    if dtype.is_complex:
        return torch.complex(floats, floats.flip(0)).to(dtype)
    return floats.to(dtype) if dtype.is_floating_point else torch.tensor(INTEGERS).to(dtype)


def defined(x: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """Which elements C says the conversion of."""
    if target == torch.bool or target.is_floating_point or target.is_complex:
        return torch.ones(x.shape, dtype=torch.bool)
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return torch.ones(x.shape, dtype=torch.bool)
    real = (torch.view_as_real(x.to(torch.complex128))[..., 0]).tolist()
    least, most = torch.iinfo(target).min, torch.iinfo(target).max
    return torch.tensor([math.isfinite(r) and least <= math.trunc(r) <= most for r in real])


def bits(x: torch.Tensor) -> list[object]:
    """The bytes of each number; of a complex one, of each part."""
    if x.is_complex():
        x = torch.view_as_real(x)
    numbers = x.contiguous().reshape(-1, 1)
    # Not `isnan`, which not every float8 kind has.
    are_nan = (
        numbers.double().isnan().flatten().tolist()
        if x.is_floating_point()
        else [False] * len(numbers)
    )
    raw = numbers.view(torch.uint8).tolist()
    return ["nan" if is_nan else row for is_nan, row in zip(are_nan, raw, strict=True)]


@pytest.mark.slow("rows")
@pytest.mark.filterwarnings("ignore:.*discards the imaginary part")
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_every_cast_is_that_of_the_cpu_to_the_bit(source: torch.dtype) -> None:
    x = of(source)
    on_device = x.to("pjrt")
    casts = [on_device.to(target) for target in DTYPES]
    torch_pjrt.sync()  # one program for all
    for target, cast in zip(DTYPES, casts, strict=True):
        said = defined(x, target)
        there, here = x.to(target), cast.cpu()

        assert here.dtype == target
        positions = said.nonzero().flatten().tolist()
        step = 2 if target.is_complex else 1
        want, got = bits(there), bits(here)
        wrong = [
            (x[i], want[step * i : step * i + step], got[step * i : step * i + step])
            for i in positions
            if want[step * i : step * i + step] != got[step * i : step * i + step]
        ]
        assert not wrong, target


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_a_dtype_that_xla_has_no_equal_of_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises((TypeError, RuntimeError), match="has no XLA equivalent"):
        torch.ones(3, device="pjrt").to(dtype)


def test_500_is_in_float8_what_this_pytorch_makes_of_it() -> None:
    x = torch.tensor([500.0, -500.0])

    assert bits(x.to("pjrt").to(torch.float8_e4m3fn).cpu()) == bits(x.to(torch.float8_e4m3fn))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.itemsize == 1], ids=str)
def test_numbers_of_eight_bits_are_chosen_and_moved(dtype: torch.dtype) -> None:
    def moved(device: str) -> list[object]:
        x = of(dtype).to(device)
        condition = torch.arange(len(x), device=device) % 2 == 0
        chosen = torch.where(condition, x, x[:1])
        joined = torch.cat([x, chosen, torch.zeros_like(x)])
        return bits(joined[torch.arange(0, len(joined), 3, device=device)].cpu())

    assert moved("pjrt") == moved("cpu")
