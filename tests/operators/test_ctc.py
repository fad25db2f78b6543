"""CTC losses: labels in rows or one after the other, other lengths in the same program, errors as on CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from quickly import compiled_quickly  # noqa: F401  all tests here
from torch_pjrt.observe.counters import counters

TIMES, SAMPLES, CLASSES = 12, 3, 6


def likelihoods() -> torch.Tensor:
    return torch.randn(TIMES, SAMPLES, CLASSES).log_softmax(2)


@pytest.mark.parametrize("in_rows", [True, False])
def test_loss_and_gradient_are_the_cpus(in_rows: bool):
    lengths, times = torch.tensor([4, 1, 3]), torch.tensor([12, 7, 9])
    rows = torch.randint(1, CLASSES, (SAMPLES, 5))
    labels = rows if in_rows else torch.cat([r[:n] for r, n in zip(rows, lengths, strict=True)])
    expected = likelihoods().requires_grad_()
    actual = expected.detach().to("pjrt").requires_grad_()

    F.ctc_loss(expected, labels, times, lengths).backward()
    F.ctc_loss(actual, labels.to("pjrt"), times, lengths).backward()

    assert actual.grad is not None
    torch.testing.assert_close(actual.grad.cpu(), expected.grad)


def test_other_lengths_compile_nothing():
    x, rows = likelihoods().to("pjrt"), torch.randint(1, CLASSES, (SAMPLES, 5)).to("pjrt")
    F.ctc_loss(x, rows, torch.tensor([12, 12, 12]), torch.tensor([5, 5, 5])).item()
    before = counters.programs_compiled

    F.ctc_loss(x, rows, torch.tensor([12, 9, 11]), torch.tensor([2, 5, 3])).item()

    assert counters.programs_compiled == before


def test_length_beyond_the_times_is_refused_as_on_cpu():
    x, rows = likelihoods(), torch.ones(SAMPLES, 5, dtype=torch.int64)

    with pytest.raises(RuntimeError) as on_cpu:
        F.ctc_loss(x, rows, torch.tensor([13, 12, 12]), torch.tensor([1, 1, 1]))
    with pytest.raises(RuntimeError) as on_device:
        F.ctc_loss(
            x.to("pjrt"), rows.to("pjrt"), torch.tensor([13, 12, 12]), torch.tensor([1, 1, 1])
        )

    assert str(on_device.value) == str(on_cpu.value)
