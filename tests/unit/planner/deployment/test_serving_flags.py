"""Only flags that the engines document are written into the commands of a plan."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
import yaml

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.deployment.vllm_sglang import checkpoint, commands, trtllm_options
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.search import search_serving
from topology.builders import default_cluster

CAL = load_calibration()

DOCUMENTED = {
    # docs.vllm.ai, "vllm serve" CLI reference
    "vllm": {
        "--port", "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size",
        "--enable-expert-parallel", "--decode-context-parallel-size", "--enable-eplb", "--eplb-config", "--enable-lora", "--max-loras",
        "--max-lora-rank", "--lora-target-modules", "--max-num-seqs", "--max-num-batched-tokens", "--max-model-len",
        "--quantization", "--kv-cache-dtype",
        "--kv-transfer-config", "--gpu-memory-utilization", "--speculative-config",
        # docs.vllm.ai, Parallelism and Scaling; Data Parallel Deployment
        "--nnodes", "--node-rank", "--master-addr", "--headless", "--data-parallel-size-local",
        "--data-parallel-start-rank", "--data-parallel-address", "--data-parallel-rpc-port",
    },
    # docs.sglang.io, advanced_features/server_arguments
    "sglang": {
        "--model-path", "--port", "--tp-size", "--pp-size", "--attn-dp-size", "--ep-size",
        "--max-running-requests", "--chunked-prefill-size", "--context-length", "--quantization",
        "--kv-cache-dtype", "--disaggregation-mode", "--disaggregation-transfer-backend",
        "--mem-fraction-static",
        # docs.sglang.io, advanced_features/speculative_decoding
        "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps",
        "--speculative-eagle-topk", "--speculative-num-draft-tokens",
        # docs.sglang.io, Multi-Node Deployment
        "--nnodes", "--node-rank", "--dist-init-addr",
        # docs.sglang.io, PD Disaggregation
        "--disaggregation-bootstrap-port",
    },
    # nvidia.github.io/TensorRT-LLM, commands/trtllm-serve
    "trtllm": {
        "--backend", "--port", "--tp_size", "--pp_size", "--ep_size", "--max_batch_size", "--max_num_tokens",
        "--max_seq_len", "--extra_llm_api_options", "--kv_cache_free_gpu_memory_fraction",
        # nvidia.github.io/TensorRT-LLM, trtllm-serve: Multi-node Serving with Slurm
        "--ntasks", "--ntasks-per-node=8", "--mpi=pmix", "--gres=gpu:8",
    },
    # docs.vllm.ai, "vllm bench serve" CLI reference
    "benchmark": {
        "--backend", "--base-url", "--model", "--dataset-name", "--random-input-len", "--random-output-len",
        "--ignore-eos", "--max-concurrency", "--num-prompts", "--request-rate", "--percentile-metrics",
        "--metric-percentiles",
    },
}  # fmt: skip
DOCUMENTED_ROUTERS = {
    # github.com/vllm-project/router, README
    "vllm": {
        "--host",
        "--port",
        "--policy",
        "--worker-urls",
        "--vllm-pd-disaggregation",
        "--prefill",
        "--decode",
    },
    # docs.sglang.io, SGLang Router; PD Disaggregation
    "sglang": {
        "--host",
        "--port",
        "--policy",
        "--worker-urls",
        "--pd-disaggregation",
        "--prefill",
        "--decode",
    },
    # nvidia.github.io/TensorRT-LLM, Disaggregated Serving; nginx(8) has none of two hyphens
    "trtllm": set(),
}
# nvidia.github.io/TensorRT-LLM, LLM API reference: fields of LlmArgs, KvCacheConfig, CacheTransceiverConfig,
# AttentionDpConfig
DOCUMENTED_OPTIONS = {
    "enable_attention_dp", "disable_overlap_scheduler", "kv_cache_config", "kv_cache_config.dtype",
    "cache_transceiver_config", "cache_transceiver_config.backend", "speculative_config",
    "speculative_config.decoding_type", "speculative_config.num_nextn_predict_layers", "attention_dp_config",
    "attention_dp_config.enable_balance", "attention_dp_config.timeout_iters",
    "attention_dp_config.batching_wait_iters",
}  # fmt: skip
CASES = {
    "pipelined bf16": ("70b", "bf16", "bf16", {"tp": 2, "pp": 2}, "aggregated"),
    "quantised at load": ("70b", "fp8", "fp8", {"tp": 4}, "aggregated"),
    "four bits": ("70b", "int4", "bf16", {"tp": 4}, "aggregated"),
    "eight-bit integers": ("70b", "int8", "bf16", {"tp": 4}, "aggregated"),
    "four-bit floats": ("70b", "fp4", "bf16", {"tp": 4}, "aggregated"),
    "published fp8": ("deepseek-r1", "fp8", "bf16", {"tp": 8}, "aggregated"),
    "attention ranks": ("deepseek-r1", "fp8", "bf16", {"attention_dp": 8}, "aggregated"),
    "tokens apart": ("deepseek-r1", "fp8", "bf16", {"tp": 8, "dcp": 8}, "aggregated"),  # vLLM alone
    "two pools": ("70b", "fp8", "bf16", {"tp": 4}, "disaggregated"),
    "stages on two nodes": ("70b", "fp8", "bf16", {"tp": 8, "pp": 2}, "aggregated"),
    "attention ranks on two nodes": ("deepseek-r1", "fp8", "bf16", {"attention_dp": 16}, "aggregated"),
}


@cache
def planned(engine: str, case: str, **changes: object) -> ServingPlan:
    """A plan of one of the cases for one engine; keywords change the job.

    Whole replicas have a constant number of requests in flight, which are soon simulated; pools have no such load.
    """
    name, weights, kv_dtype, pins, mode = CASES[case]
    gpus = 16 if "two nodes" in case else 8
    gpu = "b200-sxm" if weights == "fp4" else "h200-sxm"  # which every engine serves NVFP4 on
    load = {"concurrency": 32} if mode == "aggregated" else {}
    job = ServingJob(**{"input_tokens": 1000, "output_tokens": 200, "kv_dtype": kv_dtype, **load, **changes})  # type: ignore[arg-type]  # test keywords
    request = ServingRequest(
        model=model(name), job=job, gpu=gpu, num_gpus=gpus, engine=engine, weights=(weights,),  # type: ignore[arg-type]  # same
        pins=pins, modes=(mode,),  # type: ignore[arg-type]  # same
    )  # fmt: skip
    plan = search_serving(CAL, request, default_cluster(gpu, gpus).hierarchy)
    assert isinstance(plan, ServingPlan), plan
    return plan


def first(found: Mapping[str, str]) -> str:
    """The command that starts the first server."""
    return servers_of(found)[0]


def servers_of(found: Mapping[str, str]) -> list[str]:
    """The commands that start servers."""
    return [text for name, text in found.items() if name == "serve" or name.startswith("serve (")]


def flags(command: str) -> set[str]:
    """The flags of a command line."""
    return {word for word in shlex.split(command) if word.startswith("--")}


def fields(yaml: str) -> set[str]:
    """The fields of a YAML document of two levels, the inner ones after their parent and a dot."""
    found: list[str] = []
    for line in yaml.splitlines():
        name = line.partition(":")[0]
        inner = name.startswith("  ")
        parent = next(field for field in reversed(found) if "." not in field) if inner else ""
        found.append(f"{parent}.{name.strip()}" if inner else name)
    return set(found)


@pytest.mark.parametrize(
    ("engine", "case"),
    [(e, c) for e in DOCUMENTED_ROUTERS for c in CASES if e == "vllm" or c != "tokens apart"],
)
def test_servers_and_clients_are_given_documented_flags_alone(engine: str, case: str) -> None:
    """Every flag of every command is in the engine's reference, and every command has some."""
    plan = planned(engine, case)
    found = commands(plan)
    servers = servers_of(found)
    workers = sum(pool.workers for _, pool in plan.pools)
    assert len(servers) == (2 if "two nodes" in case and engine != "trtllm" else workers)
    for text in servers:
        assert flags(text)
        assert flags(text) - DOCUMENTED[engine] == set()
    assert flags(found.get("router", "")) - DOCUMENTED_ROUTERS[engine] == set()
    assert flags(found["benchmark"]) - DOCUMENTED["benchmark"] == set()


