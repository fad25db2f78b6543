"""Manifests are what Kubernetes and JobSet take, and name pods as these are called."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warm
from torch_pjrt.errors import SettingError
from torch_pjrt_spmd.commands import main
from torch_pjrt_spmd.launching.jobset import TPUS, Job, gpu_manifest, tpu_manifest

COMMON = ["--image", "images/gpt:1", "--max-restarts", "3", "--env", "LR=0.1=x", "--queue", "q"]
COMMAND = ["--", "python", "train.py", "--steps", "10"]
LINES = {
    "TPU": ["tpu", "gpt", "--tpu", "v5e", "--topology", "4x8"],
    "one host": ["tpu", "gpt", "--tpu", "v6e", "--topology", "2x2"],
    "slices": ["tpu", "gpt", "--tpu", "v5p", "--topology", "2x2x4", "--slices", "2"],
    "GPU": ["gpu", "gpt", "--nodes", "4", "--gpus", "8", "--accelerator", "nvidia-h100-80gb"],
}


def printed(kind: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["manifest", *LINES[kind], *COMMON, "--namespace", "ml", *COMMAND]) == 0
    return capsys.readouterr().out


def parsed(kind: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load(printed(kind, capsys))


def pods_of(manifest: dict[str, Any]) -> dict[str, Any]:
    [jobs] = manifest["spec"]["replicatedJobs"]
    return jobs["template"]["spec"]["template"]["spec"]


def lost(said: Any, read: Any, path: str = "") -> Iterator[str]:
    """What is not read as it was said: a field that JobSet does not know, say. Defaults may be added."""
    if isinstance(said, dict) and isinstance(read, dict):
        for key, value in said.items():
            yield from lost(value, read.get(key), f"{path}.{key}")
    elif isinstance(said, list) and isinstance(read, list) and len(said) == len(read):
        for number, value in enumerate(said):
            yield from lost(value, read[number], f"{path}[{number}]")
    elif said != read:
        yield path


@pytest.mark.parametrize("kind", LINES)
def test_manifest_is_what_the_published_schemas_of_jobset_and_kubernetes_take(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = (
        "kubeflow-trainer-api and kubernetes-validate, which have the schemas, are not installed"
    )
    models = pytest.importorskip("kubeflow_trainer_api.models", reason=reason)
    kubernetes = pytest.importorskip("kubernetes_validate", reason=reason)
    manifest = parsed(kind, capsys)

    read = models.JobsetV1alpha2JobSet.from_dict(manifest)
    assert list(lost(manifest, read.to_dict())) == []
    for jobs in manifest["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gpt"}}
        kubernetes.validate({**job, **jobs["template"]}, "1.37", strict=True)


@pytest.mark.parametrize("kind", ["maxRestart", "replicas"])
def test_the_schemas_refuse_what_is_wrong(kind: str) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="it is not installed")
    manifest = gpu_manifest(Job("gpt", "images/gpt:1", ["python", "train.py"]), 2, 8)
    if kind == "replicas":
        manifest["spec"]["replicatedJobs"][0]["replicas"] = "two"
        with pytest.raises(ValueError, match="replicas"):
            models.JobsetV1alpha2JobSet.from_dict(manifest)
    else:
        manifest["spec"]["failurePolicy"] = {"maxRestart": 3}
        read = models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict()
        assert list(lost(manifest, read)) == [".spec.failurePolicy.maxRestart"]


def test_slice_has_a_pod_a_host() -> None:
    job = Job("gpt", "images/gpt:1", ["python", "train.py"], environment={"LR": "0.1"})

    manifest = tpu_manifest(job, "v5e", "4x8")

    assert manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    [jobs] = manifest["spec"]["replicatedJobs"]
    spec = jobs["template"]["spec"]
    assert (jobs["replicas"], spec["parallelism"], spec["completions"]) == (1, 8, 8)
    assert (spec["completionMode"], spec["backoffLimit"]) == ("Indexed", 0)
    pods = pods_of(manifest)
    assert pods["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x8",
    }
    [container] = pods["containers"]
    assert container["command"] == ["python", "train.py"]
    assert container["env"] == [{"name": "LR", "value": "0.1"}]
    assert container["resources"]["limits"] == {"google.com/tpu": "4"}


def test_slices_are_told_who_they_are() -> None:
    manifest = tpu_manifest(Job("gpt", "i", ["python", "t.py"]), "v4", "2x2x4", n_slices=3)

    assert manifest["spec"]["replicatedJobs"][0]["replicas"] == 3
    [container] = pods_of(manifest)["containers"]
    told = {one["name"]: one for one in container["env"]}
    assert told["MEGASCALE_NUM_SLICES"]["value"] == "3"
    assert told["MEGASCALE_COORDINATOR_ADDRESS"]["value"] == "gpt-slice-0-0.gpt"
    path = told["MEGASCALE_SLICE_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['jobset.sigs.k8s.io/job-index']"


def test_node_with_gpus_runs_torchrun(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = parsed("GPU", capsys)

    [container] = pods_of(manifest)["containers"]
    text = " ".join(container["command"])
    assert text.startswith("python -m torch.distributed.run --nnodes 4 --node-rank $(NODE_RANK)")
    assert "--nproc-per-node 8 --master-addr gpt-node-0-0.gpt" in text
    assert text.endswith("train.py --steps 10")
    assert {"name": "LR", "value": "0.1=x"} in container["env"]
    assert manifest["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q"}
    assert manifest["spec"]["failurePolicy"] == {"maxRestarts": 3}


def test_torchrun_takes_the_options_of_a_manifest() -> None:
    from torch.distributed.run import get_args_parser

    manifest = gpu_manifest(Job("gpt", "i", ["python", "-m", "train", "-x"]), 2, 8)
    command = pods_of(manifest)["containers"][0]["command"]

    options = get_args_parser().parse_args(
        [one.replace("$(NODE_RANK)", "1") for one in command[3:]]
    )

    assert (options.nnodes, options.nproc_per_node, options.node_rank) == ("2", "8", 1)
    assert options.module and options.training_script == "train"
    assert options.training_script_args == ["-x"]


def test_what_no_cluster_would_take_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job("gpt", "i", ["python", "train.py"])
    with pytest.raises(SettingError, match="3 dimensions"):
        tpu_manifest(job, "v4", "4x4")
    with pytest.raises(SettingError, match=", ".join(TPUS)):
        tpu_manifest(job, "v9", "4x4")
    with pytest.raises(SettingError, match="whole hosts"):
        tpu_manifest(job, "v5e", "2x3")
    with pytest.raises(SettingError, match="'-', a letter first"):
        Job("GPT_1", "i", ["python"])
    with pytest.raises(SettingError, match="in Python"):
        gpu_manifest(Job("gpt", "i", ["bash", "x.sh"]), 1, 8)
    assert main(["manifest", *LINES["GPU"], "--image", "i", "--env", "X", *COMMAND]) == 2
    assert "--env takes NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("kind", LINES)
def test_yaml_says_what_the_dictionary_does(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job("gpt", "images/gpt:1", ["python", 'a "b": #c\n', "on", "1"], queue="q")
    from torch_pjrt_spmd.commands.manifest import as_yaml

    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    manifest = gpu_manifest(job, 2, 8)

    assert yaml.safe_load("\n".join(as_yaml(manifest))) == manifest
    assert json.dumps(parsed(kind, capsys))


def test_command_line_is_there() -> None:
    arguments = ["-m", "torch_pjrt_spmd", "manifest", *LINES["TPU"], *COMMON, *COMMAND]

    done = warm.run(arguments, os.environ)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('apiVersion: "jobset.x-k8s.io/v1alpha2"\n')


def test_the_page_shows_what_its_first_command_writes(capsys: pytest.CaptureFixture[str]):
    page = (Path(__file__).parents[4] / "docs/launching.md").read_text()
    lines = page[page.index("python -m torch_pjrt_spmd manifest tpu") :]
    command = lines[: lines.index(">")].replace("\\\n", " ").split()[3:]

    assert main(command) == 0

    assert capsys.readouterr().out == page.split("```yaml\n")[1].split("```")[0]
