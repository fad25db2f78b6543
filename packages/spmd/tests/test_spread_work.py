"""What chips do alike follows from XLA's text: written programs for a mesh of two rows of four chips."""

from __future__ import annotations

import textwrap

import pytest

from torch_pjrt.extend import each_collective
from torch_pjrt_spmd.groups import axes_of
from torch_pjrt_spmd.hlo import parsed
from torch_pjrt_spmd.spread_work import Walk

ALONG_DATA = "replica_groups={{0,4},{1,5},{2,6},{3,7}}"
ALONG_MODEL = "replica_groups=[2,4]<=[8]"
AXES = {"data": 2, "model": 4}
ROWS = frozenset({"data"})


class OfShape:
    """As much of JAX's mesh as the axes of collectives take."""

    shape = AXES
    axis_names = tuple(AXES)


def walked(text: str, *inputs: frozenset[str]) -> Walk:
    return Walk(parsed(textwrap.dedent(text)), AXES, inputs, lambda rest: axes_of(rest, OfShape()))  # type: ignore[arg-type]


def entry(*lines: str) -> str:
    return "\n".join(["ENTRY %main (p: f32[8]) -> f32[8] {", *[f"  {x}" for x in lines], "}"])


P = "%p = f32[8]{0} parameter(0)"
REDUCED = f"%r = f32[8]{{0}} all-reduce(%p), channel_id=1, {ALONG_DATA}, to_apply=%add"

