"""A server of somebody's script: read as our own commands are written, judged as our own plans are."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Mapping

import pytest

from app.reports.audit.server import server_answer
from costmodel.kernels.tables import load_calibration
from planner.analysis.serving.fleets import find_fleet
from planner.audit.read import read_texts
from planner.audit.serving.audit import LoadAudit, audited_server
from planner.audit.serving.binding import FULL
from planner.audit.serving.changes import LEAST_GAIN, best_per_s
from planner.audit.serving.load import ServedLoad, is_result, loads_of
from planner.audit.serving.server import Server, Unknown, server_of
from planner.audit.serving.texts import audited_server_texts
from planner.deployment.client import client_words
from planner.deployment.vllm_sglang import engine_words, trtllm_options
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.serving.plan import ServingPlan
from tests.counts import cases_of_run
from topology.base.errors import InputError

CAL = load_calibration()
QUESTIONS = {
    f"{engine}-{name}": (engine, words)
    for engine in ("vllm", "sglang", "trtllm")
    for name, words in {
        "dense": {
            "model": "8b", "gpus": "2", "gpu": "h100-sxm", "weights": "bf16", "settings": ("layout.tp=2",)
        },
        "experts": {"model": "deepseek-v3", "gpus": "8", "gpu": "h200-sxm", "kv_dtype": "fp8"},
        "pinned": {
            "model": "qwen3-30b-a3b", "gpus": "2", "gpu": "h100-sxm", "memory_fraction": "0.8",
            "weights": "bf16", "settings": ("layout.tp=2", "layout.attention_dp=1"),
        },
    }.items()
}  # fmt: skip


@functools.cache
def plan_of(name: str) -> ServingPlan:
    """The best server of a question's GPUs, with 64 requests in flight."""
    engine, words = QUESTIONS[name]
    asked = ServeFlags(**words, engine=engine, concurrency="64", mode="aggregated")
    return find_fleet(understand_serving(asked))


def read_as_written(plan: ServingPlan) -> Server:
    """A plan's own command, as somebody's script."""
    texts = {"serve.sh": shlex.join(engine_words(plan, plan.decode, ""))}
    if plan.request.engine == "trtllm" and (options := trtllm_options(plan, plan.decode, "")):
        texts["server-options.yaml"] = options
    found = server_of(read_texts(texts), model=plan.request.model.name, gpu=plan.request.gpu)
    assert isinstance(found, Server)
    return found


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_written_reads_back(name: str) -> None:
    plan = plan_of(name)
    found = read_as_written(plan)
    assert found.engine == plan.request.engine
    assert found.layout == plan.decode.layout
    assert found.kv_dtype == plan.kv_dtype
    assert found.weights == plan.weights
    told = {"sglang": 0.88}.get(plan.request.engine)  # who would compute another where none is told
    assert found.memory_fraction == (plan.request.job.memory_fraction or told)
    assert found.balance_steps == plan.decode.balance_steps
    assert found.gather_steps == 0
    if found.max_batch is not None:  # of a rank each, rounded up
        assert 0 <= found.max_batch - plan.decode.max_batch < plan.decode.layout.attention_dp
    if found.token_budget is not None:
        assert found.token_budget == plan.decode.token_budget


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_best_server_is_not_behind_itself(name: str) -> None:
    """Its own rate is predicted, and nothing that the search may choose carries more."""
    plan = plan_of(name)
    if plan.decode.workers > 1:
        pytest.skip("several servers are several commands")
    engine, words = QUESTIONS[name]
    load = ServedLoad(flags=ServeFlags(**words, engine=engine, concurrency="64"), source="as asked")
    found = under(read_as_written(plan), load)
    assert found.running is not None
    assert found.running.requests_per_s == pytest.approx(plan.estimate.request_rate_per_s, rel=0.01)
    assert found.behind_by == pytest.approx(0, abs=0.01)
    assert not [change for change in found.changes if change.whole]


def under(server: Server, load: ServedLoad) -> LoadAudit:
    """A server under one load."""
    return audited_server(CAL, read_texts({"s.sh": "vllm serve m -tp 1"}), server, (load,)).loads[0]


def server(words: str, **over: str) -> Server:
    """The server of a command."""
    found = server_of(read_texts({"s.sh": words}), model=over.get("model"), gpu=over.get("gpu", "h100-sxm"))
    assert isinstance(found, Server), found
    return found


