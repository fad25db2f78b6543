"""The host asks each plugin, reports a broken one by name, and refuses what does not fit together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fake_device import Fake
from torch_pjrt.errors import (
    DuplicateDevice,
    DuplicateLowering,
    DuplicatePass,
    NoDevice,
    PluginError,
    UnknownDevice,
)
from torch_pjrt.graph.graph import Graph
from torch_pjrt.lowering import LoweringTable
from torch_pjrt.passes import CORE_PASSES, Stage
from torch_pjrt.plugin import Device, ForeignCalls, core, impl, spec
from torch_pjrt.plugin.host import Host, hook_names

aten = torch.ops.aten


@dataclass(frozen=True)
class Named:
    """A pass that changes nothing."""

    name: str
    stage: Stage = Stage.REWRITE

    def __call__(self, graph: Graph) -> Graph:
        return graph


DEVICE = Fake("FAKE")


def plugin(*functions: Callable[..., Any], **others: Any) -> ModuleType:
    """A module with these functions marked `impl`, and with these attributes as they are."""
    module = ModuleType("a_plugin")
    for function in functions:
        setattr(module, function.__name__, impl(function))
    for name, value in others.items():
        setattr(module, name, value)
    return module


def offering(*devices: Device) -> ModuleType:
    def torch_pjrt_devices() -> Sequence[Device]:
        return devices

    return plugin(torch_pjrt_devices)


def lowering(*ops: Any, only: Device | None = None, rule: Any = abs) -> ModuleType:
    def torch_pjrt_lowerings(device: Device) -> LoweringTable | None:
        if only is not None and device is not only:
            return None
        table = LoweringTable("theirs")
        for op in ops:
            table.add(op, rule)
        return table

    return plugin(torch_pjrt_lowerings)


def calling(*rows: ForeignCalls) -> ModuleType:
    def torch_pjrt_foreign_calls() -> Sequence[ForeignCalls]:
        return rows

    return plugin(torch_pjrt_foreign_calls)


def passing(*passes: Any) -> ModuleType:
    def torch_pjrt_passes() -> Sequence[Any]:
        return passes

    return plugin(torch_pjrt_passes)


def host(**plugins: ModuleType) -> Host:
    """With the core first, as in a process of users."""
    return Host({core.PLUGIN: core, **plugins})


@contextmanager
def disabled(name: str, why: str) -> Iterator[None]:
    with pytest.warns(UserWarning, match=rf"(?s)plugin `{name}` failed and is disabled: .*{why}"):
        yield


@pytest.fixture(autouse=True)
def _no_device_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_DEVICE", raising=False)


# devices


def test_device_of_highest_priority_is_chosen() -> None:
    both = host(a=offering(Fake("LOW", 1)), b=offering(Fake("HIGH", 2)))

    assert both.chosen_device().name == "HIGH"


def test_unusable_device_is_passed_over() -> None:
    both = host(a=offering(Fake("LOW", 1)), b=offering(Fake("HIGH", 2, "no such card")))

    assert both.chosen_device().name == "LOW"


def test_of_equal_priorities_the_first_plugin_counts() -> None:
    assert host(a=offering(Fake("A")), b=offering(Fake("B"))).chosen_device().name == "A"


def test_variable_names_the_device_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "low")
    both = host(a=offering(Fake("Low", 1)), b=offering(Fake("HIGH", 2)))

    assert both.chosen_device().name == "Low"
    assert both.choice().why == "PJRT_DEVICE names it"


def test_unknown_name_is_an_error_that_lists_what_is_on_offer() -> None:
    with pytest.raises(UnknownDevice, match=r"named `NONSENSE`[^$]*devices on offer: A, B"):
        host(a=offering(Fake("A")), b=offering(Fake("B"))).chosen_device("nonsense")


def test_named_device_that_cannot_be_used_is_an_error_with_its_objection() -> None:
    with pytest.raises(NoDevice, match=r"`CARD` [^$]*saw: no such card"):
        host(a=offering(Fake("CARD", 0, "no such card"))).chosen_device("CARD")


def test_no_usable_device_is_an_error_with_each_objection() -> None:
    with pytest.raises(NoDevice, match="saw: CARD: no such card\n  hint: pip install"):
        host(a=offering(Fake("CARD", 0, "no such card"))).chosen_device()


def test_no_device_at_all_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(NoDevice, match="on offer: none\n  hint: pip install torch-pjrt "):
        host().chosen_device()


def test_error_says_which_plugins_are_forbidden() -> None:
    with pytest.raises(NoDevice, match="the plugin `mine` is forbidden by TORCH_PJRT_PLUGINS"):
        Host({core.PLUGIN: core}, forbidden=["mine"]).chosen_device()


def test_two_plugins_with_one_device_name_are_an_error_that_names_both() -> None:
    with pytest.raises(DuplicateDevice, match=r"`FAKE`\.\n  saw: `a` and `b`\n.*PLUGINS=-b"):
        host(a=offering(Fake("fake")), b=offering(Fake("FAKE"))).chosen_device()


def test_devices_are_asked_for_once_and_not_started() -> None:
    asked = []

    def torch_pjrt_devices() -> Sequence[Device]:
        asked.append(1)
        return [DEVICE]

    one = host(a=plugin(torch_pjrt_devices))
    one.chosen_device()
    one.chosen_device()

    assert asked == [1]


# lowerings


def test_lowering_of_a_plugin_replaces_the_core_one_on_its_device_only() -> None:
    other = Fake("OTHER")
    one = host(a=lowering(aten.exp.default, only=DEVICE))

    assert one.lowerings(DEVICE)[aten.exp.default].rule is abs
    assert one.lowerings(other)[aten.exp.default].rule is not abs
    assert len(one.lowerings(DEVICE)) == len(one.lowerings(other))


def test_lowering_that_the_core_lacks_is_added() -> None:
    op = aten.nonzero.default

    assert op not in host().lowerings(DEVICE)
    assert op in host(a=lowering(op)).lowerings(DEVICE)


def test_two_plugins_with_a_rule_for_one_operator_are_an_error_that_names_both() -> None:
    both = host(a=lowering(aten.exp.default), b=lowering(aten.exp.default))

    with pytest.raises(DuplicateLowering, match=r"`aten.exp.default` on `FAKE`[^$]*`a` .*and `b` "):
        both.lowerings(DEVICE)


def test_two_plugins_with_rules_for_different_operators_agree() -> None:
    table = host(a=lowering(aten.exp.default), b=lowering(aten.sin.default)).lowerings(DEVICE)

    assert table[aten.exp.default].rule is table[aten.sin.default].rule is abs


def standing_over(op: Any, rule: Any) -> ModuleType:
    def torch_pjrt_lowerings() -> LoweringTable:
        table = LoweringTable("over")
        table.lowers_over(op, static=("alpha",))(rule)
        return table

    return plugin(torch_pjrt_lowerings)


def test_rule_that_stands_over_another_is_given_it_whoever_has_it() -> None:
    def above(beneath: Any, x: int) -> Any:
        return "above" if x > 0 else beneath(x)

    over = standing_over(aten.exp.default, above)
    of_plugin = host(a=over, b=lowering(aten.exp.default)).lowerings(DEVICE)[aten.exp.default]
    of_core = host(a=over).lowerings(DEVICE)[aten.exp.default]

    assert (of_plugin.rule(1), of_plugin.rule(-3)) == ("above", 3)
    assert of_plugin.static == {"alpha"}
    assert of_core.rule(1) == "above"
    assert of_core.where.startswith("test_plugin_host.py")


def test_rule_that_stands_over_one_takes_calls_as_one_object_if_it_likes() -> None:
    @dataclass(frozen=True)
    class Call:
        x: int
        first: int = field(default=0, kw_only=True)

    table = LoweringTable("over")
    table.lowers_over(aten.exp.default, call=Call)(
        lambda beneath, call: beneath(replace(call, x=-call.x))
    )
    plain, taking = LoweringTable("plain"), LoweringTable("taking")
    plain.add(aten.exp.default, lambda x: x)
    taking.lowers(aten.exp.default, call=Call)(lambda call: call.x)

    assert plain.overlaid(table)[aten.exp.default].rule(3) == -3
    assert taking.overlaid(table)[aten.exp.default].rule(3) == -3


def test_two_rules_that_stand_over_one_operator_are_an_error_that_names_both() -> None:
    both = host(a=standing_over(aten.exp.default, abs), b=standing_over(aten.exp.default, abs))

    with pytest.raises(
        DuplicateLowering, match=r"stand over .*`aten.exp.default`[^$]*`a` .*and `b` "
    ):
        both.lowerings(DEVICE)


def test_rule_that_stands_over_none_is_left_out() -> None:
    op = aten.nonzero.default

    assert op not in host(a=standing_over(op, abs)).lowerings(DEVICE)


# passes


def test_passes_of_a_plugin_run_at_their_stage_after_the_core_ones() -> None:
    mine = [Named("z", Stage.CLEAN), Named("y", Stage.REWRITE), Named("x", Stage.EXPAND)]

    names = [p.name for p in host(a=passing(*mine)).passes(DEVICE)]

    assert names == ["expand", "x", "y", "merge-equal", "drop-unused", "z", "roll-layers"]


def test_core_passes_come_by_the_same_hook() -> None:
    assert host().passes(DEVICE) == list(CORE_PASSES)
    assert Host({}).passes(DEVICE) == []


def test_two_plugins_with_one_pass_name_are_an_error_that_names_both() -> None:
    with pytest.raises(DuplicatePass, match=r"named `same`\.\n  saw: `a` and `b`"):
        host(a=passing(Named("same")), b=passing(Named("same"))).passes(DEVICE)


def test_one_plugin_with_two_passes_of_a_name_is_an_error_that_names_their_classes() -> None:
    with pytest.raises(DuplicatePass, match=r"`same`\.\n  saw: .*Named and .*Named"):
        host(a=passing(Named("same"), Named("same"))).passes(DEVICE)


def test_foreign_calls_are_those_of_all_plugins() -> None:
    rows = [ForeignCalls(["mine_*"]), ForeignCalls(["ours"], list)]

    found = host(a=calling(rows[0]), b=calling(rows[1])).foreign_calls(DEVICE)

    assert found[-2:] == rows
    assert [
        any(r.has(name) for r in found) for name in ("mine_x", "ours", "ours_x", "Sharding")
    ] == [
        True,
        True,
        False,
        True,
    ]


# broken plugins


def boom(*_: Any) -> Any:
    raise RuntimeError("boom")


def raising(hook: str) -> ModuleType:
    """A plugin whose implementation of this hook raises."""
    module = ModuleType("bad")
    setattr(module, hook, impl(boom))
    return module


def ask(host: Host, hook: str) -> Any:
    """What the host makes of this hook's answers."""
    if hook == "torch_pjrt_devices":
        return host.chosen_device()
    if hook == "torch_pjrt_lowerings":
        return host.lowerings(DEVICE)
    if hook == "torch_pjrt_foreign_calls":
        return host.foreign_calls(DEVICE)
    return host.passes(DEVICE)


