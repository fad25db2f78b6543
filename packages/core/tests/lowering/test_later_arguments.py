"""An operator may have arguments that its rule does not know: a later PyTorch's, as they are by default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import pytest
import torch

from check import DROPPED
from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import lowers
from torch_pjrt.lowering import CORE
from torch_pjrt.lowering.later_arguments import unknown_arguments
from torch_pjrt.lowering.table import Lowering, taking


def test_each_rule_takes_all_arguments_of_this_pytorchs_operator() -> None:
    unknown = {
        str(op): [a.name for a in unknown_arguments(op, lowering) if a.name not in DROPPED]
        for op, lowering in CORE.items()
    }

    assert {op: names for op, names in unknown.items() if names} == {}


def of_two(x: jax.Array, by: float) -> jax.Array:
    return x * by


def random_of_two(key: Any, x: jax.Array, by: float) -> jax.Array:
    return x * by


class Call(NamedTuple):
    x: jax.Array
    by: float


RULES = {
    "plain": Lowering(of_two),
    "random": Lowering(random_of_two, random=True),
    "of one object": Lowering(taking(Call, lambda call: call.x * call.by)),
}


@pytest.fixture(scope="module")
def grown() -> Iterator[Any]:
    """An operator of five arguments, the last three of which came later."""
    library = torch.library.Library("later_arguments", "DEF")
    library.define("grown(Tensor x, float by, int[2] window=[-1, 0], *, bool fast=False) -> Tensor")
    yield torch.ops.later_arguments.grown.default
    library._destroy()


@pytest.mark.parametrize("rule", RULES)
def test_an_argument_of_later_is_left_out_where_it_is_the_default(grown: Any, rule: str) -> None:
    key = [None] if RULES[rule].random else []
    for more, kwargs in (([], {}), ([[-1, 0]], {}), ([[-1, 0]], {"fast": False})):
        assert RULES[rule].called(grown, [*key, 2.0, 3.0, *more], kwargs) == 6.0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("more", "kwargs", "said"),
    [([[-1, 4]], {}, r"`window`.*\n  saw: window=\[-1, 4\]"), ([], {"fast": True}, "`fast`")],
)
def test_another_value_is_an_error_that_names_the_argument(
    grown: Any, rule: str, more: Any, kwargs: Any, said: str
) -> None:
    key = [None] if RULES[rule].random else []
    with pytest.raises(LoweringError, match=rf"(?s)`later_arguments.grown.default`.*{said}"):
        RULES[rule].called(grown, [*key, 2.0, 3.0, *more], kwargs)


def test_an_error_of_the_rule_itself_stays_what_it_is(grown: Any) -> None:
    def broken(x: Any, by: Any, window: Any, fast: Any = False) -> Any:
        return x + None

    with pytest.raises(TypeError, match="unsupported operand"):
        Lowering(broken).called(grown, [1.0, 2.0, [-1, 0]], {})


@torch.library.custom_op("later_arguments::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float, backend: int = 1) -> torch.Tensor:
    return x * factor


@scaled.register_fake
def _(x: torch.Tensor, factor: float, backend: int = 1) -> torch.Tensor:
    return torch.empty_like(x)


lowers(torch.ops.later_arguments.scaled.default)(of_two)


def test_it_is_so_in_programs() -> None:
    x = torch.ones(3, device="pjrt")

    assert scaled(x, 2.0).tolist() == scaled(x, 2.0, 1).tolist() == [2.0] * 3
    y = scaled(x, 2.0, 0)

    with pytest.raises(LoweringError, match=r"`backend`.*\n  saw: backend=0\n  expected: 1"):
        y.tolist()
