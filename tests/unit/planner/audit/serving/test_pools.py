"""Two pools read from the files that start them: scripts, manifests, routers; judged as our own plans are."""

from __future__ import annotations

import json
import re

import pytest

from app.reports.answer import Table
from app.reports.audit.server import server_answer
from planner.analysis.serving.fleets import find_fleet
from planner.audit.serving.pools import Pools, pool_launches, pools_of
from planner.audit.serving.server import Unknown
from planner.audit.serving.texts import audited_server_texts
from planner.deployment.folder import folder
from planner.formats.shell import script_of_text
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving

SGLANG = """python -m sglang.launch_server --model-path Qwen/Qwen3-32B --disaggregation-mode prefill --port 30000 &
python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --disaggregation-mode decode --port 30001 &
python -m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:30000 --decode http://127.0.0.1:30001
"""
CONNECTOR = """MODEL=Qwen/Qwen3-32B
for i in 0 1; do
  PORT=$((8100 + i))
  CUDA_VISIBLE_DEVICES=$i vllm serve $MODEL --port $PORT --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' &
done
CUDA_VISIBLE_DEVICES=2,3 vllm serve $MODEL --port 8200 -tp 2 --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' &
python3 proxy.py --prefiller-hosts localhost localhost --prefiller-ports 8100 8101 --decoder-hosts localhost --decoder-ports 8200
"""
TENSORRT = """cat > ctx.yaml <<EOF
cache_transceiver_config: {backend: UCX}
EOF
trtllm-serve Qwen/Qwen3-32B --host localhost --port 8001 --config ctx.yaml &
trtllm-serve Qwen/Qwen3-32B --host localhost --port 8002 --config ctx.yaml &
trtllm-serve Qwen/Qwen3-32B --host localhost --port 8003 --tp_size 2 &
cat > disagg.yaml <<EOF
port: 8000
context_servers:
  num_instances: 2
  urls: ["localhost:8001", "localhost:8002"]
generation_servers:
  num_instances: 1
  urls: ["localhost:8003"]
EOF
trtllm-serve disaggregated -c disagg.yaml
"""
DYNAMO = """kind: DynamoGraphDeployment
spec:
  services:
    VllmDecodeWorker:
      replicas: 1
      extraPodSpec:
        mainContainer:
          command: [python3, -m, dynamo.vllm]
          args: ["--model", "Qwen/Qwen3-32B", "--tensor-parallel-size", "2"]
    VllmPrefillWorker:
      replicas: 2
      extraPodSpec:
        mainContainer:
          command: [python3, -m, dynamo.vllm]
          args: ["--model", "Qwen/Qwen3-32B", "--is-prefill-worker"]
"""


@pytest.mark.parametrize(
    ("text", "name", "prefill_workers"),
    [
        (SGLANG, "serve.sh", 1),
        (CONNECTOR, "serve.sh", 2),
        (TENSORRT, "serve.sh", 2),
        (DYNAMO, "graph.yaml", 2),
    ],
)
def test_both_pools_are_read_with_their_workers(text: str, name: str, prefill_workers: int) -> None:
    """By flags of the servers, ports of a proxy, the file of a router, a manifest's replicas."""
    pools = pools_of({name: text}, {}, model=None, gpu="h100-sxm")
    assert isinstance(pools, Pools)
    assert (pools.prefill.replicas, pools.prefill.layout.label) == (prefill_workers, "tp1")
    assert (pools.decode.replicas, pools.decode.layout.label) == (1, "tp2")
    assert pools.num_gpus == prefill_workers + 2


def test_flags_whose_names_speak_of_a_phase_add_no_workers() -> None:
    """A chunk of four digits is no port of a router, nor is where a prefill worker meets others."""
    chunks = SGLANG.replace("--tp 2", "--tp 2 --chunked-prefill-size 8192 --max-prefill-tokens 16384")
    for text in (chunks, SGLANG.replace("127.0.0.1:30000 ", "127.0.0.1:30000 8998 ")):
        pools = pools_of({"serve.sh": text}, {}, model=None, gpu="h100-sxm")
        assert isinstance(pools, Pools)
        assert (pools.prefill.replicas, pools.decode.replicas) == (1, 1)


DYNAMO_COMMANDS = """python -m dynamo.frontend --http-port 8000 &
CUDA_VISIBLE_DEVICES=0 python -m dynamo.vllm --model Qwen/Qwen3-32B &
CUDA_VISIBLE_DEVICES=1 python -m dynamo.vllm --model Qwen/Qwen3-32B --is-prefill-worker &
"""