@pytest.mark.parametrize("hook", list(hook_names()))
def test_plugin_that_raises_in_a_hook_is_disabled_and_the_rest_works(hook: str) -> None:
    three = host(a=offering(DEVICE), bad=raising(hook), c=passing(Named("mine")))

    with disabled("bad", "RuntimeError: boom"):
        assert ask(three, hook)

    assert list(three.plugins) == ["core", "a", "c"]
    assert [(b.name, b.why) for b in three.broken] == [("bad", "RuntimeError: boom")]
    assert three.chosen_device() is DEVICE
    assert "mine" in [p.name for p in three.passes(DEVICE)]


@pytest.mark.parametrize("hook", list(hook_names()))
@pytest.mark.parametrize("answer", [7, "text", [7], [Named], [Fake]], ids=str)
def test_plugin_that_answers_something_else_is_disabled(hook: str, answer: Any) -> None:
    module = plugin(**{hook: impl(lambda: answer)})
    two = host(a=offering(DEVICE), bad=module)

    with disabled("bad", f"`{hook}` gave something else"):
        ask(two, hook)

    assert list(two.plugins) == ["core", "a"]


def test_device_without_a_name_is_refused() -> None:
    with disabled("bad", "The device Fake has no name"):
        host(a=offering(DEVICE), bad=offering(Fake(""))).offers()


