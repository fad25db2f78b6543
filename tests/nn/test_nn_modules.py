"""Every module of `torch.nn` does on the device what it does on CPU: outputs, gradients, state."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from module_cases import done_in_float64, module_case
from module_rows import ROWS, Row
from sides import Case, Tolerance, differences, farther

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import ModuleInfo, module_db

# How many of its inputs a module is given, taken evenly from all; those with the largest programs fewer.
EVERYTHING = os.environ.get("TORCH_PJRT_TEST_ALL_INPUTS") == "1"
MOST = 8
MOST_OF_LARGE = 3
MOST_IN_BFLOAT16 = 2
LARGE = frozenset(
    (
        nn.GRU,
        nn.LSTM,
        nn.MultiheadAttention,
        nn.RNN,
        nn.Transformer,
        nn.TransformerDecoderLayer,
        nn.TransformerEncoder,
        nn.TransformerEncoderLayer,
    )
)

# Their windows are random: what the results are stored as is compared. `module_rows` gives them samples.
RANDOM = frozenset((nn.FractionalMaxPool2d, nn.FractionalMaxPool3d))

OTHER_ORDER = "gradients of weights add up hundreds of products, in another order than on CPU"
TOLERANCES: dict[tuple[Any, torch.dtype], Tolerance] = {
    (nn.Conv3d, torch.float32): Tolerance(1e-5, 5e-5, OTHER_ORDER),
    (nn.LazyConv3d, torch.float32): Tolerance(1e-5, 5e-5, OTHER_ORDER),
    (nn.ConvTranspose3d, torch.float32): Tolerance(1e-5, 5e-5, OTHER_ORDER),
    (nn.LazyConvTranspose3d, torch.float32): Tolerance(1e-5, 5e-5, OTHER_ORDER),
    (nn.CTCLoss, torch.float32): Tolerance(
        2e-4, 5e-5, "50 steps of sums of exponentials, each rounded"
    ),
}

# What does not work yet. A row whose module works fails until it goes.
GAPS: dict[tuple[Any, torch.dtype], str] = {}

# In float64 too: modules whose kernels have a dtype of their own inside.
ALSO_IN_FLOAT64 = frozenset(
    (nn.BatchNorm2d, nn.Conv2d, nn.GELU, nn.GRUCell, nn.LayerNorm, nn.MultiheadAttention)
)

Trial = tuple[ModuleInfo, torch.dtype, bool]


def modes(info: ModuleInfo) -> tuple[bool, ...]:
    return (True, False) if info.train_and_eval_differ else (True,)


TRIALS: list[Trial] = [
    (info, dtype, training)
    for info in module_db
    for dtype in (torch.float32, torch.float64)
    for training in modes(info)
    if dtype == torch.float32 or info.module_cls in ALSO_IN_FLOAT64
]


def marked(trial: Trial) -> Any:
    info, dtype, training = trial
    reason = GAPS.get((info.module_cls, dtype))
    marks = [pytest.mark.xfail(reason=reason)] if reason else []
    mode = "training" if training else "eval"
    name = f"{info.name} {str(dtype).removeprefix('torch.')} {mode}"
    return pytest.param(*trial, id=name, marks=marks)


def chosen(info: ModuleInfo, inputs: Sequence[Any], most: int = MOST) -> Sequence[Any]:
    """Some of the inputs, evenly from all."""
    most = min(most, MOST_OF_LARGE) if info.module_cls in LARGE else most
    return inputs if EVERYTHING else inputs[:: max(1, -(-len(inputs) // most))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of deprecated arguments
@pytest.mark.parametrize(("info", "dtype", "training"), [marked(t) for t in TRIALS])
def test_module_does_what_it_does_on_cpu(
    info: ModuleInfo, dtype: torch.dtype, training: bool
) -> None:
    torch.manual_seed(0)
    inputs = info.module_inputs_func(info, torch.device("cpu"), dtype, True, training)

    cases = [
        made(info, dtype, training, f"input {i} {given.desc}", given)
        for i, given in enumerate(chosen(info, inputs))
    ]

    assert not differences(cases)


def made(info: ModuleInfo, dtype: torch.dtype, training: bool, name: str, given: Any) -> Case:
    """One input of the database, on both sides."""
    return module_case(
        name,
        built(info, dtype, given).train(training),
        given.forward_input.args,
        given.forward_input.kwargs,
        TOLERANCES.get((info.module_cls, dtype)),
        values=info.module_cls not in RANDOM,
    )


def built(info: ModuleInfo, dtype: torch.dtype, given: Any) -> nn.Module:
    """The module on CPU, with all its parameters."""
    module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
    module = module.to(dtype)
    if info.is_lazy:
        with torch.no_grad():
            module(*given.forward_input.args, **given.forward_input.kwargs)
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", module_db, ids=[info.name for info in module_db])
def test_module_in_bfloat16_is_as_near_to_float64_as_on_cpu(info: ModuleInfo) -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16
    inputs = info.module_inputs_func(info, torch.device("cpu"), dtype, True, True)

    trials = []
    for i, given in enumerate(chosen(info, inputs, MOST_IN_BFLOAT16)):
        module = built(info, dtype, given).train()
        args, kwargs = given.forward_input.args, given.forward_input.kwargs
        values = info.module_cls not in RANDOM
        case = module_case(f"input {i} {given.desc}", module, args, kwargs, values=values)
        trials.append((case, done_in_float64(module, args, kwargs)))

    if info.module_cls in RANDOM:
        assert not differences(case for case, _ in trials)
    else:
        assert not [line for case, exact in trials if (line := farther(case, exact))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=[f"{i} {row.name}" for i, row in enumerate(ROWS)])
def test_module_outside_the_database_does_what_it_does_on_cpu(row: Row) -> None:
    torch.manual_seed(0)
    modes = (True, False) if row.training is None else (row.training,)

    cases = [
        module_case(f"training {mode}", row.make().train(mode), row.args, row.kwargs)
        for mode in modes
    ]

    assert not differences(cases)


# Not modules of their own: bases, containers' bases and the deprecated.
NEEDS_NO_TEST = frozenset(
    (
        "Container",
        "LinearCrossEntropyOptions",
        "Module",
        "NLLLoss2d",
        "RNNBase",
        "RNNCellBase",
    )
)
# Made on the device by their first input: see the tests below.
LAZY = frozenset(
    (
        "LazyBatchNorm1d",
        "LazyBatchNorm2d",
        "LazyBatchNorm3d",
        "LazyInstanceNorm1d",
        "LazyInstanceNorm2d",
        "LazyInstanceNorm3d",
        "LazyLinear",
    )
)
CONTAINERS = frozenset(("ModuleDict", "ModuleList", "ParameterDict", "ParameterList"))


def test_every_module_of_pytorch_is_tried() -> None:
    tried = {info.module_cls.__name__ for info in module_db} | {row.name for row in ROWS}
    tried |= {"MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"}  # with the pooling that they undo

    assert set(nn.modules.__all__) - tried - LAZY - CONTAINERS == NEEDS_NO_TEST


LAZY_ROWS: list[tuple[type[Any], tuple[Any, ...], tuple[int, ...]]] = [
    (nn.LazyLinear, (4,), (2, 3)),
    (nn.LazyConv1d, (4, 3), (2, 3, 5)),
    (nn.LazyConv2d, (4, 3), (2, 3, 5, 5)),
    (nn.LazyConv3d, (4, 3), (2, 3, 5, 5, 5)),
    (nn.LazyConvTranspose1d, (4, 3), (2, 3, 5)),
    (nn.LazyConvTranspose2d, (4, 3), (2, 3, 5, 5)),
    (nn.LazyConvTranspose3d, (4, 3), (2, 3, 5, 5, 5)),
    (nn.LazyBatchNorm1d, (), (2, 3, 5)),
    (nn.LazyBatchNorm2d, (), (2, 3, 5, 5)),
    (nn.LazyBatchNorm3d, (), (2, 3, 5, 5, 5)),
    (nn.LazyInstanceNorm1d, (), (2, 3, 5)),
    (nn.LazyInstanceNorm2d, (), (2, 3, 5, 5)),
    (nn.LazyInstanceNorm3d, (), (2, 3, 5, 5, 5)),
]


@pytest.mark.parametrize(
    ("cls", "args", "shape"), LAZY_ROWS, ids=[r[0].__name__ for r in LAZY_ROWS]
)
def test_lazy_module_is_made_on_the_device_by_its_first_input(
    cls: type[Any], args: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    lazy = cls(*args, device="pjrt")
    assert lazy.has_uninitialized_params() or not lazy.state_dict()

    y = lazy(torch.randn(shape, device="pjrt"))

    assert not isinstance(lazy, LazyModuleMixin)
    on_cpu = cls(*args)
    expected = on_cpu(torch.randn(shape))
    assert y.shape == expected.shape
    state = {k: (v.shape, v.dtype) for k, v in on_cpu.state_dict().items()}
    assert {k: (v.shape, v.dtype) for k, v in lazy.state_dict().items()} == state
    assert {v.device.type for v in lazy.state_dict().values()} <= {"pjrt"}
