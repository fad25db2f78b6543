"""A run that is broken off and gone on with gives the batches of one that was not.

`interruptions.py` draws sizes, batch sizes, processes (1 to 4, then 1 to 4 others), workers (0 to 3),
epochs, seeds, what becomes of the last samples, lanes, and the batches at which it stops, twice or three
times. More of them:

    TORCH_PJRT_TEST_INTERRUPTIONS=20000 pytest packages/fsdp/tests/data/test_interruptions.py
"""

from __future__ import annotations

import os
import random

import pytest
from interruptions import plain, random_run, run, try_another_batch_size, try_one

N_TRIED = int(os.environ.get("TORCH_PJRT_TEST_INTERRUPTIONS", "240"))
KINDS = ["indices", "budget", "stream"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_interrupted_gives_the_same_batches(kind: str) -> None:
    for number in range(N_TRIED // 3):
        try_one(random.Random(f"{kind} {number}"), kind, lambda: 0)


@pytest.mark.parametrize("kind", ["indices", "stream"])
def test_another_batch_size_goes_on_with_the_next_sample(kind: str) -> None:
    for number in range(N_TRIED // 6):
        try_another_batch_size(random.Random(f"{kind} {number}"), kind)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("kind", ["indices", "stream"])
def test_with_workers(kind: str) -> None:
    rng = random.Random(f"workers {kind}")
    try_one(rng, kind, lambda: rng.choice([1, 2]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_with_any_number_of_workers(kind: str) -> None:
    for number in range(8):
        rng = random.Random(f"any workers {kind} {number}")
        try_one(rng, kind, lambda rng=rng: rng.choice([0, 1, 2, 3]))


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_read_from_files_of_weights_alone(kind: str) -> None:
    one = random_run(random.Random(kind), kind, 0)
    loaders = one.loaders()
    run(loaders, 2)

    assert plain(loaders[0].state_dict()) == loaders[0].state_dict()
