"""What engines refuse at load whatever it takes: rests of heads, cut blocks, lengths beyond positions."""

import json
from dataclasses import replace

import pytest

from app.reports.audit.server import server_answer
from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import ServingAudit, audited_server
from planner.audit.serving.load import ServedLoad
from planner.audit.serving.refused import refusal_of
from planner.audit.serving.server import Server, server_of
from planner.audit.serving.texts import audited_server_texts
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.serving.search import check_request
from topology.base.errors import InputError

CAL = load_calibration()
HEADS = "Qwen/Qwen2.5-7B-Instruct"
MOE = "Qwen/Qwen3-30B-A3B"
VLLM, SGLANG = "vllm serve", "python3 -m sglang.launch_server --model-path"
DRAFT = '{"method": "draft_model", "model": "small", "draft_tensor_parallel_size": 2}'
LONG = f"{VLLM} {MOE} --tensor-parallel-size 4 --max-model-len 131072"
LOAD = ServedLoad(source="flags", flags=ServeFlags(concurrency="8", input_tokens="512", output_tokens="64"))


def audit(words: str, *loads: ServedLoad, gpu: str = "h100-sxm") -> ServingAudit:
    """What is said of a command."""
    server = server_of(read_texts({"serve.sh": words}), model=None, gpu=gpu)
    assert isinstance(server, Server)
    return audited_server(CAL, read_texts({"serve.sh": words}), server, loads)


@pytest.mark.parametrize(
    ("words", "why", "fix"),
    [
        (f"{VLLM} {HEADS} --tensor-parallel-size 8", "28 heads do not divide by tp 8", "set tp 4"),
        (f"{SGLANG} {HEADS} --tp 8", "28 heads do not divide by tp 8", "set tp 4"),
        (f"trtllm-serve {HEADS} --tp_size 8", "28 heads do not divide by tp 8", "set tp 4"),
        (f"{VLLM} {MOE}-FP8 --tensor-parallel-size 8", "768 / 8 = 96", "--enable-expert-parallel"),
        (f"{VLLM} {MOE}-FP8 --tensor-parallel-size 4", "768 / 4 = 192", "over 2 ranks"),
        (f"{SGLANG} {MOE}-FP8 --tp 8", "768 / 8 = 96", "--ep-size 8"),
        (f"{VLLM} Qwen/Qwen3-32B-FP8 --tensor-parallel-size 16", "25,600 / 16 = 1600", "over 8 ranks"),
        (
            f"{VLLM} MiniMaxAI/MiniMax-M2.5 --tensor-parallel-size 8",
            "1,536 / 8 = 192",
            "--enable-expert-parallel",
        ),
        (f"{VLLM} {MOE} -tp 4 -dcp 2", "dcp 2 needs tp beyond the 4 heads of keys", "tp 8"),
        (f"{VLLM} Qwen/Qwen3-235B-A22B -tp 8 -dcp 4", "2 ranks have the same heads", "size 2"),
        (f"{VLLM} deepseek-ai/DeepSeek-R1 -tp 8 -dcp 3", "dcp = 3 does not divide tp = 8", "divisors of tp"),
        (
            f"{SGLANG} {MOE} --tp 8 --dp 3 --enable-dp-attention",
            "3 attention ranks share 8 GPUs",
            "divisors of 8",
        ),
        (f"{SGLANG} {MOE} --tp 4 --nnodes 3", "do not divide by 3 nodes", "2 nodes"),
        (f"{SGLANG} {MOE} --tp 4 --dp 2 --nnodes 2", "2 copies (--dp-size)", "--enable-dp-attention"),
        (f"{VLLM} {MOE} --gpu-memory-utilization 1.2", "takes 1.2 of a GPU's memory", "at most 1"),
        (
            f"{VLLM} {HEADS} -tp 4 --speculative-config '{DRAFT}'",
            "draft_tensor_parallel_size 2 is neither 1 nor tp 4",
            "give 1 or 4",
        ),
        (LONG, "131,072 tokens go beyond the 40,960 positions", "--hf-overrides"),
    ],
)
@pytest.mark.parametrize("loads", [(), (LOAD,)])
def test_an_engine_refuses_what_its_laws_forbid(words, why, fix, loads):
    """With or without a load: vllm issue 25292 has the blocks."""
    given = audit(words, *loads)
    assert given.fits is False
    assert given.start is not None
    assert given.start.starts is False
    assert given.start.finding is not None
    assert why in given.start.finding[0]
    assert fix in given.start.finding[1]
    assert "does not start" in server_answer(given).headline


