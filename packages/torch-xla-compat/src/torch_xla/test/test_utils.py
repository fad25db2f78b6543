"""What examples print and log with (`torch_xla.test.test_utils`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from torch_xla import runtime


def now(format: str = "%H:%M:%S") -> str:
    """The time as text."""
    return datetime.now().astimezone().strftime(format)


def print_training_update(
    device: Any,
    step: int,
    loss: Any,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Print how far training is; a tensor `loss` is read."""
    where = "" if epoch is None else f" Epoch={epoch}"
    print(
        f"| Training Device={device}/{runtime.global_ordinal()}{where} Step={step} Loss={float(loss):.5f} "
        f"Rate={rate:.2f} GlobalRate={global_rate:.2f} Time={now()}",
        flush=True,
    )


def print_test_update(
    device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None
) -> None:
    """Print how good it is."""
    parts = [f"| Test Device={device}"]
    parts += [f"Step={step}"] * (step is not None) + [f"Epoch={epoch}"] * (epoch is not None)
    parts += [f"Accuracy={accuracy:.2f}"] * (accuracy is not None) + [f"Time={now()}"]
    print(" ".join(parts), flush=True)


def get_summary_writer(logdir: str | None) -> Any:
    """TensorBoard's writer, in the first process; None without a folder."""
    if not logdir or runtime.global_ordinal() != 0:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=logdir)


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Any = None,
    write_xla_metrics: bool = False,
) -> None:
    """Write numbers by name; what the process did as well, if `write_xla_metrics`."""
    if summary_writer is None:
        return
    for name, value in (dict_to_write or {}).items():
        summary_writer.add_scalar(name, value, global_step)
    if write_xla_metrics:
        from torch_xla.debug import metrics

        for name in metrics.counter_names():
            summary_writer.add_scalar(name, metrics.counter_value(name), global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """End the writer, if there is one."""
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()
