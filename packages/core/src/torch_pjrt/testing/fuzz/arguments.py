"""Drawing arguments: each function takes a `Draw` and gives a value, or raises `Unfit`: there is none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_pjrt.testing.fuzz.program import Ref


class Unfit(Exception):
    """There is no such argument in this environment."""


@dataclass(slots=True)
class Draw:
    """The state of drawing the arguments of one call.

    env    what the program has so far, as the CPU computed it.
    args   the arguments drawn already; the first tensor among them is what dims and indices refer to.
    """

    rng: random.Random
    env: list[Any]
    args: list[Any] = field(default_factory=list)

    def tensors(self, fits: Callable[[torch.Tensor], bool]) -> list[int]:
        return [i for i, x in enumerate(self.env) if isinstance(x, torch.Tensor) and fits(x)]

    def pick(self, fits: Callable[[torch.Tensor], bool]) -> Ref:
        """A tensor that fits; later ones are likelier."""
        found = self.tensors(fits)
        if not found:
            raise Unfit
        return Ref(max(self.rng.choice(found), self.rng.choice(found)))

    def value(self, x: Any) -> Any:
        return self.env[x.number] if isinstance(x, Ref) else x

    @property
    def subject(self) -> torch.Tensor:
        """The first tensor among the arguments."""
        for x in self.args:
            value = self.value(x)
            if isinstance(value, torch.Tensor):
                return value
            if isinstance(x, (list, tuple)) and x and isinstance(self.value(x[0]), torch.Tensor):
                return self.value(x[0])
        raise Unfit

    @property
    def size(self) -> int:
        """Of the subject along the dim that was drawn last; of a 0-d one 1."""
        drawn = [x for x in self.args if type(x) is int]
        return self.subject.shape[drawn[-1]] if self.subject.dim() and drawn else 1


Argument = Callable[[Draw], Any]


def any_tensor(d: Draw) -> Ref:
    return d.pick(lambda x: True)


def floats(d: Draw) -> Ref:
    return d.pick(lambda x: x.is_floating_point())


def ints(d: Draw) -> Ref:
    return d.pick(lambda x: x.dtype in (torch.int64, torch.int32))


def bools(d: Draw) -> Ref:
    return d.pick(lambda x: x.dtype == torch.bool)


def of_rank(*ranks: int) -> Argument:
    """A floating tensor with so many dims."""
    return lambda d: d.pick(lambda x: x.is_floating_point() and x.dim() in ranks)


def broadcastable(d: Draw) -> Any:
    """A tensor that broadcasts with the subject; at times one that does not, or a number."""
    if d.rng.random() < 0.25:
        return number(d)
    subject = d.subject

    def fits(x: torch.Tensor) -> bool:
        pairs = zip(reversed(x.shape), reversed(subject.shape), strict=False)
        return all(a == b or 1 in (a, b) for a, b in pairs)

    return any_tensor(d) if d.rng.random() < 0.03 else d.pick(fits)


def into_subject(d: Draw) -> Any:
    """What can be written into the subject: it broadcasts to it."""
    shape = d.subject.shape
    if d.rng.random() < 0.3:
        return number(d)

    def fits(x: torch.Tensor) -> bool:
        pairs = list(zip(reversed(x.shape), reversed(shape), strict=False))
        return x.dim() <= len(shape) and all(a in (b, 1) for a, b in pairs)

    return d.pick(fits)


def alike(d: Draw) -> Ref:
    """A tensor of the subject's shape and dtype."""
    s = d.subject
    return d.pick(lambda x: x.shape == s.shape and x.dtype == s.dtype)


def mask(d: Draw) -> Ref:
    """A mask of the subject's shape."""
    return d.pick(lambda x: x.dtype == torch.bool and x.shape == d.subject.shape)


def number(d: Draw) -> int | float | bool:
    return d.rng.choice([2, -1, 0, 3, 0.5, -1.25, 1.0, 7.5, True, 1e-3])


def small(d: Draw) -> int:
    return d.rng.choice([0, 1, 2, 3, -1])


def positive(d: Draw) -> float:
    return d.rng.choice([0.1, 0.5, 1.0, 2.0])


def flag(d: Draw) -> bool:
    return d.rng.random() < 0.5


def dim(d: Draw) -> int:
    """A dim of the subject; at times one that it does not have."""
    n = d.subject.dim()
    if d.rng.random() < 0.03:
        return n + 1
    return d.rng.randrange(-n, n) if n else d.rng.choice([0, -1])


def dims(d: Draw) -> Any:
    """None, one dim, or several different ones."""
    n = d.subject.dim()
    if not n or d.rng.random() < 0.3:
        return dim(d)
    return sorted(d.rng.sample(range(n), d.rng.randint(1, n)))


def permutation(d: Draw) -> list[int]:
    n = d.subject.dim()
    return d.rng.sample(range(n), n)