@pytest.mark.parametrize(
    "words",
    [
        f"{VLLM} {HEADS} --tensor-parallel-size 4",
        f"{VLLM} {MOE} --tensor-parallel-size 8",
        f"{VLLM} {MOE}-FP8 --tensor-parallel-size 2",
        f"{VLLM} MiniMaxAI/MiniMax-M2 --tensor-parallel-size 4 --max-model-len 32768",
        f"{VLLM} MiniMaxAI/MiniMax-M2.5 --enable_expert_parallel --tensor-parallel-size 8",
        f"{VLLM} {MOE}-FP8 --tensor-parallel-size 8 --enable-expert-parallel",
        f"{VLLM} {MOE} --tensor-parallel-size 4 --max-model-len 40960",
        f"export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1\n{LONG}",
        f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {LONG}",
        f'{LONG} --rope-scaling \'{{"rope_type":"yarn","factor":4.0}}\'',
        f'{LONG} --hf-overrides \'{{"rope_parameters":{{"factor":4.0}}}}\'',
        f"{VLLM} {MOE}-Instruct-2507 --tensor-parallel-size 4 --max-model-len 262144",
    ],
)
def test_what_keeps_the_laws_starts(words):
    """A later release of a model may have more positions than the one that is catalogued."""
    given = audit(words).start
    assert given is not None
    assert given.starts is True
    assert given.refusal is None


QWEN = "Qwen/Qwen2.5-3B-Instruct"
R1 = "deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8"


@pytest.mark.parametrize(
    ("words", "gpu", "why"),
    [
        (f"{VLLM} {QWEN} --dtype bfloat16", "t4", "compute capability 8.0"),  # vllm issue 1157
        (f"{VLLM} {QWEN} --dtype bfloat16", "v100-sxm-32gb", "compute capability 8.0"),
        (f"{VLLM} Qwen/Qwen3-8B-FP8", "v100-sxm-32gb", "does not multiply in fp8"),
        (
            f"# sglang==0.4.8\n{SGLANG} Qwen/Qwen3-8B-FP8",
            "a100-sxm-80gb",
            "does not multiply in fp8",
        ),  # sglang issue 7715
        (f"{SGLANG} {MOE}-FP8", "a100-sxm-80gb", "such weights of experts"),  # sglang issue 38291
        (f"{SGLANG} {QWEN}", "v100-sxm-32gb", "sglang needs compute capability 7.5"),
        (f"{VLLM} {QWEN}-AWQ --dtype half", "v100-sxm-32gb", "such as GPTQ, or"),
        (f"trtllm-serve {QWEN}", "mi300x", "GPUs of nvidia"),
        (f"{VLLM} openai/gpt-oss-20b", "t4", "does not multiply in mxfp4"),
        (f"# sglang==0.4.7\n{SGLANG} nvidia/DeepSeek-R1-FP4 --tp 8", "h100-sxm", "release 0.5.13"),
        ("# TensorRT-LLM 1.0.0\ntrtllm-serve nvidia/DeepSeek-R1-FP4 --tp_size 8", "h200-sxm", "nvfp4"),
        (f"# vllm==0.8.5\n{VLLM} nvidia/Llama-3.1-8B-Instruct-FP4", "h100-sxm", "nvfp4"),
        (f"# vllm==0.11.0\n{VLLM} nvidia/Llama-3.1-8B-Instruct-FP8", "a100-sxm-80gb", "(ModelOpt)"),
        (f"# vllm==0.4.0\n{VLLM} {QWEN}-AWQ --quantization awq --dtype bfloat16", "a100-sxm-80gb", "float16"),
        (f"# vllm==0.11.0\n{VLLM} {QWEN} --kv-cache-dtype fp8", "rtx-3090", "8.9"),  # vllm issue 26431
        (
            f"# vllm==0.7.3\n{VLLM} {R1} --pipeline-parallel-size 2 --num-speculative-tokens 1",
            "h200-sxm",
            "beside speculation",  # vllm issue 14117
        ),
    ],
)
def test_formats_and_stages_that_an_engine_lacks_do_not_start(words: str, gpu: str, why: str) -> None:
    """What `plan serve` refuses an audit refuses: one law."""
    start = audit(words, gpu=gpu).start
    assert start is not None
    assert start.starts is False
    assert why in " ".join(start.finding or ())