def test_workers_that_register_listen_at_no_port_of_requests() -> None:
    """Workers of Dynamo are found by its runtime; commands of the engine itself share the usual port."""
    pools = pools_of({"serve.sh": DYNAMO_COMMANDS}, {}, model=None, gpu="h100-sxm")
    assert isinstance(pools, Pools)
    assert pools.broken == ()
    own = re.sub(r" --port \d+", "", SGLANG)
    pools = pools_of({"serve.sh": own}, {}, model=None, gpu="h100-sxm")
    assert isinstance(pools, Pools)
    assert [law.certain for law in pools.broken] == [True]


SLICES = """kind: DisaggregatedSet
spec:
  slices: 3
  roles:
    - name: prefill
      spec:
        replicas: 2
        leaderWorkerTemplate:
          size: 1
          workerTemplate: {spec: {containers: [{command: [vllm, serve], args: [Qwen/Qwen3-32B,
            --kv-transfer-config, '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}']}]}}
    - name: decode
      spec:
        replicas: 1
        leaderWorkerTemplate:
          size: 1
          workerTemplate: {spec: {containers: [{command: [vllm, serve], args: [Qwen/Qwen3-32B, -tp=2,
            --kv-transfer-config, '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}']}]}}
"""


def test_slices_are_copies_of_all_pools() -> None:
    """The replicas of a DisaggregatedSet are those of one slice."""
    pools = pools_of({"set.yaml": SLICES}, {}, model=None, gpu="h100-sxm")
    assert isinstance(pools, Pools)
    assert (pools.prefill.replicas, pools.decode.replicas, pools.num_gpus) == (6, 3, 12)


def test_pools_of_two_files_are_put_together() -> None:
    """One host each, as servers of many GPUs are started."""
    prefill, decode, _ = SGLANG.splitlines()
    pools = pools_of({"p.sh": prefill, "d.sh": decode}, {}, model=None, gpu="h100-sxm")
    assert isinstance(pools, Pools)
    assert (pools.prefill.replicas, pools.decode.layout.label) == (1, "tp2")


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve Qwen/Qwen3-32B --port 8000",
        SGLANG.splitlines()[0],
        "vllm serve Qwen/Qwen3-32B --port 8000 &\nvllm serve Qwen/Qwen3-8B --port 8001 &",
    ],
)
def test_servers_of_whole_requests_and_half_a_pair_are_no_pools(text: str) -> None:
    """Nothing is guessed of the other pool."""
    assert pools_of({"serve.sh": text}, {}, model=None, gpu="h100-sxm") is None


def test_pools_of_unequal_workers_are_refused() -> None:
    """A pool is priced as equal workers."""
    text = SGLANG.replace(
        "&\npython -m sglang.launch_server",
        f"&\n{SGLANG.splitlines()[0][:-1]} --tp 4 &\npython -m sglang.launch_server",
        1,
    )
    assert len(pool_launches({"serve.sh": text}, {})) == 3
    unknown = pools_of({"serve.sh": text}, {}, model=None, gpu="h100-sxm")
    assert isinstance(unknown, Unknown)
    assert "equal workers" in unknown.missing[0]


@pytest.mark.parametrize(
    ("engine", "form"),
    [
        ("vllm", "scripts"),
        ("vllm", "dynamo"),
        ("vllm", "kubernetes"),
        ("sglang", "scripts"),
        ("trtllm", "scripts"),
    ],
)
def test_a_folder_of_our_own_is_read_as_it_was_planned(engine: str, form: str) -> None:
    """What the plan says of its load, an audit of its files says too."""
    flags = ServeFlags(
        model="70b", gpu="h100-sxm", gpus="8", engine=engine, mode="disaggregated", weights="fp8",
        concurrency="64", input_tokens="2000", output_tokens="300",
    )  # fmt: skip
    plan = find_fleet(understand_serving(flags))
    files = {
        name: text for name, text in folder(plan, None, (form,)).items() if name.endswith((".sh", ".yaml"))
    }
    audit = audited_server_texts(files, replace_load(flags), {}, gpu="h100-sxm")
    assert audit is not None
    assert audit.prefill is not None
    assert audit.server is not None
    assert plan.prefill is not None
    assert (audit.prefill.replicas, audit.server.replicas) == (plan.prefill.workers, plan.decode.workers)
    (load,) = audit.loads
    assert load.running is not None
    assert load.running.requests_per_s == pytest.approx(plan.estimate.request_rate_per_s, rel=0.01)
    assert "two pools" in server_answer(audit).headline


