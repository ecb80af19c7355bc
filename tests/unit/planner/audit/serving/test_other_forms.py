"""Servers that files start without a command of their own: by variables of a container, or as a template."""

from __future__ import annotations

import pytest

from planner.audit.container_variables import script_of_container
from planner.audit.no_job import command_like
from planner.audit.read import Reading, read_texts
from planner.audit.serving.server import Server, server_of
from planner.audit.serving.texts import audited_server_texts
from planner.audit.started_texts import as_started
from planner.questions.flags import ServeFlags
from topology.base.errors import InputError

PROPERTIES = """engine=Python
option.model_id=Qwen/Qwen3-32B
option.rolling_batch=vllm
option.tensor_parallel_degree=2
option.max_model_len=8192
option.max_rolling_batch_size=64
"""
LMI = """env = {
    "HF_MODEL_ID": "Qwen/Qwen3-32B",
    "OPTION_ENTRYPOINT": "djl_python.lmi_vllm.vllm_async_service",
    "OPTION_TENSOR_PARALLEL_DEGREE": "2",
    "OPTION_MAX_MODEL_LEN": "8192",
    "OPTION_MAX_ROLLING_BATCH_SIZE": "64",
}
"""
TERRAFORM = """environment = {
  SM_VLLM_MODEL                = "Qwen/Qwen3-32B"
  SM_VLLM_TENSOR_PARALLEL_SIZE = "2"
  SM_VLLM_MAX_MODEL_LEN        = "8192"
  SM_VLLM_MAX_NUM_SEQS         = "64"
}
"""
DOCKER = """docker run --gpus all -e SM_VLLM_MODEL=Qwen/Qwen3-32B -e SM_VLLM_TENSOR_PARALLEL_SIZE=2 \\
  -e SM_VLLM_MAX_MODEL_LEN=8192 -e SM_VLLM_MAX_NUM_SEQS=64 registry/vllm:0.11.2-gpu
"""
POD = """containers:
- image: registry/vllm:0.11.2-gpu
  env:
  - name: SM_VLLM_MODEL
    value: Qwen/Qwen3-32B
  - name: SM_VLLM_TENSOR_PARALLEL_SIZE
    value: "2"
  - {name: SM_VLLM_MAX_MODEL_LEN, value: "8192"}
  - {name: SM_VLLM_MAX_NUM_SEQS, value: "64"}
"""
UNIT = """[Service]
ExecStart=/opt/bin/vllm serve {{ vllm_model }} --port {{ port | default(8000) }} \\
  -tp {{ vllm_tp }} --max-model-len {{ vllm_length }} --max-num-seqs {{ seqs | default(64) }}
"""
VARIABLES = "vllm_model: Qwen/Qwen3-32B\nvllm_tp: 2\nvllm_length: 8192\n"
RECIPE = """defaults: {tensor_parallel: 2, max_model_len: 8192, seqs: 64}
command: |
  vllm serve Qwen/Qwen3-32B -tp {tensor_parallel} --max-model-len {max_model_len} --max-num-seqs={seqs}
"""


def _server(texts: dict[str, str]) -> Server:
    server = server_of(read_texts(texts), model=None, gpu="h100-sxm")
    assert isinstance(server, Server), server
    return server


@pytest.mark.parametrize(
    "texts",
    [
        {"serving.properties": PROPERTIES},
        {"deploy.py": LMI},
        {"main.tf": TERRAFORM},
        {"run.sh": DOCKER},
        {"pod.yaml": POD},
        {"vllm.service.j2": UNIT, "all.yml": VARIABLES},
        {"recipe.yaml": RECIPE},
    ],
    ids=lambda texts: next(iter(texts)),
)
def test_servers_of_variables_and_templates_are_read_as_their_commands(texts: dict[str, str]) -> None:
    """Each asks for the same server as one plain command does."""
    plain = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 8192 --max-num-seqs 64"
    server, wanted = _server(texts), _server({"serve.sh": plain})
    assert (server.engine, server.model, server.layout) == (wanted.engine, wanted.model, wanted.layout)
    assert (server.longest, server.max_batch) == (wanted.longest, wanted.max_batch) == (8192, 64)