@pytest.mark.parametrize(
    ("words", "label", "replicas"),
    [
        ("vllm serve meta-llama/Llama-3.1-8B -tp 2 --data-parallel-size 4", "tp2", 4),
        ("vllm serve Qwen/Qwen3-30B-A3B -tp 2 --data-parallel-size 2 --enable-expert-parallel", "tp2·dp2·ep4", 1),
        ("python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-32B --tensor-parallel-size=4", "tp4", 1),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --dp 4", "tp2", 4),
        ("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention",
         "dp8", 1),
        ("trtllm-serve Qwen/Qwen3-32B --tp_size 4 --pp_size 2", "tp4·pp2", 1),
        ("trtllm-serve serve Qwen/Qwen3-32B --tp_size 4", "tp4", 1),
    ],
)  # fmt: skip
def test_engines_count_in_their_own_ways(words: str, label: str, replicas: int) -> None:
    found = server(words)
    assert (found.layout.label, found.replicas) == (label, replicas)


def test_limits_are_of_all_attention_ranks() -> None:
    """Those of vLLM and TensorRT-LLM are of one rank, SGLang's of the server; its chunk is divided."""
    expert = "--enable-expert-parallel --data-parallel-size 4"
    one = server(f"vllm serve Qwen/Qwen3-30B-A3B {expert} --max-num-seqs 64 --max-num-batched-tokens 4096")
    assert (one.max_batch, one.token_budget) == (256, 4096)
    ranks = "--tp 4 --attn-dp-size 4 --max-running-requests 64 --chunked-prefill-size 4096"
    two = server(f"python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B {ranks}")
    assert (two.max_batch, two.token_budget, two.layout.attention_dp) == (64, 1024, 4)


SGLANG = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B"


def balanced(options: str) -> Server:
    """A server of TensorRT-LLM whose eight attention ranks have these options of balance."""
    texts = {
        "s.sh": "trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --extra_llm_api_options o.yaml",
        "o.yaml": f"enable_attention_dp: true\nattention_dp_config: {{{options}}}\n",
    }
    found = server_of(read_texts(texts), model=None, gpu="h200-sxm")
    assert isinstance(found, Server)
    return found


def test_prompts_of_attention_ranks_wait_as_the_options_say() -> None:
    """Only where balance is on, and then for as long as is said, or for the engine's own fifty and ten steps."""
    for options, steps, more in (
        ("enable_balance: true, timeout_iters: 30", 30, 10),
        ("enable_balance: true, timeout_iters: 30, batching_wait_iters: 0", 30, 0),
        ("enable_balance: true, batching_wait_iters: 25", 50, 25),
        ("enable_balance: true", 50, 10),
        ("enable_balance: true, timeout_iters: 0", 0, 10),
        ("timeout_iters: 30, batching_wait_iters: 25", 0, 0),
    ):
        found = balanced(options)
        assert (found.balance_steps, found.gather_steps, found.layout.attention_dp) == (steps, more, 8)


@pytest.mark.parametrize("word", ["timeout_iters", "batching_wait_iters"])
@pytest.mark.parametrize("value", ["many", "1.5", "-3", "true"])
def test_steps_that_are_no_whole_number_are_refused(word: str, value: str) -> None:
    """Where balance is on; the default would be another server."""
    with pytest.raises(InputError) as refused:
        balanced(f"enable_balance: true, {word}: {value}")
    assert len(str(refused.value).splitlines()) == 3
    assert word in refused.value.what
    assert value in refused.value.cause.lower()
    assert balanced(f"{word}: {value}").balance_steps == 0


def test_steps_that_nobody_said_are_taken_for_granted() -> None:
    def told(options: str) -> list[str]:
        return [text.partition(",")[0] for text in balanced(options).assumed if "_iters" in text]

    assert told("enable_balance: true") == ["timeout_iters is 50", "batching_wait_iters is 10"]
    assert told("enable_balance: true, timeout_iters: 30") == ["batching_wait_iters is 10"]
    assert told("enable_balance: true, timeout_iters: 30, batching_wait_iters: 0") == []
    assert told("enable_balance: false") == []


def test_more_memory_than_a_server_of_sglang_was_given_is_not_advised() -> None:
    """What it takes by itself is no constant, and vLLM's is."""
    load = ServedLoad(flags=ServeFlags(concurrency="256"), source="as asked")
    one = under(server(f"{SGLANG} --mem-fraction-static 0.3"), load)
    assert not [change for change in one.changes if "mem-fraction" in " ".join(change.set)]
    words = "vllm serve meta-llama/Llama-3.1-8B --gpu-memory-utilization 0.35 --max-model-len 8192"
    two = under(server(words), load)  # its context of 131,072 tokens would not start there
    assert [change for change in two.changes if change.set == ("without --gpu-memory-utilization",)]


