"""Imports within core point downward: a module knows of its own layer and of the layers below.

An import counts wherever it stands: in a function, in a table of what is loaded on first use, for types.
`python tools/import_graph.py packages/core/src/torch_pjrt` prints the cycles that there are.
"""

from __future__ import annotations

import re
from pathlib import Path

import import_graph
from import_graph import LAZY, TOP, TYPES

CORE = Path(__file__).parents[1] / "src/torch_pjrt"

# From the bottom to the top: folders, and modules beside the folders. Two of one line do not know each other.
LAYERS = """
    errors every_object migrate references session stand_ins
    caches
    lazy options interrupts
    settings
    dtypes overloads operators device_index
    graph
    observe
    passes lowering
    plugin
    client
    compile
    run
    tensor
    interop diagnostics
    device
    replays data aot
    public
    testing
    """

# The same for the folders of the one folder that is large.
LAYERS_OF_TENSOR = """
    storage
    recording
    padding sparse
    checks
    kernels
    registration
    """

# What users and other packages import, and what starts everything: they name modules of all layers.
PUBLIC = (
    "",
    "__main__",
    "autoload",
    "cli",
    "cli_cache",
    "cli_chips",
    "cli_migrate",
    "extend",
    "extend.padding",
    "plugin",
)

# (importer, imported): why it stays.
EXCEPTIONS: dict[tuple[str, str], str] = {}


def positions(layers: str) -> dict[str, int]:
    return {
        name: n for n, names in enumerate(layers.strip().splitlines()) for name in names.split()
    }


ORDER, ORDER_OF_TENSOR = positions(LAYERS), positions(LAYERS_OF_TENSOR)
MODULES = import_graph.read(CORE)


def layer_of(module: str) -> str:
    return "public" if module in PUBLIC else module.partition(".")[0]


def is_upward(importer: str, imported: str) -> bool:
    """Or to the side: another folder of the same layer."""
    a, b = layer_of(importer), layer_of(imported)
    return a != b and ORDER[b] >= ORDER[a]


def test_each_module_has_a_layer():
    assert {layer_of(module) for module in MODULES.files} == set(ORDER)


def test_no_import_points_upward():
    assert not [
        str(i)
        for i in MODULES.imports
        if is_upward(i.importer, i.imported) and (i.importer, i.imported) not in EXCEPTIONS
    ]


def folder_of_tensor(module: str) -> str:
    return module.split(".")[1] if module.startswith("tensor.") else ""


def test_each_module_of_tensor_has_a_layer():
    assert {folder_of_tensor(module) for module in MODULES.files} - {""} == set(ORDER_OF_TENSOR)


def test_no_import_within_tensor_points_upward():
    within = [
        (i, folder_of_tensor(i.importer), folder_of_tensor(i.imported)) for i in MODULES.imports
    ]

    assert not [
        str(i)
        for i, a, b in within
        if a and b and a != b and ORDER_OF_TENSOR[b] >= ORDER_OF_TENSOR[a]
    ]


def test_each_exception_is_still_one():
    upward = {e for e in MODULES.edges(TOP, LAZY, TYPES) if is_upward(*e)}
    assert not [e for e in EXCEPTIONS if e not in upward]


def test_no_modules_import_each_other_in_a_circle():
    assert not import_graph.cycles(MODULES.edges(TOP, LAZY))


def test_no_folders_import_each_other_in_a_circle():
    edges = MODULES.edges(TOP, LAZY, TYPES) - set(EXCEPTIONS)
    folders = {(MODULES.folder_of(a), MODULES.folder_of(b)) for a, b in edges if a not in PUBLIC}
    assert not import_graph.cycles((a, b) for a, b in folders if a and b and a != b)


def test_architecture_lists_the_folders_in_this_order() -> None:
    text = (CORE.parents[3] / "ARCHITECTURE.md").read_text()
    rows = text.partition("| folder | what is in it |")[2].partition("\n\n")[0]
    named = [
        name
        for row in rows.splitlines()[3:]
        for name in re.findall(r"`(\w+)/[\w/]*`", row.split("|")[1])
    ]
    found = [ORDER["public" if name == "extend" else name] for name in named]

    in_tensor = re.findall(r"`tensor/(\w+)/`", rows)

    assert found == sorted(found)
    assert set(in_tensor) == set(ORDER_OF_TENSOR)
    assert [ORDER_OF_TENSOR[name] for name in in_tensor] == sorted(
        ORDER_OF_TENSOR[n] for n in in_tensor
    )
    assert set(named) == {folder for m in MODULES.files if (folder := MODULES.folder_of(m))}
