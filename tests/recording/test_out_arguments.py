"""Each `out=` gets the result that is its own, resized as on CPU."""

from __future__ import annotations

import warnings

import pytest
import torch

aten = torch.ops.aten


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("shape", [(0,), (4, 6), (2, 2)])
def test_a_kronecker_product_is_written_to_out(shape: tuple[int, ...]):
    x, y = torch.arange(4.0).reshape(2, 2), torch.ones(2, 3)
    out = torch.empty(shape, device="pjrt")
    assert torch.kron(x.to("pjrt"), y.to("pjrt"), out=out) is out
    assert out.tolist() == torch.kron(x, y).tolist()


def test_a_kronecker_product_is_not_cast_to_integers():
    x = torch.ones(2, 2, device="pjrt")
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.kron(x, x, out=torch.empty(4, 4, dtype=torch.int64, device="pjrt"))


def test_running_statistics_and_outs_each_get_their_own():
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    results = []
    for device in ("cpu", "pjrt"):
        mean, var = torch.zeros(4, device=device), torch.ones(4, device=device)
        outs = {n: torch.empty(0, device=device) for n in ("out", "save_mean", "save_invstd")}
        aten._native_batch_norm_legit.out(
            x.to(device), None, None, mean, var, True, 0.1, 1e-5, **outs
        )
        results.append([t.cpu() for t in (mean, var, *outs.values())])
    torch.testing.assert_close(results[1], results[0])


# A name and a call that writes to `out`, an empty tensor that has to grow.
GROWING = {
    "fft along another dim": (lambda x, out: torch.fft.fft(x, dim=1, out=out), torch.complex64),
    "fft of the conjugate": (lambda x, out: torch.fft.ihfft2(x, out=out), torch.complex64),
    "by the CPU": (
        lambda x, out: (
            torch.linalg.ldl_factor(
                x[0, :3, :3] + x[0, :3, :3].T, out=(out, out.new_empty(0, dtype=torch.int32))
            ).LD
        ),
        torch.float32,
    ),
}


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
@pytest.mark.parametrize("call", GROWING)
def test_an_out_that_grows_has_the_strides_that_the_cpu_gives_it(call: str):
    compute, dtype = GROWING[call]
    x = torch.randn(5, 6, 7)
    there, here = torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype, device="pjrt")

    compute(x, there)
    compute(x.to("pjrt"), here)

    assert here.stride() == there.stride()
    torch.testing.assert_close(here.cpu(), there)


def test_an_out_of_a_wrong_dtype_is_refused_after_a_right_one_too() -> None:
    x = torch.ones(2, 2, device="pjrt")
    torch.mm(x, x, out=torch.empty(2, 2, device="pjrt"))
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype float"):
        torch.mm(x, x, out=torch.empty(2, 2, dtype=torch.float64, device="pjrt"))


def _warnings_of(device: str, shape: tuple[int, ...]) -> list[str]:
    """What Python shows of two calls, each on a line of its own, in an order that a user would see."""
    x = torch.eye(3, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        torch.linalg.eigvalsh(x, out=torch.empty(shape, device=device))
        torch.linalg.eigvalsh(x, out=torch.empty(shape, device=device))
    return [f"{w.filename}:{w.lineno} {w.message}" for w in caught]


@pytest.mark.parametrize("shape", [(0,), (3,), (3, 3)])
def test_each_call_that_resizes_elements_warns_as_on_cpu(shape: tuple[int, ...]):
    assert _warnings_of("pjrt", shape) == _warnings_of("cpu", shape)
    assert len(_warnings_of("pjrt", shape)) == 2 * (shape == (3, 3))


def test_a_factory_resizes_silently_as_on_cpu():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.zeros(2, out=torch.empty(3, device="pjrt")).tolist() == [0, 0]
