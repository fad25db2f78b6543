"""Recording leaves the CPU's generator to the program: another thread may draw from it at any moment.

Calls that are seen for the first time are tried on the CPU, for PyTorch's errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_pjrt.overloads import named
from torch_pjrt.plugin import aten
from torch_pjrt.tensor.recording import own_generator
from torch_pjrt.tensor.recording.own_generator import try_on_cpu

GENERATOR = torch.default_generator


class Drawing:
    """While it is entered a thread draws the same numbers again and again, from the same seed.

    differing   how often they were others, of `n`.
    """

    def __init__(self) -> None:
        self.n = self.differing = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        expected = torch.rand(8, generator=torch.Generator().manual_seed(7))
        while not self._ends.is_set():
            GENERATOR.manual_seed(7)
            found = torch.cat([torch.rand(2) for _ in range(4)])
            self.n += 1
            self.differing += not torch.equal(found, expected)

    def __enter__(self) -> Drawing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def test_a_thread_draws_its_numbers_while_calls_are_seen_for_the_first_time() -> None:
    with Drawing() as drawing:
        for n in range(2, 200):
            x = torch.ones(n, 3, device="pjrt")
            F.dropout(x.sin() + n, 0.25)
            x.bernoulli_(0.25)
            x[:1].copy_(x[1:2])

    assert drawing.n > 100
    assert drawing.differing == 0


# Operators that draw, by PyTorch's own tag, take no generator, and whose CPU kernel is not tried.
NOT_TRIED = {
    "aten::_fused_sdp_choice": "says which kernel to take, and draws nothing",
    "aten::_scaled_dot_product_fused_attention_overrideable": "the CPU has no kernel of it",
    "aten::scaled_dot_product_attention": "is made of others, which are tried",
}


def takes_generator(op: torch._ops.OpOverload) -> bool:
    return any(argument.name == "generator" for argument in op._schema.arguments)


def test_each_operator_that_draws_is_tried_with_a_generator_of_its_own() -> None:
    torch.ones(1, device="pjrt")
    names = torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1")
    ops = [named(name.removeprefix("aten::")) for name in names if name.startswith("aten::")]
    draw = [
        op
        for op in ops
        if not op.name().endswith((".out", "_out"))  # made of the others
        and torch.Tag.nondeterministic_seeded in op.tags
    ]
    without = {op.name() for op in draw if not takes_generator(op)}

    known = {op.name() for op in (*own_generator.WITH_GENERATOR, aten.native_dropout.default)}
    assert without - NOT_TRIED.keys() == known
    assert len(draw) > 20


X = torch.full((3, 4), 0.5)
CALLS = [
    (aten.native_dropout.default, (X, 0.5, True)),
    (aten.native_dropout.default, (X, 0.5, None)),
    (aten.rand.default, ((3,),)),
    (aten.randn.default, ((3,),)),
    (aten.randint.default, (5, (3,))),
    (aten.randint.low, (2, 5, (3,))),
    (aten.randperm.default, (5,)),
    (aten.bernoulli_.float, (X.clone(), 0.5)),
    (aten.bernoulli.default, (X,)),
    (aten.multinomial.default, (X, 2)),
    (aten.normal.Tensor_Tensor, (X, X)),
    (aten.poisson.default, (X, None)),  # by position
    (aten.rrelu_with_noise.default, (-X, X.clone(), 0.1, 0.2, True)),
]


@pytest.mark.parametrize(("op", "args"), CALLS, ids=lambda value: str(value)[:40])
def test_what_is_tried_leaves_the_generator_as_it_was(op: Any, args: tuple[Any, ...]) -> None:
    before = GENERATOR.get_state()
    op(*args)
    assert not torch.equal(GENERATOR.get_state(), before)  # it draws

    before = GENERATOR.get_state()
    try_on_cpu(op, args, {})
    assert torch.equal(GENERATOR.get_state(), before)


@pytest.mark.parametrize("p", [-1.0, 2.0, float("nan")])
@pytest.mark.parametrize("shape", [(3,), (0,)])
@pytest.mark.parametrize("train", [True, False, None])
def test_dropout_raises_what_it_raises_on_the_cpu(
    p: float, shape: tuple[int, ...], train: bool | None
) -> None:
    def text(run: Callable[[], object]) -> str | None:
        try:
            run()
        except RuntimeError as error:
            return str(error)
        return None

    x = torch.ones(shape)
    expected = text(lambda: torch.native_dropout(x, p, train))
    assert text(lambda: try_on_cpu(aten.native_dropout.default, (x, p, train), {})) == expected
    assert text(lambda: torch.native_dropout(x.to("pjrt"), p, train)) == expected
