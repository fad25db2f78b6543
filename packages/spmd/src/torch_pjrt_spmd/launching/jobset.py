"""Manifests for Kubernetes: a JobSet of pods that are one run. `commands/manifest.py` prints them.

    TPU    one pod a host of a slice, one job a slice; pods find each other by the variables of the slice
    GPU    one pod a node, with torchrun in it; the first pod is where they meet

Where one pod fails, the JobSet starts all of them again, as often as `max_restarts` says: a program then goes
on from its last checkpoint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_pjrt.errors import SettingError

# What nodes of GKE are called by, and how many dimensions a slice has.
_TPUS = {
    "v4": ("tpu-v4-podslice", 3),
    "v5e": ("tpu-v5-lite-podslice", 2),
    "v5p": ("tpu-v5p-slice", 3),
    "v6e": ("tpu-v6e-slice", 2),
    "7x": ("tpu7x", 3),
}
TPUS = tuple(_TPUS)

_PORT = 29500  # where torchrun's processes meet: PyTorch's usual one
_LONGEST_NAME = 50  # names of pods, which add to it, have 63 letters at most


@dataclass(frozen=True, slots=True)
class Job:
    """What both kinds of job say.

    command       what each process runs: `("python", "train.py")`.
    environment   variables of its containers.
    max_restarts  how often all pods are started again after one has failed.
    queue         of Kueue; None without it.
    """

    name: str
    image: str
    command: Sequence[str]
    namespace: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int = 0
    queue: str | None = None
    service_account: str | None = None

    def __post_init__(self) -> None:
        is_name = re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", self.name)
        if not is_name or len(self.name) > _LONGEST_NAME:
            raise SettingError(
                "The name of a job becomes part of the names of its pods.",
                saw=repr(self.name),
                expected=f"small letters, digits and '-', a letter first, {_LONGEST_NAME} at most",
            )
        if not self.command:
            raise SettingError("A job has a command.", hint="end with `-- python train.py`")
        if self.max_restarts < 0:
            raise SettingError("A job is restarted 0 times or more.", saw=str(self.max_restarts))


def tpu_manifest(
    job: Job, tpu: str, topology: str, *, n_slices: int = 1, chips_per_host: int | None = None
) -> dict[str, Any]:
    """A JobSet on slices of TPUs, one process a host.

    tpu             a key of `TPUS`.
    topology        of one slice: `4x8`, or `4x4x4` for v4, v5p and 7x.
    chips_per_host  4 unless given, and for slices of fewer chips all of them.

    Raises `SettingError` for a topology that the hardware does not have.
    """
    if tpu not in _TPUS:
        raise SettingError(f"There is no TPU `{tpu}`.", expected=", ".join(TPUS))
    label, n_dims = _TPUS[tpu]
    if not re.fullmatch(r"[1-9]\d*" + r"x[1-9]\d*" * (n_dims - 1), topology):
        example = "x".join("4" * n_dims)
        raise SettingError(
            f"A slice of {tpu} has {n_dims} dimensions.", saw=topology, expected=f"{example}, say"
        )
    n_chips = math.prod(int(part) for part in topology.split("x"))
    per_host = chips_per_host or min(4, n_chips)
    if n_chips % per_host or n_slices < 1:
        raise SettingError(
            "A slice has whole hosts, and a job one slice at least.",
            saw=f"{n_chips} chips, {per_host} a host, {n_slices} slices",
        )
    n_hosts = n_chips // per_host
    variables: list[dict[str, Any]] = []
    if n_slices > 1:
        job_number = "metadata.annotations['jobset.sigs.k8s.io/job-index']"
        variables = [
            {"name": "MEGASCALE_NUM_SLICES", "value": str(n_slices)},
            {"name": "MEGASCALE_SLICE_ID", "valueFrom": {"fieldRef": {"fieldPath": job_number}}},
            {"name": "MEGASCALE_COORDINATOR_ADDRESS", "value": _first_pod(job, "slice")},
        ]
    container = {
        **_container(job, job.command, variables),
        # Of the coordinator of slices, of a slice's hosts, of JAX's coordinator.
        "ports": [{"containerPort": port} for port in (8080, 8471, 8482)],
        "resources": _all_of("google.com/tpu", per_host),
    }
    nodes = {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    annotations = {}
    if n_hosts * n_slices > 1:  # each slice has a node pool of its own
        annotations = {
            "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
        }
    pods = _pods(job, container, nodes)
    return _jobset(job, annotations, _jobs("slice", n_slices, n_hosts, pods))


def gpu_manifest(
    job: Job,
    n_nodes: int,
    gpus_per_node: int,
    *,
    accelerator: str | None = None,
    processes_per_node: int | None = None,
) -> dict[str, Any]:
    """A JobSet on nodes with GPUs, whose processes torchrun starts.

    job.command         begins with `python`: the rest is what torchrun is given.
    accelerator         the label of GKE's nodes, `nvidia-h100-80gb`; None: any node with GPUs.
    processes_per_node  one a GPU unless given; 1 for programs that spread tensors over all chips.
    """
    if n_nodes < 1 or gpus_per_node < 1:
        raise SettingError(
            "A job has one node at least, and a node one GPU.",
            saw=f"{n_nodes} nodes with {gpus_per_node} GPUs each",
        )
    if job.command[0] not in ("python", "python3") or len(job.command) < 2:
        raise SettingError(
            "torchrun starts a program in Python.",
            saw=" ".join(job.command),
            expected="python train.py, or python -m package.train",
        )
    torchrun = [job.command[0], "-m", "torch.distributed.run"]
    torchrun += ["--nnodes", str(n_nodes), "--node-rank", "$(NODE_RANK)"]
    torchrun += ["--nproc-per-node", str(processes_per_node or gpus_per_node)]
    torchrun += ["--master-addr", _first_pod(job, "node"), "--master-port", str(_PORT)]
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    number = {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}}
    container = {
        **_container(job, [*torchrun, *job.command[1:]], [number]),
        "ports": [{"containerPort": _PORT}],
        "resources": _all_of("nvidia.com/gpu", gpus_per_node),
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    nodes = {"cloud.google.com/gke-accelerator": accelerator} if accelerator else {}
    pods = _pods(job, container, nodes)
    # Data loaders and NCCL pass data there; Kubernetes gives 64 MB otherwise.
    pods["volumes"] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    return _jobset(job, {}, _jobs("node", 1, n_nodes, pods))


def _first_pod(job: Job, kind: str) -> str:
    """The name by which a JobSet's pods reach the first of them."""
    return f"{job.name}-{kind}-0-0.{job.name}"


