"""What is written for others is judged by their own classes and schemas, where they are installed.

The test extra has the classes of JobSet and TrainJob; the others are large, and bring versions of their own.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from planner.launch.bundle import bundle
from planner.launch.entries import ENTRIES
from planner.plan import Plan
from planner.search.given_layout import plan_of_layout
from tests.unit.planner.engines.priced import priced
from tests.unit.planner.launch.test_bundle import environment, plan_for, written
from tests.unit.planner.launch.test_node_order import two_racks
from topology.catalog import machine_cluster

PODS = [engine for engine in ENTRIES if not ENTRIES[engine].lists_hosts]
CASES = [(engine, False) for engine in PODS] + [("megatron", True)]


def manifest(engine: str, launcher: str, file: str, *, racks: bool = False) -> dict[str, Any]:
    """What a launcher is given, as a reader of YAML sees it."""
    plan = two_racks() if racks else plan_for(engine)
    found: dict[str, Any] = yaml.safe_load(bundle(plan, engine, launcher, nearest=racks)[0][file])
    return found


@pytest.mark.parametrize(("engine", "racks"), CASES)
@pytest.mark.parametrize(
    ("launcher", "file", "kind"),
    [
        ("kubernetes", "jobset.yaml", "JobsetV1alpha2JobSet"),
        ("kubeflow", "trainjob.yaml", "TrainerV1alpha1TrainJob"),
    ],
)
def test_kubeflow_s_classes_take_every_word(
    engine: str, racks: bool, launcher: str, file: str, kind: str
) -> None:
    """Classes generated from the resources: what they read and write again is what was written."""
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed"
    )
    written = manifest(engine, launcher, file, racks=racks)
    assert json.loads(getattr(models, kind).from_dict(written).to_json()) == written


@pytest.mark.parametrize(("engine", "racks"), CASES)
def test_jobs_and_pods_keep_the_schema_of_kubernetes(engine: str, racks: bool) -> None:
    """Strictly: a word that it does not know is an error."""
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    jobset = manifest(engine, "kubernetes", "jobset.yaml", racks=racks)
    spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": jobset["metadata"], "spec": spec}
    roles = manifest(engine, "pytorchjob", "pytorchjob.yaml", racks=racks)["spec"]["pytorchReplicaSpecs"]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower()}, **one["template"]}
        for role, one in roles.items()
    ]
    for one in (job, *pods):
        schemas.validate(one, schemas.latest_version(), strict=True)
    pods[0]["spec"]["containers"][0]["comand"] = []
    with pytest.raises(schemas.ValidationError):
        schemas.validate(pods[0], schemas.latest_version(), strict=True)


@pytest.mark.parametrize("engine", PODS)
def test_the_training_operator_s_classes_take_a_pytorchjob(engine: str) -> None:
    """Every required member is there, and none is lost."""
    training = pytest.importorskip("kubeflow.training.models", reason="kubeflow-training is not installed")
    client = pytest.importorskip("kubernetes.client", reason="kubernetes is not installed")
    for name in vars(training):
        if name.startswith("KubeflowOrg"):
            setattr(client.models, name, getattr(training, name))
    written = manifest(engine, "pytorchjob", "pytorchjob.yaml")
    answer = type("Answer", (), {"data": json.dumps(written)})()
    api = client.ApiClient()
    assert api.sanitize_for_serialization(api.deserialize(answer, "KubeflowOrgV1PyTorchJob")) == written


def on_machine(name: str) -> Plan:
    """The same question for sixteen GPUs of a cloud's machine."""
    request = replace(plan_for("deepspeed").request, cluster=machine_cluster(name, 16).spec)
    found = plan_of_layout(request, load_calibration())
    assert isinstance(found, Plan), found
    return found


@pytest.mark.parametrize(
    "machine", ["aws-p4d.24xlarge", "aws-p5.48xlarge", "aws-p5en.48xlarge", "aws-p6-b200.48xlarge"]
)
def test_sagemaker_takes_the_request(machine: str) -> None:
    """By botocore's own validator, and by the patterns and names of its model; it sends what is not named."""
    session = pytest.importorskip("botocore.session", reason="botocore is not installed")
    validate = pytest.importorskip("botocore.validate", reason="botocore is not installed")
    shape = (
        session.get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape
    )
    request = json.loads(bundle(on_machine(machine), "deepspeed", "sagemaker")[0]["sagemaker.json"])
    assert validate.ParamValidator().validate(request, shape).generate_report() == ""
    assert (
        request["ResourceConfig"]["InstanceType"]
        in shape.members["ResourceConfig"].members["InstanceType"].enum
    )
    name, role = (shape.members[one].metadata["pattern"] for one in ("TrainingJobName", "RoleArn"))
    assert re.fullmatch(name, request["TrainingJobName"])
    assert not re.fullmatch(role, request["RoleArn"])