def test_the_memory_share_of_sglang_is_its_releases_where_none_is_said() -> None:
    assert any("the rule of the engine's release" in text for text in server(SGLANG).assumed)
    said = server(f"{SGLANG} --mem-fraction-static 0.8")
    others = (said, server("vllm serve meta-llama/Llama-3.1-8B"), balanced("enable_balance: true"))
    assert not [text for other in others for text in other.assumed if "of the memory" in text]


def test_speculation_and_pools_are_not_priced_as_if_they_were_not_there() -> None:
    for words in ('--speculative-config \'{"method": "mtp"}\'', "--kv-transfer-config '{}'"):
        found = server_of(
            read_texts({"s.sh": f"vllm serve Qwen/Qwen3-32B -tp 4 {words}"}), model=None, gpu=None
        )
        assert found.missing if isinstance(found, Unknown) else found.unpriced


@pytest.mark.parametrize(
    ("command", "drafter", "drafts"),
    [
        (
            (
                "vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --speculative-config "
                '\'{"method": "deepseek_mtp", "num_speculative_tokens": 2}\''
            ),
            "mtp",
            2,
        ),
        (
            (
                "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 "
                "--speculative-algorithm EAGLE --speculative-num-steps 3"
            ),
            "mtp",
            3,
        ),
        (
            (
                "vllm serve meta-llama/Llama-3.1-8B --speculative-config.method eagle3 "
                "--speculative-config.num_speculative_tokens 4"
            ),
            "eagle3",
            4,
        ),
    ],
)
def test_a_server_holds_the_drafter_that_its_words_name(command: str, drafter: str, drafts: int) -> None:
    drafted, plain = server(command), server(command.partition(" --spec")[0])
    assert (drafted.drafter, drafted.draft_tokens) == (drafter, drafts)
    assert any("of drafts are accepted" in text for text in drafted.assumed)
    reading = read_texts({"s.sh": command})
    held = [audited_server(CAL, reading, each, ()).start for each in (drafted, plain)]
    assert held[0] is not None
    assert held[1] is not None
    assert held[0].weights_bytes > held[1].weights_bytes
    assert held[0].cache_tokens < held[1].cache_tokens


def test_a_limit_below_the_load_is_found_and_lifting_it_carries_more() -> None:
    load = ServedLoad(flags=ServeFlags(concurrency="64"), source="as asked")
    found = under(server("vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 16 --max-model-len 2000"), load)
    texts = [what for what, _ in found.findings]
    assert "48 of 64 requests in flight always wait: 16 run at once" in texts
    assert "requests of 2300 tokens are refused: the server takes 2000" in texts
    alone = {change.set: change for change in found.changes if not change.whole}
    assert alone["without --max-num-seqs",].requests_per_s > 1.5 * found.running.requests_per_s
    best = next(change for change in found.changes if change.whole)
    assert found.behind_by == pytest.approx(best.requests_per_s / found.running.requests_per_s - 1)
    assert best.requests_per_s >= (1 - LEAST_GAIN) * max(
        change.requests_per_s for change in found.changes if "fp8" not in " ".join(change.set)
    )


@pytest.mark.parametrize(("limit", "room"), [(97, False), (16, True)])
def test_a_limit_that_a_full_cache_sets_is_not_to_be_raised(limit: int, room: bool) -> None:
    """A plan writes the limit that its cache holds: no audit says to raise it."""
    load = ServedLoad(flags=ServeFlags(concurrency="300"), source="as asked")
    words = "vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 2 --quantization fp8"
    found = under(server(f"{words} --max-num-seqs {limit}"), load)
    (helps,) = (fix for what, fix in found.findings if "always wait" in what)
    assert (found.running.plan.estimate.kv_used_share < FULL) is room
    for advice in (helps, *(fix for _, fix in [found.binds] if found.binds)):
        assert ("raise the limit" in advice) is room
        assert ("the cache holds no more" in advice) is not room


LIMITS: tuple[dict[str, str], ...] = ({}, {"ttft": "1s", "tpot": "40ms"})


@pytest.mark.parametrize("limits", cases_of_run(LIMITS, nightly=[{}]))
def test_what_carries_more_is_asked_as_the_server_is_and_nothing_carries_more_than_the_best(
    limits: Mapping[str, str],
) -> None:
    """Within the same limits; latencies are those of the rate that was asked, not of the most they carry."""
    flags = ServeFlags(rate="4/s", input_tokens="2000", output_tokens="300", **limits)
    load = ServedLoad(flags=flags, source="as asked")
    found = under(server("vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8"), load)
    assert found.best is not None
    assert found.best.estimate.request_rate_per_s == pytest.approx(4.0)
    for change in found.changes:
        assert change.plan.estimate.request_rate_per_s == pytest.approx(4.0)
        assert change.ttft_s < 3 * found.running.plan.estimate.ttft.p50_s
        assert change.narrower or change.requests_per_s <= best_per_s(found.best)