def test_sglang_is_started_by_its_own_variables() -> None:
    text = TERRAFORM.replace("SM_VLLM_MODEL ", "SM_SGLANG_MODEL_PATH").replace(
        "SM_VLLM_TENSOR_PARALLEL_SIZE", "SM_SGLANG_TP"
    )
    text = text.replace("SM_VLLM_MAX_MODEL_LEN", "SM_SGLANG_CONTEXT_LENGTH")
    server = _server({"main.tf": text.replace("SM_VLLM_MAX_NUM_SEQS", "SM_SGLANG_MAX_RUNNING_REQUESTS")})
    assert (server.engine, server.layout.tp, server.longest, server.max_batch) == ("sglang", 2, 8192, 64)


def test_images_and_machines_around_variables_still_count() -> None:
    """The version is the image's, and a degree of all GPUs that of the machine."""
    text = (
        TERRAFORM.replace('"2"', '"max"')
        + 'image = "registry/vllm:0.11.2"\ninstance_type = "ml.g6.12xlarge"\n'
    )
    server = server_of(read_texts({"main.tf": text}), model=None, gpu=None)
    assert isinstance(server, Server)
    assert (server.version, server.gpu, server.layout.tp) == ("0.11.2", "l4", 4)


@pytest.mark.parametrize("engine", ["vllm-bf16-tp2-pp1", "tensorrt_llm-h100-bf16-tp2-throughput"])
def test_nim_is_priced_where_its_profile_is_vllms(engine: str) -> None:
    """Of another profile, or none, the command of vLLM that asks the same is said, and nothing is priced."""
    text = f"docker run -e NIM_MODEL_PROFILE={engine} -e NIM_MAX_MODEL_LEN=8192 nvcr.io/nim/meta/llama-3.1-70b:1.3\n"
    if engine.startswith("vllm"):
        server = _server({"nim.sh": text})
        assert (server.model.name, server.layout.tp, server.longest) == ("llama-3.1-70b", 2, 8192)
    else:
        with pytest.raises(InputError, match="NVIDIA NIM, which is not covered"):
            read_texts({"nim.sh": text})


def test_two_models_of_one_file_are_none() -> None:
    """Which of two containers is meant nobody says."""
    other = TERRAFORM.replace("Qwen3-32B", "Qwen3-8B")
    assert as_started({"main.tf": TERRAFORM + other})["main.tf"] == TERRAFORM + other


def test_a_place_that_nothing_fills_is_no_value() -> None:
    """A degree that no table has is not one rank."""
    reading: Reading = read_texts({"vllm.service.j2": UNIT, "all.yml": VARIABLES.replace("vllm_tp: 2", "")})
    assert "layout.tp" in reading.facts.unknown
    unknown = server_of(reading, model=None, gpu="h100-sxm")
    assert "tensor parallel degree" in unknown.missing[0]  # type: ignore[union-attr]  # no server


def test_a_pods_variables_are_words_of_the_command_that_asks_the_same() -> None:
    pod = 'image: nvcr.io/nim/a/b:1\nenv:\n- name: NIM_MAX_MODEL_LEN\n  value: "8192"\n'
    assert command_like(pod) == "vllm serve b:1 --max-model-len 8192".replace(":1", "")


PARTITION = "cat > o.yml <<EOF\npp_partition: {}\nEOF\ntrtllm-serve meta-llama/Llama-3.3-70B-Instruct --pp_size 4 --config o.yml\n"


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ("[20, 22, 22, 16]", ""),
        ("[20, 22, 22]", "has 3 stages, and the pipeline has 4"),
        ("[20, 22, 22, 17]", "sums to 81 layers, and llama-3.3-70b has 80"),
    ],
)
def test_layers_of_stages_may_be_an_option_of_tensorrt_llm(layers: str, words: str) -> None:
    """Its `pp_partition`, held to what the variables of other engines are held to."""
    server = _server({"serve.sh": PARTITION.format(layers)})
    assert words in server.broken_stages
    assert bool(words) == bool(server.broken_stages)
    assert server.unread.uncounted == ()
    assert server.layout.layers == (() if words else (20, 22, 22, 16))


