"""Dynamo, llm-d and Triton: each form holds the plan's workers and the engine's words, or is refused."""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.deployment.folder import folder
from planner.deployment.forms import FORMS, forms_of
from planner.deployment.vllm_sglang import engine_words
from planner.parsers.client import VARIABLE, interpreter
from planner.serving.plan import ServingPlan
from tests.unit.planner.deployment.fleets import SIXTY, Size, resized, varied
from tests.unit.planner.deployment.schemas import require_valid
from topology.base.errors import InputError

GRAPH = {"components": {"name", "type", "replicas", "multinode", "podTemplate"}}
"""Fields that are written of a DynamoGraphDeployment of nvidia.com/v1beta1: those that `dynamo.profiler.utils.config`
of ai-dynamo 1.6.1 has of one."""


@cache
def taken_by(form: str) -> tuple[tuple[ServingPlan, dict[str, str]], ...]:
    """Those of the sixty plans that a form takes, with their files."""
    found = [(plan, written(plan, form)) for plan in map(varied, SIXTY)]
    return tuple((plan, files) for plan, files in found if files is not None)


def written(plan: ServingPlan, form: str) -> dict[str, str] | None:
    """The folder of one form, None where the plan is refused."""
    try:
        return folder(plan, forms=(form,))
    except InputError:
        return None


def graph_of(files: dict[str, str]) -> dict[str, Any]:
    """The DynamoGraphDeployment of a folder."""
    found = [
        one for one in yaml.safe_load_all(files["dynamo.yaml"]) if one["kind"] == "DynamoGraphDeployment"
    ]
    assert len(found) == 1
    return dict(found[0])