def test_a_rate_beyond_what_a_server_carries_is_told() -> None:
    flags = ServeFlags(rate="200/s", ttft="2s", tpot="50ms")
    found = under(server("vllm serve meta-llama/Llama-3.1-8B"), ServedLoad(flags=flags, source="as asked"))
    assert found.running.broken
    assert 0 < found.running.requests_per_s < 200


def test_a_server_that_holds_no_request_does_not_fit() -> None:
    found = under(server("vllm serve meta-llama/Llama-3.1-70B -tp 2", gpu="l40s"),
                  ServedLoad(flags=ServeFlags(concurrency="4"), source="as asked"))  # fmt: skip
    assert not found.fits
    assert found.running is None


def result() -> str:
    """What `vllm bench serve --save-result` writes."""
    figures = {
        "backend": "vllm", "model_id": "m", "completed": 640, "total_input_tokens": 640_000,
        "total_output_tokens": 128_000, "request_throughput": 8.0, "mean_ttft_ms": 500.0,
        "mean_tpot_ms": 37.6884422110553, "max_concurrency": 64,
    }  # fmt: skip
    return json.dumps(figures)


def test_a_result_says_load_and_measurement() -> None:
    text = result()
    assert is_result("bench.json", text)
    assert not is_result("settings.json", "{}")
    assert not is_result("serve.sh", text)
    (load,) = loads_of({"bench.json": text}, {}, ServeFlags(ttft="2s"), {})
    assert (load.flags.concurrency, load.flags.input_tokens, load.flags.output_tokens) == (
        "64",
        "1000",
        "200",
    )
    assert load.flags.ttft == "2s"
    found = under(server("vllm serve meta-llama/Llama-3.1-8B"), load)
    assert found.measured_per_s == pytest.approx(8.0)  # 64 in flight for 0.5 + 199 · 0.0377 s


def test_the_client_of_a_script_says_the_load() -> None:
    texts = {"s.sh": shlex.join(client_words(plan_of("vllm-dense"), "m"))}
    (load,) = loads_of({}, texts, ServeFlags(), {})
    assert (load.flags.concurrency, load.flags.input_tokens, load.flags.output_tokens) == (
        "64",
        "2000",
        "300",
    )
    asked = ServeFlags(rate="3/s", input_tokens="10")
    assert loads_of({}, texts, asked, {})[0].flags == asked
    assert loads_of({}, {"s.sh": "vllm bench serve --model m --random-input-len 9"}, ServeFlags(), {}) == ()


BURST = {
    "backend": "vllm", "model_id": "m", "completed": 50, "total_input_tokens": 1_250_000,
    "total_output_tokens": 51_200, "request_rate": "inf", "max_concurrency": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("per_s", "ttft_ms", "tpot_ms", "slow"),
    [(0.0068, 2_945_424.0, 140.0, True), (0.057, 430_000.0, 80.0, False)],
)
def test_a_server_far_slower_than_predicted_is_what_is_said_first(
    per_s: float, ttft_ms: float, tpot_ms: float, *, slow: bool
) -> None:
    """Issue 18136 of vLLM: 50 prompts of 25,000 tokens at once took 7,304 s on four GPUs."""
    words = "vllm serve Qwen/Qwen3-32B-AWQ --tensor-parallel-size 4 --gpu-memory-utilization 0.90"
    measured = {"request_throughput": per_s, "mean_ttft_ms": ttft_ms, "mean_tpot_ms": tpot_ms}
    texts = {"serve.sh": words, "bench.json": json.dumps({**BURST, **measured})}
    audit = audited_server_texts(texts, ServeFlags(), {}, gpu="l40s")
    assert audit is not None
    (load,) = audit.loads
    assert load.load.flags.concurrency == "50"
    assert load.measured_per_s == pytest.approx(per_s)
    assert (load.slower_than_predicted is not None) is slow
    answer = server_answer(audit)
    assert ("times slower than it should be" in answer.headline) is slow
    first = answer.sections[0].pairs[0]  # type: ignore[union-attr]  # the first section is of pairs
    assert (first[0] == "slow") is slow
    told = dict(answer.sections[0].pairs)  # type: ignore[union-attr]  # same
    assert "burst of 50" in told["slow" if slow else "predicted"]


