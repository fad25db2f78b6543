"""The scripts in `examples/` that train with libraries print on `pjrt` what they print on the CPU."""

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec

import pytest

import example_scripts

# Where the package is on the path and not installed, PyTorch does not call its entry point.
START = """
import runpy, sys, torch, torch_pjrt_ecosystem.autoload
torch_pjrt_ecosystem.autoload.autoload()
sys.path.insert(0, ".")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
printed = partial(example_scripts.printed, launcher=("-c", START))


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
