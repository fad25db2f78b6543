"""`torch.distributions` on the device: densities as on CPU, samples by their statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributions as d
from torch.distributions import transforms as t
from torch.distributions.kl import kl_divergence

from distribution_rows import ROWS, TRANSFORMS, Row
from sides import DEVICE, differences, moved, on_both

N_SAMPLES = 4000

# What does not work yet. A row whose case works fails until it goes.
GAPS: dict[str, str] = {}

NAMES = [row.name for row in ROWS]

pytestmark = pytest.mark.filterwarnings("ignore:Singular sample detected:UserWarning")


@pytest.fixture(autouse=True)
def without_validation() -> Iterator[None]:
    """Checks of arguments read them: each would be a program of its own."""
    d.Distribution.set_default_validate_args(False)
    yield
    d.Distribution.set_default_validate_args(__debug__)


def made(row: Row, device: str) -> tuple[d.Distribution, list[torch.Tensor]]:
    """The distribution, and what it is made of."""
    leaves = [moved(x.double().requires_grad_(), device) for x in row.tensors]
    return row.make(*leaves), leaves


#   what is compared   of a distribution and values that it may take
MEASURES: dict[str, Callable[[d.Distribution, torch.Tensor], Any]] = {
    "log_prob": lambda p, x: p.log_prob(x),
    "cdf": lambda p, x: p.cdf(x),
    "icdf": lambda p, x: p.icdf(torch.linspace(0.1, 0.9, 3).to(x)),
    "entropy": lambda p, x: p.entropy(),
    "mean": lambda p, x: p.mean,
    "mode": lambda p, x: p.mode,
    "variance": lambda p, x: p.variance,
    "perplexity": lambda p, x: p.perplexity(),
    "expand": lambda p, x: p.expand((2, *p.batch_shape)).log_prob(x),
    "enumerate_support": lambda p, x: p.enumerate_support(),
    "support": lambda p, x: p.support.check(x),
    "shapes": lambda p, x: (p.batch_shape, p.event_shape),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_densities_and_their_gradients_are_those_of_the_cpu(row: Row) -> None:
    torch.manual_seed(0)
    values = made(row, "cpu")[0].sample((4,))
    cases = []

    for name, measure in MEASURES.items():

        def on(device: str, measure: Callable[..., Any] = measure) -> dict[str, Any]:
            p, leaves = made(row, device)
            result = measure(p, values.to(device))
            if isinstance(result, torch.Tensor) and result.requires_grad:
                gradients = torch.autograd.grad(result.sum(), leaves, allow_unused=True)
                return {"value": result, "gradients": gradients}
            return {"value": result}

        cases.append(on_both(name, on))

    assert not differences(cases)


def test_every_distribution_is_tried() -> None:
    missing = set(d.__all__) - {"Distribution", "ExponentialFamily"}
    missing = {n for n in missing if isinstance(getattr(d, n), type)}
    missing = {n for n in missing if issubclass(getattr(d, n), d.Distribution)}

    assert missing <= set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.statistics], ids=[r.name for r in ROWS if r.statistics]
)
def test_samples_have_the_mean_and_the_variance(row: Row) -> None:
    torch.manual_seed(0)
    p, _ = made(row, DEVICE)
    q = made(row, "cpu")[0]

    x = p.sample((N_SAMPLES,))

    assert x.shape == (N_SAMPLES, *p.batch_shape, *p.event_shape)
    assert x.device.type == DEVICE
    reference = q.sample((N_SAMPLES,))
    assert x.dtype == reference.dtype
    x, reference = x.cpu().double(), reference.double()
    # Standard errors of both samples: five of them are exceeded by chance once in a million.
    error = ((x.var(0) + reference.var(0)) / N_SAMPLES).sqrt()
    assert ((x.mean(0) - reference.mean(0)).abs() <= 5 * error + 1e-6).all()
    fourth = ((x - x.mean(0)) ** 4).mean(0) + ((reference - reference.mean(0)) ** 4).mean(0)
    error = (fourth / N_SAMPLES).sqrt()
    assert ((x.var(0) - reference.var(0)).abs() <= 5 * error + 1e-6).all()
    assert q.support.check(x).all()


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_samples_are_differentiable_where_they_are_on_cpu(row: Row) -> None:
    torch.manual_seed(0)

    def on(device: str) -> dict[str, Any]:
        p, leaves = made(row, device)
        x = p.rsample((8,))
        gradients = torch.autograd.grad(x.sum(), leaves, allow_unused=True)
        results = [x, *gradients]
        return {
            "shapes": [g if g is None else g.shape for g in results],
            "finite": [g if g is None else g.isfinite().all() for g in results],
        }

    assert not differences([on_both(row.name, on)])


@pytest.mark.slow
def test_divergences_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    cases = []
    for one in ROWS:
        for other in ROWS:

            def on(device: str, one: Row = one, other: Row = other) -> dict[str, Any]:
                (p, leaves), (q, _) = made(one, device), made(other, device)
                result = kl_divergence(p, q)
                if not result.requires_grad or one is not other:
                    return {"kl": result}
                gradients = torch.autograd.grad(result.sum(), leaves, allow_unused=True)
                return {"kl": result, "gradients": gradients}

            case = on_both(f"{one.name}, {other.name}", on)
            if not isinstance(case.cpu.error, NotImplementedError):
                cases.append(case)

    assert len(cases) > 100
    assert not differences(cases)


@pytest.mark.parametrize(("name", "make", "values"), TRANSFORMS, ids=[r[0] for r in TRANSFORMS])
def test_transform_is_that_of_the_cpu(
    name: str, make: Callable[[Any], t.Transform], values: Any
) -> None:
    def on(device: str) -> dict[str, Any]:
        x = torch.tensor(values, dtype=torch.float64).to(device).requires_grad_()
        transform = make(x.detach())
        y = transform(x)
        result = {"forward": y, "inverse": transform.inv(y)}
        if transform.bijective:
            result["jacobian"] = transform.log_abs_det_jacobian(x, y)
            result["gradient"] = torch.autograd.grad(result["jacobian"].sum(), x, allow_unused=True)
        return result

    assert not differences([on_both(name, on)])


def test_every_transform_is_tried() -> None:
    assert set(t.__all__) - {"Transform", "identity_transform"} == {r[0] for r in TRANSFORMS}


def test_arguments_are_validated_as_on_cpu() -> None:
    texts = []

    for device in ("cpu", DEVICE):
        scale = torch.tensor([1.0, -1.0], device=device)
        with pytest.raises(ValueError, match="scale") as raised:
            d.Normal(torch.zeros(2, device=device), scale, validate_args=True)
        texts.append(str(raised.value).replace(", device='pjrt:0'", ""))

    assert texts[0] == texts[1]
    assert math.isfinite(len(texts[0]))
