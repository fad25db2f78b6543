"""The scripts in `examples/` that train with libraries print on `pjrt` what they print on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from torch_pjrt.testing.quick import quick_flags

EXAMPLES = Path(__file__).parents[4] / "examples"


def printed(*command: str) -> str:
    """What a script prints, which ends well."""
    done = subprocess.run(
        [sys.executable, "-c", START, *command],
        cwd=EXAMPLES,
        env={
            **os.environ,
            "XLA_FLAGS": quick_flags(),
            "OMP_NUM_THREADS": "1",
            "USE_TORCH_XLA": "0",
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Where the package is on the path and not installed, PyTorch does not call its entry point.
START = """
import runpy, sys, torch, torch_pjrt_ecosystem.autoload
torch_pjrt_ecosystem.autoload.autoload()
sys.path.insert(0, ".")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def losses(text: str) -> list[float]:
    [found] = re.findall(r"loss(?:es)? ([\d. ]+)", text)
    return [float(word) for word in found.split()]


def continued(text: str) -> list[str]:
    return re.findall(r"goes on with (.*)", text)


@pytest.mark.slow
@pytest.mark.parametrize("given", [[], ["--lora"]], ids=["all", "lora"])
def test_trainer_learns_to_count(given: list[str]) -> None:
    if given and not find_spec("peft"):
        pytest.skip("peft is not installed")
    ours = printed("finetune_trainer.py", *given)
    on_cpu = printed("finetune_trainer.py", "--device", "cpu", *given)

    assert "on pjrt;" in ours
    assert "on cpu;" in on_cpu
    assert losses(ours) == pytest.approx(losses(on_cpu), abs=1e-2)
    assert losses(ours)[-1] < losses(ours)[0]
    if not given:
        assert continued(ours) == continued(on_cpu) == ["13 15 17 19 21 23"]


@pytest.mark.slow
def test_lightning_learns_to_count() -> None:
    ours = printed("pretrain_lightning.py")
    on_cpu = printed("pretrain_lightning.py", "--device", "cpu")

    assert "on pjrt;" in ours
    assert losses(ours) == pytest.approx(losses(on_cpu), abs=1e-2)
    assert losses(ours)[-1] < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["8", "4"])
def test_quantized_llama_goes_on_counting(bits: str) -> None:
    if not find_spec("torch_pjrt_quant"):
        pytest.skip("torch-pjrt-quant is not installed")
    said = printed("quantize_generate.py", "--bits", bits)

    assert f"on pjrt, with weights of {bits} bits" in said
    assert continued(said) == ["13 15 17 19 21 23", "5 6 7 8 9 10"]
