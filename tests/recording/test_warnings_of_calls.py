"""A call whose like has been made warns as on the CPU, each time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

from torch_pjrt import sync
from torch_pjrt.testing.pytorch_suite.there_and_here import moved

Call = Callable[[str, int], Any]


def ones(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(shape, **options)


#   name                      a call on a device, of a size
CALLS: dict[str, Call] = {
    "var of one": lambda d, n: ones(n, 1, device=d).var(1),
    "var of one complex": lambda d, n: ones(n, 1, device=d, dtype=torch.complex64).var(1),
    "var of two dims": lambda d, n: ones(n, 1, 1, device=d).var((1, 2)),
    "var into": lambda d, n: torch.var(ones(n, 1, device=d), 1, out=torch.empty(n, device=d)),
    "biased var": lambda d, n: ones(n, 1, device=d).var(1, unbiased=False),
    "std of a scalar": lambda d, n: torch.tensor(float(n), device=d).std(),
    "std of a view": lambda d, n: ones(n, n, device=d)[:, :1].std(1),
    "std of nothing": lambda d, n: ones(n, 0, device=d).std(),
    "std of no columns": lambda d, n: ones(n, 0, device=d).std(0),
    "std of no rows": lambda d, n: ones(n, 0, device=d).std(1),
    "std of what is selected": lambda d, n: (x := ones(n, device=d))[x > 3].std(),
    "std, backward": lambda d, n: ones(n, 1, device=d, requires_grad=True).std(1).sum().backward(),
    "a large correction": lambda d, n: torch.var_mean(ones(n, 1, device=d), 1, correction=2.5),
    "a correction that fits": lambda d, n: torch.var_mean(ones(n, 1, device=d), 0, correction=2.5),
    "std_mean, dims kept": lambda d, n: torch.std_mean(ones(n, 1, device=d), (-1,), keepdim=True),
    "numbers beyond float32": lambda d, n: ones(n, device=d).random_(0, 2**30),
    "numbers to beyond float32": lambda d, n: ones(n, device=d).random_(2**30),
    "numbers from before float32": lambda d, n: ones(n, device=d).random_(-(2**24) - 1, 5),
    "numbers of float32": lambda d, n: ones(n, device=d).random_(-(2**24), 2**24),
    "numbers just of float32": lambda d, n: ones(n, device=d).random_(0, 2**24 + 1),
    "numbers beyond halves": lambda d, n: ones(n, device=d, dtype=torch.half).random_(-5000, 5),
    "numbers of bfloat16": lambda d, n: ones(n, device=d, dtype=torch.bfloat16).random_(257),
    "numbers beyond bfloat16": lambda d, n: ones(n, device=d, dtype=torch.bfloat16).random_(258),
    "integers": lambda d, n: ones(n, device=d, dtype=torch.int32).random_(0, 2**30),
    "a mask of bytes": lambda d, n: ones(n, device=d)[ones(n, dtype=torch.uint8, device=d)],
    "other shapes of a loss": lambda d, n: torch.nn.functional.mse_loss(
        ones(n, device=d), ones(n, 1, device=d)
    ),
}


def warned(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """The warnings of a call but for ours: category, how the text begins.

    Since PyTorch 2.15 those of C++ that Python calls are at its line: no file is compared.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    said = [w for w in caught if "runs on the CPU" not in str(w.message)]
    return sorted((w.category.__name__, str(w.message).strip()[:80]) for w in said)


@pytest.mark.parametrize("name", CALLS)
def test_each_call_warns(name: str) -> None:
    call = CALLS[name]
    for n in (3, 4, 3):  # the first, another one, one that is known
        theirs = warned(lambda n=n: call("cpu", n))
        assert warned(lambda n=n: call("pjrt", n)) == theirs


def with_gradients(op: Any, given: tuple[Any, Any, Any]) -> Callable[[], Any]:
    def call() -> None:
        results = tree_leaves(op(given[0], *given[1], **given[2]))
        wanted = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
        torch.autograd.backward(wanted, [torch.ones_like(x) for x in wanted])

    return call


def second(call: Callable[[], Any]) -> list[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
    return warned(call)


@pytest.mark.slow("file")
@pytest.mark.filterwarnings("ignore")
def test_operators_warn_in_a_second_call() -> None:
    n, n_warned, differ = 0, 0, []
    for op in op_db:
        for dtype in {torch.float32, torch.complex64}.intersection(op.dtypes):
            samples = op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd)
            for i, sample in enumerate(islice(samples, 2)):
                given = (sample.input, sample.args, sample.kwargs)
                try:
                    theirs = second(with_gradients(op, given))
                    ours = second(with_gradients(op, moved(given, "pjrt")))
                except (RuntimeError, AssertionError, TypeError):  # what other tests compare
                    continue
                n, n_warned = n + 1, n_warned + bool(theirs)
                if ours != theirs:
                    differ.append((op.formatted_name, dtype, i, ours, theirs))
        sync()

    assert not differ
    assert n > 1_200
    assert n_warned > 4