@pytest.mark.parametrize(
    ("machine", "type_", "accelerator"),
    [
        ("gcp-a2-ultragpu-8g", "a2-ultragpu-8g", "NVIDIA_A100_80GB"),
        ("gcp-a3-highgpu-8g", "a3-highgpu-8g", "NVIDIA_H100_80GB"),
        ("gcp-a3-megagpu-8g", "a3-megagpu-8g", "NVIDIA_H100_MEGA_80GB"),
        ("gcp-a3-ultragpu-8g", "a3-ultragpu-8g", "NVIDIA_H200_141GB"),
        ("gcp-a4-highgpu-8g", "a4-highgpu-8g", "NVIDIA_B200"),
    ],
)
def test_vertex_takes_the_request(machine: str, type_: str, accelerator: str) -> None:
    """By the message of its own API: accelerators have the names that it knows."""
    types = pytest.importorskip(
        "google.cloud.aiplatform_v1.types", reason="google-cloud-aiplatform is not installed"
    )
    job = types.CustomJob.from_json(bundle(on_machine(machine), "deepspeed", "vertex")[0]["vertex.json"])
    pools = job.job_spec.worker_pool_specs
    assert [pool.replica_count for pool in pools] == [1, 1]
    found = pools[0].machine_spec
    assert (found.machine_type, found.accelerator_type.name) == (type_, accelerator)


@pytest.mark.parametrize("engine", PODS)
def test_skypilot_reads_the_task(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own class, which refuses the task until every variable is given."""
    monkeypatch.setenv("HOME", str(tmp_path))
    sky = pytest.importorskip("sky", reason="SkyPilot is not installed")
    task = manifest(engine, "skypilot", "task.yaml")
    with pytest.raises(ValueError, match="Please set a value"):
        sky.Task.from_yaml_config(dict(task))
    given = [(name, "x") for name in ENTRIES[engine].variables]
    found = sky.Task.from_yaml_config(dict(task), env_overrides=given)
    assert (found.num_nodes, [one.accelerators for one in found.resources]) == (2, [{"H100": 8}])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_plugin_of_colossal_ai_has_every_argument(stage: int) -> None:
    """As its own constructor names them."""
    plugins = pytest.importorskip("colossalai.booster.plugin", reason="Colossal-AI is not installed")
    layout = ParallelLayout(tp=2, dp=8, zero_stage=stage, sequence_parallel=True)
    told = json.loads(
        bundle(priced(layout, stack="pytorch"), "colossalai", "torchrun")[0]["colossalai_plan.json"]
    )
    inspect.signature(getattr(plugins, told["plugin"])).bind(**told["arguments"])


def test_tensorflow_reads_the_cluster_and_the_policy(tmp_path: Path) -> None:
    """By its own resolver, what start.sh says of two hosts; the policy is one of Keras."""
    tensorflow = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    folder = written(tmp_path, "tensorflow", "torchrun")
    (folder / "mine").write_text("node0\nnode1\n")
    told = environment(tmp_path, HOSTS="mine", NODE_NAME="node1", PROGRAM="train.py")
    done = subprocess.run(
        ["bash", str(folder / "start.sh")], env=told, check=True, capture_output=True, text=True
    )
    said = done.stdout.splitlines()[-1].removeprefix("cluster=")
    with mock.patch.dict(os.environ, {"TF_CONFIG": said}):
        found = tensorflow.distribute.cluster_resolver.TFConfigClusterResolver()
        assert found.cluster_spec().as_dict() == {"worker": ["node0:29500", "node1:29500"]}
        assert (found.task_type, found.task_id) == ("worker", 1)
    plan = json.loads((folder / "tensorflow_plan.json").read_text())
    assert tensorflow.keras.mixed_precision.Policy(plan["mixed_precision_policy"]).compute_dtype == "bfloat16"
