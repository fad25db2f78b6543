"""Tables that packages add to what `report()`, `explain()` and `compile_for()` print of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_pjrt.observe.tables import Table
from torch_pjrt.session import session

TablesOf = Callable[[Sequence[Any]], Sequence[Table]]


class _Sections:
    """Who adds tables, in the order in which they were added."""

    def __init__(self) -> None:
        self.added: list[TablesOf] = []


_sections = session.own("tables that packages add to reports", _Sections())


def add_report_tables(tables_of: TablesOf) -> None:
    """Have tables printed below core's own, in this process from now on. A function counts once.

    tables_of   gives them for some programs: a `Program` each, those that are in memory for `report()`, those
                that ran for `explain()`; or the one `CompiledFor` of `compile_for()`. Called when a report is
                printed, and at the end of `explain()`. Tables without rows are left out.

    It must not read or make tensors of the device.

        >>> def results(programs):
        ...     rows = [(n, len(program.outputs)) for n, program in enumerate(programs)]
        ...     return [Table("Results of programs", ("program", "results"), rows)]
        >>> add_report_tables(results)
        >>> "Results of programs" in str(torch_pjrt.report())
        True
    """
    if tables_of not in _sections.added:
        _sections.added.append(tables_of)


def tables_of(programs: Sequence[Any]) -> list[Table]:
    """What packages add for these programs."""
    return [table for added in _sections.added for table in added(programs)]
