"""The hosts of a TPU pod that run one program, and which of them this is.

A slice's hosts know each other by variables, where Kubernetes has started them (GKE sets these), or by the
metadata of their virtual machines:

    TPU_WORKER_HOSTNAMES=host,host,...  TPU_WORKER_ID=0          the hosts of the slice, one process on each
    TPU_PROCESS_ADDRESSES=host:port,...  CLOUD_TPU_TASK_ID=0     its processes, where a host may have several
    MEGASCALE_NUM_SLICES=2  MEGASCALE_SLICE_ID=0  MEGASCALE_COORDINATOR_ADDRESS=host[:port]    several slices
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from urllib.request import Request, urlopen

from torch_pjrt.errors import SettingError
from torch_pjrt.plugin import Processes

# Where the first process serves JAX's coordinator; JAX_COORDINATOR_PORT says otherwise, as for JAX itself.
_PORT = "8482"
_METADATA_SECONDS = 3.0

_SLICES = ("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS")


def processes(
    environment: Mapping[str, str] = os.environ,
    metadata: Callable[[str], str | None] | None = None,
) -> Processes | None:
    """The run that this host is part of; None for a slice of one host.

    metadata   an attribute of this virtual machine by its name; None where there is none.

    Raises `SettingError` where the variables contradict each other, or some are missing.
    """
    told = _by_variables(environment) or _by_metadata(environment, metadata or attribute)
    if told is None:
        return None
    hosts, index, slices = told
    n_slices = _number("MEGASCALE_NUM_SLICES", slices.get("MEGASCALE_NUM_SLICES") or "1")
    first = hosts[0]
    if n_slices > 1:
        if missing := [name for name in _SLICES if not slices.get(name)]:
            raise SettingError(
                "The variables of a run on several TPU slices are incomplete.",
                saw=f"MEGASCALE_NUM_SLICES={n_slices}",
                expected=f"{' and '.join(missing)} too",
            )
        index += _number("MEGASCALE_SLICE_ID", slices["MEGASCALE_SLICE_ID"]) * len(hosts)
        first = slices["MEGASCALE_COORDINATOR_ADDRESS"]
    count = len(hosts) * n_slices
    if count == 1:
        return None
    port = environment.get("JAX_COORDINATOR_PORT") or _PORT
    return Processes(f"{_without_port(first)}:{port}", count, index)


def _by_variables(
    environment: Mapping[str, str],
) -> tuple[list[str], int, Mapping[str, str]] | None:
    """The processes of this slice, which one this is, and where slices are looked up."""
    for names, numbers in (
        ("TPU_PROCESS_ADDRESSES", ("CLOUD_TPU_TASK_ID", "TPU_WORKER_ID")),
        ("TPU_WORKER_HOSTNAMES", ("TPU_WORKER_ID",)),
    ):
        hosts = _listed(environment.get(names, ""))
        if not hosts:
            continue
        number = next((name for name in numbers if environment.get(name)), None)
        if number is None and len(hosts) > 1:
            raise SettingError(
                "The variables of a TPU slice are incomplete.",
                saw=f"{names}={environment[names]}",
                expected=f"{numbers[0]} too",
            )
        index = _number(number, environment[number]) if number else 0
        if index >= len(hosts):
            raise SettingError(
                "A process of a TPU slice has a number that there is no process of.",
                saw=f"{number}={index}, {names}={environment[names]}",
                expected=f"a number from 0 to {len(hosts) - 1}",
            )
        return hosts, index, environment
    return None


def _by_metadata(
    environment: Mapping[str, str], metadata: Callable[[str], str | None]
) -> tuple[list[str], int, Mapping[str, str]] | None:
    """The same, of a virtual machine; None where a user has taken chips out of the slice, and elsewhere."""
    if any(
        environment.get(name)
        for name in ("TPU_SKIP_MDS_QUERY", "TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS")
    ):
        return None
    number = metadata("agent-worker-number")
    # `host,host`, or `name:number:address,...` of older machines.
    told = _listed(metadata("worker-network-endpoints") or "") if number else []
    if number is None or not told:
        return None
    hosts = [one.split(":")[2] if one.count(":") == 2 else one for one in told]
    lines = (metadata("tpu-env") or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    slices = {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}
    slices.update((name, environment[name]) for name in _SLICES if environment.get(name))
    return hosts, _number("agent-worker-number", number), slices


def attribute(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """An attribute of this virtual machine, of the server that answers on each; None where none does."""
    server = environment.get("GCE_METADATA_IP") or "metadata.google.internal"
    url = f"http://{server}/computeMetadata/v1/instance/attributes/{name}"
    request = Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urlopen(request, timeout=_METADATA_SECONDS) as answer:
            return answer.read().decode()
    except OSError:  # no such attribute (404), no such server
        return None


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _without_port(address: str) -> str:
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and (":" not in host or host.endswith("]")) else address


def _number(name: str, text: str) -> int:
    if not text.strip().isdigit():
        raise SettingError(f"{name} is a number.", saw=json.dumps(text))
    return int(text)
