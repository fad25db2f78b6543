"""What a process is started with may hold tensors of the device: it has copies of them on its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import multiprocessing, nn

from hangs import HANGS_S
from started_processes import answer


@pytest.mark.parametrize("how", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_a_process_is_started_with_a_model_and_a_tensor(how: str) -> None:
    context: Any = multiprocessing.get_context(how)
    model = nn.Linear(2, 3).to("pjrt").share_memory()
    here, there = context.Pipe()

    process = context.Process(target=answer, args=(model, torch.empty(0, device="pjrt"), there))
    process.start()
    there.close()
    try:
        said = here.recv() if here.poll(HANGS_S) else None
    finally:
        process.join(HANGS_S)

    assert said == ("pjrt", (0,), model(torch.ones(2, device="pjrt")).tolist())
    assert process.exitcode == 0
