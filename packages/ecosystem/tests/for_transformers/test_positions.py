"""Models without a mask ask their own positions and masks nothing; what is said to be known is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import text_models
from small import Costs
from torch_pjrt_ecosystem.for_transformers.masks import is_all_ones
from torch_pjrt_ecosystem.for_transformers.positions import count_up

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

Make = Callable[[str], torch.Tensor]


def counted(device: str, *args: int) -> torch.Tensor:
    return torch.arange(*args, device=device)


def twice(x: torch.Tensor) -> torch.Tensor:
    return x + x


# What counts up by 1 in each row and was made on the device: all of it must be known.
KNOWN: dict[str, Make] = {
    "as Llama makes them": lambda device: (counted(device, 6) + 3).unsqueeze(0),
    "as GPT-2 makes them": lambda device: counted(device, 2, 8).unsqueeze(0),
    "as Whisper makes them": lambda device: (counted(device, 6) + 1).unsqueeze(0).repeat(3, 1),
    "expanded": lambda device: counted(device, 6).unsqueeze(0).expand(3, -1),
    "expanded, then repeated": lambda device: counted(device, 6).expand(2, -1).repeat(2, 1),
    "shifted twice, down": lambda device: (counted(device, 6).unsqueeze(0) + 5) - 2,
    "the first ones": lambda device: counted(device, 8)[:5].expand(2, -1),
    "from the third on": lambda device: counted(device, 8)[2:].unsqueeze(0),
    "rows of several": lambda device: counted(device, 6).repeat(3, 1)[1:],
}
# What does not, or what nobody knows without a read.
OTHERS: dict[str, Make] = {
    "of step 2": lambda device: counted(device, 0, 12, 2).unsqueeze(0),
    "every other one": lambda device: counted(device, 12)[::2].unsqueeze(0),
    "down": lambda device: (3 - counted(device, 6)).unsqueeze(0),
    "twice itself": lambda device: twice(counted(device, 6)).unsqueeze(0),
    "repeated in the row": lambda device: counted(device, 3).repeat(2).unsqueeze(0),
    "repeated in rows": lambda device: counted(device, 3).repeat(2, 2),
    "cut into rows": lambda device: counted(device, 6).view(2, 3) * 1,
    "shifted by row": lambda device: counted(device, 6) + counted(device, 2).unsqueeze(1),
    "turned": lambda device: counted(device, 6).repeat(6, 1).t(),
    "rows that begin in the middle": lambda device: (
        counted(device, 6).repeat(3, 1).view(-1)[3:15].view(2, 6)
    ),
    "written to": lambda device: counted(device, 6).index_fill(
        0, torch.tensor([2], device=device), 0
    )[None],
    "from the host": lambda device: torch.tensor([[0, 1, 2, 0, 1, 2]]).to(device),
    "a clone": lambda device: counted(device, 6).unsqueeze(0).clone() * 1,
}


def asked(question: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> Any:
    """Its answer, which costs nothing."""
    costs = Costs()
    costs.mark()
    found = question(tensor)
    costs.mark()
    assert costs.steps == [(0, 0, 0)]
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_positions_that_a_model_has_made_are_known(name: str) -> None:
    expected = KNOWN[name]("cpu")
    assert (expected.diff(dim=-1) == 1).all()

    assert asked(count_up, KNOWN[name]("pjrt"))


@pytest.mark.parametrize("name", OTHERS)
def test_of_other_positions_nothing_is_said_that_is_not_true(name: str) -> None:
    expected = bool((OTHERS[name]("cpu").diff(dim=-1) == 1).all())

    assert asked(count_up, OTHERS[name]("pjrt")) <= expected


def test_positions_that_were_written_to_are_asked() -> None:
    positions = torch.arange(6, device="pjrt").unsqueeze(0)
    positions[0, 3:] -= 3

    assert not asked(count_up, positions)


def test_nothing_is_known_of_positions_on_the_cpu() -> None:
    assert not count_up(torch.arange(6)[None])


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda: torch.ones(2, 3, device="pjrt").to(torch.bool), True),
        (lambda: torch.zeros(2, device="pjrt").new_ones(2, 3, dtype=torch.long)[:, 1:], True),
        (lambda: torch.ones_like(torch.zeros(2, 3, device="pjrt")).repeat(2, 1), True),
        (lambda: torch.ones(2, 3, device="pjrt") - 1, None),
        (lambda: torch.zeros(2, 3, device="pjrt").bool(), None),
    ],
)
def test_a_mask_that_a_model_has_made_of_ones_is_known(
    make: Callable[[], torch.Tensor], known: bool | None
) -> None:
    assert asked(is_all_ones, make()) is known


def test_ones_that_were_written_to_are_not_known() -> None:
    mask = torch.ones(2, 3, device="pjrt")
    mask[0, 0] = 0

    assert asked(is_all_ones, mask) is None


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    "name",
    [
        "LlamaForCausalLM",
        "GPT2LMHeadModel",
        "BartForConditionalGeneration",
        "OPTForCausalLM",
        "Gemma3ForCausalLM",
    ],
)
def test_a_forward_without_a_mask_is_the_cpus_and_reads_nothing(name: str) -> None:
    net = text_models.model(name)
    ids = text_models.prompt(12, 3)["input_ids"]
    with torch.no_grad():
        wanted = net(input_ids=ids, labels=ids).loss
        net.to("pjrt")
        net(input_ids=ids.to("pjrt"), labels=ids.to("pjrt"))  # the look for padding, once
        there = ids.to("pjrt")
        costs = Costs()
        costs.mark()
        found = net(input_ids=there, labels=there).loss
        costs.mark()

    assert costs.steps == [(0, 0, 0)] and costs.fallbacks == 0
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-6)


def test_packed_sequences_are_masked_as_on_the_cpu() -> None:
    net = text_models.model("LlamaForCausalLM")
    ids = text_models.prompt(12)["input_ids"]
    positions = torch.tensor([[*range(5), *range(7)]])
    with torch.no_grad():
        wanted = net(input_ids=ids, position_ids=positions).logits
        net.to("pjrt")
        found = net(input_ids=ids.to("pjrt"), position_ids=positions.to("pjrt")).logits

    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)