@pytest.mark.parametrize(
    ("words", "gpu", "starts"),
    [
        (f"{SGLANG} Qwen/Qwen3-8B-FP8", "a100-sxm-80gb", True),  # Marlin since 0.5.6
        (f"{SGLANG} nvidia/Llama-3.3-70B-Instruct-FP4", "h100-sxm", True),
        (f"{VLLM} nvidia/Llama-3.3-70B-Instruct-FP4 --max-model-len 8192", "a100-sxm-80gb", True),
        (f"{VLLM} openai/gpt-oss-20b --max-model-len 8192", "rtx-3090", True),
        (f"{VLLM} openai/gpt-oss-20b", "mi300x", True),
        ("trtllm-serve nvidia/Llama-3.3-70B-Instruct-FP4", "h100-sxm", None),  # of some models alone
        ("trtllm-serve nvidia/Llama-3.3-70B-Instruct-FP4", "b200-sxm", True),
        (f"# vllm==0.11.0\n{VLLM} {QWEN}-AWQ --dtype bfloat16", "a100-sxm-80gb", True),  # Marlin's
        (f"# vllm==0.24.0\n{VLLM} {QWEN}-AWQ --quantization awq --dtype bfloat16", "a100-sxm-80gb", True),
        (f"{VLLM} {QWEN} --dtype half", "t4", True),
        (f"{VLLM} {QWEN} --dtype bfloat16", "a100-sxm-80gb", True),
        (f"{VLLM} Qwen/Qwen3-8B-FP8 --max-model-len 8192", "t4", True),
        (f"{VLLM} {QWEN} --kv-cache-dtype fp8", "rtx-4090", True),
        (f"{VLLM} {QWEN} --kv-cache-dtype fp8_e5m2", "rtx-3090", True),
        (f"{VLLM} {QWEN} --kv-cache-dtype fp8", "rtx-3090", None),
        (
            f"# vllm==0.11.0\nexport VLLM_ATTENTION_BACKEND=FLASHINFER\n{VLLM} {QWEN} --kv-cache-dtype fp8",
            "rtx-3090",
            None,
        ),
    ],
)
def test_a_gpu_that_has_the_format_starts(words: str, gpu: str, starts: bool | None) -> None:
    """Of releases that are not reported on nothing is sure."""
    start = audit(words, gpu=gpu).start
    assert start is not None
    assert start.starts is starts
    assert ("may not start" in start.why) is (starts is None)


def test_a_guessed_gpu_breaks_no_law_of_formats() -> None:
    """Its kind is not said."""
    reading = read_texts({"serve.sh": f"{VLLM} Qwen/Qwen3-8B-FP8"})
    server = server_of(reading, model=None, gpu=None)
    assert isinstance(server, Server)
    start = audited_server(CAL, reading, replace(server, gpu="v100-sxm-32gb"), ()).start
    assert start is not None
    assert start.refusal is None


AWQ = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064, "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("width", "group", "tp", "starts"),
    [(29_568, 128, 4, False), (29_568, 128, 1, True), (29_696, 128, 4, True), (29_568, 32, 4, True)],
)
@pytest.mark.parametrize("folder", ["ours", "elsewhere"])
def test_groups_of_scales_are_not_cut(width: int, group: int, tp: int, starts: bool, folder: str) -> None:
    """The configuration among the files is that of the folder that is served; vllm issue 11671."""
    quantised = {"quant_method": "awq", "bits": 4, "group_size": group}
    config = json.dumps(AWQ | {"intermediate_size": width, "quantization_config": quantised})
    words = f"{VLLM} ./ours --tensor-parallel-size {tp} --quantization awq --max-model-len 4096"
    texts = {"serve.sh": words, f"{folder}/config.json": config}
    found = audited_server_texts(texts, ServeFlags(), {}, gpu="h100-sxm")
    assert found is not None
    assert found.start is not None
    assert found.server is not None
    assert (found.server.model.name, found.server.weights) == ("ours", "int4")
    assert found.start.starts is starts
    assert ("groups of 128" in found.start.why) is not starts
    assert any("only configuration" in words for words in found.doubts) is (folder != "ours")


