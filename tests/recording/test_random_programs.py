"""Random programs of views and in-place writes do on the device what they do on CPU.

After every step all tensors have the CPU's shapes, strides and storage offsets; where a program reads,
and at its end, they have its values too. A step that PyTorch refuses is refused alike: the same class of
error with the same text. `TORCH_PJRT_TEST_PROGRAMS` says how many programs to try (150).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_pjrt
from sides import assert_same

PROGRAMS = int(os.environ.get("TORCH_PJRT_TEST_PROGRAMS", "150"))
MOST_TENSORS = 6

Tensor = torch.Tensor
Numbers = tuple[int, int, int]


def dims(t: Tensor, n: Numbers) -> tuple[int, int]:
    """Two dims of the tensor; 0 and 0 where it has none, which most operators refuse."""
    return n[0] % max(t.ndim, 1), n[1] % max(t.ndim, 1)


def sliced(t: Tensor, n: Numbers) -> Tensor:
    dim, _ = dims(t, n)
    start, stop = sorted((n[1] % (t.shape[dim] + 1), 1 + n[2] % (t.shape[dim] + 1)))
    return t[(slice(None),) * dim + (slice(start, stop, 1 + n[0] % 3),)]


def reshaped(t: Tensor, n: Numbers) -> tuple[int, ...]:
    shapes = [(-1,), (1, t.numel()), (t.numel(), 1), (2, -1), (-1, 3)]
    return shapes[n[0] % len(shapes)]


def strided(t: Tensor, n: Numbers) -> Tensor:
    """Overlapping ones, and ones that reach out of the storage, are among them."""
    sizes = (1 + n[0] % 3, 1 + n[1] % 3)[: n[2] % 3]
    strides = (n[1] % 5, n[2] % 4)[: n[2] % 3]
    return t.as_strided(sizes, strides, n[0] % 4)


# A bool of other bits than 0 and 1, or the sign of a complex zero: nobody says what becomes of it.
NO_BITS = (torch.bool, torch.complex64)


def positions_in(t: Tensor, n: Numbers) -> Tensor:
    """Indices along the first dim; one of them may be out of range, which is refused."""
    size = len(t) if t.ndim else 1
    return torch.tensor([n[0] % (size + 1), -1 - n[1] % (size + 1), n[2] % 2], device=t.device)


def indexed(t: Tensor, n: Numbers) -> Tensor:
    positions = positions_in(t, n)
    forms = [
        (positions,),
        (..., positions),
        (positions, 0),
        (None, positions),
        (positions[:, None], positions),
    ]
    return t[forms[n[2] % len(forms)]]


# What gives another look at the same memory, from a tensor and three numbers.
VIEWS: dict[str, Callable[[Tensor, Numbers], Tensor]] = {
    "as_strided": strided,
    "chunk": lambda t, n: t.chunk(1 + n[1] % 3, n[0] % max(t.ndim, 1))[-1],
    "detach": lambda t, n: t.detach(),
    "diagonal": lambda t, n: t.diagonal(n[2] % 3 - 1, *dims(t, n)),
    "expand": lambda t, n: t.unsqueeze(0).expand(2, *t.shape),
    "movedim": lambda t, n: t.movedim(*dims(t, n)),
    "narrow": lambda t, n: t.narrow(dims(t, n)[0], n[1] % 3, n[2] % 3),
    "permute": lambda t, n: t.permute(*reversed(range(t.ndim))),
    "reshape": lambda t, n: t.reshape(reshaped(t, n)),
    "select": lambda t, n: t.select(dims(t, n)[0], n[1] % 5 - 2),
    "slice": lambda t, n: sliced(t, n) if t.ndim else t,
    "squeeze": lambda t, n: t.squeeze(),
    "t": lambda t, n: t.t(),
    "transpose": lambda t, n: t.transpose(*dims(t, n)),
    "unfold": lambda t, n: t.unfold(dims(t, n)[0], n[1] % 4, 1 + n[2] % 2),
    "unsqueeze": lambda t, n: t.unsqueeze(n[0] % (t.ndim + 1)),
    "view": lambda t, n: t.view(reshaped(t, n)),
    "view as int32": lambda t, n: t if t.dtype in NO_BITS else t.view(torch.int32),
    "conj": lambda t, n: t.conj(),
    "imag": lambda t, n: t.imag if t.is_complex() else t,
    "row": lambda t, n: t[n[0] % max(len(t), 1)] if t.ndim else t,
    "column": lambda t, n: t[..., n[0] % max(t.shape[-1], 1)] if t.ndim else t,
    "tail": lambda t, n: t[1:] if t.ndim else t,
    "view as real": lambda t, n: torch.view_as_real(t) if t.is_complex() else t,
    # These make new memory: what is written to them must not be seen elsewhere.
    "clone": lambda t, n: t.clone(),
    "contiguous": lambda t, n: t.contiguous(),
    "plus": lambda t, n: t + n[0],
    "by indices": indexed,
    "by a list": lambda t, n: t[[n[0] % 3, n[1] % 3 - 2]],
    "by a mask": lambda t, n: t[t == n[0]],
    "gather": lambda t, n: t.gather(dims(t, n)[0], torch.full(t.shape, n[1] % 3).to(t.device)),
    "index_select": lambda t, n: t.index_select(dims(t, n)[0], positions_in(t, n)),
}


def set_one(t: Tensor, s: Tensor, n: Numbers) -> None:
    t[tuple(k % max(size, 1) for k, size in zip(n * 2, t.shape, strict=False))] = n[0] % 7


def set_rows(t: Tensor, s: Tensor, n: Numbers) -> None:
    t[torch.tensor(sorted({0, n[0] % max(len(t), 1)}), device=t.device)] = n[1] % 7


def set_positions(t: Tensor, s: Tensor, n: Numbers) -> None:
    """Some of them once only, so that it does not matter which value is written last."""
    t[positions_in(t, n)[:1]] = s


def set_part(t: Tensor, s: Tensor, n: Numbers) -> None:
    t[n[0] % 3 :, ..., :: 1 + n[1] % 2] = s


def out(t: Tensor, s: Tensor, n: Numbers) -> None:
    """Into a tensor of the right shape: another would be resized, with a warning."""
    if t.shape == s.shape:
        torch.add(s, n[0] % 3, out=t)


def out_of_sum(t: Tensor, s: Tensor, n: Numbers) -> None:
    if s.ndim and t.shape == s.shape[1:]:
        torch.amax(s, 0, out=t)


def set_masked(t: Tensor, s: Tensor, n: Numbers) -> None:
    t[t > n[0]] = n[1] % 7


def set_data(t: Tensor, s: Tensor, n: Numbers) -> None:
    if t.dtype == s.dtype and t.is_conj() == s.is_conj() and t.is_neg() == s.is_neg():
        t.data = s.data  # PyTorch allows no other bits on devices beside its own


# What writes to the first tensor; numbers stay small, so that float32 holds them exactly.
WRITES: dict[str, Callable[[Tensor, Tensor, Numbers], object]] = {
    "add_": lambda t, s, n: t.add_(n[0]),
    "add_ other": lambda t, s, n: t.add_(s, alpha=n[0] % 3).remainder_(17),
    "add_ own sum": lambda t, s, n: t.add_(t.sum().remainder(5)),
    "clamp_": lambda t, s, n: t.clamp_(min=n[0] - 5),
    "copy_": lambda t, s, n: t.copy_(s),
    "copy_ a copy": lambda t, s, n: t.copy_(s.clone()),
    "cumsum_": lambda t, s, n: t.cumsum_(dims(t, n)[0]).remainder_(17),
    "data": set_data,
    "fill_": lambda t, s, n: t.fill_(n[0]),
    "fill_diagonal_": lambda t, s, n: t.fill_diagonal_(n[0]),
    "masked_fill_": lambda t, s, n: t.masked_fill_(t > n[0], n[1]),
    "mul_": lambda t, s, n: t.mul_(n[0]).remainder_(17),
    "mul_ other": lambda t, s, n: t.mul_(s).remainder_(17),
    "neg_": lambda t, s, n: t.neg_(),
    "set_": lambda t, s, n: t.set_(s) if t.dtype == s.dtype else None,  # type: ignore[call-overload]
    "out=": out,
    "out= of amax": out_of_sum,
    "set masked": set_masked,
    "set part": set_part,
    "set at indices": set_positions,
    "set one": set_one,
    "set rows": set_rows,
    "squeeze_": lambda t, s, n: t.squeeze_(),
    "sub_ a copy": lambda t, s, n: t.sub_(s.clone()).remainder_(17),
    "t_": lambda t, s, n: t.t_(),
    "transpose_": lambda t, s, n: t.transpose_(*dims(t, n)),
    "unsqueeze_": lambda t, s, n: t.unsqueeze_(n[0] % (t.ndim + 1)),
    "zero_": lambda t, s, n: t.zero_(),
}
READS_OTHER = frozenset(
    ("add_ other", "copy_", "mul_ other", "out=", "out= of amax", "set part", "set at indices")
)
NOT_REFUSED = frozenset(
    (
        "cumsum_",
        "fill_diagonal_",
        "out= of amax",
        "set masked",
        "set part",
        "set at indices",
        "set rows",
    )
)
KEEPS_CONTENT = frozenset(("data", "set_", "squeeze_", "t_", "transpose_", "unsqueeze_"))


@dataclass(frozen=True)
class Step:
    """`do` is a view, a write, "read" or "sync"; `on` and `other` count tensors, and wrap around."""

    do: str
    on: int
    other: int
    numbers: Numbers


@dataclass(frozen=True)
class Program:
    """One tensor to begin with, made by an upload or by an operator, and what happens to it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    uploaded: bool
    steps: tuple[Step, ...]