@pytest.mark.parametrize(("release", "ranks"), [("0.4.1", 8), ("0.5.0", 2)])
def test_attention_ranks_of_early_releases_are_all_gpus(release: str, ranks: int) -> None:
    """SGLang before 0.4.4 took --enable-dp-attention as a rank of each GPU, whatever --dp-size says."""
    command = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V2.5 --tp 8 --dp 2 --enable-dp-attention"
    server = _server({"serve.sh": f"# sglang {release}\n{command}\n"})
    assert (server.layout.attention_dp, server.layout.num_gpus) == (ranks, 8)


@pytest.mark.parametrize(
    ("words", "experts"),
    [
        ("", 1),
        ("--ep-size 4", 4),
        ("--moe-a2a-backend none --ep-size 4", 4),
        ("--moe-a2a-backend deepep", 8),
        ("--moe-a2a-backend mooncake --ep-size 4", 8),
        ("--enable-deepep-moe", 8),
        ("--enable-ep-moe", 8),
    ],
)
def test_tokens_that_travel_to_experts_spread_these_over_all_ranks(words: str, experts: int) -> None:
    """SGLang: "The expert parallel size is adjusted to be the same as the tensor parallel size"."""
    command = f"python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 2 --enable-dp-attention {words}"
    server = _server({"serve.sh": command})
    assert (server.layout.tp, server.layout.attention_dp, server.layout.ep) == (4, 2, experts)
    assert not [note for note in server.unread.notes if "a2a" in note]


def test_models_of_containers_are_one_word_or_a_variable() -> None:
    """Blanks within a value start no other word; what only a run knows is no name of a model."""
    assert "vllm serve 'a b; c' --max-model-len 9" in script_of_container(
        "SM_VLLM_MODEL='a b; c'\nSM_VLLM_MAX_MODEL_LEN=9"
    )
    for name in ("SM_VLLM_MODEL", "OPTION_MODEL_ID"):
        other = f"{name.rpartition('_')[0].removesuffix('_MODEL')}_MAX_MODEL_LEN"
        assert f"vllm serve ${name} " in script_of_container(f"{name}: !Ref Model\n{other}: 9")


def test_ranks_that_share_attention_are_told_where_copies_do_not_fit() -> None:
    """Attention of every rank is a copy: 236B in bf16 leaves it no room on 8 × 80 GB, and shared it starts."""
    command = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V2.5 --tp 8 --mem-fraction-static 0.9"
    copies = audited_server_texts(
        {"s.sh": f"{command} --dp 8 --enable-dp-attention"}, ServeFlags(), {}, gpu="h100-sxm"
    )
    shared = audited_server_texts({"s.sh": command}, ServeFlags(), {}, gpu="h100-sxm")
    assert copies is not None
    assert shared is not None
    assert copies.start is not None
    assert shared.start is not None
    assert (copies.start.starts, shared.start.starts) == (False, True)
    assert copies.start.finding is not None
    assert "tp 8 without data parallelism" in copies.start.finding[1]


def test_a_flag_of_no_release_may_stop_the_parser() -> None:
    """It is near none that is known: another program's, or a changed engine's. The first lines say so."""
    text = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --decode-url http://a:1 --context-length 4096"
    audit = audited_server_texts({"s.sh": text}, ServeFlags(), {}, gpu="h100-sxm")
    assert audit is not None
    assert audit.start is not None
    assert audit.start.starts is None
    assert audit.start.finding is not None
    assert "knows --decode-url, whose parser stops there" in audit.start.finding[0]