def replace_load(flags: ServeFlags) -> ServeFlags:
    """The load of a question alone."""
    return ServeFlags(
        concurrency=flags.concurrency, input_tokens=flags.input_tokens, output_tokens=flags.output_tokens,
        input_p99="alike", output_p99="alike",
    )  # fmt: skip


@pytest.mark.parametrize(("words", "measured"), [("", False), (" --ep-size 8", True)])
def test_an_unmeasured_split_that_carries_more_is_told_as_such(words: str, *, measured: bool) -> None:
    """Rather than that nothing does: a split of which no run is known, beside those of which there are.

    Divided experts carry less at this load than tensor parallelism, which was measured: it is told first.
    """
    command = f"python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8{words}"
    files = {
        f"{phase}.sh": f"{command} --disaggregation-mode {phase} --port {port}"
        for phase, port in (("prefill", 30_000), ("decode", 30_001))
    }
    flags = ServeFlags(concurrency="50", input_tokens="1000", output_tokens="200")
    audit = audited_server_texts(files, flags, {}, gpu="b200-sxm")
    assert audit is not None
    (load,) = audit.loads
    assert load.best is not None
    assert load.running is not None
    notes = [section.note for section in server_answer(audit).sections if isinstance(section, Table)]
    more = load.best.daring is not None and (
        load.best.daring.request_rate_per_s > 1.01 * load.running.requests_per_s
    )
    assert more
    assert any("no measured split of these GPUs carries more" in note for note in notes) is not measured
    assert any("the best server of these GPUs carries +" in note for note in notes) is measured


@pytest.mark.parametrize(("ttft_ms", "per_s", "slow"), [(6500.0, 4.76, True), (500.0, 8.5, False)])
def test_a_first_token_far_later_than_predicted_is_the_headline(
    ttft_ms: float, per_s: float, *, slow: bool
) -> None:
    """Issue 4425 of Dynamo: V3 on two times 8 H200, 50 in flight, 6.5 s to the first token; 1 in flight 0.1 s.

    By Little 31 of the 50 wait for it, so prompts bind: 50 over 199 tokens of 20 ms is 12.6/s, thrice 4.76.
    """
    launch = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8"
    texts = {
        f"{phase}.sh": f"{launch} --disaggregation-mode {phase} --port {port}"
        for phase, port in (("prefill", 30000), ("decode", 30001))
    }
    texts["bench.json"] = json.dumps({
        "backend": "sglang", "completed": 500, "total_input_tokens": 500_000, "total_output_tokens": 100_000,
        "max_concurrency": 50, "request_throughput": per_s, "mean_ttft_ms": ttft_ms, "mean_tpot_ms": 20.0,
    })  # fmt: skip
    audit = audited_server_texts(texts, ServeFlags(), {}, gpu="h200-sxm")
    assert audit is not None
    (load,) = audit.loads
    assert (load.slowness is not None and load.slowness.what == "first token") is slow
    assert ("slower to the first token than it should be" in server_answer(audit).headline) is slow
    bound = [fix for what, fix in load.findings if what.startswith("prompts bind: 31 of 50")]
    assert ["3 prefill to 1 decode worker would keep up" in fix for fix in bound] == [True] * slow


APART = """# two hosts of 8 x H200
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 --disaggregation-mode prefill --disaggregation-transfer-backend nixl
"""
SECOND = APART.replace("mode prefill", "mode decode")


def of_two_hosts(concurrency: int, words: str = "") -> str:
    """What an audit says of a prefill and a decode server of eight GPUs each, 1,000 + 200 tokens."""
    texts = {"prefill.sh": APART.rstrip() + words, "decode.sh": SECOND.rstrip() + words}
    load = ServeFlags(concurrency=str(concurrency), input_tokens="1000", output_tokens="200")
    audit = audited_server_texts(texts, load, {}, gpu="h200-sxm")
    assert audit is not None
    answer = server_answer(audit)
    return "\n".join([answer.headline, json.dumps(json.loads(answer.document())["loads"])])


@pytest.mark.parametrize(("concurrency", "published_s"), [(100, 10.0), (250, 25.0)])
def test_caches_over_a_link_that_no_file_names_may_take_what_tcp_takes(
    concurrency: int, published_s: float
) -> None:
    """ai-dynamo/dynamo issue 4425: first tokens of a server whose transport the files leave open."""
    headline, loads = of_two_hosts(concurrency).split("\n")
    assert "overloaded where their caches travel over TCP" in headline
    predicted = json.loads(loads)[0]["predicted"]
    fast, slow = (predicted["over_tcp"][name]["first_token_s"] for name in ("most", "least"))
    assert fast / 1.25 < published_s < slow * 1.25
    assert predicted["mean_ttft_s"] < fast / 2


