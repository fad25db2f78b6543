"""What is public is this list, and each name says what it is. A change of the list changes a promise.

A docstring says what is raised, what each number is, and the shapes of arrays. It has an example:
`tests/docs/test_docstrings_run.py` runs those, and looks for names without one.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

USERS = """
    DeviceLoader __version__ autoload capture check_nans compile_for compile_options config eager explain
    from_jax jax_function profile profile_step report source_lines sync targets to_jax to_stablehlo
    """
PLUGIN = """
    AutocastRules Builder Capabilities Device Draw TensorSpec ForeignCalls Graph GraphOp LoopOp Lowering
    LoweringTable Node Number NumberSlot Option Options Pass Processes Ref Signature Slot Stage aten client
    client_options compile_only_chips contiguous_spec cpu_chips spec_of gpu_options impl library_chips
    each_operation of_environment platform_chips platforms_of_plugins prims rewritten run_passes
    separate_cpu_chips
    """
RULES = """
    Attention AttentionBackward Convolution Groups Promote attention attention_backward axes convolution
    convolution_backward convolution_backward_overrideable core_rules grouped_mm kept key_of opmath
    over_rows promoted seed_of to_jax to_torch without_x64
    """
EXTEND = """
    Annotation ArrivingParts BorrowingTape Buffer FunctionOp Joint JointAnswer JointOp Line Output PRECISIONS
    Partitioner PartsHere PartsLater Program ProgramHooks ProgramLowering RecordedStep Refusal StandIn Table
    Tape Uploaded Value add_optimizer_hook add_program_hooks add_report_tables after_import annotate
    annotation_of append array_of because buffer_of
    call_pinned client computed_again content counters create_empty_tensor current cut define_annotation
    forget_programs donate download_parts each_collective target_chips graph_of host_array intern note_lines
    choose_run chosen_device_name is_pjrt jax_dtype joined_run keep_dynamo_out
    keep_dynamo_out_of_calls lazy_attribute placed
    set_partitioner spec_and_offset lowering_now lowers number_key number_on onto outline padding
    pass_over_lines precision_in_force program_chips put
    record record_call recorded run_on_cpu run_pending start state store traced upload upload_parts value_of
    deferred_checks_of deferred_checks with_precision without_x64 wrap wrap_sized x64
    """
PADDING = """
    Count Dim Factor Names PaddedBuffer PaddedCall Parts Sized Unsuited broadcast defer_check_of
    has_padding is_padded is_pointwise known_to_be_inside leaves looks_at_values one_factor only
    packed padded_buffer_of padded_tensor padded_view range_checks recent resized rule_of
    sizes_are_exact takes_indices wide with_count
    """

PUBLIC = {
    "torch_pjrt": USERS,
    "torch_pjrt.plugin": PLUGIN,
    "torch_pjrt.plugin.rules": RULES,
    "torch_pjrt.extend": EXTEND,
    "torch_pjrt.extend.padding": PADDING,
}

# What holds no docstring of its own: types made of others, PyTorch's own functions, constants.
SAID_BY_THEIR_MODULE = frozenset(
    (
        "Dim",
        "Factor",
        "Names",
        "Option",
        "Options",
        "PRECISIONS",
        "Parts",
        "Refusal",
        "__version__",
        "create_empty_tensor",
        "impl",
        "precision_in_force",
    )
)
ROOT = Path(__file__).parents[3]
CORE = ROOT / "packages/core/src/torch_pjrt"


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_these(module: str):
    assert sorted(import_module(module).__all__) == sorted(PUBLIC[module].split())


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_is_there_and_says_what_it_is(module: str):
    found = import_module(module)
    silent = [
        name
        for name in found.__all__
        if name not in SAID_BY_THEIR_MODULE and not _docstring(getattr(found, name))
    ]
    assert not silent
    words = (found.__doc__ or "").replace(",", " ").replace(":", " ").split()
    if module != "torch_pjrt":
        assert not [name for name in found.__all__ if not any(name in w for w in words)]


def _docstring(x: Any) -> str | None:
    """Its own: not that which a dataclass gets where it has none, and not that of `object`."""
    doc = x.__doc__ or type(x).__doc__
    kind = x if isinstance(x, type) else type(x)
    return None if not doc or doc.startswith(f"{kind.__name__}(") else doc


@dataclass(frozen=True)
class Said:
    """A public function, or a method of a public class, and its docstring with its class's."""

    where: str
    node: ast.FunctionDef
    text: str


def sources(module: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef, str]]:
    """The public names of a module that are classes, functions or objects of our own."""
    for name in import_module(module).__all__:
        found = inspect.unwrap(getattr(import_module(module), name))
        if not isinstance(found, type) and not inspect.isroutine(found):
            found = type(found)
        if getattr(found, "__module__", "").startswith("torch_pjrt"):
            node = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
            assert isinstance(node, (ast.ClassDef, ast.FunctionDef))
            yield name, node, inspect.getdoc(found) or ""