#   what the program does    the program; its input is spread over `data`    work, alike, along data, model
CASES: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "one operation on a spread input": (
        entry(P, "ROOT %y = f32[8]{0} negate(%p)"),
        (8, 0, 0, 8),
    ),
    "one on what was added up": (
        entry(P, REDUCED, "ROOT %y = f32[8]{0} negate(%r)"),
        (8, 8, 8, 8),
    ),
    "an all-reduce along the other axis leaves it different": (
        entry(P, f"%r = f32[8]{{0}} all-reduce(%p), {ALONG_MODEL}", "ROOT %y = f32[8]{0} negate(%r)"),
        (8, 0, 0, 8),
    ),
    "its asynchronous form": (
        entry(
            P,
            f"%s = (f32[4]{{0}}, f32[8]{{0}}) all-gather-start(%p), {ALONG_DATA}, dimensions={{0}}",
            "%r = f32[8]{0} all-gather-done(%s)",
            "ROOT %y = f32[8]{0} negate(%r)",
        ),
        (8, 8, 8, 8),
    ),
    "what is scattered differs along the axis": (
        entry(
            P,
            REDUCED,
            f"%s = f32[8]{{0}} reduce-scatter(%r), {ALONG_MODEL}",
            "ROOT %y = f32[8]{0} negate(%s)",
        ),
        (8, 0, 8, 0),
    ),
    "two operations for each product of a matrix product": (
        entry(
            "%p = f32[4,16]{1,0:T(8,128)S(1)} parameter(0)",
            "%w = f32[16,2]{1,0} constant({...})",
            "ROOT %y = f32[4,2]{1,0} dot(%p, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ),
        (2 * 4 * 16 * 2, 0, 0, 2 * 4 * 16 * 2),
    ),
    "the same as a convolution, as for TPUs": (
        entry(
            "%p = f32[4,16]{1,0} parameter(0)",
            "%w = f32[2,16]{1,0} constant({...})",
            "ROOT %y = f32[4,2]{1,0} convolution(%p, %w), dim_labels=bf_oi->bf",
        ),
        (2 * 4 * 16 * 2, 0, 0, 2 * 4 * 16 * 2),
    ),
    "each chip's own place in a table": (
        entry(
            "%id = u32[] partition-id()",
            "%table = s32[8]{0} constant({0, 0, 0, 0, 4, 4, 4, 4})",
            "%at = s32[1]{0} dynamic-slice(%table, %id), dynamic_slice_sizes={1}",
            "%begin = s32[] reshape(%at)",
            "%all = f32[8]{0} iota(), iota_dimension=0",
            "%part = f32[4]{0} dynamic-slice(%all, %begin), dynamic_slice_sizes={4}",
            "ROOT %y = f32[4]{0} negate(%part)",
        ),
        (4, 0, 0, 4),
    ),
    "what makes nothing is no work": (
        entry(P, "%c = f32[8]{0} copy(%p)", "ROOT %y = f32[4,2]{1,0} reshape(%c)"),
        (0, 0, 0, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_work_that_chips_do_alike_is_what_does_not_depend_on_where_they_are(name: str) -> None:
    text, expected = CASES[name]

    work = walked(text, ROWS).work

    along = work.same_along
    assert (work.total, work.same, along["data"], along["model"]) == expected


LOOP = """
%body (s: (s64[], f32[8], f32[8])) -> (s64[], f32[8], f32[8]) {
  %s = (s64[], f32[8]{0}, f32[8]{0}) parameter(0)
  %i = s64[] get-tuple-element(%s), index=0
  %x = f32[8]{0} get-tuple-element(%s), index=1
  %w = f32[8]{0} get-tuple-element(%s), index=2
  %g = f32[8]{0} all-gather(%w), channel_id=2, replica_groups=[2,4]<=[8], dimensions={0}
  %y = f32[8]{0} multiply(%x, %g)
  ROOT %t = (s64[], f32[8]{0}, f32[8]{0}) tuple(%i, %y, %w)
}

%condition (s: (s64[], f32[8], f32[8])) -> pred[] {
  ROOT %more = pred[] constant(true)
}

ENTRY %main (p: f32[8], q: f32[8]) -> f32[8] {
  %zero = s64[] constant(0)
  %one = f32[8]{0} constant({...})
  %p = f32[8]{0} parameter(0)
  %begun = (s64[], f32[8]{0}, /*index=2*/f32[8]{0}) tuple(%zero, %one, %p)
  %w = (s64[], f32[8]{0}, f32[8]{0}) while(%begun), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %x = f32[8]{0} get-tuple-element(%w), index=1
  ROOT %y = f32[8]{0} negate(%x)
}
"""  # noqa: E501


def test_what_is_in_a_loop_runs_as_often_as_its_body() -> None:
    walk = walked(LOOP, frozenset({"data", "model"}))

    [gather] = walk.exchanges
    assert (gather.kind, gather.axes, gather.runs) == ("all-gather", ("model",), 5)
    assert gather.of_input  # a parameter that the loop carries along
    assert walk.work.total == 5 * 8 + 8
    # What is constant before the first round differs along `data` after it.
    assert walk.work.same_along == {"model": 5 * 8 + 8}


def test_a_loop_runs_as_often_as_its_condition_says_where_xla_does_not() -> None:
    known = ', backend_config={"known_trip_count":{"n":"5"}}'
    condition = """
      %s = (s64[], f32[8]{0}, f32[8]{0}) parameter(0)
      %i = s64[] get-tuple-element(%s), index=0
      %n = s64[] constant(7)
      ROOT %more = pred[] compare(%i, %n), direction=LT"""
    counted = "%two = s64[] constant(2)\n  %j = s64[] add(%i, %two)\n  ROOT %t = "
    text = LOOP.replace(known, "").replace("ROOT %t = ", counted, 1)
    text = text.replace("tuple(%i, %y, %w)", "tuple(%j, %y, %w)")

    def total(text: str) -> int:
        return walked(text, frozenset({"data", "model"})).work.total

    assert total(text) == 8 + 1 + 8
    assert (
        total(text.replace("\n  ROOT %more = pred[] constant(true)", condition)) == 4 * (8 + 1) + 8
    )


def test_products_in_a_loop_count_as_often_as_it_runs() -> None:
    product = """
      %a = f32[4,8]{1,0} constant({...})
      %d = f32[4,3]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={1}"""
    line = "  %y = f32[8]{0} multiply(%x, %g)"
    work = walked(LOOP.replace(line, line + product), frozenset({"data", "model"})).work

    assert work.products == 5 * 2 * 4 * 3 * 8
    assert work.total == work.products + 5 * 8 + 8


def test_what_is_computed_in_a_loop_is_no_input_from_the_second_round_on() -> None:
    walk = walked(LOOP.replace("all-gather(%w)", "all-gather(%x)"), frozenset({"data", "model"}))

    assert not walk.exchanges[0].of_input


def test_fused_computations_are_walked_through() -> None:
    text = """
    %fused (a: f32[8], b: f32[8]) -> f32[8] {
      %a = f32[8]{0} parameter(0)
      %b = f32[8]{0} parameter(1)
      %c = f32[8]{0} add(%a, %b)
      ROOT %d = f32[8]{0} negate(%b)
    }
    """
    whole = entry(P, REDUCED, "ROOT %y = f32[8]{0} fusion(%p, %r), kind=kLoop, calls=%fused")

    work = walked(textwrap.dedent(text) + whole, ROWS).work

    assert (work.total, work.same) == (16, 8)


def test_lines_of_the_user_are_those_of_the_work_that_all_do_alike() -> None:
    named = 'metadata={op_name="jit(step)/Gpt/aten.neg.default(gpt.py:7)/neg"}'

    work = walked(entry(P, REDUCED, f"ROOT %y = f32[8]{{0}} negate(%r), {named}"), ROWS).work

    assert work.lines == {"gpt.py:7": 8}


def test_steps_of_one_collective_count_once() -> None:
    step = 'all-gather(%p), channel_id=7, replica_groups=[2,4]<=[8], frontend_attributes={chain_id="0"}'
    text = entry(
        P, f"%a = f32[8]{{0}} {step}", f"%b = f32[8]{{0}} {step}", "ROOT %y = f32[8]{0} add(%a, %b)"
    )

    assert len(walked(text, ROWS).exchanges) == 1
    assert len(walked(text.replace("chain_id", "other"), ROWS).exchanges) == 2
    assert len(list(each_collective(text))) == 1
    assert len(list(each_collective(text.replace("chain_id", "other")))) == 2


#   XLA's text                                                                        bytes of the result
STARTED = {
    "(f32[4]{0}, f32[8]{0}) all-gather-start(%p)":                                      8 * 4,
    "f32[8]{0} all-reduce-start(%p)":                                                   8 * 4,
    "(f32[8]{0}, f32[4]{0}) all-reduce-start(%p, %q)":                                  12 * 4,
    "(f32[8]{0}, f32[8]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%p)":  8 * 4,
}  # fmt: skip


@pytest.mark.parametrize("text", STARTED)
def test_bytes_of_what_is_started_are_those_of_its_result(text: str) -> None:
    [(_, n_bytes, _)] = each_collective(f"  %s = {text}, channel_id=1")

    assert n_bytes == STARTED[text]


CONVOLUTIONS = {
    # One dim of space: (input, kernel, result), attributes, products that are summed.
    "padded": (
        "f32[1,4,2]", "f32[3,2,5]", "f32[1,4,5]",
        "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f", 10 * 2 * 5,
    ),
    "strided": (
        "f32[1,5,2]", "f32[2,2,1]", "f32[1,2,1]",
        "window={size=2 stride=2}, dim_labels=b0f_0io->b0f", 4 * 2,
    ),
    "a product with a batch of 4, as TPUs have it": (
        "f32[4,8,16]", "f32[4,16,32]", "f32[4,8,32]",
        "window={size=4 stride=3 pad=0_0 lhs_dilate=4}, dim_labels=0bf_0io->0bf", 4 * 8 * 16 * 32,
    ),
    "without space": ("f32[8,16]", "f32[16,3]", "f32[8,3]", "dim_labels=bf_io->bf", 8 * 16 * 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_positions_of_a_kernel_beside_the_input_are_no_work(name: str) -> None:
    x, kernel, y, attributes, products = CONVOLUTIONS[name]
    text = entry(
        f"%p = {x} parameter(0)",
        f"%k = {kernel} constant({{...}})",
        f"ROOT %y = {y} convolution(%p, %k), {attributes}",
    )

    assert walked(text, frozenset({"data"})).work.products == 2 * products
