"""Each recorded operator knows the line of the user's program that called it, while somebody asks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.graph.graph import graph_of
from torch_pjrt.graph.tape import state
from torch_pjrt.observe import lines
from torch_pjrt.observe.lines import NotedCode, lines_of
from torch_pjrt.passes.expand import Expand
from torch_pjrt.settings import settings


def here() -> str:
    """The file and number of the line that calls this."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@pytest.fixture
def noted() -> Iterator[None]:
    torch.zeros((), device="pjrt")
    torch_pjrt.sync()
    with lines.noted("test"):
        yield
    torch_pjrt.sync()


def told() -> list[tuple[str, str]]:
    """Operator and line of each node on the tape."""
    nodes = graph_of(state.tape, ()).nodes
    return [(str(n.op), str(n.line)) for n in nodes]


def test_operator_has_the_line_that_called_it(noted: None) -> None:
    x = torch.ones(3, device="pjrt")
    first, y = here(), x.exp()
    second, z = here(), torch.sort(y)

    assert ("aten.exp.default", first) in told()
    assert ("aten.sort.default", second) in told()
    assert z.values.tolist() == y.tolist()


def test_operator_within_pytorch_has_the_line_of_the_user(noted: None) -> None:
    x = torch.ones(2, 3, device="pjrt")
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU()).to("pjrt")
    torch_pjrt.sync()

    line, y = here(), model(x)

    assert {where for _, where in told()} == {line}
    assert y.shape == (2, 4)


def test_operator_of_backward_has_the_line_of_its_forward(noted: None) -> None:
    x = torch.rand(3, device="pjrt", requires_grad=True)
    first, y = here(), x.exp()
    z = y.detach() + 1  # needs no gradient: its line must not replace the one before
    second, loss = here(), y.sin().sum()
    torch_pjrt.sync()

    loss.backward()

    nodes = graph_of(state.tape, ()).nodes
    backward = {str(n.op): str(n.line) for n in nodes if n.line is not None and n.line.backward}
    assert backward["aten.cos.default"] == second
    assert first in {str(n.line) for n in nodes if str(n.op) == "aten.mul.Tensor"}
    assert z.shape == (3,)


def test_in_place_view_and_list_operators_have_lines(noted: None) -> None:
    x = torch.zeros(4, device="pjrt")
    first, _ = here(), x[1:].add_(1)
    second, _ = here(), torch._foreach_add([x, x], 1.0)

    assert {("pjrt.write", first), ("pjrt.read", first)} <= set(told())
    assert second in {where for _, where in told()}


def test_lines_survive_passes_and_expansions(noted: None) -> None:
    x = torch.rand(3, device="pjrt")
    line, y = here(), torch.special.log_softmax(torch.sinc(x), 0)

    graph = Expand()(graph_of(state.tape, (y.untyped_storage().buffer.value.number,)))

    assert {str(n.line) for n in graph.nodes[1:]} == {line}


def test_one_line_for_each_node_also_of_what_was_recorded_before() -> None:
    x = torch.ones(3, device="pjrt")
    torch_pjrt.sync()
    y = x + 1
    with lines.noted("test"):
        line, z = here(), y * 2
        w = z + y

        found = [str(line) for line in lines_of(state.tape)]

    assert found[:2] == ["None", line]
    assert len(found) == 3
    assert (w.tolist(), z.tolist()) == ([6, 6, 6], [4, 4, 4])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.qkv(x).cos()


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"attn": Attention(), "mlp": nn.Tanh()}) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block["mlp"](block["attn"](x))  # type: ignore[index]
        return x


def test_operator_knows_the_path_of_its_module(noted: None) -> None:
    model = GPT().to("pjrt")
    x = torch.rand(2, 4).to("pjrt")
    torch_pjrt.sync()

    loss = model(x).sum()
    forward = {(str(n.op), n.line.module) for n in graph_of(state.tape, ()).nodes if n.line}
    torch_pjrt.sync()
    loss.backward()
    backward = {
        (str(n.op), n.line.module)
        for n in graph_of(state.tape, ()).nodes
        if n.line is not None and n.line.backward
    }

    assert ("aten.cos.default", "GPT/blocks.1.attn") in forward
    assert ("aten.addmm.default", "GPT/blocks.1.attn/qkv") in forward
    assert ("aten.tanh.default", "GPT/blocks.0.mlp") in forward
    assert ("aten.sum.default", "") in forward
    assert ("aten.sin.default", "GPT/blocks.1.attn") in backward
    assert ("aten.tanh_backward.default", "GPT/blocks.0.mlp") in backward


