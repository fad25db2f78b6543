"""A third party's package, installed as users install it, brings a device, a lowering and a pass.

Everything runs in processes of its own: plugins are found once in a process, and so is the device.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import warm
from installed_packages import install
from written_training import trained_as_on_cpu

pytestmark = pytest.mark.slow

SAMPLE = Path(__file__).parents[1] / "sample_plugin"

TRAIN = (
    """
import json
import jax

{before}
"""
    + trained_as_on_cpu("torch.nn.ReLU(), torch.nn.ReLU()")
    + """
from torch_pjrt.compile import programs
from torch_pjrt.graph.text import text
from torch_pjrt.client.client import client
from torch_pjrt.tensor.storage.view import value_of

ran = [p for entry in programs._entries.values() for p in entry.variants.values()]
trained = max(ran, key=lambda p: len(p.graph.nodes))
chips = {{chip for p in model.parameters() for chip in value_of(p).array.devices()}}
print(json.dumps({{
    "device": client().device.name,
    "relus": text(trained.graph).count("aten.relu.default"),
    "its rule": "sample_relu" in trained.compiled.as_text(),
    "on its chip": chips == {{client().chip}},
    "on a chip of JAX": bool(chips & set(jax.devices())),
    "JAX": {{
        "computes on its own CPU": jax.jit(lambda a: a + 1)(1).devices() == {{jax.devices("cpu")[0]}},
        "default backend": jax.default_backend(),
        "backends": sorted(jax._src.xla_bridge.backends()),
        "x64": jax.config.jax_enable_x64,
    }},
}}))
"""
)
UNTOUCHED = {
    "computes on its own CPU": True,
    "default backend": "cpu",
    "backends": ["cpu"],
    "x64": False,
}

Answer = dict[str, Any]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has put the sample, built by its own build backend."""
    return install(SAMPLE, tmp_path_factory.mktemp("installed"))