digits = st.integers(0, 9)
steps = st.builds(
    Step,
    st.sampled_from([*VIEWS, *WRITES, "read", "sync"]),
    digits,
    digits,
    st.tuples(digits, digits, digits),
)
programs = st.builds(
    Program,
    st.sampled_from([(3, 3), (3, 3), (2, 3), (2, 2, 3), (4,), (1, 4), (), (0, 2)]),
    st.sampled_from(
        [torch.float32] * 4 + [torch.int64, torch.bfloat16, torch.bool, torch.complex64]
    ),
    st.booleans(),
    st.lists(steps, min_size=6, max_size=14).map(tuple),
)


def positions(t: Tensor) -> list[int]:
    """The bytes of the storage at which the elements of a CPU tensor start."""
    extent = t.untyped_storage().nbytes() // t.element_size()
    where = torch.arange(extent).as_strided(t.shape, t.stride(), t.storage_offset())
    return (where.flatten() * t.element_size()).tolist()


def is_dense(t: Tensor) -> bool:
    return torch.ops.aten.is_non_overlapping_and_dense(t)


def is_defined(step: Step, t: Tensor, s: Tensor) -> bool:
    """Whether PyTorch says what the write does.

    It does not for a tensor whose own elements share memory, nor for one that is read and written at
    different offsets, unless it sees that and refuses it.
    """
    if step.do in KEEPS_CONTENT:
        return True
    own = positions(t)
    if len(set(own)) != len(own):
        is_seen = any(
            size > 1 and stride == 0 for size, stride in zip(t.shape, t.stride(), strict=True)
        )
        return is_seen and step.do not in NOT_REFUSED
    if (
        step.do not in READS_OTHER
        or t.untyped_storage().data_ptr() != s.untyped_storage().data_ptr()
    ):
        return True
    if t.dtype != s.dtype:
        return False
    return own == positions(s) or not set(own) & set(positions(s)) or (is_dense(t) and is_dense(s))