def test_pass_without_a_stage_is_refused() -> None:
    with disabled("bad", "The pass Named has no name or no stage"):
        host(bad=passing(Named("x", stage=1))).passes(DEVICE)  # pyright: ignore[reportArgumentType]


def test_hook_that_returns_nothing_offers_nothing() -> None:
    one = host(a=plugin(**{name: impl(lambda: None) for name in hook_names()}))

    assert one.offers() == []
    assert one.passes(DEVICE) == list(CORE_PASSES)
    assert len(one.lowerings(DEVICE)) == len(host().lowerings(DEVICE))
    assert one.broken == []


def test_misspelt_hook_is_refused_and_the_plugin_disabled() -> None:
    def torch_pjrt_device() -> Sequence[Device]:
        return [DEVICE]

    with disabled("bad", "hook that does not exist"):
        two = host(a=offering(DEVICE), bad=plugin(torch_pjrt_device))

    assert list(two.plugins) == ["core", "a"]
    assert "saw: `torch_pjrt_device`" in two.broken[0].why
    assert "torch_pjrt_devices" in two.broken[0].why


def test_hook_with_an_argument_that_no_hook_has_is_refused() -> None:
    def torch_pjrt_passes(gadget: Device) -> Sequence[Any]:
        return []

    with disabled("bad", "gadget"):
        assert list(host(bad=plugin(torch_pjrt_passes)).plugins) == ["core"]