def python(installed: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the sample on its path, and with these environment variables of ours alone."""
    env = {k: v for k, v in os.environ.items() if k not in ("PJRT_DEVICE", "TORCH_PJRT_PLUGINS")}
    paths = [str(installed), *filter(None, [env.get("PYTHONPATH")])]
    env |= {"PYTHONPATH": os.pathsep.join(paths), **variables}
    return warm.run(arguments, env)


def trained(installed: Path, *, before: str = "", **variables: str) -> Answer:
    """What the training script says of itself."""
    done = python(installed, "-c", TRAIN.format(before=before), **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def on_sample(installed: Path) -> Answer:
    return trained(installed, PJRT_DEVICE="SAMPLE")


def test_training_on_its_device_gives_what_the_cpu_gives(on_sample: Answer) -> None:
    assert on_sample["device"] == "SAMPLE"  # the script compares losses and weights
    assert on_sample["on its chip"]


def test_its_lowering_replaces_the_core_one_on_its_device(on_sample: Answer) -> None:
    assert on_sample["its rule"]


def test_its_pass_runs_on_its_device(on_sample: Answer) -> None:
    assert on_sample["relus"] == 1


def test_jax_of_the_user_stays_as_it_was(on_sample: Answer) -> None:
    assert not on_sample["on a chip of JAX"]
    assert on_sample["JAX"] == UNTOUCHED


def test_jax_may_have_been_used_before_the_device_starts(installed: Path) -> None:
    answer = trained(installed, before="jax.devices()", PJRT_DEVICE="SAMPLE")

    assert answer["on its chip"]
    assert not answer["on a chip of JAX"]
    assert answer["JAX"] == UNTOUCHED


def test_cpu_is_chosen_where_nobody_asks_for_the_sample(installed: Path) -> None:
    answer = trained(installed)

    assert (answer["device"], answer["relus"], answer["its rule"]) == ("CPU", 2, False)
    assert answer["on a chip of JAX"]


@pytest.mark.parametrize("name", ["sample", "Sample", " SAMPLE "])
def test_case_and_blanks_of_the_name_do_not_matter(installed: Path, name: str) -> None:
    done = python(installed, "-m", "torch_pjrt", "devices", PJRT_DEVICE=name)

    assert done.returncode == 0
    assert "Chosen: SAMPLE, of the plugin `sample`: PJRT_DEVICE names it." in done.stdout


FIRST_TENSOR = "import torch; print('imported'); torch.ones(2, device='pjrt')"


def test_unknown_device_is_an_error_that_names_what_is_on_offer(installed: Path) -> None:
    done = python(
        installed, "-c", FIRST_TENSOR, PJRT_DEVICE="NONSENSE", TORCH_PJRT_PLUGINS="cpu,sample"
    )

    assert done.returncode != 0
    assert "imported" in done.stdout
    assert "UnknownDevice: No plugin offers a device named `NONSENSE`" in done.stderr
    assert "devices on offer: CPU, SAMPLE" in done.stderr


def test_forbidden_plugin_offers_nothing_and_the_error_says_why(installed: Path) -> None:
    done = python(installed, "-c", FIRST_TENSOR, PJRT_DEVICE="SAMPLE", TORCH_PJRT_PLUGINS="-sample")

    assert done.returncode != 0
    assert "UnknownDevice: No plugin offers a device named `SAMPLE`" in done.stderr
    assert "the plugin `sample` is forbidden by TORCH_PJRT_PLUGINS" in done.stderr


def test_plugins_command_lists_it_with_its_origin_and_what_it_offers(installed: Path) -> None:
    done = python(installed, "-m", "torch_pjrt", "plugins")

    assert done.returncode == 0, done.stderr
    head, *about = done.stdout[done.stdout.index("\nsample ") :].strip().splitlines()[:3]
    assert head.split() == ["sample", "sample-pjrt-plugin", "1.2.3", "sample_pjrt_plugin.plugin"]
    assert [line.strip() for line in about] == [
        "device SAMPLE, priority -1, usable",
        "on SAMPLE: 1 lowering (aten.relu.default); pass merge-relus",
    ]
    assert "Chosen: CPU, of the plugin `cpu`" in done.stdout


def test_devices_command_puts_the_preferred_one_first(installed: Path) -> None:
    done = python(installed, "-m", "torch_pjrt", "devices", TORCH_PJRT_PLUGINS="cpu,sample")

    assert [line.split() for line in done.stdout.splitlines()[:3]] == [
        ["DEVICE", "PRIORITY", "PLUGIN", "STATE"],
        ["CPU", "0", "cpu", "usable"],
        ["SAMPLE", "-1", "sample", "usable"],
    ]


@pytest.mark.slow
def test_broken_plugin_beside_it_is_warned_of_by_name_and_the_rest_works(
    installed: Path, tmp_path: Path
) -> None:
    info = tmp_path / "rotten-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rotten\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[torch_pjrt]\nrotten = rotten_plugin\n")
    (tmp_path / "rotten_plugin.py").write_text("raise OSError('librotten.so: cannot open')\n")
    code = "import torch; print('imported'); print(torch.ones(2, device='pjrt').sum().item())"
    both = f"{tmp_path}{os.pathsep}{installed}"

    done = python(installed, "-c", code, PJRT_DEVICE="SAMPLE", PYTHONPATH=both)
    listed = python(installed, "-m", "torch_pjrt", "plugins", PYTHONPATH=both)

    assert done.stdout.split() == ["imported", "2.0"], done.stderr
    reason = "OSError: librotten.so: cannot open"
    assert done.stderr.count(f"plugin `rotten` failed and is disabled: {reason}") == 1
    assert listed.returncode == 1
    assert f"rotten_plugin\n    broken, disabled: {reason}\n" in listed.stdout
    assert "device SAMPLE, priority -1, usable" in listed.stdout