def strides(t: Tensor) -> list[int]:
    if not t.numel():
        return []
    return [stride for stride, size in zip(t.stride(), t.shape, strict=True) if size != 1]


class Machine:
    """Runs one program on one device."""

    def __init__(self, device: str, program: Program) -> None:
        numel = prod(program.shape)
        first = torch.arange(1, numel + 1).to(program.dtype).reshape(program.shape).to(device)
        self.tensors = [first if program.uploaded else first.clone()]

    def target(self, step: Step) -> int:
        return step.on % len(self.tensors)

    def source(self, step: Step) -> Tensor:
        return self.tensors[step.other % len(self.tensors)]

    def run(self, step: Step) -> tuple[type[Exception], str] | None:
        """Do the step; what PyTorch refuses it with."""
        on = self.target(step)
        t = self.tensors[on]
        try:
            if step.do in WRITES:
                WRITES[step.do](t, self.source(step), step.numbers)
            elif step.do in VIEWS and t.ndim < 5:
                view = VIEWS[step.do](t, step.numbers)
                if len(self.tensors) < MOST_TENSORS:
                    self.tensors.append(view)
                else:
                    self.tensors[on] = view
        except Exception as error:
            return type(error), str(error).splitlines()[0].replace("pjrt:0", "cpu")
        return None

    def looks(self) -> list[tuple[Any, ...]]:
        """Shapes, strides, offsets, dtypes. Strides that say nothing, of a dim of size 1 and without any
        element, differ for results of `+` even between PyTorch's CPU kernels and its meta functions."""
        return [(t.shape, strides(t), t.storage_offset(), t.dtype) for t in self.tensors]


