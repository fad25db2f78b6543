"""The command `manifest`: a JobSet for Kubernetes on the standard output.

python -m torch_pjrt_spmd manifest tpu NAME --image IMAGE --tpu v5e --topology 4x8 -- python train.py
python -m torch_pjrt_spmd manifest gpu NAME --image IMAGE --nodes 4 --gpus 8 -- python train.py
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from torch_pjrt.errors import SettingError
from torch_pjrt_spmd.launching.jobset import TPUS, Job, gpu_manifest, tpu_manifest

WORDS = (
    "print the manifest of a job for Kubernetes: a JobSet on slices of TPUs, or on nodes with GPUs"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    tpu = kinds.add_parser("tpu", help="one pod a host of a slice", description=WORDS)
    tpu.add_argument("--tpu", required=True, choices=TPUS)
    tpu.add_argument("--topology", required=True, help="of one slice: 4x8, or 4x4x4")
    tpu.add_argument("--slices", type=int, default=1, metavar="N")
    tpu.add_argument("--chips-per-host", type=int, metavar="N", help="4 unless given")
    tpu.set_defaults(manifest=_tpu)
    gpu = kinds.add_parser("gpu", help="one pod a node, with torchrun in it", description=WORDS)
    gpu.add_argument("--nodes", type=int, default=1, metavar="N")
    gpu.add_argument("--gpus", type=int, required=True, metavar="N", help="of each node")
    gpu.add_argument("--accelerator", metavar="LABEL", help="of GKE's nodes: nvidia-h100-80gb")
    gpu.add_argument(
        "--processes", type=int, metavar="N", help="of each node; one a GPU unless given"
    )
    gpu.set_defaults(manifest=_gpu)
    for kind in (tpu, gpu):
        kind.add_argument("name", help="of the job")
        kind.add_argument("--image", required=True, help="with PyTorch, torch-pjrt and the program")
        kind.add_argument("--namespace")
        kind.add_argument("--max-restarts", type=int, default=0, metavar="N")
        kind.add_argument("--queue", help="of Kueue")
        kind.add_argument("--service-account", metavar="NAME")
        kind.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
        kind.add_argument("command_line", nargs="+", metavar="-- COMMAND", help="python train.py")


def run(options: argparse.Namespace) -> int:
    print("\n".join(as_yaml(options.manifest(options))))
    return 0


def _tpu(options: argparse.Namespace) -> dict[str, Any]:
    return tpu_manifest(
        _job(options),
        options.tpu,
        options.topology,
        n_slices=options.slices,
        chips_per_host=options.chips_per_host,
    )


def _gpu(options: argparse.Namespace) -> dict[str, Any]:
    return gpu_manifest(
        _job(options),
        options.nodes,
        options.gpus,
        accelerator=options.accelerator,
        processes_per_node=options.processes,
    )


def _job(options: argparse.Namespace) -> Job:
    if wrong := [one for one in options.env if "=" not in one or one.startswith("=")]:
        raise SettingError("--env takes NAME=VALUE.", saw=", ".join(wrong))
    return Job(
        name=options.name,
        image=options.image,
        command=options.command_line,
        namespace=options.namespace,
        environment=dict(one.split("=", 1) for one in options.env),
        max_restarts=options.max_restarts,
        queue=options.queue,
        service_account=options.service_account,
    )


def as_yaml(value: Any, indent: str = "") -> Iterator[str]:
    """The lines of a dictionary or a list in YAML, with words and numbers as in JSON, which YAML takes."""
    pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    for key, inner in pairs:
        head = f"{indent}-" if key is None else f"{indent}{key}:"
        if not isinstance(inner, (dict, list)) or not inner:
            yield f"{head} {json.dumps(inner)}"
        elif key is not None:
            yield head
            yield from as_yaml(inner, indent + "  ")
        else:
            first, *rest = as_yaml(inner, indent + "  ")
            yield f"{indent}- {first.strip()}"
            yield from rest