def shape_of_same_size(d: Draw) -> list[int]:
    """Another shape of the subject's number of elements; at times with a -1, at times with a 1."""
    n = d.subject.numel()
    factors = [k for k in range(1, n + 1) if n % k == 0] or [0]
    first = d.rng.choice(factors)
    shape = [first, n // first] if first else list(d.subject.shape)
    if d.rng.random() < 0.3:
        shape.insert(d.rng.randint(0, len(shape)), 1)
    if n and d.rng.random() < 0.3:
        shape[d.rng.randrange(len(shape))] = -1
    return shape


def larger_shape(d: Draw) -> list[int]:
    """What the subject can be expanded to."""
    shape = [s if s != 1 else d.rng.choice([1, 2, 3]) for s in d.subject.shape]
    return [d.rng.choice([1, 2]), *shape] if d.rng.random() < 0.5 else shape


def position(d: Draw) -> int:
    """An index along the dim that was drawn last."""
    size = d.size
    return d.rng.randrange(-size, size) if size else 0


def slices(d: Draw) -> Any:
    """An index of slices, integers, None and `...`."""
    index: list[Any] = []
    for size in d.subject.shape:
        choice = d.rng.random()
        if choice < 0.25 and size:
            index.append(d.rng.randrange(-size, size))
        elif choice < 0.75:
            a, b = d.rng.randint(-size - 1, size), d.rng.randint(0, size + 1)
            index.append(slice(a, b, d.rng.choice([None, 1, 2])))
        elif choice < 0.85:
            index.append(None)
            index.append(slice(None))
        else:
            index.append(slice(None))
    if d.rng.random() < 0.2:
        return (..., *index[-1:])
    return tuple(index[: d.rng.randint(1, len(index))]) if index else ...


def indices(n: int | None = None) -> Argument:
    """Indices along the dim that was drawn last: a list that the call makes a tensor of."""

    def draw(d: Draw) -> list[int]:
        size = d.size
        if not size:
            raise Unfit
        return [d.rng.randrange(size) for _ in range(n or d.rng.randint(1, 4))]

    return draw


def dtype(d: Draw) -> torch.dtype:
    return d.rng.choice(
        [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.bfloat16]
    )


def several(of: Argument, least: int = 2, most: int = 3) -> Argument:
    """A list: the first by `of`, the others of its shape."""

    def draw(d: Draw) -> list[Any]:
        first = of(d)
        s = d.value(first)
        rest = [
            d.pick(lambda x: x.shape == s.shape and x.dtype == s.dtype)
            for _ in range(d.rng.randint(least, most) - 1)
        ]
        return [first, *rest]

    return draw


def one_of(*values: Any) -> Argument:
    return lambda d: d.rng.choice(values)


def matrix_for(d: Draw) -> Ref:
    """A matrix whose rows are as many as the subject's last size."""
    n = d.subject.shape[-1] if d.subject.dim() else 1
    return d.pick(lambda x: x.dtype == d.subject.dtype and x.dim() == 2 and x.shape[0] == n)


def weight_for(d: Draw) -> Ref:
    """A matrix whose columns are as many as the subject's last size."""
    n = d.subject.shape[-1] if d.subject.dim() else 1
    return d.pick(lambda x: x.dtype == d.subject.dtype and x.dim() == 2 and x.shape[1] == n)


def vector_for(d: Draw) -> Ref:
    n = d.subject.shape[-1] if d.subject.dim() else 1
    return d.pick(lambda x: x.dtype == d.subject.dtype and x.dim() == 1 and x.shape[0] == n)


def last_size(d: Draw) -> list[int]:
    return [d.subject.shape[-1]] if d.subject.dim() else [1]


def pads(d: Draw) -> list[int]:
    n = min(d.subject.dim(), d.rng.choice([1, 2]))
    return [d.rng.choice([0, 1, 2, -1]) for _ in range(2 * n)]


def sections(d: Draw) -> int:
    return d.rng.choice([1, 2, 3])


def amount(d: Draw) -> int:
    """How many of the subject's last dim, at least one."""
    size = d.subject.shape[-1] if d.subject.dim() else 1
    return d.rng.randint(1, max(size, 1))


def new_input(rng: random.Random, kind: str) -> torch.Tensor:
    """An input: small, at times 0-d, empty or strided."""
    sizes = [1, 2, 3, 4, 4, 5, 0] if rng.random() < 0.1 else [1, 2, 3, 4, 4, 5]
    shape = [rng.choice(sizes) for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4]))]
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    n = math.prod(shape)
    if kind == "float":
        dtype = rng.choice([torch.float64, torch.float64, torch.float64, torch.float32])
        x = torch.randn(n, generator=generator, dtype=torch.float64).to(dtype).reshape(shape)
    elif kind == "int":
        dtype = rng.choice([torch.int64, torch.int64, torch.int32, torch.uint8])
        x = torch.randint(
            0 if dtype == torch.uint8 else -4, 6, shape, generator=generator, dtype=dtype
        )
    else:
        x = torch.randint(0, 2, shape, generator=generator).bool()
    if x.dim() >= 2 and rng.random() < 0.2:
        x = x.transpose(0, 1)
    return x
