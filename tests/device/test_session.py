"""The session knows the device at work and all that it has done, and begins anew."""

from __future__ import annotations

from typing import Any

import torch

import torch_pjrt
from torch_pjrt.session import session


def step(x: torch.Tensor) -> list[float]:
    return torch.relu(x * 3 - 0.25).sum(0).tolist()


def test_the_session_knows_the_client_the_programs_the_counters_and_the_caches():
    step(torch.ones(3, 2, device="pjrt"))

    assert session.owned["the started device"].client is not None
    assert session.owned["programs"].entries
    assert session.owned["counters"].programs_run
    assert {"specs of tensors", "signatures"} <= {c.name for c in session.caches}


def test_after_forget_the_report_is_that_of_a_new_process_and_a_run_is_as_the_first():
    x = torch.arange(6.0).reshape(3, 2)
    on_device = x.to("pjrt")
    torch_pjrt.sync()
    told: list[Any] = []
    for _ in range(2):
        session.forget()
        assert not any(v for k, v in torch_pjrt.report().as_dict().items() if k != "caches")
        assert step(on_device) == step(x)
        report = torch_pjrt.report()
        told.append(
            (
                report.counts["programs_compiled"],
                report.counts["programs_run"],
                len(report.programs),
            )
        )

    assert told[0] == told[1] == (1, 1, 1)


def test_tensors_and_what_is_pending_outlive_forget():
    x = torch.arange(4.0, device="pjrt")
    y = x + 1
    session.forget()

    assert (y * x).tolist() == [0, 2, 6, 12]
