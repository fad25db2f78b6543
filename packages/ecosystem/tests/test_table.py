"""The table is what is done: each row applied, nothing imported before its time, no import that fails."""

from __future__ import annotations

import os
import subprocess
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import warm
from torch_pjrt_ecosystem.table import LIBRARIES, PATCHES, Patch

DOCS = Path(__file__).parents[3] / "docs"


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of its own; our entry point is called where the package is not installed."""
    start = "import torch, torch_pjrt_ecosystem.autoload as a; a.autoload()\n"
    return warm.run(
        ["-c", program.replace("IMPORT_TORCH", start)],
        {**os.environ, "USE_TORCH_XLA": "0", **variables},
    )


def test_names_are_of_libraries_and_differ() -> None:
    assert all(patch.library in LIBRARIES for patch in PATCHES)
    assert len({patch.name for patch in PATCHES}) == len(PATCHES)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_row_names_a_function(patch: Patch) -> None:
    module, _, function = patch.install.partition(":")

    assert callable(getattr(import_module(f"torch_pjrt_ecosystem.{module}"), function))


def test_the_page_has_each_row() -> None:
    page = " ".join((DOCS / "ecosystem.md").read_text().split())

    for patch in PATCHES:
        needless_by = patch.upstream or "none: registered"
        expected = f"| `{patch.name}` | {patch.changes} | {patch.why} | {needless_by} |"
        assert expected in page, patch.name
    for name, library in LIBRARIES.items():
        assert f"| {name} | {', '.join(library.tested)} |" in page


def test_importing_torch_imports_no_library_and_no_jax() -> None:
    done = run(
        "IMPORT_TORCH\nimport sys\n"
        "print(sorted({'jax', 'accelerate', 'transformers', 'lightning'} & set(sys.modules)))"
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")


# What has one module to import for each module that is changed, where its library is installed.
OTHERS = {
    "trl": "trl.trainer.sft_trainer, trl.trainer.dpo_trainer, trl.trainer.reward_trainer",
    "diffusers": "diffusers.schedulers.scheduling_utils",
    "sentence_transformers": "sentence_transformers",
    "timm": "timm.utils",
    "torchmetrics": "torchmetrics.classification",
    "torchvision": "torchvision",
    "torch_geometric": "torch_geometric",
    "torch": "torch.distributed.fsdp._fully_shard._fsdp_param_group",
}


def imported(library: str) -> str:
    """The line that imports it; a library that cannot be imported here is not tested here."""
    line = f"import {OTHERS[library]}"
    done = warm.run(["-c", line], os.environ)
    return "" if done.returncode else line


@pytest.mark.slow("rows")
@pytest.mark.parametrize("library", OTHERS)
def test_rows_of_a_library_are_applied_and_importing_it_starts_no_jax(library: str) -> None:
    if not (line := imported(library)):
        pytest.skip(f"{library} cannot be imported")
    done = run(
        f"IMPORT_TORCH\n{line}\nimport sys\n"
        "from torch_pjrt_ecosystem import statuses\n"
        "print('jax' in sys.modules)\n"
        "for s in statuses():\n"
        f"    if s.patch.library == {library!r}: print(s.patch.name, s, len(s.applied))"
    )

    rows = [p for p in PATCHES if p.library == library]
    expected = ["False", *(f"{p.name} applied {len(p.modules)}" for p in rows)]
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.slow("rows")
@pytest.mark.parametrize("first", ["", "IMPORT_TORCH"])
def test_all_rows_are_applied_whichever_is_imported_first(first: str) -> None:
    """Where a library comes first, it is what imports PyTorch, in the middle of its own import."""
    if not first and not entry_points(group="torch.backends", name="pjrt_ecosystem"):
        first = "IMPORT_TORCH"  # nothing but an installed package is called then
    done = run(
        f"{first}\n"
        "import transformers.trainer, transformers.masking_utils, accelerate, sys\n"
        "import transformers.generation.utils, transformers.pipelines.base\n"
        "import transformers.models.dbrx.modeling_dbrx, transformers.models.jetmoe.modeling_jetmoe\n"
        "from transformers.models.longcat_flash import modeling_longcat_flash\n"
        "from transformers.models.step3p7 import modeling_step3p7\n"
        "from transformers.models.switch_transformers import modeling_switch_transformers\n"
        "from transformers.models.nllb_moe import modeling_nllb_moe\n"
        "import accelerate.commands.launch\n"
        "import lightning.pytorch, lightning.fabric\n"
        "import pytorch_lightning, lightning_fabric\n"
        "from torch_pjrt_ecosystem import statuses\n"
        "assert 'jax' not in sys.modules\n"
        "for s in statuses():\n"
        "    if s.patch.library in ('accelerate', 'transformers', 'lightning'):\n"
        "        print(s.patch.name, s, len(s.applied))"
    )

    rows = [p for p in PATCHES if p.library not in OTHERS]
    expected = [f"{p.name} applied {len(p.modules)}" for p in rows]
    assert done.stdout.splitlines() == expected, done.stderr


def test_a_value_that_cannot_be_read_is_a_warning_of_torch() -> None:
    done = run("IMPORT_TORCH\nprint('imported')", TORCH_PJRT_ECOSYSTEM="nonsense")

    assert done.stdout == "imported\n"
    assert "may train on the CPU: TORCH_PJRT_ECOSYSTEM cannot be read" in done.stderr


def test_switched_off_nothing_is_changed() -> None:
    done = run(
        "IMPORT_TORCH\nimport accelerate\n"
        "from torch_pjrt_ecosystem import statuses\n"
        "print(accelerate.PartialState().device, {str(s) for s in statuses()})",
        TORCH_PJRT_ECOSYSTEM="0",
    )

    assert done.stdout == "cpu {'switched off'}\n", done.stderr


@pytest.mark.parametrize("strict", [False, True])
def test_a_library_without_what_is_changed_is_imported_with_a_warning(
    tmp_path: Path, strict: bool
) -> None:
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").write_text("from accelerate import state\n")
    (tmp_path / "accelerate" / "state.py").write_text("class PartialState: pass\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    done = run(
        "IMPORT_TORCH\nimport warnings\n"
        + ("warnings.simplefilter('error')\n" if strict else "")
        + "import accelerate\nfrom torch_pjrt_ecosystem import statuses\nprint(statuses()[0])",
        PYTHONPATH=path,
    )

    said = "failed: NotThere: `PartialState` has no property `default_device`\n"
    assert done.stdout == said, done.stderr
    assert strict or "torch-pjrt could not change accelerate" in done.stderr
    assert strict or "TORCH_PJRT_ECOSYSTEM=-accelerate.device switches this off" in done.stderr


def test_the_table_is_printed() -> None:
    done = warm.run(["-m", "torch_pjrt_ecosystem"], os.environ)

    assert done.returncode == 0, done.stderr
    assert all(patch.name in done.stdout for patch in PATCHES)
