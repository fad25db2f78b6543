"""`python -m torch_pjrt_kernels bench` and `tune`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

_TUNE, _LOSS = "1x4x4096x64", "4096x2048x32000"
_RAGGED, _PAGED = "64x4x4096x8:2x64x16", "4x4x4096x8:2x64x16"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torch_pjrt_kernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser("bench", help="time each kernel against PyTorch")
    bench.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    bench.add_argument("--op", nargs="+", help="only these functions")
    tune = commands.add_parser("tune", help="find sizes of blocks, and keep them for this device")
    tune.add_argument("--op", choices=["attention", "splash", "loss", "ragged", "paged"],
                      default="attention",
                      help="attention in blocks, JAX's kernel for TPUs, in bfloat16, the loss behind a "
                           "linear layer, or attention to a cache in pages")  # fmt: skip
    tune.add_argument(
        "--shapes", nargs="+",
        help="batch x heads x length x width, as in 1x4x4096x64; 1x8:2x4096x64 has 2 key heads; of a "
             "loss tokens x width x classes, as in 4096x2048x32000; of pages tokens x sequences x positions "
             "x heads x width x page size, as in 64x4x4096x8:2x64x16",
    )  # fmt: skip
    tune.add_argument("--dtype", default="float32")
    tune.add_argument("--full", action="store_true", help="attention that is not causal")
    tune.add_argument("--dry-run", action="store_true", help="print, and keep nothing")
    for command in (bench, tune):
        command.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.command == "bench":
        return _bench(options)
    by_op = {"loss": _tune_loss, "ragged": _tune_pages, "paged": _tune_pages}
    return by_op.get(options.op, _tune)(options, parser)


def _bench(options: argparse.Namespace) -> int:
    from torch_pjrt_kernels.tuning.bench import timed
    from torch_pjrt_kernels.tuning.by_tokamax import is_installed

    headings = f"{'function':<22}{'length':>8}{'kernel, ms':>12}{'of plain':>10}{'of CPU':>8}"
    print(headings + (f"{'of tokamax':>12}" if is_installed() else ""))
    for name, length, took in timed(options.lengths, options.op, options.repetitions):
        own = took["kernel"]
        ratios = f"{own / took['plain']:>10.2f}{own / took['CPU']:>8.2f}"
        if "tokamax" in took:
            ratios += f"{own / took['tokamax']:>12.2f}"
        print(f"{name:<22}{length:>8}{own * 1e3:>12.1f}{ratios}", flush=True)
    print("plain: PyTorch's operators on the device. CPU: PyTorch's own, there.")
    return 0


def _tune(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from torch_pjrt_kernels.attention.choice import Problem
    from torch_pjrt_kernels.tuning.tune import tuned, tuned_on_tpu

    of_splash = options.op == "splash"
    dtype = "bfloat16" if of_splash else options.dtype
    problems = []
    for text in options.shapes or [_TUNE]:
        try:
            batch, heads, length, width = text.split("x")
            n_heads, _, key_heads = heads.partition(":")
            b, h, n, w = int(batch), int(n_heads), int(length), int(width)
            sizes = (b, h, int(key_heads or n_heads), n, n, w, w)
            problems.append(Problem(*sizes, dtype, is_causal=not options.full))
        except ValueError:
            parser.error(f"{text!r} is no shape: it takes one like {_TUNE}")
    found = {}
    timed = tuned_on_tpu if of_splash else tuned
    for entry, best, took in timed(problems, repetitions=options.repetitions):
        found[entry] = best
        _print_timed(entry, best, took, "{} queries and {} keys")
    if len(found) < len(problems):
        print(
            "The kernel does not take some shapes, or the device is no TPU: there is nothing to tune."
            if of_splash
            else "Shapes that are short are not computed in blocks: there is nothing to tune."
        )
    return _keep(found, options)


def _tune_loss(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from torch_pjrt_kernels.tuning.tune_loss import Layer, tuned_loss

    layers = []
    for text in options.shapes or [_LOSS]:
        try:
            tokens, width, classes = map(int, text.split("x"))
        except ValueError:
            parser.error(f"{text!r} is no shape: it takes one like {_LOSS}")
        layers.append(Layer(tokens, width, classes, options.dtype))
    found = {}
    for layer, (entry, best, took) in zip(
        layers, tuned_loss(layers, repetitions=options.repetitions), strict=True
    ):
        found[entry] = (best, layer.tokens)
        _print_timed(entry, (best,), {(n,): s for n, s in took.items()}, "{} classes at a time")
    return _keep(found, options)


def _tune_pages(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from torch_pjrt_kernels.paged.measured import Serving
    from torch_pjrt_kernels.tuning.tune_pages import tuned_pages

    example, calls = _PAGED if options.op == "paged" else _RAGGED, []
    for text in options.shapes or [example]:
        try:
            tokens, sequences, positions, heads, width, page = text.split("x")
            n_heads, _, key_heads = heads.partition(":")
            sizes = (tokens, sequences, positions, n_heads, key_heads or n_heads, width, page)
            call = Serving(*map(int, sizes), dtype=options.dtype)
        except ValueError:
            parser.error(f"{text!r} is no shape: it takes one like {example}")
        if call.tokens < call.sequences or (options.op == "paged" and call.tokens % call.sequences):
            each = "as many for each" if options.op == "paged" else "one for each at least"
            parser.error(f"{call.tokens} tokens of {call.sequences} sequences: it takes {each}")
        calls.append(call)
    found = {}
    for entry, best, took in tuned_pages(options.op, calls, repetitions=options.repetitions):
        found[entry] = best
        unit = "pages" if " ragged kernel " in entry else "positions"
        _print_timed(entry, best, took, f"{{}} queries and {{}} {unit}")
    return _keep(found, options)


def _print_timed(
    entry: str, best: tuple[int, ...], took: Mapping[tuple[int, ...], float], described: str
) -> None:
    """What was fastest of a call, in milliseconds and beside the usual, which is the first."""
    usual = next(iter(took))
    print(
        f"{entry}: {described.format(*best)}, {took[best] * 1e3:.1f} ms "
        f"({took[best] / took[usual]:.2f} of {' and '.join(map(str, usual))})",
        flush=True,
    )


def _keep(found: dict[str, Any], options: argparse.Namespace) -> int:
    from torch_pjrt_kernels.table import keep

    if found and not options.dry_run:
        print(f"Kept in {keep(found)}. Programs that are compiled already stay as they are.")
    return 0
