"""Each host of a TPU pod finds out which run it is part of, by its variables or by its machine's metadata."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from torch_pjrt.errors import SettingError
from torch_pjrt.plugin import Processes
from torch_pjrt_tpu import plugin, pod

NOTHING: Mapping[str, str] = {}


def of(metadata: Mapping[str, str] = NOTHING, /, **environment: str) -> Processes | None:
    return pod.processes(environment, metadata.get)


def test_hosts_of_a_slice_are_the_processes() -> None:
    names = "w-0.job,w-1.job,w-2.job,w-3.job"

    assert of(TPU_WORKER_HOSTNAMES=names, TPU_WORKER_ID="2") == Processes("w-0.job:8482", 4, 2)
    assert of(
        TPU_WORKER_HOSTNAMES=names, TPU_WORKER_ID="0", JAX_COORDINATOR_PORT="9000"
    ) == Processes("w-0.job:9000", 4, 0)


def test_slice_of_one_host_is_no_run() -> None:
    assert of(TPU_WORKER_HOSTNAMES="localhost", TPU_WORKER_ID="0") is None
    assert of(TPU_WORKER_HOSTNAMES="localhost") is None
    assert of() is None


def test_several_processes_of_a_host_have_addresses() -> None:
    addresses = "localhost:8476,localhost:8477"

    assert of(
        TPU_PROCESS_ADDRESSES=addresses, CLOUD_TPU_TASK_ID="1", TPU_WORKER_ID="0"
    ) == Processes("localhost:8482", 2, 1)
    assert of(TPU_PROCESS_ADDRESSES="[fd00::1]:8476,[fd00::2]:8476", TPU_WORKER_ID="1") == (
        Processes("[fd00::1]:8482", 2, 1)
    )


def test_slices_count_their_hosts_one_after_the_other() -> None:
    variables = {
        "TPU_WORKER_HOSTNAMES": "a-0,a-1",
        "TPU_WORKER_ID": "1",
        "MEGASCALE_NUM_SLICES": "3",
        "MEGASCALE_SLICE_ID": "2",
        "MEGASCALE_COORDINATOR_ADDRESS": "job-slice-0-0.job:8080",
    }

    assert of(**variables) == Processes("job-slice-0-0.job:8482", 6, 5)
    with pytest.raises(SettingError, match=r"expected: MEGASCALE_COORDINATOR_ADDRESS too"):
        of(**{**variables, "MEGASCALE_COORDINATOR_ADDRESS": ""})


def test_variables_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(SettingError, match="expected: TPU_WORKER_ID too"):
        of(TPU_WORKER_HOSTNAMES="a,b")
    with pytest.raises(SettingError, match="from 0 to 1"):
        of(TPU_WORKER_HOSTNAMES="a,b", TPU_WORKER_ID="2")
    with pytest.raises(SettingError, match="TPU_WORKER_ID is a number"):
        of(TPU_WORKER_HOSTNAMES="a,b", TPU_WORKER_ID="first")


def test_metadata_of_the_machine_says_it_where_no_variable_does() -> None:
    new = {"agent-worker-number": "1", "worker-network-endpoints": "10.0.0.2,10.0.0.3"}
    old = {**new, "worker-network-endpoints": "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3"}
    slices = "MEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
    slices += "MEGASCALE_COORDINATOR_ADDRESS: '10.0.9.9:8080'\n"

    assert of(new) == of(old) == Processes("10.0.0.2:8482", 2, 1)
    assert of({**new, "tpu-env": slices}) == Processes("10.0.9.9:8482", 4, 3)
    assert of(new, TPU_PROCESS_BOUNDS="1,1,1") is None
    assert of(new, TPU_SKIP_MDS_QUERY="1") is None
    assert of(new, TPU_WORKER_HOSTNAMES="localhost", TPU_WORKER_ID="0") is None


@pytest.fixture
def server() -> Iterator[str]:
    """A metadata server that knows one attribute, and answers those alone who ask as they should."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/computeMetadata/v1/instance/attributes/agent-worker-number"
            asked_well = self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if known and asked_well else 404)
            self.end_headers()
            self.wfile.write(b"3" if known and asked_well else b"none")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.05,))
        thread.start()
        yield f"127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


def test_metadata_server_is_asked(server: str) -> None:
    assert pod.attribute("agent-worker-number", {"GCE_METADATA_IP": server}) == "3"
    assert pod.attribute("tpu-env", {"GCE_METADATA_IP": server}) is None
    assert pod.attribute("tpu-env", {"GCE_METADATA_IP": "127.0.0.1:1"}) is None


def test_device_says_what_its_pod_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    assert plugin.Tpu().processes() == Processes("a:8482", 2, 1)

    for name, value in (
        ("COORDINATOR_ADDRESS", "c:1"),
        ("NUM_PROCESSES", "3"),
        ("PROCESS_ID", "2"),
    ):
        monkeypatch.setenv(f"JAX_{name}", value)
    assert plugin.Tpu().processes() == Processes("c:1", 3, 2)
