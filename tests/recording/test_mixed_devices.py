"""A call with tensors of the CPU and of the device is taken or refused as CUDA takes or refuses it.

Each operator of PyTorch's `op_db` is called with its tensors on one device but for one, as they are and
without dims, in place and with `out=`. `TORCH_PJRT_MIXES=all` tries more samples, and compares the values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from device_rules import Unknown, verdict
from torch_pjrt.testing.conformance.cases import operators

ALL = os.environ.get("TORCH_PJRT_MIXES") == "all"
SAMPLES = 3 if ALL else 1
PARTS = 6
MOST_TENSORS = 6

REFUSALS = re.compile("on the same device|out tensor to have device|too many CPU scalars")

# Where this device differs from CUDA: it refuses in words.
DIFFERS = {
    "slice_scatter, out=": "PyTorch makes this form of copies, which go between devices",
}

# Their results are random, or what memory held.
UNSAID = (
    "bernoulli",
    "empty",
    "multinomial",
    "normal",
    "rand",
    "uniform",
    "dropout",
    "exponential",
    "resize",
)

# PyTorch itself dies of them where a tensor has no dims, on any device.
KEEPS_DIMS = ("_chunk_cat", "cumulative_trapezoid", "trapezoid", "trapz")

Placing = Callable[[torch.Tensor, bool], torch.Tensor]


class Mix(NamedTuple):
    """`call(tensors)`; `where` says of each of the tensors whether it is on the device."""

    name: str
    call: Callable[[list[torch.Tensor]], Any]
    tensors: list[torch.Tensor]
    where: list[bool]

    def run(self, place: Placing) -> Any:
        return self.call([place(t, w) for t, w in zip(self.tensors, self.where, strict=True)])


def on_host(t: torch.Tensor, on_device: bool) -> torch.Tensor:
    return t.detach().clone()


def truly(t: torch.Tensor, on_device: bool) -> torch.Tensor:
    return t.detach().to("pjrt") if on_device else t.detach().clone()


def calls_of(name: str) -> Iterator[tuple[str, Callable[..., Any], list[torch.Tensor]]]:
    """The operator on its first samples with several tensors: functional, in place and with `out=`."""
    info = operators()[name]
    dtype = torch.float32 if torch.float32 in info.supported_dtypes("cpu") else torch.int64
    found = 0
    for sample in info.sample_inputs("cpu", dtype):
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        positions = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        tensors = [leaves[i] for i in positions]
        if not tensors or len(tensors) > MOST_TENSORS:
            continue
        if any(t.layout != torch.strided for t in tensors):
            continue

        def call(
            function: Any,
            given: list[torch.Tensor],
            extra: Any = None,
            leaves: Any = tuple(leaves),
            positions: Any = tuple(positions),
            spec: Any = spec,
        ) -> Any:
            filled = list(leaves)
            for i, t in zip(positions, given, strict=True):
                filled[i] = t
            args, kwargs = tree_unflatten(filled, spec)
            return function(*args, **kwargs, **(extra or {}))

        if len(tensors) > 1:
            for kind, function in ((name, info.op), (f"{name}, in place", info.inplace_variant)):
                if function is not None:
                    yield kind, lambda given, f=function, c=call: c(f, given), tensors
        if info.supports_out:
            yield from with_out(name, info.op, call, tensors)
        found += len(tensors) > 1
        if found >= SAMPLES or (len(tensors) == 1 and not found and not ALL):
            return


def with_out(
    name: str, function: Any, call: Callable[..., Any], tensors: list[torch.Tensor]
) -> Iterator[tuple[str, Callable[..., Any], list[torch.Tensor]]]:
    """The call with `out=`, its tensors the last ones."""
    try:
        results, spec = tree_flatten(call(function, [t.detach().clone() for t in tensors]))
    except Exception:
        return
    if not all(isinstance(r, torch.Tensor) for r in results):
        return
    n = len(tensors)

    def run(given: list[torch.Tensor]) -> Any:
        return call(function, given[:n], {"out": tree_unflatten(given[n:], spec)})

    yield f"{name}, out=", run, [*tensors, *[torch.empty_like(r) for r in results]]


def mixes_of(name: str) -> Iterator[Mix]:
    for kind, call, tensors in calls_of(name):
        without_dims = [t.detach().flatten()[0].clone() if t.numel() else t for t in tensors]
        forms = [tensors]
        if name not in KEEPS_DIMS:
            forms.append(without_dims)
            forms += [
                [*tensors[:i], without_dims[i], *tensors[i + 1 :]] for i in range(len(tensors))
            ]
        known: list[list[tuple[int, ...]]] = []
        for form in forms:
            shapes = [tuple(t.shape) for t in form]
            if shapes in known or not works(call, form):
                continue
            known.append(shapes)
            changed = [i for i, t in enumerate(form) if t.shape != tensors[i].shape]
            ones = changed if len(changed) == 1 else range(len(form))
            for i in ones:
                yield Mix(kind, call, form, [j != i for j in range(len(form))])
                if len(form) > 2 or len(changed) == 1:
                    yield Mix(kind, call, form, [j == i for j in range(len(form))])


def works(call: Callable[..., Any], form: list[torch.Tensor]) -> bool:
    try:
        call([t.detach().clone() for t in form])
    except Exception:
        return False
    return True


def difference(mix: Mix) -> str | None:
    """How this device differs from CUDA in what it takes; None where it does not."""
    try:
        expected = verdict(mix.run)
    except Unknown:
        expected = ""
    try:
        result, error = mix.run(truly), None
    except Exception as raised:
        result, error = None, raised
    if error is None:
        if expected:
            return f"taken, but CUDA refuses `{expected}`"
        return differing_values(mix, result) if ALL else None
    if not isinstance(error, RuntimeError):
        return f"{type(error).__name__}: {error}"
    if expected is None and mix.name not in DIFFERS:
        return f"refused, but CUDA takes it: {error}"
    if expected and not REFUSALS.search(str(error)):
        return f"refused with another text: {error}"
    return None


def differing_values(mix: Mix, result: Any) -> str | None:
    if any(word in mix.name for word in UNSAID):
        return None
    host = tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, result)
    try:
        torch.testing.assert_close(
            host, mix.run(on_host), rtol=1e-3, atol=1e-3, equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_mixes_are_taken_and_refused_as_on_cuda(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    tried, differing = 0, []
    for name in sorted(operators())[part::PARTS]:
        for mix in mixes_of(name):
            tried += 1
            if (what := difference(mix)) is not None:
                shapes = [tuple(t.shape) for t in mix.tensors]
                differing.append(f"{mix.name} {shapes} on device {mix.where}: {what}")
    record_property("mixes of devices", tried)

    assert not differing, "\n".join(differing)


def test_number_on_the_cpu_is_not_changed_by_one_on_the_device() -> None:
    total = torch.tensor(0.5)

    with pytest.raises(RuntimeError, match="pjrt:0 and cpu"):
        total += torch.tensor(3.0, device="pjrt")

    assert total.item() == 0.5


def test_rows_are_not_looked_up_by_indices_on_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="pjrt:0 and cpu"):
        torch.nn.functional.embedding(torch.tensor([0, 1]), torch.ones(3, 2, device="pjrt"))


def test_lists_of_several_devices_are_computed_where_each_element_is() -> None:
    lists = [torch.ones(2), torch.ones(2, device="pjrt")]

    torch._foreach_mul_(lists, torch.tensor(3.0))
    sums = torch._foreach_add(lists, lists)

    assert [t.device.type for t in sums] == ["cpu", "pjrt"]
    assert [t.tolist() for t in (*lists, *sums)] == [[3, 3], [3, 3], [6, 6], [6, 6]]


def test_fill_takes_its_value_from_the_other_device() -> None:
    there, here = torch.zeros(2, device="pjrt"), torch.zeros(2)

    there.fill_(torch.tensor(2.0))
    here.fill_(torch.tensor(3.0, device="pjrt"))

    assert (there.tolist(), here.tolist()) == ([2, 2], [3, 3])


def test_value_without_dims_is_moved_to_the_indexed_tensor() -> None:
    value, there = torch.tensor(2.0, device="pjrt"), torch.tensor([0], device="pjrt")
    for index in (torch.tensor([1]), torch.tensor([False, True])):
        x = torch.zeros(2)

        x[index] = value
        x.index_put_((index,), value, accumulate=index.dtype != torch.bool)

        assert x.tolist() == [0, 2 if index.dtype == torch.bool else 4]
        for given, values in (((index,), value.reshape(1)), ((there,), value), ((there,), x[0])):
            with pytest.raises(RuntimeError, match="same device"):
                x.index_put_(given, values)


def test_equal_with_a_cpu_tensor_raises() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.equal(torch.ones(3, device="pjrt"), torch.ones(3))
