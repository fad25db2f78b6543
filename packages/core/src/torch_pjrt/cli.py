"""The command line: what is installed, what it offers, and which device would be used.

    python -m torch_pjrt plugins    every plugin found, from where, what it offers, what is wrong
    python -m torch_pjrt devices    the devices on offer, the preferred one first, and the chips of that one
    python -m torch_pjrt devices v5e:4x4    the chips of hardware that is not here
    python -m torch_pjrt cache      the compiled programs on disk: list, prune, clear (`cli_cache.py`)
    python -m torch_pjrt migrate    scripts written for torch_xla, rewritten (`cli_migrate.py`)

Exit code 0 if a device can be used and nothing is broken, 1 if not, 2 if a command or an
environment variable cannot be read. Nothing starts a device, but `devices` the one that would be used, to
list its chips; not with `--no-start`.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch  # before the rest: it registers the device, in the order that PyTorch expects

from torch_pjrt import cli_cache, cli_chips, cli_migrate
from torch_pjrt.aot.targets import target_chips
from torch_pjrt.errors import SettingError, TorchPjrtError
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.passes.runner import Pass
from torch_pjrt.plugin import core as core_plugin
from torch_pjrt.plugin.discovery import VARIABLE, Origin
from torch_pjrt.plugin.host import Choice, Host, Offer, by_priority, host
from torch_pjrt.tensor.registration import hand_written

_MOST_NAMED = 6  # a plugin with more lowerings than this has them counted, not listed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is broken is printed with its plugin
            return options.command(options)
    except SettingError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def plugins(host: Host) -> int:
    """Print every plugin that was found, and the device that would be chosen."""
    objections = {id(o): host.objection(o) for o in host.all_offers()}
    offered = {o.device.name: host.offered_for(o.device) for o in host.all_offers()}
    names = sorted(
        {*host.plugins, *host.forbidden, *(b.name for b in host.broken)}, key=_core_first
    )
    origins = {core_plugin.PLUGIN: _core_origin(), **host.origins}
    heads = [(n, *_columns(origins.get(n))) for n in names]
    for name, head in zip(names, _aligned(heads), strict=True):
        print(head)
        for line in _about(name, host, objections, offered):
            print("    " + line.replace("\n", "\n    "))
    print()
    return _conclude(host, clashes(host))


def devices(host: Host, *, start: bool = False) -> int:
    """Print the devices on offer by priority, and the one that would be chosen; `start` it, for its chips."""
    rows = [("DEVICE", "PRIORITY", "PLUGIN", "STATE")]
    for offer in by_priority(host.all_offers()):
        state = _state(host.objection(offer))
        rows.append((offer.device.name, str(offer.device.priority), offer.plugin, state))
    for line in _aligned(rows if len(rows) > 1 else []):
        print(line)
    for broken in host.broken:
        print(f"The plugin `{broken.name}` is broken: {broken.why}")
    code = _conclude(host, ())
    if not start:
        return code
    try:
        device = host.choice().offer.device
    except TorchPjrtError:  # said above
        return code
    try:
        chips = device.start()
    except Exception as error:
        print(f"{device.name} does not start: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    _print_chips(device.name, chips)
    return code


def chips_of_target(target: str) -> int:
    """Print the chips of hardware that is not here."""
    try:
        _print_chips(target, target_chips(target))
    except TorchPjrtError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _print_chips(name: str, chips: Sequence[Any]) -> None:
    summary, rows = cli_chips.described(name, chips)
    print()
    print(summary)
    for line in _aligned(rows):
        print(line)


def _devices(options: argparse.Namespace) -> int:
    if options.target is not None:
        return chips_of_target(options.target)
    return devices(host(), start=not options.no_start)


def clashes(host: Host) -> Iterator[TorchPjrtError]:
    """What plugins say on each device that does not fit together, each clash once."""
    said: set[str] = set()
    for offer in host.all_offers():
        questions: tuple[Callable[[], object], ...] = (
            lambda device=offer.device: host.lowerings(device),
            lambda device=offer.device: host.passes(device),
        )
        for question in questions:
            try:
                question()
            except TorchPjrtError as error:
                if str(error) not in said:
                    yield error
                said.add(str(error))


def _conclude(host: Host, errors: Iterable[TorchPjrtError]) -> int:
    """Say which device would be chosen, and what stands in the way; the exit code."""
    problems = list(errors)
    try:
        print(_chosen(host.choice()))
    except TorchPjrtError as error:
        problems.insert(0, error)
    for problem in problems:
        print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
    return int(bool(problems or host.broken))


def _chosen(choice: Choice) -> str:
    offer = choice.offer
    return f"Chosen: {offer.device.name}, of the plugin `{offer.plugin}`: {choice.why}."


def _about(
    name: str,
    host: Host,
    objections: Mapping[int, str | None],
    offered: Mapping[str, Mapping[str, tuple[LoweringTable | None, list[Pass]]]],
) -> Iterator[str]:
    """The lines under a plugin's name."""
    for broken in host.broken:
        if broken.name == name:
            yield f"broken, disabled: {broken.why}"
    if name in host.forbidden:
        yield f"forbidden by {VARIABLE}"
    if name not in host.plugins:
        return
    said = False
    for offer in host.all_offers():
        if offer.plugin == name:
            said = True
            yield _device(offer, objections.get(id(offer)))
    for devices, words in _by_words(name, offered):
        said = True
        everywhere = len(offered) > 1 and len(devices) == len(offered)
        yield f"on {'every device' if everywhere else ', '.join(devices)}: {words}"
    if left_out := _left_out(name, offered):
        yield f"left out, as PyTorch {torch.__version__} lacks them: {', '.join(left_out)}"
    if not said:
        yield (
            "offers nothing" if offered else "lowerings and passes are for a device: there is none"
        )