def ranks(command: str) -> dict[str, str]:
    """What tells a node its place: each flag of several nodes with its value."""
    words = shlex.split(command)
    places = {"--nnodes", "--node-rank", "--master-addr", "--dist-init-addr", "--data-parallel-size-local",
              "--data-parallel-start-rank", "--data-parallel-address"}  # fmt: skip
    told = {word: words[i + 1] for i, word in enumerate(words) if word in places}
    return told | ({"--headless": ""} if "--headless" in words else {})


def test_every_node_of_a_pipelined_worker_is_told_its_rank_and_the_head() -> None:
    """One command a node; only the first answers requests (vLLM), and the notes say where to fill in."""
    head = "<address of node 0>"
    found = commands(planned("vllm", "stages on two nodes"))
    place = {"--nnodes": "2", "--master-addr": head}
    assert ranks(found["serve (node 0)"]) == {**place, "--node-rank": "0"}
    assert ranks(found["serve (node 1)"]) == {**place, "--node-rank": "1", "--headless": ""}
    assert head in found["notes"]
    found = commands(planned("sglang", "stages on two nodes"))
    place = {"--nnodes": "2", "--dist-init-addr": f"{head}:20000"}
    assert ranks(found["serve (node 0)"]) == {**place, "--node-rank": "0"}
    assert ranks(found["serve (node 1)"]) == {**place, "--node-rank": "1"}