def compare(program: Program) -> None:
    """Run the program on both devices, step by step."""
    cpu, device = Machine("cpu", program), Machine("pjrt", program)
    for step in program.steps:
        if step.do == "sync":
            torch_pjrt.sync()
        elif step.do == "read":
            on = cpu.target(step)
            assert_same(device.tensors[on], cpu.tensors[on], exactly=True)
        elif step.do in VIEWS or is_defined(step, cpu.tensors[cpu.target(step)], cpu.source(step)):
            expected, got = cpu.run(step), device.run(step)
            assert got == expected, f"{step} gave {got}, on CPU {expected}"
            ours, theirs = device.looks(), cpu.looks()
            assert ours == theirs, f"{step} made {ours}, on CPU {theirs}"
    # `cpu()` takes views on the host, `clone()` on the device: both must see the same.
    clones = [t.clone() for t in device.tensors]
    for tensor, clone, expected in zip(device.tensors, clones, cpu.tensors, strict=True):
        assert_same(clone, expected, exactly=True)
        assert_same(tensor, expected, exactly=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated:UserWarning")
def test_program_of_views_and_writes_gives_what_the_cpu_gives(
    record_property: Callable[[str, object], None],
) -> None:
    n_ran = 0

    @settings(
        max_examples=PROGRAMS,
        deadline=None,
        derandomize=PROGRAMS <= 150,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),  # type: ignore[arg-type]
    )
    @given(programs)
    def run(program: Program) -> None:
        nonlocal n_ran
        n_ran += 1
        compare(program)

    try:
        run()
    finally:
        record_property("random programs", n_ran)


def test_comparison_sees_a_wrong_value_and_a_wrong_stride() -> None:
    with pytest.raises(AssertionError):
        assert_same(torch.ones(2, device="pjrt"), torch.tensor([1.0, 2.0]))
    program = Program((2, 3), torch.float32, True, (Step("read", 0, 0, (0, 0, 0)),))
    machine = Machine("pjrt", program)
    machine.tensors[0] = machine.tensors[0].t().contiguous().t()
    assert machine.looks() != Machine("cpu", program).looks()
