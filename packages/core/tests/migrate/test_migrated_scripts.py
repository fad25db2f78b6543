"""Scripts for torch_xla become scripts for torch-pjrt, by the table of names."""

from __future__ import annotations

import ast
import textwrap
from textwrap import dedent

import pytest

from torch_pjrt.migrate import has_several_processes, migrated
from torch_pjrt.migrate.names import ROWS, ByHand, Drop, Rename, Rewrite, row_of

XM = "import torch_xla.core.xla_model as xm\n"

# What stands behind `import torch_xla.core.xla_model as xm`: what becomes of all.
OF_XM = {
    "d = xm.xla_device()": 'import torch\nd = torch.device("pjrt")',
    "d = xm.xla_device(1, devkind='TPU')": 'import torch\nd = torch.device("pjrt")',
    "xm.mark_step()": "import torch_pjrt\ntorch_pjrt.sync()",
    "xm.mark_step(reset_scope=False)": "import torch_pjrt\ntorch_pjrt.sync()",
    "xm.optimizer_step(o)": "o.step()",
    "xm.optimizer_step(o, barrier=True)": "o.step()",
    "xm.optimizer_step(a or b)": "(a or b).step()",
    "xm.optimizer_step(a\n    .b)": "(a\n    .b).step()",
    "xm.add_step_closure(f, args=(a, b))": "f(a, b)",
    "xm.add_step_closure(f, some)": "f(*some)",
    "xm.add_step_closure(lambda x: x, (a,), run_async=True)": "(lambda x: x)(a)",
    "xm.save(m.state_dict(), path)": "import torch\ntorch.save(m.state_dict(), path)",
    "xm.master_print('é', n)": "print('é', n)",
    "if xm.is_xla_tensor(t): pass": 'if (t.device.type == "pjrt"): pass',
    "f(xm.xla_device(), 'xla')": "import torch\nf(torch.device(\"pjrt\"), 'xla')",
    "t.to(xm.xla_device()).to('xla:0')": 'import torch\nt.to(torch.device("pjrt")).to("pjrt:0")',
}
OTHERS = {
    "import torch_xla": "",
    "import torch, torch_xla": "import torch",
    "import torch_xla\ntorch_xla.sync()": "import torch_pjrt\ntorch_pjrt.sync()",
    "import torch\nimport torch_xla\nd = torch_xla.device()": 'import torch\nd = torch.device("pjrt")',
    "import torch_xla.runtime as xr\nxr.use_spmd()\nf()": "f()",
    "import torch_xla.runtime as xr\ndef f():\n    xr.use_spmd()\n": "def f():\n    pass\n",
    "try:\n    import torch_xla\nexcept ImportError:\n    g()": (
        "try:\n    pass\nexcept ImportError:\n    g()"
    ),
    "from torch_xla.amp import autocast, syncfree\nwith autocast(d): syncfree.SGD(p)": (
        'import torch\nwith torch.autocast("pjrt"): torch.optim.SGD(p)'
    ),
    "from torch_xla.amp import autocast\nwith autocast(d, dtype=x): pass": (
        'import torch\nwith torch.autocast("pjrt", dtype=x): pass'
    ),
    "from torch_xla.distributed.parallel_loader import MpDeviceLoader\n"
    "for b in MpDeviceLoader(l, d, device_prefetch_size=4): pass": (
        "import torch_pjrt\nfor b in torch_pjrt.DeviceLoader(l, d, prefetch=4): pass"
    ),
    "import torch_xla.distributed.spmd as xs\nm = xs.Mesh(ids, (4, 2), ('x', 'y'))\n"
    "xs.mark_sharding(t, m, ('x', None))": (
        "import torch_pjrt_spmd\nm = torch_pjrt_spmd.Mesh((4, 2), ('x', 'y'), ids)\n"
        "torch_pjrt_spmd.mark_sharding(t, m, ('x', None))"
    ),
    "import torch_xla.experimental.xla_sharding as xs\nxs.clear_sharding(t)": (
        "import torch_pjrt_spmd\ntorch_pjrt_spmd.clear_sharding(t)"
    ),
    "import torch_xla.debug.metrics as met\nprint(met.metrics_report())": (
        "import torch_pjrt\nprint(str(torch_pjrt.report()))"
    ),
    "torch.compile(f, backend='openxla')": 'torch.compile(f, backend="pjrt")',
    "torch.ones(2, device='xla')": 'torch.ones(2, device="pjrt")',
    "init_process_group('xla', init_method='xla://')": (
        'init_process_group("pjrt", init_method="pjrt://")'
    ),
    "import os\nos.environ['XLA_PERSISTENT_CACHE_PATH'] = 'x'": (
        "import os\nos.environ[\"TORCH_PJRT_CACHE_DIR\"] = 'x'"
    ),
    "print('xla')  # not a device": "print('xla')  # not a device",
    "d.get('xla'); q.pop('XLA_PERSISTENT_CACHE_PATH')": (
        "d.get('xla'); q.pop('XLA_PERSISTENT_CACHE_PATH')"
    ),
    "import os\nos.getenv('PJRT_LIBRARY_PATH', 'xla'); os.environ.get('PJRT_LIBRARY_PATH')": (
        'import os\nos.getenv("TORCH_PJRT_LIBRARY", \'xla\'); os.environ.get("TORCH_PJRT_LIBRARY")'
    ),
    "if x.device.type == 'xla': f()\nelse: g()": 'if x.device.type == "pjrt": f()\nelse: g()',
    "ok = device_type not in ('cuda', 'xla')": "ok = device_type not in ('cuda', \"pjrt\")",
    "ok = 'xla:0' != dev": 'ok = "pjrt:0" != dev',
    XM + "def f(xm):\n    return xm.mark_step()\ng = lambda xm: xm.get_ordinal()": (
        "def f(xm):\n    return xm.mark_step()\ng = lambda xm: xm.get_ordinal()"
    ),
    "from .torch_xla import xm\nxm.mark_step()": "from .torch_xla import xm\nxm.mark_step()",
}


