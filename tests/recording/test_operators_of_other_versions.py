"""With a PyTorch that lacks any of the operators that we have rules for, all others work as before.

PyTorch is the one that is installed; operators are hidden from us. TORCH_PJRT_TEST_ABSENCES is how many are
hidden one at a time, chosen anew in each run that sets it ("all": every one, some minutes).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fixture_types import Run
from torch_pjrt.lowering import CORE
from torch_pjrt.tensor.registration import hand_written
from written_absences import HIDING, IMPORTS, NAMED, TRAINS

pytestmark = pytest.mark.slow

VARIABLE = "TORCH_PJRT_TEST_ABSENCES"

# Those that make, copy and look at every tensor; a PyTorch without them would not be one. And what our kernel
# of batch norm calls, which each PyTorch from 2.11 on has.
FOUNDATIONS = {
    *("aten.empty.memory_format", "aten.empty_strided.default", "aten._copy_from.default"),
    *("aten.set_.source_Storage_storage_offset", "aten.as_strided.default", "aten.view.default"),
    "aten._native_batch_norm_legit.no_stats",
    "aten._native_batch_norm_legit.default",
    "aten._native_batch_norm_legit_no_training.default",
}

EVERYTHING = sorted(
    {str(op) for op in (*CORE, *hand_written.kernels()) if op.namespace in ("aten", "prims")}
)
OTHERS = [name for name in EVERYTHING if name not in FOUNDATIONS]
# The same in each run of the suite, another in each run that asks for more.
SEED = random.randrange(1 << 30) if VARIABLE in os.environ else 0


def chosen() -> list[str]:
    wanted = os.environ.get(VARIABLE, "12")
    if wanted == "all":
        return OTHERS
    return random.Random(SEED).sample(OTHERS, int(wanted))


def outcomes(python: Run, job: str, sets: list[list[str]]) -> list[Any]:
    """What `job` gives where each of the sets is hidden."""
    script = "\n".join(
        (
            *(HIDING, NAMED, IMPORTS, TRAINS),
            "import jax, jax.numpy",
            f"everything = {EVERYTHING!r}",
            f"print(json.dumps([in_child(lambda names=names: {job}) for names in {sets!r}]))",
        )
    )
    return json.loads(python(script).stdout.splitlines()[-1])


def test_without_one_operator_the_tables_have_all_others(
    python: Run, record_property: Callable[[str, object], None]
) -> None:
    names = chosen()

    results = outcomes(python, "imports(names, everything)", [[name] for name in names])

    wrong = {
        name: result
        for name, result in zip(names, results, strict=True)
        if result != {"left out": [name], "there": [], "lost": []}
    }
    record_property("hidden operators", len(names))
    assert not wrong, f"seed {SEED}"


def test_without_any_operator_all_modules_can_be_imported(python: Run) -> None:
    [result] = outcomes(python, "imports(names, everything)", [EVERYTHING])

    assert result == {"left out": EVERYTHING, "there": [], "lost": []}


@pytest.mark.parametrize("share", [0.02, 0.2])
def test_without_some_operators_a_network_trains_as_on_the_cpu(python: Run, share: float) -> None:
    names = random.Random(SEED).sample(OTHERS, int(share * len(OTHERS)))

    [result] = outcomes(python, "trains(names)", [names])

    assert isinstance(result, dict), f"seed {SEED}: {result}"
    assert result["left out"] == sorted(names)
    torch.testing.assert_close(result["device"], result["cpu"], rtol=1e-4, atol=1e-5)