def test_a_named_device_of_rdma_leaves_no_doubt() -> None:
    headline, loads = of_two_hosts(100, " --disaggregation-ib-device mlx5_0").split("\n")
    assert "TCP" not in headline
    assert json.loads(loads)[0]["predicted"]["over_tcp"] is None


def test_pools_that_differ_contradict_nothing() -> None:
    """Settings of one pool do not hold over those of the other, and a loop of a client asks nothing."""
    one = "#!/bin/bash\nvllm serve Qwen/Qwen3-32B -tp {} --port {} --kv-transfer-config '{}'\n"
    role = '{{"kv_connector":"NixlConnector","kv_role":"kv_{}"}}'
    texts = {
        "prefill.sh": one.format(1, 8100, role.format("producer")),
        "decode.sh": one.format(2, 8200, role.format("consumer")),
        "load.sh": "#!/bin/bash\nfor ((s = 0; s < 1800; s += 5)); do sleep 5; done\n"
        "vllm bench serve --model Qwen/Qwen3-32B --request-rate 1 --num-prompts 100\n",
    }
    audit = audited_server_texts(texts, ServeFlags(), {}, gpu="h100-sxm")
    assert audit is not None
    assert audit.prefill is not None
    assert [text for text in audit.doubts if "holds over" in text or "a run knows" in text] == []
    assert "weights are bf16, by the name of the checkpoint" in audit.doubts


@pytest.mark.parametrize(
    "loop", ["for ((i = 0; i < 4; i++)); do", "for ((i=0; i<4; i++)) ; do", "for i in 3; do"]
)
def test_a_loop_that_counts_is_a_loop(loop: str) -> None:
    """Its head is no list of words, and its body is read."""
    script = script_of_text(f"{loop}\n  run $i\ndone\nlast\n")
    assert [command.words[0].text for command in script.started] == ["run", "last"]
    assert [names for _, names in script.branches] == []


GRAPH = """# 8 x A100-80GB
Processor:
  model: Qwen/Qwen2.5-32B-Instruct
VllmWorker:
  model: Qwen/Qwen2.5-32B-Instruct
  max-model-len: 16384
  remote-prefill: true
  tensor-parallel-size: 4
  ServiceArgs: {workers: 1, resources: {gpu: 4}}
PrefillWorker:
  model: Qwen/Qwen2.5-32B-Instruct
  max-model-len: 16384
  gpu-memory-utilization: 0.5
  ServiceArgs: {workers: 2, resources: {gpu: '1'}}
"""


def test_a_graph_of_dynamo_has_workers_of_both_pools() -> None:
    """A table for each; a flag that one has not is the engine's default, and its share is its own."""
    pools = pools_of({"disagg.yaml": GRAPH}, {}, model=None, gpu=None)
    assert isinstance(pools, Pools)
    assert (pools.prefill.layout.tp, pools.prefill.replicas, pools.prefill.memory_fraction) == (1, 2, 0.5)
    assert (pools.decode.layout.tp, pools.decode.replicas, pools.decode.memory_fraction) == (4, 1, None)
    assert pools.prefill.gpu == pools.decode.gpu == "a100-sxm-80gb"
    assert pools.decode.beyond_machine == ""
    few = pools_of({"disagg.yaml": GRAPH.replace("{gpu: 4}", "{gpu: 2}")}, {}, model=None, gpu=None)
    assert isinstance(few, Pools)
    assert few.decode.beyond_machine


NIXL = """vllm serve Qwen/Qwen3-32B -tp 4 --port 8100 --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}' &
vllm serve Qwen/Qwen3-32B -tp 2 --port 8200 --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}' &
"""


@pytest.mark.parametrize(("release", "refused"), [("0.10.0", True), ("0.20.0", False), ("", False)])
def test_fewer_ranks_in_decode_are_refused_by_early_releases(release: str, refused: bool) -> None:
    """An assertion of NIXL in 2025; a pool of as many ranks passes it."""
    text = f"# vllm {release}\n{NIXL}" if release else NIXL
    pools = pools_of({"pd.sh": text}, {}, model=None, gpu="h100-sxm")
    assert isinstance(pools, Pools)
    assert any("asks of decode as many ranks" in law.why and law.certain for law in pools.broken) == refused
    alike = pools_of({"pd.sh": text.replace("-tp 2", "-tp 4")}, {}, model=None, gpu="h100-sxm")
    assert isinstance(alike, Pools)
    assert not any("ranks" in law.why for law in alike.broken)