HEREDOC = """
cat > config.yaml << EOF
no-enable-prefix-caching: true
max-num-batched-tokens: {budget}
max-model-len: 2248
kv-cache-dtype: fp8
EOF
vllm serve openai/gpt-oss-120b --config config.yaml --tensor-parallel-size=8 --max-num-seqs=64
"""
OPTIONS = """
MODEL=nvidia/DeepSeek-R1-0528-FP4
cat > options.yml << EOF
enable_attention_dp: true
kv_cache_config:
    dtype: fp8
    free_gpu_memory_fraction: 0.8
EOF
mpirun -n 1 --oversubscribe --allow-run-as-root trtllm-serve $MODEL --port=8000 --max_seq_len=2248 --tp_size=8 \\
    --ep_size=8 --max_num_tokens=4096 --extra_llm_api_options=options.yml
"""


@pytest.mark.parametrize("budget", [2048, 16_384])
def test_options_that_a_script_writes_are_read(budget: int) -> None:
    """Budget, length and format of the cache of vLLM's ``--config``."""
    found = server(HEREDOC.format(budget=budget))
    assert (found.token_budget, found.longest, found.kv_dtype, found.max_batch) == (budget, 2248, "fp8", 64)


def test_options_of_the_command_hold_over_those_of_the_file() -> None:
    """A flag beside the file that says otherwise."""
    assert server(f"{HEREDOC.format(budget=2048).rstrip()} --max-model-len 4096").longest == 4096


def test_a_server_under_mpirun_has_its_model_and_its_options() -> None:
    """A launcher's last flag takes no value from the command that it starts."""
    found = server(OPTIONS)
    assert (found.model.name, found.weights, found.layout.label) == ("deepseek-r1", "fp4", "dp8·ep8")
    assert (found.kv_dtype, found.memory_fraction, found.longest) == ("fp8", 0.8, 2248)


def test_options_that_nobody_gave_are_named() -> None:
    """They may hold anything."""
    reading = read_texts(
        {"s.sh": "vllm serve openai/gpt-oss-120b --config other.yaml --tensor-parallel-size 8"}
    )
    assert any("other.yaml" in doubt for doubt in reading.doubts)


POD = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - image: vllm/vllm-openai:v0.11.0
        command: ["vllm", "serve"]
        args: ["Qwen/Qwen3-32B", "--tensor-parallel-size", "4", "--max-model-len", "32768"]
"""
COMPOSE = """
services:
  server:
    image: lmsysorg/sglang:v0.5.3
    entrypoint: python3 -m sglang.launch_server
    command:
      - --model-path
      - Qwen/Qwen3-32B
      - --tp
      - "4"
      - --context-length
      - "32768"
"""
LLM_D = """
modelArtifacts:
  uri: "hf://Qwen/Qwen3-32B"
  name: "Qwen/Qwen3-32B"
decode:
  create: true
  parallelism:
    tensor: 4
  containers:
  - name: "vllm"
    modelCommand: vllmServe
    args: ["--max-model-len", "32768", "--gpu-memory-utilization=0.9"]
prefill:
  create: {prefill}
"""
DYNAMO = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
spec:
  services:
    Worker:
      extraPodSpec:
        mainContainer:
          command: ["python3", "-m", "dynamo.vllm"]
          args: ["--model", "Qwen/Qwen3-32B", "--tensor-parallel-size", "4", "--max-model-len", "32768"]
"""
KSERVE = """
kind: InferenceService
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      args: ["--model_id=Qwen/Qwen3-32B", "--tensor-parallel-size=4", "--max-model-len=32768"]
"""


@pytest.mark.parametrize("text", [POD, COMPOSE, LLM_D.format(prefill="false"), DYNAMO, KSERVE])
def test_servers_of_releases_and_services_are_read(text: str) -> None:
    """A pod, a service of compose, a release of llm-d, a graph of Dynamo, a service of KServe."""
    found = server_of(read_texts({"server.yaml": text}), model=None, gpu="h100-sxm")
    assert isinstance(found, Server)
    assert (found.model.name, found.layout.label, found.longest) == ("qwen3-32b", "tp4", 32_768)


def test_a_release_of_two_pools_is_no_whole_server() -> None:
    """A pool for prompts beside the one that decodes: what it serves is not what one of them does."""
    found = server_of(read_texts({"v.yaml": LLM_D.format(prefill="true")}), model=None, gpu="h100-sxm")
    assert isinstance(found, Unknown)
    assert any("both pools" in missing for missing in found.missing)
