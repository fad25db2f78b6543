"""A step of Adam over lists of parameters, recorded at once.

`torch.optim.adam._multi_tensor_adam` calls some eight operators, each on lists of all parameters, gradients
or moments, and each call looks at every tensor of its lists. Here every tensor is looked at once, and the
nodes are appended that PyTorch's own function has recorded for tensors that look so, in the same order: the
program is the same, but that a gradient which is a view is read once. Numbers that change from step to step
are computed as PyTorch computes them.

What PyTorch's function records is not assumed. It is recorded twice, with different numbers: a template is
made only where the nodes are the same both times, and all of their numbers are those computed here.
Otherwise, and for everything unusual, PyTorch's own function runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Literal

import torch
from torch.autograd.graph import increment_version
from torch.nn import Parameter
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from torch_pjrt.caches import Cache
from torch_pjrt.graph.tape import Tape, Value, number_on, onto
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.tensor.recording.composed import Template, is_unwatched, record
from torch_pjrt.tensor.recording.whole_lists import WholeList, put, whole_list
from torch_pjrt.tensor.storage.buffer import wrap
from torch_pjrt.tensor.storage.view import value_of

Tensors = list[torch.Tensor]

_PLAIN = {torch.Tensor, Parameter}
_NUMBERS = ("beta1", "beta2", "lr", "weight_decay", "eps")
_FLAGS = ("amsgrad", "maximize", "decoupled_weight_decay")
_REFUSED = ("has_complex", "capturable", "differentiable")
_SCALING = ("grad_scale", "found_inf")
_n_function_modes = torch._C._len_torch_function_stack


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step records.

    order     where the tape's inputs are among the values of all lists.
    versions  of each list, how often the step writes to it.
    """

    template: Template
    order: Callable[[list[Value]], tuple[Value, ...]]
    versions: tuple[int, ...]


# By what the lists look like; False where there is no template.
_steps: Cache[Any, _Step | Literal[False]] = Cache("templates of Adam's steps", most=256)


def recorded_at_once(
    original: Callable[..., None],
    lists: tuple[Tensors, Tensors, Tensors, Tensors, Tensors],
    counts: Tensors,
    options: Mapping[str, Any],
) -> bool:
    """Record what `original`, which is `_multi_tensor_adam`, does; False where it has to be called itself.

    Nothing has happened then. `lists` are parameters, first and second moments, maxima of the latter and
    gradients. `counts` are the numbers of steps so far, on the CPU, which this step adds to.
    """
    if not _is_usual(lists[0], counts, options):
        return False
    found = _looked_at(lists, len(counts))
    if found is None:
        return False
    key = _key(found, options)
    step = _steps.get(key)
    if step is None:
        step = _steps[key] = _learned(original, found, options)
    if step is False:
        return False
    torch._foreach_add_(counts, torch.tensor(1.0, device="cpu"), alpha=1.0)  # pyright: ignore[reportPrivateImportUsage]
    floats = _numbers([count.item() for count in counts], options)
    values = step.order([value for each in found for value in each.values])
    made = record(step.template, list(values), floats)
    increment_version([t for x, n in zip(lists, step.versions, strict=True) for t in (*x,) * n])
    results = [made[n] for n in step.template.results if n is not None]
    put([buffer for each in found[:-1] for buffer in each.buffers], results)
    return True


def _is_usual(params: Tensors, counts: Tensors, options: Mapping[str, Any]) -> bool:
    """Whether the step is one of this device, and nobody wants to see its operators one by one."""
    return (
        len(params) > 0
        and params[0].device.type == "pjrt"
        and len(counts) == len(params)
        and all(count.is_cpu and count.__class__ is torch.Tensor for count in counts)
        and options.keys() >= {*_NUMBERS, *_FLAGS, *_REFUSED}
        and not any(options[name] for name in _REFUSED)
        and all(options.get(name) is None for name in _SCALING)
        and all(options[name].__class__ is float for name in _NUMBERS if name != "weight_decay")
        and _is_usual_decay(options["weight_decay"], options["decoupled_weight_decay"])
        and not torch.is_grad_enabled()
        and is_unwatched()
        and not _has_watching_mode()
        and not torch.autograd.profiler._is_profiler_enabled
    )


def _is_usual_decay(decay: Any, is_decoupled: bool) -> bool:
    """Of a whole number, another operator is recorded where it is a factor."""
    return decay.__class__ is float or (decay.__class__ is int and (is_decoupled or not decay))


