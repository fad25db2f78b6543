"""Two processes that JAX's variables make one run see each other's chips, and each trains on its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from torch_pjrt.errors import SettingError
from torch_pjrt.plugin.processes import Processes, of_environment

pytestmark = pytest.mark.slow

TRAIN = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1).to("pjrt")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.arange(8.0).view(2, 4).to("pjrt") / 8
losses = []
for _ in range(3):
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())

import jax
from torch_pjrt.client.client import client
chip = client().chip
print(len(chip.client.devices()), len(jax.devices()), jax.process_index(), chip.process_index)
print(losses[0] > losses[1] > losses[2])

import numpy as np
from jax.experimental import multihost_utils
print(multihost_utils.process_allgather(np.array([jax.process_index() + 1])).sum())
"""


def test_two_processes_see_two_chips_and_train_on_their_own() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("TORCH_PJRT", "PJRT_", "XLA_"))
    }
    run = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "PJRT_DEVICE": "CPU"}

    both = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN],
            env={**kept, **run, "JAX_PROCESS_ID": str(i), "TORCH_PJRT_CACHE_DIR": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=300) for process in both]

    for i, (out, complaints) in enumerate(said):
        lines = [line for line in out.splitlines() if not line.startswith("[Gloo]")]
        assert lines == [f"2 2 {i} {i}", "True", "3"], complaints


def test_variables_say_who_a_process_is() -> None:
    given = {
        "JAX_COORDINATOR_ADDRESS": "here:1",
        "JAX_NUM_PROCESSES": "4",
        "JAX_PROCESS_ID": "3",
        "JAX_LOCAL_DEVICE_IDS": "0,2",
    }

    assert of_environment(given) == Processes("here:1", 4, 3, (0, 2))
    assert of_environment({}) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"JAX_PROCESS_ID": ""}, "expected: JAX_PROCESS_ID too"),
        ({"JAX_PROCESS_ID": "2"}, "process 2 of 2"),
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES=two"),
    ],
)
def test_variables_that_do_not_fit_together_are_an_error(change: dict[str, str], said: str) -> None:
    given = {
        "JAX_COORDINATOR_ADDRESS": "here:1",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "0",
        **change,
    }

    with pytest.raises(SettingError, match=said):
        of_environment(given)