def functions(module: str) -> Iterator[Said]:
    for name, node, text in sources(module):
        if isinstance(node, ast.FunctionDef):
            yield Said(name, node, text)
            continue
        for method in node.body:
            is_hidden = getattr(method, "name", "_").removeprefix("__").startswith("_")
            if isinstance(method, ast.FunctionDef) and not is_hidden:
                own = ast.get_docstring(method) or ""
                yield Said(f"{name}.{method.name}", method, f"{own} {text}")


def raised(node: ast.FunctionDef) -> Iterator[str]:
    """The classes of errors that it raises itself, and not by what it calls."""
    for found in ast.walk(node):
        if isinstance(found, ast.Raise) and found.exc is not None:
            made = found.exc.func if isinstance(found.exc, ast.Call) else found.exc
            if (name := ast.unparse(made).rpartition(".")[2])[:1].isupper():
                yield name


def arguments(node: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """The parameters with their annotations."""
    for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        yield a.arg, ast.unparse(a.annotation) if a.annotation else ""


def is_said(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


# Errors of Python's own protocols: a name that is not there, a method that a subclass has to write.
OF_PROTOCOLS = {"AttributeError", "NotImplementedError"}
# Old names, which warn.
OLD = {"config.tape_bound"}


@pytest.mark.parametrize("module", PUBLIC)
def test_each_error_that_a_public_name_raises_is_said(module: str):
    unsaid = [
        f"{said.where}: {error}"
        for said in functions(module)
        for error in set(raised(said.node)) - OF_PROTOCOLS
        if not is_said(error, said.text)
    ]
    assert not unsaid


@pytest.mark.parametrize("module", PUBLIC)
def test_each_number_of_a_public_name_is_said(module: str):
    """What an int or a float is, and so its unit: the parameter or the field is in the docstring."""
    unsaid = [
        f"{said.where}: {name}"
        for said in functions(module)
        if said.where not in OLD
        for name, kind in arguments(said.node)
        if re.search(r"\b(int|float)\b", kind) and not is_said(name, said.text)
    ]
    unsaid += [
        f"{name}.{field.target.id}"
        for name, node, text in sources(module)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if re.search(r"\b(int|float)\b", ast.unparse(field.annotation))
        if not field.target.id.startswith("_") and not is_said(field.target.id, text)
    ]
    assert not unsaid


# What a docstring says of the shape of an array that has none in its annotation.
ABOUT_SHAPES = r"shape|dims?\b|rows|\d-d|elements?\b|array|tensor"


@pytest.mark.parametrize("module", PUBLIC)
def test_each_array_of_a_public_name_has_a_shape(module: str):
    """In its annotation (`Float[Array, "rows columns"]`), in the docstring, or in those of its fields."""
    unsaid = [
        f"{said.where}: {name}"
        for said in functions(module)
        for name, kind in arguments(said.node)
        if re.search(r"\b(Array|ndarray|Tensor)\b", kind) and '[Array, "' not in kind
        if not re.search(ABOUT_SHAPES, said.text)
    ]
    assert not unsaid


def test_linter_refuses_all_other_modules_outside_of_core():
    folders = [CORE, CORE / "plugin"]
    public = {"__init__", "__main__", "autoload", "errors", "extend", "plugin", "rules", "testing"}
    names = {
        ".".join(("torch_pjrt", *path.relative_to(CORE).parts)).removesuffix(".py")
        for folder in folders
        for path in folder.iterdir()
        if path.stem not in public and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    rules = tomllib.loads((ROOT / "ruff.toml").read_text())["lint"]
    assert set(rules["flake8-tidy-imports"]["banned-api"]) == names


def test_no_module_has_the_name_of_something_else_in_its_package():
    """`from package import name` would give that instead, where the module is not imported yet."""
    packages = list(ROOT.glob("packages/*/src/**/__init__.py"))
    hidden = []
    for path in packages:
        modules = {p.stem for p in path.parent.iterdir()} - {"__init__"}
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                of = (getattr(node, "module", None) or "").removeprefix(_name_of(path.parent))
                names = {a.asname or a.name for a in node.names}
                names -= {of.removeprefix(".")} if of else names  # the module itself
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names = {node.name}
            elif isinstance(node, ast.Assign):
                names = {t.id for t in node.targets if isinstance(t, ast.Name)}
            else:
                continue
            hidden += [f"{_name_of(path.parent)}.{name}" for name in names & modules]
    assert packages
    assert not hidden


def _name_of(package: Path) -> str:
    return ".".join(package.parts[package.parts.index("src") + 1 :])


LIGHT = """
import sys
import torch
before = set(sys.modules)
import torch_pjrt.plugin, torch_pjrt.extend
assert "jax" not in sys.modules, "JAX was imported"
assert "torch_pjrt.tensor.recording.record" not in sys.modules, "the kernels were imported"
assert "torch._dynamo" not in sys.modules
"""


def test_importing_the_public_modules_imports_no_jax():
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