@pytest.mark.parametrize(
    ("image", "tag", "version"),
    [
        ("vllm/vllm-openai:latest", "latest", ""),
        ("vllm/vllm-openai:nightly-0123abc", "nightly-0123abc", ""),
        ("vllm/vllm-openai:v0.20.0", "", "0.20.0"),
        ("vllm/vllm-openai-rocm:latest", "latest", ""),
    ],
)
def test_a_tag_that_names_no_release_is_said(image: str, tag: str, version: str) -> None:
    """The newest known is taken, which may not be what the image held."""
    server = _server({"serve.sh": f"docker run --gpus all {image} --model Qwen/Qwen3-8B"})
    assert (server.tag, server.version) == (tag, version)
    assert any("the newest release known" in note for note in server.assumed) == bool(tag)


def test_a_start_command_of_a_platform_is_one_of_its_file() -> None:
    text = """base_image: {image: vllm/vllm-openai:v0.20.0}
docker_server:
  start_command: bash -c "truss-transfer-cli && vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 8192"
resources: {accelerator: H100:2}
"""
    server = server_of(read_texts({"config.yaml": text}), model=None, gpu=None)
    assert isinstance(server, Server)
    assert (server.layout.tp, server.longest, server.gpu, server.beyond_machine) == (2, 8192, "h100-sxm", "")
    alone = server_of(read_texts({"config.yaml": text.replace("H100:2", "H100:1")}), model=None, gpu=None)
    assert isinstance(alone, Server)
    assert alone.beyond_machine


@pytest.mark.parametrize(
    ("table", "batch"), [("cuda_graph_config: null", 0), ("cuda_graph_config: {}", None)]
)
def test_tensorrt_llm_without_a_table_of_graphs_has_none(table: str, batch: int | None) -> None:
    """Null switches graphs off; a table of them does not."""
    text = PARTITION.replace("pp_partition: {}", table).replace("--pp_size 4", "--tp_size 4")
    server = _server({"serve.sh": text})
    assert (server.graph_batch, bool(server.slow)) == (batch, batch == 0)


WORKSPACE = """apiVersion: v1
kind: ConfigMap
metadata: {name: params}
data:
  inference_config.yaml: |
    vllm: {max-model-len: 8192, max-num-seqs: 64, enable-prefix-caching: false}
---
apiVersion: kaito.sh/v1beta1
kind: Workspace
resource: {count: 2, instanceType: "Standard_NC96ads_A100_v4"}
inference:
  preset: {name: Qwen/Qwen3-32B}
  config: params
"""


def test_a_workspace_of_kaito_splits_over_its_machines() -> None:
    """Tensor ranks in a machine, stages over machines, and the options of its table."""
    server = server_of(read_texts({"w.yaml": WORKSPACE}), model=None, gpu=None)
    assert isinstance(server, Server)
    assert (server.layout.tp, server.layout.pp, server.gpu) == (4, 2, "a100-pcie-80gb")
    assert (server.longest, server.max_batch, server.model.name) == (8192, 64, "qwen3-32b")


def test_a_machine_that_nobody_knows_is_no_gpu() -> None:
    """Its GPUs are a degree that only a run knows, and not one."""
    text = WORKSPACE.replace("NC96ads_A100_v4", "NC7_X")
    unknown = server_of(read_texts({"w.yaml": text}), model=None, gpu=None)
    assert "tensor parallel degree" in unknown.missing[0]  # type: ignore[union-attr]  # no server


@pytest.mark.parametrize(
    "text",
    [
        "HF_MODEL_ID" + " " * 200_000,
        "option.a = " * 18_000,
        "HF_MODEL_ID=a/b\nOPTION_X=1\n" * 8_000,
        "{{ a" + " " * 200_000,
        "vllm serve --a" + " " * 200_000 + "{b",
    ],
    ids=["blanks", "options", "models", "place", "flag"],
)
def test_texts_of_any_form_are_rewritten_in_their_length(text: str) -> None:
    """Twice the text takes no more than some three times as long: patterns look back at nothing."""
    import time

    def seconds(text: str) -> float:
        begun = time.process_time()
        as_started({"a.sh": text})
        return time.process_time() - begun

    assert (
        min(seconds(text) for _ in range(3))
        < 3 * min(seconds(text[: len(text) // 2]) for _ in range(3)) + 0.05
    )
