"""A table may name an operator that this PyTorch lacks: its row is left out, listed, and the rest works."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import torch_pjrt
from fake_device import Fake
from torch_pjrt import cli, lazy
from torch_pjrt.errors import AbsentOperator, BrokenModule, DuplicateLowering
from torch_pjrt.lowering import CORE, LoweringTable
from torch_pjrt.overloads import Absent, present
from torch_pjrt.plugin import Device, aten, discovery, impl, prims
from torch_pjrt.plugin.autocast import ACCELERATOR
from torch_pjrt.plugin.host import Host
from torch_pjrt.tensor.registration import hand_written

LATER = aten.comes_later.default
LATER_OVERLOAD = aten.add.ComesLater
LATER_PRIM = prims.comes_later.default

# What PyTorch 2.11 to 2.15 do not all have. A row that is left out and not here has a misspelt name.
COMES_OR_GOES = {
    "aten._foreach_clone.default",  # came with 2.12 or 2.13
    "aten._upsample_lanczos2d_aa.default",
    "aten._upsample_lanczos2d_aa_backward.default",
    "aten.cholesky.default",  # went with 2.14 or 2.15
}

PACKAGES = Path(__file__).parents[2]
SOURCES = sorted(
    file for file in PACKAGES.glob("*/src/*/**/*.py") if file.name != "overloads.py"
)  # fmt: skip


def rule(x: object) -> object:
    return x


# Names.


@pytest.mark.parametrize(
    ("ours", "pytorchs"),
    [
        (aten.exp.default, torch.ops.aten.exp.default),
        (aten.add.Tensor, torch.ops.aten.add.Tensor),
        (aten.__lshift__.Scalar, torch.ops.aten.__lshift__.Scalar),
        (prims.sin.default, torch.ops.prims.sin.default),
    ],
)
def test_operator_that_is_there_is_pytorchs_own(ours: object, pytorchs: object) -> None:
    assert ours is pytorchs


@pytest.mark.parametrize("op", [LATER, LATER_OVERLOAD, LATER_PRIM], ids=str)
def test_operator_that_is_not_there_has_a_name_and_cannot_be_called(op: Absent) -> None:
    assert isinstance(op, Absent)
    with pytest.raises(AbsentOperator, match=rf"PyTorch [\d.]+.* has no operator `{op}`"):
        op(torch.ones(2))


def test_operator_that_is_not_there_is_one_object() -> None:
    assert aten.comes_later.default is LATER
    assert aten.add.ComesLater is LATER_OVERLOAD


def test_packet_can_be_called_as_pytorchs() -> None:
    assert aten.neg(torch.ones(1)).tolist() == [-1]
    with pytest.raises(AbsentOperator, match="comes_later"):
        aten.comes_later(torch.ones(1))


def test_what_python_asks_every_object_for_is_no_operator() -> None:
    assert not hasattr(aten, "__len__")
    assert not hasattr(aten.comes_later, "__deepcopy__")


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    "module", ["plugin", "overloads", "lowering", "tensor.registration.hand_written"]
)
def test_names_can_be_imported_before_pytorch(module: str) -> None:
    script = f"import torch_pjrt.{module}; import torch; print(torch.device('pjrt'))"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("pjrt\n", "")


def test_row_that_is_left_out_is_of_an_operator_that_comes_or_goes() -> None:
    absent = {*map(str, CORE.left_out), *map(str, hand_written.left_out())}

    assert absent <= COMES_OR_GOES


def test_no_table_takes_names_from_pytorch_itself() -> None:
    named = re.compile(r"torch\.ops\.(aten|prims)\b(?!`)")

    assert [str(f) for f in SOURCES if named.search(code_of(f))] == []


def code_of(file: Path) -> str:
    """Without docstrings and comments."""
    return ast.unparse(without_docstrings(ast.parse(file.read_text())))


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            node.body[0] = ast.Pass()
    return tree


# Tables.


def test_table_leaves_out_rows_for_what_is_not_there() -> None:
    table = LoweringTable("mine")

    table.lowers(aten.exp.default, LATER)(rule)
    table.add(LATER_OVERLOAD, rule)

    assert list(table) == [aten.exp.default]
    assert list(table.left_out) == [LATER, LATER_OVERLOAD]
    assert LATER not in table


def test_merged_and_overlaid_tables_know_what_was_left_out() -> None:
    mine, theirs = LoweringTable("mine"), LoweringTable("theirs")
    mine.add(LATER, rule)
    theirs.add(LATER_OVERLOAD, rule)

    assert list(LoweringTable.merged("both", [mine, theirs]).left_out) == [LATER, LATER_OVERLOAD]
    assert list(mine.overlaid(theirs).left_out) == [LATER, LATER_OVERLOAD]


def test_two_rows_for_one_operator_are_refused_though_it_is_not_there() -> None:
    table = LoweringTable("mine")
    table.add(LATER, rule)

    with pytest.raises(DuplicateLowering, match=r"aten\.comes_later\.default"):
        table.add(LATER, rule)


def test_rule_serves_another_operator_though_its_own_is_not_there() -> None:
    table = LoweringTable("mine")
    table.add(LATER, rule)

    assert table.rule_of(LATER) is rule


def test_kernels_are_left_out_as_rows_are() -> None:
    assert present({LATER: 1, aten.exp.default: 2}) == {aten.exp.default: 2}


# What is said of it.


def of_device(name: str, *ops: object) -> ModuleType:
    device = Fake(name)

    @impl
    def torch_pjrt_devices() -> list[Device]:
        return [device]

    @impl
    def torch_pjrt_lowerings() -> LoweringTable:
        table = LoweringTable("theirs")
        for op in ops:
            table.add(op, rule)
        return table

    module = ModuleType("a_plugin")
    vars(module).update(
        torch_pjrt_devices=torch_pjrt_devices, torch_pjrt_lowerings=torch_pjrt_lowerings
    )
    return module


def test_command_lists_what_each_plugin_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    host = Host({"a": of_device("A", aten.exp.default), "b": of_device("B", LATER, LATER_OVERLOAD)})

    code = cli.plugins(host)

    out = capsys.readouterr().out
    a, b = out.split("\nb ")
    assert code == 0
    assert "left out" not in a
    assert (
        f"left out, as PyTorch {torch.__version__} lacks them: "
        "aten.add.ComesLater, aten.comes_later.default\n" in b
    )


@pytest.mark.parametrize("name", ["comes_later.default", "add.ComesLater"])
def test_plugin_that_names_it_by_pytorch_itself_is_told_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(entry_point: object) -> ModuleType:
        packet, overload = name.split(".")
        getattr(getattr(torch.ops.aten, packet), overload)
        raise AssertionError("found")

    point = importlib.metadata.EntryPoint("theirs", "no.module", discovery.GROUP)
    monkeypatch.setattr(discovery.importlib.metadata, "entry_points", lambda group: [point])
    monkeypatch.setattr(discovery, "_load", load)

    with pytest.warns(UserWarning, match="The torch-pjrt plugin `theirs` failed"):
        [broken] = discovery.discover().broken

    missing = "aten.comes_later" if name.startswith("comes") else "aten.add.ComesLater"
    assert f"PyTorch {torch.__version__} has no operator `{missing}`." in broken.why
    assert "hint: `aten` of `torch_pjrt.plugin`" in broken.why


def test_plugin_that_names_it_in_its_hook_is_told_what_to_do() -> None:
    theirs = of_device("B")

    @impl
    def torch_pjrt_lowerings() -> Any:
        return torch.ops.aten.comes_later.default

    vars(theirs)["torch_pjrt_lowerings"] = torch_pjrt_lowerings
    host = Host({"a": of_device("A", aten.exp.default), "b": theirs})

    with pytest.warns(UserWarning, match="The torch-pjrt plugin `b` failed"):
        table = host.lowerings(host.all_offers()[0].device)

    assert [op for op in table if op.namespace == "aten"] == [aten.exp.default]
    assert "has no operator `aten.comes_later`" in host.broken[0].why


# Names that modules import when they are asked for.


def is_lazy(file: Path) -> bool:
    functions = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)]
    return "__getattr__" in {f.name for f in functions}


LAZY = [file.relative_to(PACKAGES).parts[2:-1] for file in SOURCES if is_lazy(file)]


def test_there_are_modules_with_lazy_names() -> None:
    assert {".".join(parts) for parts in LAZY} >= {
        "torch_pjrt",
        "torch_pjrt.lowering",
        "torch_pjrt_dynamo",
    }


@pytest.mark.parametrize("name", [".".join(parts) for parts in LAZY])
def test_error_of_a_rule_is_no_missing_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(name: str, package: str | None = None) -> ModuleType:
        raise AttributeError("of a rule")

    module = pytest.importorskip(name)
    lazily = [n for n in module.__all__ if n == "CORE" or n in getattr(module, "_LAZY", ())]
    monkeypatch.setattr(lazy, "import_module", failing)
    assert lazily or not module.__all__  # a package that has no names yet

    for attribute in lazily:
        monkeypatch.delitem(vars(module), attribute, raising=False)
        with pytest.raises(BrokenModule, match=r"cannot be imported[^$]*of a rule"):
            exec(f"from {name} import {attribute}")


def test_name_that_does_not_exist_is_still_an_import_error() -> None:
    with pytest.raises(ImportError, match="no_such_name"):
        exec("from torch_pjrt.lowering import no_such_name")
    assert not hasattr(torch_pjrt, "no_such_name")


def test_autocast_rules_name_operators_that_are_there() -> None:
    from torch_pjrt.overloads import named

    absent = {str(named(name)) for _, name in ACCELERATOR.rows() if isinstance(named(name), Absent)}

    assert absent <= COMES_OR_GOES
