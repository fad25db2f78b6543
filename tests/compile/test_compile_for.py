"""`compile_for` compiles what a function would compute, computes nothing, and leaves all as it was.

The target is a stand-in: two chips of a CPU client of its own. Their own packages test TPUs and GPUs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixture_types import Run
from written_plugins import with_plugin

pytestmark = pytest.mark.slow

PLUGIN = """
from torch_pjrt.plugin import Device, impl

class Far(Device):
    name = "FAR"
    priority = -1

    def objection(self):
        return "it is far away"

    def start(self):
        raise AssertionError("started")

    def compile_only_chips(self, target):
        if target not in ("far:2", "far:small"):
            return None
        from torch_pjrt.plugin.jax_backend import separate_cpu_chips
        return separate_cpu_chips()

    def target_memory_bytes(self, target):
        return 1000 if target == "far:small" else None

    def targets(self):
        return ("far:2",)

class Halving(Far):
    name = "HALVING"

    def compile_only_chips(self, target):
        return super().compile_only_chips("far:2") if target == "halving:2" else None

    def capabilities(self):
        from torch_pjrt.plugin import Capabilities
        return Capabilities(has_64_bits=False)

@impl
def torch_pjrt_devices():
    return [Far(), Halving()]
"""

STEP = """
import torch, torch_pjrt
from torch_pjrt.observe.counters import counters

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).to("pjrt")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