def test_path_is_right_again_after_a_module_has_failed(noted: None) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    x = torch.ones(2, device="pjrt")
    with pytest.raises(ValueError, match="no"):
        nn.Sequential(nn.Identity(), Fails())(x)

    y = nn.Tanh()(x)

    assert graph_of(state.tape, ()).nodes[-1].line.module == "Tanh"  # type: ignore[union-attr]
    assert y.shape == (2,)


def test_compiled_program_names_line_and_module(
    compiled: Callable[[], int], tmp_path: Path
) -> None:
    model = GPT().to("pjrt")
    x = torch.rand(2, 4).to("pjrt")

    with torch_pjrt.source_lines():
        settings.dump = str(tmp_path)
        try:
            model(x).sum().backward()
            torch_pjrt.sync()
        finally:
            settings.dump = None

    hlo = (tmp_path / "0001.hlo.txt").read_text()
    number = Attention.forward.__code__.co_firstlineno + 1
    assert f'GPT/blocks.1.attn/aten.cos.default(test_source_lines.py:{number})/cos"' in hlo
    assert f"GPT/blocks.0.attn/backward/aten.sin.default(test_source_lines.py:{number})" in hlo
    assert __file__ in hlo
    graph = (tmp_path / "0001.graph.txt").read_text()
    assert f"# {__file__}:{number}, GPT/blocks.1.attn\n" in graph
    assert f"# {__file__}:{number}, GPT/blocks.1.attn, in backward\n" in graph


@pytest.mark.slow
def test_variable_turns_it_on_for_the_process(python: Callable[..., Any]) -> None:
    script = """
import torch
from torch_pjrt.observe.lines import lines_of
from torch_pjrt.graph.tape import state
x = torch.ones(3, device="pjrt")
y = x + 1
print([str(line) for line in lines_of(state.tape)][-1])
"""

    assert python(script, TORCH_PJRT_SOURCE_LINES="1").stdout == "<string>:6\n"
    assert python(script).stdout == "None\n"


@pytest.mark.slow
def test_program_with_lines_is_another_one_on_disk(
    python: Callable[..., Any], tmp_path: Path
) -> None:
    script = """
import torch, torch_pjrt
(torch.ones(3, device="pjrt") + 1).tolist()
counts = torch_pjrt.report().as_dict()
print(counts["programs_compiled"], counts["programs_loaded"])
"""

    def run(**variables: str) -> str:
        return python(script, TORCH_PJRT_CACHE_DIR=str(tmp_path), **variables).stdout.strip()

    assert run() == "1 0"
    assert run(TORCH_PJRT_SOURCE_LINES="1") == "1 0"
    assert run(TORCH_PJRT_SOURCE_LINES="1") == "0 1"
    assert run(TORCH_PJRT_CHECK_NANS="1") == "0 1", "lines that are noted only for messages"
    assert run() == "0 1"


def test_lines_noted_for_messages_are_not_in_programs(noted: None) -> None:
    text = torch_pjrt.to_stablehlo(torch.ones(3, device="pjrt").exp())

    assert "test_source_lines.py" not in text
    assert "aten.exp" not in text


def test_nothing_is_noted_while_nobody_asks() -> None:
    with lines.noted("a"):
        with lines.noted("b"):
            pass
        assert isinstance(state.tape.code, NotedCode)

    assert type(state.tape.code) is list
    torch.ones(3, device="pjrt").exp()
    torch_pjrt.sync()
    assert type(state.tape.code) is list


def test_same_program_from_other_lines_is_not_compiled_again(
    noted: None, compiled: Callable[[], int]
) -> None:
    x = torch.ones(5).to("pjrt")
    results = [(x * 3).tolist()]

    results.append((x * 3).tolist())

    assert results[0] == results[1]
    assert compiled() == 1