def test_blocks_are_those_that_a_configuration_states(tmp_path):
    """A checkpoint of any name, by the ``quantization_config`` of its directory; vllm issue 25292."""
    sizes = {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
        "max_position_embeddings": 40960, "tie_word_embeddings": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip
    for quantised, starts in (([128, 128], False), ([64, 64], True), (None, True)):
        stated = {"quant_method": "fp8"} | ({"weight_block_size": quantised} if quantised else {})
        path = tmp_path / "config.json"
        path.write_text(json.dumps(sizes | {"quantization_config": stated}))
        reading = read_texts({"serve.sh": f"{VLLM} ours/moe-fp8 --tensor-parallel-size 4"})
        server = server_of(reading, model=str(path), gpu="h100-sxm")
        assert isinstance(server, Server)
        start = audited_server(CAL, reading, server, ()).start
        assert start is not None
        assert start.starts is starts


V4 = "deepseek-ai/DeepSeek-V4-Flash"


@pytest.mark.parametrize(
    ("words", "gpu", "starts", "kv_dtype"),
    [
        (f"{VLLM} {V4} --tensor-parallel-size 4 --kv-cache-dtype bfloat16", "h200-sxm", False, "bf16"),
        (f"{VLLM} {V4} --tensor-parallel-size 4", "h200-sxm", True, "fp8"),
        (f"{VLLM} {V4} --tensor-parallel-size 4 --kv-cache-dtype fp8", "h200-sxm", True, "fp8"),
        (f"{VLLM} {MOE} --kv-cache-dtype bfloat16", "h200-sxm", True, "bf16"),
    ],
)
def test_layers_of_compressed_keys_take_a_cache_of_eight_bits_alone(words, gpu, starts, kv_dtype):
    """Asserted by vLLM 0.24 and 0.28 (`_resolve_dsv4_kv_cache_dtype`); `auto` is fp8 since pull 45091."""
    given = audit(words, gpu=gpu)
    assert given.start is not None
    assert given.start.starts is starts
    server = server_of(read_texts({"serve.sh": words}), model=None, gpu=gpu)
    assert isinstance(server, Server)
    assert server.kv_dtype == kv_dtype


def test_a_release_that_stops_at_the_default_cache_is_doubted():
    """DeepSeek-V4 without the flag: 0.28 asserts fp8 of what `auto` is, unless its checkpoint says otherwise."""
    server = server_of(
        read_texts({"serve.sh": f"{VLLM} {V4} --tensor-parallel-size 4"}), model=None, gpu="h200-sxm"
    )
    assert isinstance(server, Server)
    assert refusal_of(server) is None
    doubt = refusal_of(replace(server, version="0.28.0"))
    assert doubt is not None
    assert not doubt.certain
    assert "give --kv-cache-dtype fp8" in doubt.fix


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "asked", "kv_dtype"),
    [
        ("deepseek-v4-flash", "h100-sxm", "vllm", None, "fp8"),
        ("deepseek-v4-pro", "b200-sxm", "vllm", None, "fp8"),
        ("deepseek-v4-pro", "b200-sxm", "sglang", None, "bf16"),
        ("deepseek-v4-pro", "mi300x", "vllm", None, "bf16"),
        ("deepseek-r1", "h200-sxm", "vllm", None, "bf16"),
        ("deepseek-v4-flash", "h200-sxm", "vllm", "bf16", None),
    ],
)
def test_a_plan_keeps_the_law_of_an_audit(model, gpu, engine, asked, kv_dtype):
    """What is planned has the format that the engine takes; another one is refused in three lines."""
    flags = ServeFlags(model=model, gpu=gpu, engine=engine, gpus="8", kv_dtype=asked, concurrency="8")
    request, hierarchy = understand_serving(flags).requests[0]
    if kv_dtype is not None:
        assert request.job.kv_dtype == kv_dtype
        return
    with pytest.raises(InputError, match="in fp8 on h200-sxm"):
        check_request(request, hierarchy.gpu)