def test_dynamo_has_every_pool_with_its_gpus_and_pods_that_kubernetes_takes() -> None:
    """Other documents, and the pods as a Deployment would hold them, strictly; all but AMD's plans are carried."""
    taken = taken_by("dynamo")
    assert len(taken) == sum(varied(n).request.gpu != "mi300x" for n in SIXTY)
    for plan, files in taken:
        for one in yaml.safe_load_all(files["dynamo.yaml"]):
            if one["kind"] != "DynamoGraphDeployment":
                require_valid(one)
        graph = graph_of(files)
        assert graph["apiVersion"] == "nvidia.com/v1beta1"
        assert graph["spec"].keys() == GRAPH.keys()
        frontend, *workers = graph["spec"]["components"]
        assert frontend["type"] == "frontend"
        for component in (frontend, *workers):
            assert component.keys() <= GRAPH["components"]
            labels = {"app": "a"}
            pod = {"metadata": {"labels": labels}, **component["podTemplate"]}
            whole = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
                     "spec": {"selector": {"matchLabels": labels}, "template": pod}}  # fmt: skip
            require_valid(whole)
        for component, (role, pool) in zip(workers, plan.pools, strict=True):
            nodes = component.get("multinode", {}).get("nodeCount", 1)
            limits = component["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]
            assert component["type"] == (role or "worker")
            assert int(limits["nvidia.com/gpu"]) * nodes == pool.layout.num_gpus
            assert component["replicas"] == pool.workers


def test_dynamos_own_models_read_the_graph() -> None:
    """`dynamo.profiler` reads back the workers, their GPUs and the disaggregation mode."""
    python = interpreter("dynamo")
    if python is None:
        pytest.skip(f"no interpreter has ai-dynamo: see {VARIABLE}")
    graphs = [graph_of(files) for _, files in taken_by("dynamo")]
    script = (
        "import importlib.util, json, sys, sysconfig, types\n"
        "root = sysconfig.get_paths()['purelib'] + '/dynamo/'\n"
        "source = open(root + 'profiler/utils/config.py').read()\n"
        "start, end = source.index('class DgdModel'), source.index('class DgdPlannerComponentConfig')\n"
        "scope = {}\n"
        "exec('from typing import Any, Optional\\nfrom pydantic import BaseModel, Field\\n' + source[start:end], scope)\n"
        "read = [scope['Config'].model_validate(one) for one in json.load(sys.stdin)]\n"
        "print(json.dumps([[sorted((c.model_extra or {}) | (c.podTemplate.model_extra or {})) "
        "for c in one.spec.components] for one in read]))"
    )
    done = subprocess.run(
        [python, "-c", script], input=json.dumps(graphs), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(extra == [] for one in json.loads(done.stdout) for extra in one)


def test_dynamo_hands_on_the_words_that_the_engines_parsers_read() -> None:
    """All of them but the port of a server that is Dynamo's own (`test_parsers` asks the parsers); in pairs."""
    for plan, files in taken_by("dynamo"):
        for component, (role, pool) in zip(
            graph_of(files)["spec"]["components"][1:], plan.pools, strict=True
        ):
            found = component["podTemplate"]["spec"]["containers"][0]["args"]
            words = engine_words(plan, pool, role)
            if plan.request.engine == "sglang":
                older = ["--dp-size", str(pool.layout.attention_dp), "--enable-dp-attention"]
                at = words.index("--attn-dp-size") if "--attn-dp-size" in words else len(words)
                words = [*words[:at], *(older if at < len(words) else []), *words[at + 2 :]]
                expected = words[3:5] + words[7:]
            elif plan.request.engine == "vllm":
                expected = ["--model", words[2], *words[5:]]
            else:
                continue
            assert found[: len(expected)] == expected
            own = dict(zip(found[len(expected) :: 2], found[len(expected) + 1 :: 2], strict=True))
            if plan.request.engine == "vllm":
                assert own == ({"--disaggregation-mode": role} if role else {})
            else:
                assert own.keys() == ({"--host", "--disaggregation-bootstrap-port"} if role else set())


def test_dynamos_modules_have_the_flags_that_are_its_own() -> None:
    """Those of TensorRT-LLM's module, all of them; of vLLM's the mode; of the frontend its router's variable."""
    python = interpreter("dynamo")
    if python is None:
        pytest.skip(f"no interpreter has ai-dynamo: see {VARIABLE}")
    read = (
        "import pathlib, sysconfig; root = pathlib.Path(sysconfig.get_paths()['purelib'], 'dynamo'); "
        "print(*((root / name).read_text() for name in ('trtllm/backend_args.py', 'vllm/backend_args.py', "
        "'common/configuration/groups/router_args.py')), sep='\\0')"
    )
    done = subprocess.run([python, "-c", read], capture_output=True, text=True, check=True)
    trtllm, vllm, router = done.stdout.split("\0")
    for plan, files in taken_by("dynamo"):
        frontend, *workers = graph_of(files)["spec"]["components"]
        variable = frontend["podTemplate"]["spec"]["containers"][0]["env"][0]
        assert f'env_var="{variable["name"]}"' in router
        assert f'"{variable["value"]}"' in router
        for one in workers:
            words = one["podTemplate"]["spec"]["containers"][0]["args"]
            if plan.request.engine == "trtllm":
                assert [flag for flag in words[::2] if f'flag_name="{flag}"' not in trtllm] == []
            elif "--disaggregation-mode" in words:
                assert plan.request.engine == "sglang" or 'flag_name="--disaggregation-mode"' in vllm


def test_llm_d_gives_each_worker_its_gpus_and_routes_to_where_it_listens() -> None:
    """The chart asks for `tensor` GPUs; the scheduler finds the pods by the labels they are given."""
    taken = taken_by("llm-d")
    assert taken
    assert {plan.request.engine for plan, _ in taken} == {"vllm"}
    for plan, files in taken:
        service, scheduler = (
            yaml.safe_load(files[name]) for name in ("llm-d-modelservice.yaml", "llm-d-scheduler.yaml")
        )
        proxied = service["routing"]["proxy"]["enabled"]
        assert proxied == (plan.prefill is not None)
        assert (
            scheduler["inferencePool"]["modelServers"]["matchLabels"] == service["modelArtifacts"]["labels"]
        )
        for role, pool in plan.pools:
            values = service[role or "decode"]
            assert values["parallelism"]["tensor"] == pool.layout.num_gpus
            assert values["replicas"] == pool.workers
            container = dict(values["containers"][0])
            port = int(container["args"][container["args"].index("--port") + 1])
            expected = "targetPort" if proxied and role == "decode" else "servicePort"
            assert (
                port
                == (service["routing"]["proxy"] | service["routing"])[expected]
                == container["ports"][0]["containerPort"]
            )
            for own in ("modelCommand", "mountModelVolume"):
                del container[own]
            pod = {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [container], "volumes": values["volumes"]},
            }
            whole = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
                     "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": pod}}  # fmt: skip
            require_valid(whole)
        plugins = yaml.safe_load(scheduler["inferenceExtension"]["pluginsCustomConfig"]["plugins.yaml"])
        declared = {one["type"] for one in plugins["plugins"]}
        used = {one["pluginRef"] for profile in plugins["schedulingProfiles"] for one in profile["plugins"]}
        assert used <= declared
        assert {one["name"] for one in plugins["schedulingProfiles"]} == (
            {"prefill", "decode"} if plan.prefill else {"default"}
        )