def test_every_node_of_attention_ranks_is_told_which_of_them_it_runs() -> None:
    """Sixteen ranks on two nodes of vLLM: 0 to 7 with the API server, 8 to 15 headless."""
    found = commands(planned("vllm", "attention ranks on two nodes"))
    place = {"--data-parallel-size-local": "8", "--data-parallel-address": "<address of node 0>"}
    assert ranks(found["serve (node 0)"]) == place
    assert ranks(found["serve (node 1)"]) == {**place, "--data-parallel-start-rank": "8", "--headless": ""}


def test_trtllm_over_two_nodes_is_launched_once_with_a_task_a_gpu() -> None:
    """`srun` starts all ranks; trtllm-llmapi-launch hands the first one the server."""
    words = shlex.split(first(commands(planned("trtllm", "stages on two nodes"))))
    assert words[:3] == ["srun", "-N", "2"]
    assert words[words.index("--ntasks") + 1] == "16"
    assert words[words.index("trtllm-llmapi-launch") + 1] == "trtllm-serve"


@pytest.mark.parametrize("case", ["attention ranks", "two pools"])
def test_the_options_file_of_trtllm_serve_is_written_with_documented_fields(case: str) -> None:
    """A file that a command names comes with the commands; its fields are documented."""
    found = commands(planned("trtllm", case))
    words = [shlex.split(text) for text in servers_of(found)]
    named = [line[line.index("--extra_llm_api_options") + 1] for line in words]
    assert named
    for file in named:
        assert fields(found[file])
        assert fields(found[file]) - DOCUMENTED_OPTIONS == set()


CHECKPOINTS = {  # case: (checkpoint, what --quantization says) where the engine quantises at load, where not
    "pipelined bf16": (("meta-llama/{}", None), ("meta-llama/{}", None)),
    "quantised at load": (("meta-llama/{}", "fp8"), ("<FP8 checkpoint of meta-llama/{}>", None)),
    "four bits": (("<AWQ checkpoint of meta-llama/{}>", None),) * 2,
    "eight-bit integers": (("<GPTQ-Int8 checkpoint of meta-llama/{}>", None),) * 2,
    "four-bit floats": (("<NVFP4 checkpoint of meta-llama/{}>", None),) * 2,
    "published fp8": (("deepseek-ai/DeepSeek-R1", None),) * 2,
}


@pytest.mark.parametrize("case", CHECKPOINTS)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_checkpoint_holds_the_weights_that_the_flags_expect(engine: str, case: str) -> None:
    """Only bf16 to fp8 happens at load; any other checkpoint is named by a placeholder, with a note."""
    plan = planned(engine, case)
    found = commands(plan)
    name, quantization = CHECKPOINTS[case][engine == "trtllm"]
    words = shlex.split(first(found))
    assert name.format(checkpoint(plan.request.model).removeprefix("meta-llama/")) in words
    said = words[words.index("--quantization") + 1] if "--quantization" in words else None
    assert said == quantization
    assert ("put a checkpoint in place" in found.get("notes", "")) == name.startswith("<")