def test_implementation_may_leave_out_arguments() -> None:
    def torch_pjrt_passes() -> Sequence[Any]:
        return [Named("mine")]

    assert "mine" in [p.name for p in host(a=plugin(torch_pjrt_passes)).passes(DEVICE)]


def test_module_that_imports_torch_ops_has_no_unknown_hook() -> None:
    # `torch.ops` has every attribute that it is asked for, so the mark of an implementation too.
    assert list(host(a=plugin(ops=torch.ops)).plugins) == ["core", "a"]


def test_device_whose_objection_raises_is_passed_over_and_its_plugin_disabled() -> None:
    bad = Fake("BAD", 9)
    bad.objection = boom
    two = host(a=offering(DEVICE), bad=offering(bad))

    with disabled("bad", "RuntimeError: boom"):
        assert two.chosen_device() is DEVICE

    assert two.offers() == [o for o in two.offers() if o.device is DEVICE]


def test_unusable_because_broken_is_said_in_the_error() -> None:
    bad = Fake("BAD")
    bad.objection = boom

    with disabled("bad", "boom"), pytest.raises(NoDevice, match=r"`bad` is broken: Run.*boom"):
        host(bad=offering(bad)).chosen_device()


def test_chosen_device_whose_own_plugin_breaks_is_an_error() -> None:
    # Going on with the core's rules alone could compute something else than its vendor means.
    module = offering(DEVICE)
    setattr(module, "torch_pjrt_passes", impl(boom))  # noqa: B010
    one = host(mine=module)

    with disabled("mine", "boom"), pytest.raises(PluginError, match=r"`mine` failed.*`FAKE`"):
        one.passes(one.chosen_device())


def test_bug_of_the_core_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="boom"):
        Host({core.PLUGIN: raising("torch_pjrt_lowerings")}).lowerings(DEVICE)


# the hooks themselves


def test_every_hook_says_when_it_is_called() -> None:
    for name in hook_names():
        docstring = getattr(spec, name).__doc__ or ""
        assert re.search(r"Called once|Called ", docstring), name


def test_every_hook_is_checked_and_tested() -> None:
    from torch_pjrt.plugin.answers import CHECKS

    names = list(hook_names())
    tested = Path(__file__).read_text()

    assert names == list(CHECKS)
    assert [n for n in names if f"def {n}(" not in tested] == []


def test_every_hook_has_its_place_in_the_guide_for_contributors() -> None:
    guide = (Path(__file__).parents[4] / "CONTRIBUTING.md").read_text()

    assert [n for n in hook_names() if n not in guide] == []


def test_hook_names_are_the_functions_of_the_page() -> None:
    functions = [n for n, f in vars(spec).items() if getattr(f, "__module__", "") == spec.__name__]

    assert list(hook_names()) == functions
