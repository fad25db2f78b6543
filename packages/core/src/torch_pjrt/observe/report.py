"""`torch_pjrt.report()`: what this process did so far, as text, as a dict, in one line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch_pjrt.observe.counters import counters


@dataclass(frozen=True, slots=True)
class Report:
    """A snapshot of the counters. Times are seconds of host time."""

    counts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Every counter by name: ints, floats (seconds), and dicts of counts for `syncs` and `fallbacks`."""
        return dict(self.counts)

    def summary(self) -> str:
        """One line."""
        c = self.counts
        return (
            f"{c['operators']} operators in {c['programs_run']} program runs, "
            f"{c['programs_compiled']} compiled in {c['compile_s']:.1f} s, "
            f"{sum(c['fallbacks'].values())} fallbacks"
        )

    def __str__(self) -> str:
        c = self.counts
        rows = [
            ("operators traced", f"{c['operators']}"),
            ("programs compiled", f"{c['programs_compiled']} ({c['compile_s']:.2f} s)"),
            ("  found on disk", f"{c['programs_loaded']} ({c['load_s']:.2f} s)"),
            ("programs reused", f"{_reused(c)}"),
            ("syncs", _causes(c["syncs"])),
            ("  host time", f"{c['sync_s']:.3f} s, of which launching {c['launch_s']:.3f} s"),
            ("fallbacks to the CPU", f"{_causes(c['fallbacks'])} ({c['fallback_s']:.3f} s)"),
            ("host to device", _moved(c, "upload")),
            ("device to host", _moved(c, "download")),
            ("inputs donated", f"{c['donated']}"),
        ]
        return "\n".join(f"{name:<22}{value}" for name, value in rows)

    __repr__ = __str__


def report() -> Report:
    """What this process did so far."""
    snapshot = {f.name: getattr(counters, f.name) for f in fields(counters)}
    return Report({k: dict(v) if isinstance(v, dict) else v for k, v in snapshot.items()})


def _reused(c: dict[str, Any]) -> int:
    return c["programs_run"] - c["programs_compiled"] - c["programs_loaded"]


def _causes(counts: dict[str, int]) -> str:
    each = ", ".join(f"{name} {n}" for name, n in sorted(counts.items(), key=lambda i: -i[1]))
    return f"{sum(counts.values())}" + (f" ({each})" if each else "")


def _moved(c: dict[str, Any], way: str) -> str:
    megabytes = c[f"{way}ed_bytes"] / 1e6
    return f"{c[f'{way}s']} times, {megabytes:.1f} MB, {c[f'{way}_s']:.3f} s"