def test_draft_tokens_are_speculated_by_the_server_too() -> None:
    """The drafter that the plan counts on is started, by each engine in its own words."""
    for drafter, case, method, algorithm, path in (
        ("eagle3", "quantised at load", "eagle3", "EAGLE3", "<EAGLE-3 head of meta-llama/Llama-3.1-70B>"),
        ("llama-3.2-1b", "quantised at load", "draft_model", "STANDALONE", "meta-llama/Llama-3.2-1B"),
        ("mtp", "published fp8", "mtp", "EAGLE", None),
    ):
        said = {"draft_tokens": 3, "acceptance": 0.7, "drafter": drafter}
        plan = planned("vllm", case, **said)
        words = shlex.split(first(commands(plan)))
        config = json.loads(words[words.index("--speculative-config") + 1])
        wanted = {"method": method, "num_speculative_tokens": 3}
        assert config == (wanted if path is None else {**wanted, "model": path})
        assert any("3 draft tokens" in one and f"by {drafter}" in one for one in plan.assumptions)
        assert ("EAGLE-3 head" in commands(plan).get("notes", "")) == (drafter == "eagle3")
        other = first(commands(planned("sglang", case, **said)))
        told = shlex.split(other)
        assert told[told.index("--speculative-algorithm") + 1] == algorithm
        assert value(other, "--speculative-num-steps") == 3
        assert value(other, "--speculative-num-draft-tokens") == 4
        assert ("--speculative-draft-model-path" in told) == (path is not None)
        assert flags(other) - DOCUMENTED["sglang"] == set()
    options = commands(planned("trtllm", "published fp8", **said))["server-options.yaml"]
    assert fields(options) - DOCUMENTED_OPTIONS == set()
    assert "num_nextn_predict_layers: 3" in options


def value(command: str, flag: str) -> int:
    """The number after a flag."""
    words = shlex.split(command)
    return int(words[words.index(flag) + 1])


def test_sglang_divides_its_prompt_chunk_by_the_attention_ranks() -> None:
    """So the flag is the budget of a rank times their number (`enable_dp_attention` in ServerArgs)."""
    plan = planned("sglang", "attention ranks")
    assert value(first(commands(plan)), "--chunked-prefill-size") == 8 * plan.decode.token_budget


def test_what_the_server_takes_by_itself_has_no_flag() -> None:
    """On an H200 vLLM takes 8,192 tokens and 1,024 requests, on an A100 2,048 and 256; others are written."""
    plan = planned("vllm", "quantised at load")
    usual = replace(plan, decode=replace(plan.decode, token_budget=8192, max_batch=1024))
    small = replace(plan, decode=replace(plan.decode, token_budget=2048, max_batch=256))
    flags = ("--max-num-seqs", "--max-num-batched-tokens")
    assert not [flag for flag in flags if flag in first(commands(usual))]
    assert [value(first(commands(small)), flag) for flag in flags] == [256, 2048]
    ampere = replace(small, request=replace(small.request, gpu="a100-sxm-80gb"))
    assert not [flag for flag in flags if flag in first(commands(ampere))]


def test_the_batch_of_trtllm_serve_is_that_of_an_attention_rank() -> None:
    """The replica's batch is shared by its eight ranks."""
    plan = planned("trtllm", "attention ranks")
    assert plan.decode.max_batch > 8
    assert value(first(commands(plan)), "--max_batch_size") == -(-plan.decode.max_batch // 8)


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", "--gpu-memory-utilization"),
        ("sglang", "--mem-fraction-static"),
        ("trtllm", "--kv_cache_free_gpu_memory_fraction"),
    ],
)
def test_a_memory_fraction_is_the_plans_and_the_servers(engine: str, flag: str) -> None:
    """Less memory for the cache in the plan, and the engine's own flag; without a word none, unless one is computed.

    SGLang sizes its cache by a rule of its own where it is told nothing, and 0.88 is planned.
    """
    usual, asked = (planned(engine, "quantised at load", **words) for words in ({}, {"memory_fraction": 0.7}))
    words = shlex.split(first(commands(asked)))
    assert words[words.index(flag) + 1] == "0.7"
    told = shlex.split(first(commands(usual)))
    assert told[told.index(flag) + 1] == "0.88" if engine == "sglang" else flag not in told
    assert asked.decode.memory.kv_cache_bytes < usual.decode.memory.kv_cache_bytes


@pytest.mark.parametrize(("steps", "more"), [(0, 0), (60, 0), (0, 10), (60, 10)])
def test_either_wait_of_attention_ranks_is_told(steps: int, more: int) -> None:
    """TensorRT-LLM counts both apart, so one of them is on without the other."""
    plan = planned("trtllm", "attention ranks")
    pool = replace(plan.decode, balance_steps=steps, gather_steps=more)
    told = yaml.safe_load(trtllm_options(plan, pool, ""))
    wanted = {"enable_balance": True, "timeout_iters": steps, "batching_wait_iters": more}
    assert told.get("attention_dp_config") == (wanted if steps or more else None)
