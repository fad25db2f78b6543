"""`torch_pjrt.report()` says what this process compiled, ran and moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import torch_pjrt
from torch_pjrt.compile.programs import forget_programs
from torch_pjrt.extend import Table, add_report_tables
from torch_pjrt.session import session


def counts() -> dict[str, Any]:
    return torch_pjrt.report().as_dict()


def difference(before: dict[str, Any], name: str) -> Any:
    return counts()[name] - before[name]


def test_programs_are_counted_when_compiled_and_when_run() -> None:
    x = torch.ones(5).to("pjrt")
    torch_pjrt.sync()
    forget_programs()
    before = counts()

    for _ in range(3):
        y = x * 2
        torch_pjrt.sync()

    assert y.tolist() == [2, 2, 2, 2, 2]
    assert difference(before, "programs_compiled") == 1
    assert difference(before, "programs_run") == 3
    assert difference(before, "operators") == 3
    assert difference(before, "compile_s") > 0


def test_transfers_are_counted_with_their_bytes() -> None:
    before = counts()

    torch.ones(1000, dtype=torch.float64).to("pjrt").cpu()

    assert difference(before, "uploads") == difference(before, "downloads") == 1
    assert difference(before, "uploaded_bytes") == difference(before, "downloaded_bytes") == 8000


def test_each_sync_has_its_cause() -> None:
    x = torch.ones(2, device="pjrt", requires_grad=True)
    optimizer = torch.optim.SGD([x], 0.1)
    torch_pjrt.sync()
    before = dict(counts()["syncs"])

    (x * 2).sum().item()
    (x * 3).sum().backward()
    optimizer.step()
    y = x + 1
    torch_pjrt.sync()
    z = x + 2
    torch.pjrt.synchronize()  # type: ignore[attr-defined]

    after = counts()["syncs"]
    more = {
        cause: n - before.get(cause, 0) for cause, n in after.items() if n > before.get(cause, 0)
    }
    assert sum(more.values()) == 4
    assert {".item()": 1, "optimizer step": 1, "request": 1}.items() <= more.items()
    assert (y.shape, z.shape) == ((2,), (2,))


def test_sync_of_nothing_is_none() -> None:
    torch_pjrt.sync()
    before = counts()

    torch_pjrt.sync()
    torch.pjrt.synchronize()  # type: ignore[attr-defined]

    assert counts()["syncs"] == before["syncs"]
    assert counts()["programs_run"] == before["programs_run"]


def test_report_is_a_snapshot() -> None:
    report = torch_pjrt.report()
    before = report.as_dict()["programs_run"]

    (torch.ones(3, device="pjrt") + 1).tolist()

    assert report.as_dict()["programs_run"] == before


def test_text_names_every_row() -> None:
    (torch.ones(3, device="pjrt") + 1).tolist()

    text = str(torch_pjrt.report())

    for row in ("operators traced", "programs compiled", "programs reused", "syncs", "fallbacks"):
        assert row in text
    assert ".tolist()" in text
    assert len(torch_pjrt.report().summary().splitlines()) == 1


def test_number_of_programs_is_on_the_device_module_too() -> None:
    assert torch.pjrt.programs_compiled() == counts()["programs_compiled"]  # type: ignore[attr-defined]


def test_a_package_adds_tables_of_programs_once_and_only_those_with_rows() -> None:
    seen: list[list[Any]] = []

    def tables(programs: Sequence[Any]) -> list[Table]:
        seen.append(list(programs))
        sizes = [(p.compilation.number, len(p.graph.nodes)) for p in programs]
        return [Table("Sizes by a test", ("program", "nodes"), sizes), Table("Empty", ("a",), [])]

    def compute() -> torch.Tensor:
        return torch.ones(7, device="pjrt") * 3 + 2

    add_report_tables(tables)
    add_report_tables(tables)
    try:
        compute().tolist()
        text = str(torch_pjrt.report())
        in_memory = seen.pop()
        explained = str(torch_pjrt.explain(compute))
        ran = seen.pop()
    finally:
        session.owned["tables that packages add to reports"].added.remove(tables)

    assert text.count("Sizes by a test") == explained.count("Sizes by a test") == 1
    assert "Empty" not in text
    assert len(ran) == 1
    assert len(in_memory) == len({p.compilation.number for p in in_memory}) >= 1
    assert "Sizes by a test" not in str(torch_pjrt.report())
    assert not seen