def _device(offer: Offer, objection: str | None) -> str:
    return f"device {offer.device.name}, priority {offer.device.priority}, {_state(objection)}"


def _state(objection: str | None) -> str:
    return "usable" if objection is None else f"not usable: {objection}"


def _by_words(
    name: str, offered: Mapping[str, Mapping[str, tuple[LoweringTable | None, list[Pass]]]]
) -> Iterator[tuple[list[str], str]]:
    """What the plugin has, and the devices that it has just that for."""
    devices_by_words: dict[str, list[str]] = {}
    for device, by_plugin in offered.items():
        if words := _words(*by_plugin.get(name, (None, []))):
            devices_by_words.setdefault(words, []).append(device)
    for words, devices in devices_by_words.items():
        yield devices, words


def _left_out(
    name: str, offered: Mapping[str, Mapping[str, tuple[LoweringTable | None, list[Pass]]]]
) -> list[str]:
    """The operators that this PyTorch lacks of those for which the plugin has a rule or a kernel."""
    tables = [by_plugin.get(name, (None, []))[0] for by_plugin in offered.values()]
    absent = {str(op) for table in tables if table is not None for op in table.left_out}
    if name == core_plugin.PLUGIN and offered:
        absent.update(map(str, hand_written.left_out()))
    return sorted(absent)


def _words(table: LoweringTable | None, passes: list[Pass]) -> str:
    parts = []
    rows = [*(table or ()), *(table.over if table is not None else ())]
    if rows:
        listed = f" ({', '.join(map(str, rows))})" if len(rows) <= _MOST_NAMED else ""
        parts.append(f"{_count(len(rows), 'lowering')}{listed}")
    if passes:
        plural = "passes" if len(passes) > 1 else "pass"
        parts.append(f"{plural} {', '.join(p.name for p in passes)}")
    return "; ".join(parts)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _columns(origin: Origin | None) -> tuple[str, str]:
    return (origin.distribution, origin.entry_point) if origin else ("unknown", "")


def _core_origin() -> Origin:
    try:
        number = version("torch-pjrt-core")
    except PackageNotFoundError:
        number = "(not installed, on the path)"
    return Origin(f"torch-pjrt-core {number}", core_plugin.__name__)


def _core_first(name: str) -> tuple[bool, str]:
    return name != core_plugin.PLUGIN, name


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """One line a row, columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_pjrt",
        description="What is installed for torch-pjrt, and which device would be used.",
        epilog="exit code: 0 a device can be used and nothing is broken; 1 not so; 2 a command or "
        "an environment variable cannot be read",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    words = "list the plugins, where they come from, and what each offers"
    listed = commands.add_parser("plugins", help=words, description=words)
    listed.set_defaults(command=lambda options: plugins(host()))
    words = "list the devices on offer, the preferred one first, and its chips"
    listed = commands.add_parser("devices", help=words, description=words)
    listed.add_argument("target", nargs="?", help="list the chips of this one instead: v5e:4x4")
    listed.add_argument(
        "--no-start", action="store_true", help="do not start the device for its chips"
    )
    listed.set_defaults(command=_devices)
    cli_cache.add_to(commands)
    cli_migrate.add_to(commands)
    return parser
