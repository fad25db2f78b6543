"""`torch_xla.debug.metrics` (`met`): torch-pjrt's counters by torch_xla's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch_pjrt
from torch_pjrt.extend import counters

#   metric                   how often                              seconds in all, or bytes
_METRICS: dict[str, tuple[Callable[[], int], Callable[[], float]]] = {
    "CompileTime": (lambda: counters.programs_compiled, lambda: counters.compile_s),
    "ExecuteTime": (lambda: counters.programs_run, lambda: counters.launch_s),
    "TransferToDeviceTime": (lambda: counters.uploads, lambda: counters.upload_s),
    "TransferFromDeviceTime": (lambda: counters.downloads, lambda: counters.download_s),
    "OutboundData": (lambda: counters.uploads, lambda: counters.uploaded_bytes),
    "InboundData": (lambda: counters.downloads, lambda: counters.downloaded_bytes),
    "InputOutputAliasCount": (lambda: counters.donated, lambda: 0.0),
}  # fmt: skip
#   counter            its value
_COUNTERS: dict[str, Callable[[], int]] = {
    "UncachedCompile": lambda: counters.programs_compiled,
    "CachedCompile": lambda: counters.programs_run - counters.programs_compiled,
    "PersistentCacheHit": lambda: counters.programs_loaded,
    "MarkStep": lambda: counters.syncs["request"],
}  # fmt: skip


def metrics_report() -> str:
    """What the process did: metrics and counters that are not 0, then torch-pjrt's own report."""
    return f"{short_metrics_report()}\n{torch_pjrt.report()}"


def short_metrics_report(
    counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None
) -> str:
    """Metrics and counters that are not 0, a block for each; those with the names only, where some are
    given."""
    lines = []
    for name in _chosen(metric_names, globals()["metric_names"]()):
        count, seconds, _ = metric_data(name) or (0, 0.0, ())
        lines += [
            f"Metric: {name}",
            f"  TotalSamples: {count}",
            f"  Accumulator: {_amount(name, seconds)}",
        ]
    for name in _chosen(counter_names, globals()["counter_names"]()):
        lines += [f"Counter: {name}", f"  Value: {counter_value(name) or 0}"]
    return "\n".join(lines)


def metric_names() -> list[str]:
    """The metrics that have samples."""
    return [name for name, (count, _) in _METRICS.items() if count()]


def metric_data(name: str) -> tuple[int, float, tuple[()]] | None:
    """How many samples a metric has, and their sum: seconds of a time, bytes of data. None where it has none.

    torch_xla's third, the samples, is empty.
    """
    if name not in metric_names():
        return None
    count, seconds = _METRICS[name]
    return count(), seconds(), ()


def counter_names() -> list[str]:
    """The counters that are not 0; `aten::name` for each operator that ran on the CPU."""
    return [name for name, value in _COUNTERS.items() if value()] + sorted(_on_cpu())


def counter_value(name: str) -> int | None:
    """A counter's value; None where it is 0."""
    if name in _COUNTERS:
        return _COUNTERS[name]() or None
    return _on_cpu().get(name)


def executed_fallback_ops() -> list[str]:
    """The operators that ran on the CPU, for want of a rule."""
    return sorted(_on_cpu())


def clear_all() -> None:
    """All counters back to 0."""
    counters.forget()


def clear_metrics() -> None:
    """`clear_all`: metrics and counters are the same numbers here."""
    clear_all()


def clear_counters() -> None:
    """`clear_all`: metrics and counters are the same numbers here."""
    clear_all()


def _amount(name: str, value: float) -> str:
    return f"{int(value)}B" if name.endswith("Data") else f"{value:.6f}s"


def _on_cpu() -> dict[str, int]:
    found: dict[str, int] = {}
    for name, count in counters.fallbacks.items():
        plain = name.removeprefix("aten.").removeprefix("aten::")
        found[f"aten::{plain}"] = found.get(f"aten::{plain}", 0) + count
    return found


def _chosen(wanted: Sequence[str] | None, there: list[str]) -> list[str]:
    return there if wanted is None else [name for name in there if name in wanted]