def _container(
    job: Job, command: Sequence[str], variables: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    own = [{"name": name, "value": value} for name, value in job.environment.items()]
    environment = {"env": [*variables, *own]} if variables or own else {}
    return {"name": "main", "image": job.image, "command": list(command), **environment}


def _all_of(resource: str, count: int) -> dict[str, Any]:
    return {kind: {resource: str(count)} for kind in ("requests", "limits")}


def _pods(job: Job, container: dict[str, Any], nodes: Mapping[str, str]) -> dict[str, Any]:
    account = {"serviceAccountName": job.service_account} if job.service_account else {}
    chosen = {"nodeSelector": dict(nodes)} if nodes else {}
    return {"restartPolicy": "Never", **account, **chosen, "containers": [container]}


def _jobs(kind: str, count: int, n_pods: int, pods: dict[str, Any]) -> dict[str, Any]:
    """Jobs that are all alike, each of pods that have numbers and must all end well."""
    numbered = {"completionMode": "Indexed", "parallelism": n_pods, "completions": n_pods}
    spec = {**numbered, "backoffLimit": 0, "template": {"spec": pods}}
    return {"name": kind, "replicas": count, "template": {"spec": spec}}


def _jobset(job: Job, annotations: Mapping[str, str], jobs: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {"name": job.name}
    if job.namespace:
        about["namespace"] = job.namespace
    if job.queue:
        about["labels"] = {"kueue.x-k8s.io/queue-name": job.queue}
    if annotations:
        about["annotations"] = dict(annotations)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": about,
        "spec": {
            "failurePolicy": {"maxRestarts": job.max_restarts},
            # The first pod must be found before it is ready.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [jobs],
        },
    }
