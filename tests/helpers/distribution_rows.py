"""Each distribution and transform of `torch.distributions`, with arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributions as d
from torch.distributions import transforms as t

Make = Callable[..., d.Distribution]


@dataclass(frozen=True)
class Row:
    """A distribution made of tensors, which are moved to the device and want gradients if they are floats.

    statistics  whether samples are compared with the mean and variance; those of the CPU where
                the distribution has none of its own.
    """

    make: Make
    tensors: tuple[torch.Tensor, ...]
    name: str
    statistics: bool = True


def row(make: Make, *tensors: Any, name: str = "", statistics: bool = True) -> Row:
    as_tensors = tuple(torch.as_tensor(x) for x in tensors)
    return Row(make, as_tensors, name or getattr(make, "__name__", ""), statistics)


HALF = [0.2, 0.5, 0.9]
SOME = [-1.0, 0.5, 2.0]
POSITIVE = [0.7, 1.5, 3.0]
MORE = [5.5, 6.5, 8.0]
SIMPLEX = [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]
LOGITS = [[0.1, -0.3, 0.5], [1.0, 0.0, -1.0]]
TRIANGLE = [[1.0, 0.0], [0.5, 2.0]]
COVARIANCE = [[2.0, 0.5], [0.5, 1.0]]


def mixture(weights: torch.Tensor, locs: torch.Tensor, scales: torch.Tensor) -> d.Distribution:
    return d.MixtureSameFamily(d.Categorical(weights), d.Normal(locs, scales))


def log_normal_by_transform(loc: torch.Tensor, scale: torch.Tensor) -> d.Distribution:
    return d.TransformedDistribution(d.Normal(loc, scale), [t.ExpTransform()])


def cumulative(x: torch.Tensor) -> t.Transform:
    return t.CumulativeDistributionTransform(d.Normal(x * 0, x * 0 + 1))


ROWS: list[Row] = [
    row(d.Bernoulli, HALF),
    row(lambda x: d.Bernoulli(logits=x), SOME, name="Bernoulli of logits"),
    row(d.Beta, POSITIVE, MORE),
    row(lambda p: d.Binomial(10, p), HALF, name="Binomial"),
    row(d.Binomial, [4.0, 7.0, 12.0], HALF, name="Binomial of counts"),
    row(d.Categorical, SIMPLEX),
    row(lambda x: d.Categorical(logits=x), LOGITS, name="Categorical of logits"),
    row(d.Cauchy, SOME, POSITIVE, statistics=False),
    row(d.Chi2, MORE),
    row(d.ContinuousBernoulli, HALF),
    row(lambda x: d.ContinuousBernoulli(logits=x), SOME, name="ContinuousBernoulli of logits"),
    row(d.Dirichlet, [[0.8, 1.5, 3.0], [5.0, 2.0, 1.0]]),
    row(d.Exponential, POSITIVE),
    row(d.FisherSnedecor, MORE, [9.0, 10.0, 12.0]),
    row(d.Gamma, POSITIVE, MORE),
    row(d.GeneralizedPareto, SOME, POSITIVE, [0.05, 0.1, -0.2]),
    row(d.Geometric, HALF),
    row(d.Gumbel, SOME, POSITIVE),
    row(d.HalfCauchy, POSITIVE, statistics=False),
    row(d.HalfNormal, POSITIVE),
    row(lambda x, s: d.Independent(d.Normal(x, s), 1), SOME, POSITIVE, name="Independent"),
    row(d.InverseGamma, MORE, POSITIVE),
    row(d.Kumaraswamy, POSITIVE, MORE),
    row(lambda c: d.LKJCholesky(3, c), 1.5, name="LKJCholesky", statistics=False),
    row(d.Laplace, SOME, POSITIVE),
    row(d.LogNormal, SOME, [0.2, 0.3, 0.4]),
    row(d.LogisticNormal, SOME, POSITIVE, statistics=False),
    row(d.LowRankMultivariateNormal, SOME, [[1.0], [0.5], [2.0]], POSITIVE),
    row(mixture, [0.3, 0.3, 0.4], SOME, POSITIVE, name="MixtureSameFamily"),
    row(lambda p: d.Multinomial(6, p), SIMPLEX, name="Multinomial"),
    row(
        lambda x, c: d.MultivariateNormal(x, covariance_matrix=c),
        [1.0, -1.0],
        COVARIANCE,
        name="MultivariateNormal",
    ),
    row(
        lambda x, c: d.MultivariateNormal(x, scale_tril=c),
        [1.0, -1.0],
        TRIANGLE,
        name="MultivariateNormal of a factor",
    ),
    row(
        lambda x, c: d.MultivariateNormal(x, precision_matrix=c),
        [1.0, -1.0],
        COVARIANCE,
        name="MultivariateNormal of a precision",
    ),
    row(d.NegativeBinomial, MORE, HALF),
    row(d.Normal, SOME, POSITIVE),
    row(d.OneHotCategorical, SIMPLEX),
    row(d.OneHotCategoricalStraightThrough, SIMPLEX),
    row(d.Pareto, POSITIVE, MORE),
    row(d.Poisson, MORE),
    row(
        lambda x: d.RelaxedBernoulli(x.new_tensor(0.5), probs=x),
        HALF,
        name="RelaxedBernoulli",
        statistics=False,
    ),
    row(
        lambda x: d.RelaxedOneHotCategorical(x.new_tensor(0.5), probs=x),
        SIMPLEX,
        name="RelaxedOneHotCategorical",
        statistics=False,
    ),
    row(d.StudentT, MORE, SOME, POSITIVE),
    row(log_normal_by_transform, SOME, [0.2, 0.3, 0.4], name="TransformedDistribution"),
    row(d.Uniform, SOME, MORE),
    row(d.VonMises, SOME, POSITIVE, statistics=False),
    row(d.Weibull, POSITIVE, [2.0, 2.5, 3.0]),
    row(d.Wishart, MORE[0], COVARIANCE),
]

TRANSFORMS: list[tuple[str, Callable[[Any], t.Transform], Any]] = [
    ("AbsTransform", lambda x: t.AbsTransform(), SOME),
    ("AffineTransform", lambda x: t.AffineTransform(x * 0 + 1, x * 0 - 2), SOME),
    ("CatTransform", lambda x: t.CatTransform([t.ExpTransform(), t.TanhTransform()], 0, [1, 2]), SOME),
    ("ComposeTransform", lambda x: t.ComposeTransform([t.ExpTransform(), t.PowerTransform(x * 0 + 2)]), SOME),
    ("CorrCholeskyTransform", lambda x: t.CorrCholeskyTransform(), SOME),
    ("CumulativeDistributionTransform", cumulative, SOME),
    ("ExpTransform", lambda x: t.ExpTransform(), SOME),
    ("IndependentTransform", lambda x: t.IndependentTransform(t.ExpTransform(), 1), LOGITS),
    ("LowerCholeskyTransform", lambda x: t.LowerCholeskyTransform(), COVARIANCE),
    ("PositiveDefiniteTransform", lambda x: t.PositiveDefiniteTransform(), COVARIANCE),
    ("PowerTransform", lambda x: t.PowerTransform(x * 0 + 2), POSITIVE),
    ("ReshapeTransform", lambda x: t.ReshapeTransform(torch.Size((3,)), torch.Size((3, 1))), SOME),
    ("SigmoidTransform", lambda x: t.SigmoidTransform(), SOME),
    ("SoftplusTransform", lambda x: t.SoftplusTransform(), SOME),
    ("SoftmaxTransform", lambda x: t.SoftmaxTransform(), SOME),
    ("StackTransform", lambda x: t.StackTransform([t.ExpTransform(), t.SigmoidTransform()]), LOGITS),
    ("StickBreakingTransform", lambda x: t.StickBreakingTransform(), SOME),
    ("TanhTransform", lambda x: t.TanhTransform(), SOME),
]  # fmt: skip
