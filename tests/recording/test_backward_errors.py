"""An exception raised inside backward arrives as itself, and the process lives on.

On a bare Python backend each of these ends the process: PyTorch's C++ asks the backend for its device
type while it unwinds. So they run in a process of their own, all in one, to be seen failing by name.

Each runs twice: as it is, and with CPython's cache of names in classes emptied just before the error. A name
that is not in that cache is searched for, and a search clears the error in flight where the class lacks
the name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

SCRIPT = """
import json
import sys
import torch
from torch.utils.checkpoint import checkpoint

D = "pjrt"
anew = False

def forget():
    if anew:
        sys._clear_type_cache()

class Boom(Exception):
    pass

def boom(*args):
    forget()
    raise Boom("told you")

class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, wrong):
        ctx.wrong = wrong
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        forget()
        return ctx.wrong(gradient), None

def leaf():
    return torch.ones(2, 3, device=D, requires_grad=True)

def tensor_hook():
    y = leaf() * 2
    y.register_hook(boom)
    y.sum().backward()

def leaf_hook():
    x = leaf()
    x.register_hook(boom)
    (x * 2).sum().backward()

def accumulate_hook():
    x = leaf()
    x.register_post_accumulate_grad_hook(boom)
    (x * 2).sum().backward()

def node_hook():
    y = leaf() * 2
    y.grad_fn.register_prehook(boom)
    y.sum().backward()

def module_hook():
    model = torch.nn.Linear(3, 2).to(D)
    model.register_full_backward_hook(boom)
    model(leaf()).sum().backward()

def function():
    Custom.apply(leaf(), boom).sum().backward()

def kernel():
    Custom.apply(leaf(), lambda g: torch.mm(g, g[:1])).sum().backward()

def wrong_shape():
    Custom.apply(leaf(), lambda g: g[:, :2]).sum().backward()

def recomputation(use_reentrant):
    calls = []
    def f(x):
        calls.append(1)
        if len(calls) > 1:
            forget()
            raise KeyError("recomputation")
        return x.sin()
    checkpoint(f, leaf(), use_reentrant=use_reentrant).sum().backward()

def gradient():
    y = leaf() * 2
    y.register_hook(boom)
    torch.autograd.grad(y.sum(), y)

def double():
    x = leaf()
    (g,) = torch.autograd.grad((x ** 3).sum(), x, create_graph=True)
    g.register_hook(boom)
    g.sum().backward()

def interrupt():
    def stop(*args):
        forget()
        raise KeyboardInterrupt
    y = leaf() * 2
    y.register_hook(stop)
    y.sum().backward()

def saved_tensor_hook():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, boom):
        y = leaf().exp()
    y.sum().backward()

def functional():
    torch.func.grad(lambda x: Custom_functional.apply(x).sum())(torch.ones(3, device=D))

class Custom_functional(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 1
    @staticmethod
    def setup_context(ctx, inputs, output):
        pass
    @staticmethod
    def backward(ctx, gradient):
        boom()

cases = dict(
    tensor_hook=tensor_hook, leaf_hook=leaf_hook, accumulate_hook=accumulate_hook,
    node_hook=node_hook, module_hook=module_hook, function=function, kernel=kernel,
    wrong_shape=wrong_shape, reentrant_recomputation=lambda: recomputation(True),
    recomputation=lambda: recomputation(False), gradient=gradient, double=double,
    interrupt=interrupt, saved_tensor_hook=saved_tensor_hook, functional=functional,
)
for anew in (False, True):
    for name, case in cases.items():
        try:
            case()
            outcome = ["nothing", ""]
        except BaseException as error:
            outcome = [type(error).__name__, str(error).splitlines()[0] if str(error) else ""]
        x = leaf()
        (x * 3).sum().backward()  # the next backward is not disturbed
        after = x.grad.cpu().unique().tolist()
        print(json.dumps([name + (" anew" if anew else ""), *outcome, after]), flush=True)
"""

# On a thread of its own for each number of operators that autograd records before the error.
EACH_CALL = """
import threading
import torch

def raises(*args):
    raise ValueError(n)

def train():
    x = torch.ones(3, device="pjrt", requires_grad=True)
    for _ in range(n):
        x * 2
    y = x * 2
    y.register_hook(raises)
    try:
        y.sum().backward()
    except ValueError as error:
        print(*error.args)

for n in range(40):
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
"""

BOOM = ("Boom", "told you")
EXPECTED = {
    "tensor_hook": BOOM,
    "leaf_hook": BOOM,
    "accumulate_hook": BOOM,
    "node_hook": BOOM,
    "module_hook": BOOM,
    "function": BOOM,
    "kernel": ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x3 and 1x3)"),
    "wrong_shape": (
        "RuntimeError",
        "Function CustomBackward returned an invalid gradient at index 0 - "
        "got [2, 2] but expected shape compatible with [2, 3]",
    ),
    "reentrant_recomputation": ("KeyError", "'recomputation'"),
    "recomputation": ("KeyError", "'recomputation'"),
    "gradient": BOOM,
    "double": BOOM,
    "interrupt": ("KeyboardInterrupt", ""),
    "saved_tensor_hook": BOOM,
    "functional": BOOM,
}
EXPECTED |= {f"{name} anew": expected for name, expected in EXPECTED.items()}
Outcome = tuple[str, str, list[float]]


@pytest.fixture(scope="module")
def outcomes(python: Callable[..., CompletedProcess[str]]) -> dict[str, Outcome]:
    done = python(SCRIPT, returncode=None)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    reached = {name: (kind, text, after) for name, kind, text, after in lines}
    if done.returncode:
        last = list(EXPECTED)[len(reached)]
        reached[last] = (f"the process ended with {done.returncode}", done.stderr[-2000:], [])
    return reached


@pytest.mark.parametrize("case", EXPECTED)
def test_exception_in_backward_arrives_as_itself(case: str, outcomes: dict[str, Outcome]) -> None:
    kind, text, _ = outcomes.get(case, ("not reached", "", []))

    assert (kind, text) == EXPECTED[case]


@pytest.mark.parametrize("case", EXPECTED)
def test_next_backward_after_an_exception_is_right(case: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[case][2] == [3.0]


def test_exception_arrives_whatever_has_run_on_its_thread(
    python: Callable[..., CompletedProcess[str]],
) -> None:
    done = python(EACH_CALL)

    assert done.stdout.split() == [str(n) for n in range(40)]