def _has_watching_mode() -> bool:
    """Whether a mode sees calls of functions; that of `torch.set_default_device` looks at none of these."""
    stack = _get_current_function_mode_stack() if _n_function_modes() else ()
    return not all(isinstance(mode, DeviceContext) for mode in stack)


def _looked_at(lists: Sequence[Tensors], n: int) -> list[WholeList] | None:
    """The lists, gradients last; None where the step is better left to PyTorch's function.

    That is where they hold anything else than tensors of this device, or any two of what is written to share
    memory, or share it with gradients.
    """
    found: list[WholeList] = []
    for tensors in lists:
        if not {t.__class__ for t in tensors} <= _PLAIN:
            return None
        each = whole_list(tensors)
        if each is None:
            return None
        found.append(each)
    *written, gradients = found
    if any(each.has_views for each in written) or any(len(e.values) not in (0, n) for e in found):
        return None
    buffers = [buffer for each in written for buffer in each.buffers]
    distinct = set(buffers)
    if len(distinct) != len(buffers) or not distinct.isdisjoint(gradients.buffers):
        return None
    return found


def _key(found: Sequence[WholeList], options: Mapping[str, Any]) -> Hashable:
    return (
        *chain.from_iterable(each.specs for each in found),
        len(found[0].specs),
        *(options[name] for name in _FLAGS),
        options["weight_decay"] != 0,
    )


def _numbers(counts: Sequence[float], options: Mapping[str, Any]) -> list[float]:
    """The numbers of a step in the order of its operators, computed as PyTorch computes them.

    `counts`: of each parameter, how many steps it has taken with this one.
    """
    beta1, beta2, lr, weight_decay, eps = (options[name] for name in _NUMBERS)
    numbers: list[float] = []
    if weight_decay != 0:
        decoupled = options["decoupled_weight_decay"]
        numbers.append(1 - lr * weight_decay if decoupled else weight_decay)
    numbers += [1 - beta1, beta2, 1 - beta2]
    of_count = {
        count: ((lr / (1 - beta1**count)) * -1, (1 - beta2**count) ** 0.5) for count in {*counts}
    }
    numbers += [of_count[count][1] for count in counts]
    numbers.append(eps)
    numbers += [of_count[count][0] for count in counts]
    return numbers


def _learned(
    original: Callable[..., None], found: Sequence[WholeList], options: Mapping[str, Any]
) -> _Step | Literal[False]:
    """What PyTorch's function records; False where another step would not be the same but for its numbers."""
    other = {**options, **{name: options[name] * 0.75 + 0.001 for name in _NUMBERS}}
    other["weight_decay"] = options["weight_decay"] * 0.75  # none stays none
    specs = [each.specs for each in found]
    try:
        first, second = (_tried(original, specs, given) for given in (options, other))
    except Exception:  # PyTorch's function itself raises it, with tensors of the user's
        return False
    if first is None or second is None or first[1] != second[1]:
        return False
    return first[0]


def _tried(
    original: Callable[..., None], specs: Sequence[list[TensorSpec]], options: Mapping[str, Any]
) -> tuple[_Step, list[Any]] | None:
    """A step of other tensors that look so, and its code; None where it is no template."""
    n = len(specs[0])
    with onto(Tape(nested=True)) as scratch:
        values = [[Value(spec, 0, None) for spec in each] for each in specs]
        lists = [[wrap(value, value.spec) for value in each] for each in values]
        params, exp_avgs, exp_avg_sqs, maxima, grads = lists
        counts = [torch.tensor(float(i % 7), device="cpu") for i in range(n)]
        before = [tensors[0]._version if tensors else 0 for tensors in lists]
        original(params, grads, exp_avgs, exp_avg_sqs, maxima, counts, **options)
        versions = tuple(
            tensors[0]._version - version if tensors else 0
            for tensors, version in zip(lists, before, strict=True)
        )
        numbers = [number_on(scratch, value_of(t)) for tensors in lists[:-1] for t in tensors]
        place = {id(value): i for i, value in enumerate(chain.from_iterable(values))}
        order = [place.get(id(value)) for value in scratch.inputs]
        expected = _numbers([float(i % 7 + 1) for i in range(n)], options)
        is_fit = (
            scratch.floats == expected
            and not scratch.ints
            and not scratch.draws
            and not scratch.kept
            and len(order) > 1
            and None not in order
            and all(number >= 0 for number in numbers)
        )
        if not is_fit:
            return None
        pick: Any = itemgetter(*order)
        return _Step(Template(scratch, tuple(numbers)), pick, versions), scratch.code