@pytest.mark.parametrize(
    ("before", "after"),
    [*((XM + a, b) for a, b in OF_XM.items()), *OTHERS.items()],
)
def test_script_becomes(before: str, after: str) -> None:
    result = migrated(before)

    assert result.text == after
    assert not [remark for remark in result.remarks if remark.by_hand]
    assert migrated(result.text).text == result.text


# Pieces of a script that have a device within a string, where Python before 3.12 wants the other quote.
WITHIN_STRINGS = {
    'print(f"a {xm.xla_device()} b")': "print(f\"a {torch.device('pjrt')} b\")",
    "print(f'a {xm.xla_device()} b')": "print(f'a {torch.device(\"pjrt\")} b')",
    'print(f"""é\n{xm.xla_device()!r:>10}""")': ('print(f"""é\n{torch.device(\'pjrt\')!r:>10}""")'),
    "print(rf'\\{xm.xla_device()}')": "print(rf'\\{torch.device(\"pjrt\")}')",
    'print("\\"" f"{xm.xla_device()}")': 'print("\\"" f"{torch.device(\'pjrt\')}")',
    "print('\"' f\"{xm.xla_device()}\" f'{xm.xla_device()}')": (
        "print('\"' f\"{torch.device('pjrt')}\" f'{torch.device(\"pjrt\")}')"
    ),
    'print("a"\n      f"{d[0]} {xm.xla_device()}")': (
        'print("a"\n      f"{d[0]} {torch.device(\'pjrt\')}")'
    ),
    "print(f\"{d['k']} {xm.xla_device()}\")": "print(f\"{d['k']} {torch.device('pjrt')}\")",
    "print(f\"{torch.ones(1, device='xla')}\")": "print(f\"{torch.ones(1, device='pjrt')}\")",
    "print(f\"{x.device.type == 'xla'}\")": "print(f\"{x.device.type == 'pjrt'}\")",
    'print(f"{xm.is_xla_tensor(t)}", xm.xla_device())': (
        'print(f"{(t.device.type == \'pjrt\')}", torch.device("pjrt"))'
    ),
}


@pytest.mark.parametrize("piece", WITHIN_STRINGS)
def test_a_device_within_a_string_is_quoted_by_the_other_quote(piece: str) -> None:
    before = f"import torch\n{XM}{piece}\n"

    result = migrated(before)

    assert result.text == f"import torch\n{WITHIN_STRINGS[piece]}\n"
    assert result.remarks == []
    ast.parse(result.text)


BY_HAND = {
    "print(f\"{f'{xm.xla_device()}'}\")": 'torch.device("pjrt")',
    "xm.optimizer_step(o, optimizer_args={'closure': f})": "optimizer.step()",
    "xm.optimizer_step(*a)": "optimizer.step()",
    "xm.optimizer_step(**a)": "optimizer.step()",
    "xm.all_reduce(xm.REDUCE_SUM, [t])": "torch.distributed",
    "xm.mark_step(wait=True)": "torch.accelerator.synchronize()",
    "callback = xm.mark_step": "torch_pjrt.sync()",
    "xm.get_ordinal()": "get_rank",
    "xm.of_the_future()": "docs/from-torch-xla.md",
}


@pytest.mark.parametrize("line", BY_HAND)
def test_what_no_rule_does_is_left_with_a_hint(line: str) -> None:
    result = migrated(XM + line)

    assert result.text == XM + line
    assert {remark.line for remark in result.remarks} == {2}
    assert all(remark.by_hand for remark in result.remarks)
    assert any(BY_HAND[line] in remark.text for remark in result.remarks)