def test_scripts_of_triton_are_ones_for_bash_and_shellcheck(tmp_path: Path) -> None:
    """Of every plan that it takes; no remark of any severity."""
    for number, (_, files) in enumerate(taken_by("triton")):
        for name in (name for name in files if name.endswith(".sh")):
            (tmp_path / f"{number}-{name}").write_text(files[name], encoding="utf-8")
    scripts = sorted(map(str, tmp_path.glob("*.sh")))
    assert scripts
    assert subprocess.run(["bash", "-n", *scripts[:1]], check=False).returncode == 0
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(
        [checker, "--severity=style", *scripts], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_triton_reads_its_model_repository() -> None:
    """config.pbtxt by Triton's own protobuf; the arguments of the LLM are the plan's; scripts do not collide."""
    taken = taken_by("triton")
    assert taken
    for plan, files in taken:
        told = yaml.safe_load(files["triton-models/tensorrt_llm/1/model.yaml"])
        layout = plan.decode.layout
        assert told["tensor_parallel_size"] * told["pipeline_parallel_size"] == layout.num_gpus
        assert told["max_batch_size"] * layout.attention_dp >= plan.decode.max_batch
        assert told["triton_config"] == {"max_batch_size": 0, "decoupled": True}
        for name, text in files.items():
            if name.endswith(".sh"):
                ports = [
                    word
                    for line in text.splitlines()
                    if "tritonserver --model" in line
                    for word in line.split()
                    if word.isdigit()
                ]
                assert len(ports) == len(set(ports)) > 0
    python = interpreter("triton")
    if python is None:
        pytest.skip(f"no interpreter has tritonclient: see {VARIABLE}")
    script = (
        "import importlib.util, json, sys, sysconfig\n"
        "from google.protobuf import json_format, text_format\n"
        "path = sysconfig.get_paths()['purelib'] + '/tritonclient/grpc/model_config_pb2.py'\n"
        "spec = importlib.util.spec_from_file_location('model_config_pb2', path)\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "print(json.dumps(json_format.MessageToDict(text_format.Parse(sys.stdin.read(), module.ModelConfig()))))"
    )
    text = taken[0][1]["triton-models/tensorrt_llm/config.pbtxt"]
    done = subprocess.run([python, "-c", script], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert (read["name"], read["backend"]) == ("tensorrt_llm", "python")
    required = [one["name"] for one in read["input"] if not one.get("optional")]
    assert required == ["text_input"]
    assert next(one["name"] for one in read["output"]) == "text_output"


@pytest.mark.parametrize(
    ("form", "fleet", "words"),
    [
        ("llm-d", ("sglang", None, (3, 2)), "--engine vllm"),
        ("llm-d", ("vllm", None, (3, 16)), "--deploy dynamo"),
        ("triton", ("vllm", None, (3, 2)), "--engine trtllm"),
        ("triton", ("trtllm", (2, 1), (1, 2)), "--mode aggregated"),
        ("kubernetes", ("vllm", None, (3, 16)), "--deploy dynamo"),
    ],
)
def test_a_form_that_cannot_be_told_a_plan_is_refused(
    form: str, fleet: tuple[str, Size | None, Size], words: str
) -> None:
    """And the fix names one that can."""
    with pytest.raises(InputError) as refused:
        folder(resized(*fleet), forms=(form,))
    assert words in refused.value.fix


def test_words_of_deploy() -> None:
    """Unknown ones name the known; FasterTransformer names its successor."""
    assert forms_of(",".join(FORMS)) == FORMS
    with pytest.raises(InputError) as refused:
        forms_of("scripts,slurm")
    assert "dynamo" in refused.value.cause
    with pytest.raises(InputError) as refused:
        forms_of("FasterTransformer")
    assert "TensorRT-LLM" in refused.value.cause
    files = folder(resized("vllm", (2, 1), (1, 2)), forms=("dynamo", "llm-d"))
    assert set(files) == {
        "dynamo.yaml",
        "llm-d-modelservice.yaml",
        "llm-d-scheduler.yaml",
        "plan.json",
        "README.md",
    }