def step(x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()

x = torch.empty(16, 64, device="meta")
y = torch.empty(16, dtype=torch.int64, device="meta")
parameters = 64 * 32 + 32 + 32 * 10 + 10
"""


@pytest.fixture
def far(tmp_path: Path) -> dict[str, str]:
    two_chips = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    return {"PJRT_DEVICE": "CPU", **two_chips, **with_plugin(tmp_path, "far", PLUGIN)}


def test_training_step_is_compiled_as_in_full_swing_and_nothing_is_computed(
    python: Run, far: dict[str, str]
) -> None:
    code = """
found = torch_pjrt.compile_for("far:2", step, x, y)
print(counters.programs_run, counters.programs_compiled)
state = 3 * 4 * parameters  # parameters and two of the optimizer's for each
print(found.n_chips, found.reused_bytes == state, state < found.argument_bytes < state + 5000)
print(found.flops > 4 * 16 * parameters, found.collectives)
print("dot_general" in found.stablehlo, "fusion" in found.text())
"""
    done = python(STEP + code, **far)

    assert done.stdout.splitlines() == ["0 0", "1 True True", "True {}", "True True"]


def test_batch_that_is_sharded_has_its_gradients_summed_across_chips(
    python: Run, far: dict[str, str]
) -> None:
    code = """
one = torch_pjrt.compile_for("far:2", step, x, y)
two = torch_pjrt.compile_for("far:2", step, x, y, sharded=True)
n, size = two.collectives["all-reduce"]
print(two.n_chips, n > 0, size >= 4 * parameters)
print(one.argument_bytes - two.argument_bytes == 16 * 64 * 4 // 2 + 16 * 8 // 2)
print("all-reduce" in str(two))
"""
    done = python(STEP + code, **far)

    assert done.stdout.splitlines() == ["2 True True", "True", "True"]


def test_model_and_optimizer_are_as_if_nothing_had_happened(
    python: Run, far: dict[str, str]
) -> None:
    code = """
def run(ahead):
    torch.manual_seed(1)
    layers = torch.nn.Linear(64, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 10)
    model = torch.nn.Sequential(*layers).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    x, y = torch.randn(16, 64).to("pjrt"), torch.arange(16).to("pjrt") % 10
    pending = x * 2
    for i in range(4):
        def step(x, y):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        if ahead and i in (0, 2):
            torch_pjrt.compile_for("far:2", step, x, y)
        losses.append(step(x, y))
    return [loss.item() for loss in losses] + [pending.sum().item()]

print(run(False) == run(True))
"""
    assert python(STEP + code, **far).stdout.split() == ["True"]


def test_gradients_and_settings_of_the_optimizer_are_as_before(
    python: Run, far: dict[str, str]
) -> None:
    code = """
model = torch.nn.Linear(4, 1).to("pjrt")
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
x = torch.ones(2, 4)

def backward(x):
    model(x).sum().backward()

def whole(x):
    optimizer.zero_grad()
    backward(x)
    optimizer.step()
    scheduler.step()

torch_pjrt.compile_for("far:2", backward, x)
print(model.weight.grad)
backward(x.to("pjrt"))
torch_pjrt.compile_for("far:2", whole, x)
print(model.weight.grad.tolist(), optimizer.param_groups[0]["lr"])
"""
    printed = python(STEP + code, **far).stdout.splitlines()

    assert printed == ["None", "[[2.0, 2.0, 2.0, 2.0]] 0.5"]


def test_target_without_64_bit_types_gets_a_program_without_them_and_a_notice(
    python: Run, far: dict[str, str]
) -> None:
    code = """
import re, warnings

def wide(x, y):
    return step(x, y).double() + torch.rand((), device=x.device, dtype=torch.float64) + y.sum()

def types_of(target):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = torch_pjrt.compile_for(target, wide, x, y)
    types = set(re.findall(r"tensor<(?:[0-9]+x)*(i64|f64|ui64)>", found.stablehlo))
    return sorted(types), [str(w.message) for w in seen if "64-bit" in str(w.message)], found.argument_bytes

(whole, silent, large), (none, notices, small) = types_of("far:2"), types_of("halving:2")
print(whole, silent)
print(none, notices[0].partition(":")[0], len(notices), small < large)
kept = torch.tensor([2**40]).to("pjrt")
print((kept + 1).tolist())
"""
    done = python(STEP + code, **far)

    assert done.stdout.splitlines() == [
        "['f64', 'i64', 'ui64'] []",
        "[] The device `HALVING` has no 64-bit types 1 True",
        "[1099511627777]",
    ]


def test_model_may_be_on_meta_and_a_module_is_called(python: Run, far: dict[str, str]) -> None:
    code = """
with torch.device("meta"):
    large = torch.nn.Sequential(*[torch.nn.Linear(20_000, 20_000, bias=False) for _ in range(3)])
with torch.no_grad():
    found = torch_pjrt.compile_for("far:2", large, torch.empty(2, 20_000, device="meta"))
print(found.argument_bytes // 10**6, found.n_operators)
"""
    done = python(STEP + code, **far)

    assert done.stdout.split()[0] == "4800"


def test_what_cannot_be_compiled_ahead_is_an_error_in_words(
    python: Run, far: dict[str, str]
) -> None:
    code = """
def attempt(*args):
    try:
        torch_pjrt.compile_for(*args)
    except Exception as error:
        print(type(error).__name__, "|", str(error).replace(chr(10), " "))

attempt("far:2", lambda x: x * x.sum().item(), x)
attempt("far:2", lambda x: x[x > 0], x)
attempt("far:small", lambda x: x @ x.T, x)
attempt("nonsense", step, x, y)
x = torch.ones(2, device="pjrt")
print((x + x).tolist())
"""
    lines = python(STEP + code, **far).stdout.splitlines()

    assert lines[0].startswith(
        "LoweringError | compile_for(): the function cannot be compiled ahead"
    )
    assert lines[1].startswith(
        "LoweringError | compile_for(): the function cannot be compiled ahead"
    )
    assert lines[2].startswith(
        "DeviceFull | The program needs more memory than a chip of `far:small`"
    )
    assert lines[3].startswith("UnknownDevice | No plugin compiles for `nonsense`.   saw: targets ")
    assert "far:2" in lines[3]
    assert lines[4] == "[2.0, 2.0]"