@pytest.mark.parametrize(
    "line",
    ["x = str(t.device).startswith('xla')", "x = 'xla' in names", "x = where == 'xla'"],
)
def test_what_may_be_a_device_is_the_readers(line: str) -> None:
    result = migrated(f"f()\n{line}\n")

    assert result.text == f"f()\n{line}\n"
    assert [(remark.line, remark.by_hand) for remark in result.remarks] == [(2, True)]
    assert '"pjrt" now' in result.remarks[0].text


def test_a_case_of_the_device_is_the_readers() -> None:
    before = "match d.type:\n    case 'xla':\n        f()\n"

    result = migrated(before)

    assert result.text == before
    assert [(remark.line, remark.by_hand) for remark in result.remarks] == [(2, True)]


CORPUS = [piece for table in (OF_XM, WITHIN_STRINGS, BY_HAND) for piece in table]
AROUND = [
    "{}",
    "if a:\n    {}\nelif b:\n    {}\nelse:\n    {}",
    "for i in r:\n    {}\nelse:\n    {}",
    "try:\n    {}\nexcept E:\n    {}\nfinally:\n    {}",
    "with a:\n    {}",
    "def f(a):\n    def g():\n        {}\n    {}",
    "class A:\n    async def f(self):\n        {}",
    "while True:\n\t{}\n\tbreak",
]
BLOCKS = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.FunctionDef, ast.ClassDef, ast.Lambda)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("several", [False, True])
def test_every_script_stays_python_with_all_its_branches(around: str, several: bool) -> None:
    for piece in CORPUS:
        inner = textwrap.indent(piece, "        ").strip()
        if around != "{}" and ("\n" in piece or piece.startswith("if ")):
            continue
        before = f"import torch\n{XM}{around.replace('{}', inner)}\n"
        for script in (before, before.replace("\n", "\r\n")):
            result = migrated(script, several_processes=several)

            assert blocks_of(result.text) == blocks_of(script), result.text
            assert ("\r\n" in result.text) == ("\r\n" in script)


def blocks_of(script: str) -> list[tuple[str, int]]:
    """Kinds of its blocks, and how many statements are in each branch of them, removed ones too."""
    return [
        (type(node).__name__, len(getattr(node, "orelse", None) or ()))
        for node in ast.walk(ast.parse(script))
        if isinstance(node, BLOCKS)
    ]


def test_a_file_that_would_be_no_python_any_more_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROWS, "torch_xla.core.xla_model.mark_step", Rename("no python!"))

    result = migrated(XM + "xm.mark_step()\n")

    assert result.text == XM + "xm.mark_step()\n"
    assert "left as it was" in result.remarks[0].text


def test_imports_stay_while_something_uses_them() -> None:
    before = dedent(
        """
        '''Doc.'''
        from __future__ import annotations
        import os
        from torch_xla.core.xla_model import all_gather, mark_step as step
        step(); all_gather(t)
        """
    )

    result = migrated(before)

    assert "from torch_xla.core.xla_model import all_gather\nimport" not in result.text
    assert (
        "from torch_xla.core.xla_model import all_gather\ntorch_pjrt.sync(); all_gather(t)"
        in result.text
    )
    assert result.text.index("import os") < result.text.index("import torch_pjrt")


def test_where_several_processes_run_gradients_are_not_forgotten() -> None:
    launched = (
        XM + "import torch_xla\nxm.optimizer_step(o)\nr = xm.get_ordinal()\ntorch_xla.launch(f)\n"
    )

    assert has_several_processes(launched)
    assert has_several_processes("torch.distributed.init_process_group('gloo')")
    assert not has_several_processes(XM + "xm.optimizer_step(o)")
    result = migrated(launched, several_processes=True)

    assert (
        "xm.optimizer_step(o)\nr = torch.distributed.get_rank()\ntorch_xla.launch(f)\n"
        in result.text
    )
    told = {remark.name: remark.text for remark in result.remarks}
    assert "DistributedDataParallel" in told["core.xla_model.optimizer_step"]
    assert "torchrun" in told["launch"]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("several", [False, True])
def test_every_row_gives_python_or_a_hint(name: str, several: bool) -> None:
    module, _, attribute = name.rpartition(".")
    row = row_of(name)
    parameters = row.parameters.split() if isinstance(row, Rewrite) else []
    needed = [p for p in parameters if f"{{{p}}}" in getattr(row, "to", "")]
    call = f"{attribute}({', '.join(f'{p}=a_{p}' for p in needed)})"
    script = f"import {module} as m\nif x:\n    m.{call}\n"

    result = migrated(script, several_processes=several)

    ast.parse(result.text)
    again = migrated(result.text, several_processes=several)
    assert again.text == result.text
    changed = "torch_xla" not in result.text
    kind = getattr(row, "processes", "any")
    one_of_both = kind == "any" or (kind == "several") == several
    assert changed == (not isinstance(row, ByHand) and one_of_both)
    assert changed != any(remark.by_hand for remark in result.remarks)
    if isinstance(row, Drop):
        assert result.text == "if x:\n    pass\n"