def test_pools_may_be_of_two_kinds_of_gpu() -> None:
    """Each is priced on its own: the same decode pool, behind prompts that faster GPUs compute sooner."""
    load = ServeFlags(
        concurrency="8", input_tokens="4000", output_tokens="200", input_p99="alike", output_p99="alike"
    )
    text = NIXL.replace("-tp 4", "-tp 2")

    def first_token_s(gpu: str) -> float:
        audit = audited_server_texts({"pd.sh": text}, load, {}, gpu=gpu)
        assert audit is not None
        assert audit.prefill is not None
        assert audit.server is not None
        assert [audit.prefill.gpu, audit.server.gpu] == (gpu.split(",") * 2)[:2]
        (judged,) = audit.loads
        assert judged.running is not None
        assert (judged.best is None) == ("," in gpu)
        return judged.running.plan.estimate.ttft.p50_s

    fast, mixed, slow = (first_token_s(gpu) for gpu in ("h100-sxm", "h100-sxm,h20-sxm", "h20-sxm"))
    assert mixed == pytest.approx(
        fast, rel=0.01
    )  # eight in flight meet a little otherwise behind slower decoding
    assert mixed < 0.9 * slow


def test_the_kinds_of_pools_are_those_of_their_files() -> None:
    """A comment in the file of each; without one of either no kind is taken for it."""
    prefill, decode, _ = SGLANG.splitlines()
    texts = {"p.sh": f"# on H100\n{prefill}", "d.sh": f"# 2 x H20\n{decode}"}
    pools = pools_of(texts, {}, model=None, gpu=None)
    assert isinstance(pools, Pools)
    assert (pools.prefill.gpu, pools.decode.gpu) == ("h100-sxm", "h20-sxm")
    unknown = pools_of({**texts, "p.sh": prefill, "d.sh": f"# on B200\n{decode}"}, {}, model=None, gpu=None)
    assert isinstance(unknown, Unknown)
    assert "--gpu says those of prefill and decode" in unknown.missing[0]


STACK = """servingEngineSpec:
  modelSpec:
  - name: p
    repository: registry/vllm-openai
    tag: v0.20.0
    modelURL: Qwen/Qwen3-32B
    replicaCount: 3
    requestGPU: 1
    vllmConfig: {maxModelLen: 8192, extraArgs: [--enforce-eager]}
    lmcacheConfig: {kvRole: kv_producer, enablePD: true}
  - name: d
    modelURL: Qwen/Qwen3-32B
    replicaCount: 1
    requestGPU: 2
    vllmConfig: {maxModelLen: 8192, tensorParallelSize: 2, enablePrefixCaching: false}
    lmcacheConfig: {kvRole: kv_consumer, enablePD: true}
"""


def test_values_of_the_production_stack_have_a_row_for_each_pool() -> None:
    """The role of its caches tells them apart; rows without roles are servers of whole requests."""
    pools = pools_of({"values.yaml": STACK}, {}, model=None, gpu="h100-sxm")
    assert isinstance(pools, Pools)
    assert (pools.prefill.replicas, pools.prefill.layout.label, pools.prefill.longest) == (3, "tp1", 8192)
    assert (pools.decode.replicas, pools.decode.layout.label, pools.decode.version) == (1, "tp2", "")
    assert (pools.prefill.version, pools.prefill.graph_batch) == ("0.20.0", 0)
    assert (
        pools_of({"values.yaml": re.sub("kvRole: [a-z_]+, ", "", STACK)}, {}, model=None, gpu="h100-sxm")
        is None
    )


def test_one_pool_alone_has_a_start_and_no_load() -> None:
    """What its own command says is judged: its memory, its flags; what it carries hangs on the other."""
    command = SGLANG.splitlines()[0].replace("&", "--context-length 8192")
    audit = audited_server_texts({"p.sh": command}, ServeFlags(concurrency="4"), {}, gpu="h100-sxm")
    assert audit is not None
    assert audit.start is not None
    assert (audit.start.starts, audit.loads) == (True, ())
    assert audit.missing == ("the files of both pools: these start one of two",)
    wrong = audited_server_texts(
        {"p.sh": f"{command} --tp 7"}, ServeFlags(concurrency="4"), {}, gpu="h100-sxm"
    )
    assert wrong is not None
    assert wrong.fits is False
