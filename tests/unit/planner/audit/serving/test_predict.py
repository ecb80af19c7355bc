"""A given server under a trace or a load: every request, as the simulator serves it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshplan
from app.reports.answer import csv_text
from app.reports.audit.server import latencies_of, server_answer
from costmodel.serving.engine import serving_stack, without_overlap
from costmodel.serving.step import host_s
from planner.audit.read import read_texts
from planner.audit.serving.audit import LoadAudit, ServingAudit
from planner.audit.serving.texts import audited_server_texts, judged, predicted_plan, predicted_texts
from planner.questions.flags import ServeFlags
from planner.serving.plan import serving_from_json, serving_to_json
from topology.base.errors import InputError, NoFeasiblePlanError

SERVER = "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs {batch} --max-num-batched-tokens 2048"
RECORDED = Path(__file__).parents[5].parent / "shared" / "data" / "recorded_serving"


def write_trace(path: Path, *, count: int, gap_s: float, inputs: int = 1000, outputs: int = 100) -> Path:
    """Requests all alike, evenly apart."""
    rows = [{"arrival_s": i * gap_s, "input_tokens": inputs, "output_tokens": outputs} for i in range(count)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def under(trace: Path, batch: int = 64) -> ServingAudit:
    """A server of one H100 under a trace."""
    flags = ServeFlags(trace=trace)
    audit = audited_server_texts({"s.sh": SERVER.format(batch=batch)}, flags, {}, gpu="h100-sxm")
    assert audit is not None
    return audit


def test_requests_far_apart_do_not_wait_and_are_all_alike(tmp_path: Path) -> None:
    """One request at a time: all that differs is the milliseconds that requests spend outside the engine."""
    (load,) = under(write_trace(tmp_path / "t.jsonl", count=8, gap_s=20.0)).loads
    assert load.running is not None
    simulation = load.running.simulation
    assert len(simulation.ttft_s) == 8
    assert np.ptp(simulation.ttft_s) == pytest.approx(np.ptp(latencies_of(simulation)["waiting"]))
    assert latencies_of(simulation)["waiting"].max() < 0.005


def test_an_overloaded_server_is_followed_until_all_is_served(tmp_path: Path) -> None:
    """Two at once where forty come together: the last waits for the others, and nothing is left out."""
    (load,) = under(write_trace(tmp_path / "t.jsonl", count=40, gap_s=0.001), batch=2).loads
    assert load.running is not None
    simulation = load.running.simulation
    alone = float(simulation.end_to_end_s.min())
    assert simulation.makespan_s > 15 * alone
    assert load.running.requests_per_s == pytest.approx(40 / simulation.makespan_s)
    assert load.best is None
    assert load.fits


def test_a_record_a_request(tmp_path: Path) -> None:
    """What `--format csv` writes."""
    audit = under(write_trace(tmp_path / "t.jsonl", count=5, gap_s=1.0))
    records = server_answer(audit).records
    assert len(records) == 5
    assert set(records[0]) == {"arrival_s", "output_tokens", "ttft_s", "tpot_s", "end_to_end_s", "queue_s"}
    assert [record["arrival_s"] for record in records] == pytest.approx([0, 1, 2, 3, 4])


def test_replicas_share_a_trace(tmp_path: Path) -> None:
    """Two take half of the requests each, so they wait less."""
    trace = write_trace(tmp_path / "t.jsonl", count=64, gap_s=0.01)
    one = meshplan.predict(_script(tmp_path, ""), gpu="h100-sxm", trace=trace)
    two = meshplan.predict(_script(tmp_path, " --data-parallel-size 2"), gpu="h100-sxm", trace=trace)
    assert len(two.simulation.ttft_s) == 64
    assert two.simulation.makespan_s < one.simulation.makespan_s
    assert two.simulation.ttft_s.mean() < one.simulation.ttft_s.mean()


def _script(tmp_path: Path, more: str) -> Path:
    """A server's script."""
    path = tmp_path / "serve.sh"
    path.write_text(SERVER.format(batch=64) + more)
    return path


def test_a_plan_is_predicted_as_it_was_planned() -> None:
    """Of its own load; its file says as much as it does."""
    plan = meshplan.serve("8b", gpu="h100-sxm", gpus=2, concurrency=32, input=1000, output=200)
    now = meshplan.predict(plan, concurrency=32, input=1000, output=200)
    assert now.requests_per_s == pytest.approx(plan.estimate.request_rate_per_s, rel=0.01)
    read = serving_from_json(serving_to_json(plan))
    flags = ServeFlags(concurrency="32", input_tokens="1000", output_tokens="200")
    (load,) = predicted_plan(read, flags, "plan.json").loads
    assert load.running is not None
    assert load.running.requests_per_s == pytest.approx(now.requests_per_s)


def test_a_plan_without_a_load_is_predicted_under_its_own() -> None:
    """The load for which it was planned; what is said beside it takes the place of a part."""
    plan = meshplan.serve("8b", gpu="h100-sxm", gpus=1, concurrency=4, input=500, output=50)
    own, longer = meshplan.predict(plan), meshplan.predict(plan, input=1000)
    assert own.requests_per_s == pytest.approx(plan.estimate.request_rate_per_s, rel=0.01)
    assert longer.ttft_s > own.ttft_s
    rated = meshplan.serve("8b", gpu="h100-sxm", rate=4, ttft="1s", input=500, output=50)
    (load,) = predicted_plan(rated, ServeFlags(), "plan.json").loads
    assert load.running is not None
    assert load.running.plan.request.job == rated.request.job


def test_a_prediction_on_a_described_cluster_is_that_of_an_audit(tmp_path: Path) -> None:
    """Hosts of two with 10 Gbit/s between them: slower than those of the catalogue, and as the audit says."""
    script, cluster = _script(tmp_path, " --tensor-parallel-size 4"), tmp_path / "c.toml"
    cluster.write_text(
        'name = "hosts of two"\nfabric = "ethernet"\n[[nodes]]\ngpu = "h100-sxm"\ncount = 2\ngpus_per_node = 2\n'
        'nics_per_node = 1\nnic_bandwidth_bytes_per_s = "10 Gbit/s"\nnic_latency_s = "20 us"\n'
    )
    words: dict[str, Any] = {"concurrency": 4, "input": 200, "output": 50}
    here = meshplan.predict(script, cluster=cluster, **words)
    assert here.tpot_s > 2 * meshplan.predict(script, gpu="h100-sxm", **words).tpot_s
    texts = {"serve.sh": script.read_text()}
    load = ServeFlags(concurrency="4", input_tokens="200", output_tokens="50")
    (audited,) = judged(read_texts(texts), texts, {}, load, {}, cluster=str(cluster), compares=False).loads
    assert audited.running is not None
    assert (audited.running.ttft_s, audited.running.tpot_s) == (here.ttft_s, here.tpot_s)


def test_a_plan_is_predicted_on_no_other_gpus() -> None:
    plan = meshplan.serve("8b", gpu="h100-sxm", gpus=1, concurrency=4, input=500, output=50)
    with pytest.raises(InputError, match="as it was planned"):
        predicted_texts({"plan.json": serving_to_json(plan)}, ServeFlags(gpu="h200-sxm"))


def test_what_is_no_prediction_is_refused(tmp_path: Path) -> None:
    """No load, a changed server, a server that does not start."""
    script = _script(tmp_path, "")
    with pytest.raises(InputError, match="not known whole"):
        meshplan.predict(script, gpu="h100-sxm")
    with pytest.raises(InputError, match="as it is started"):
        meshplan.predict(script, gpu="h100-sxm", rate=1, gpus=8)
    script.write_text("vllm serve meta-llama/Llama-3.1-70B")
    with pytest.raises(NoFeasiblePlanError, match="serves nothing"):
        meshplan.predict(script, gpu="h100-sxm", rate=1)


@pytest.mark.skipif(not RECORDED.exists(), reason="recorded runs are not in this checkout")
@pytest.mark.parametrize(
    ("folder", "model", "tp"),
    [
        ("rtxpro6000_llama-3.1-8b", "meta-llama/Llama-3.1-8B", 1),
        ("rtxpro6000_qwen3-32b", "Qwen/Qwen3-32B", 2),
    ],
)
@pytest.mark.xfail(
    strict=True,
    reason="on RTX PRO 6000 one GPU is missed, first token +14 % of 12 and per token +9 % of 8: "
    "products of prompts, of which this GPU has no table; over two reductions are too short, as of GPUs that "
    "read each other's memory, which no file says (forbidden, the run is within 5 %)",
)
def test_recorded_requests_are_predicted(tmp_path: Path, folder: str, model: str, tp: int) -> None:
    """First token p50 and p99 within 12 and 20 %, others 8 and 15 %, throughput 5 %: nothing is fitted on them."""
    path = tmp_path / "serve.sh"
    limits = "--max-num-seqs 128 --max-num-batched-tokens 2048"
    path.write_text(f"vllm serve {model} --tensor-parallel-size {tp} {limits}")
    source = RECORDED / folder / "requests.jsonl"
    now = meshplan.predict(path, gpu="rtx-pro-6000", trace=source).simulation
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    ttft = [row["first_token_ts"] - row["queued_ts"] for row in rows]
    tpot = [(row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in rows]
    for predicted, measured, bounds in ((now.ttft_s, ttft, (0.12, 0.20)), (now.tpot_s, tpot, (0.08, 0.15))):
        for level, bound in zip((50, 99), bounds, strict=True):
            assert np.percentile(predicted, level) == pytest.approx(np.percentile(measured, level), rel=bound)
    span_s = max(row["last_token_ts"] for row in rows) - min(row["queued_ts"] for row in rows)
    assert now.makespan_s == pytest.approx(span_s, rel=0.05)


def predicted_of(command: str, load: ServeFlags) -> LoadAudit:
    """A load on the server of a command, beside no other server."""
    texts = {"serve.sh": command}
    audit = judged(read_texts(texts), texts, {}, load, {}, gpu="h100-sxm", compares=False)
    (load_audit,) = audit.loads
    assert load_audit.running is not None
    return load_audit


def test_lengths_are_taken_as_said_and_else_told() -> None:
    """Under a rate prompts of four means at p99; alike they wait less, and nothing is taken for granted."""
    load = ServeFlags(rate="8/s", input_tokens="2000", output_tokens="50")
    spread, alike, given = (
        predicted_of("vllm serve Qwen/Qwen3-4B", replace(load, input_p99=p99, output_p99=p99_out))
        for p99, p99_out in ((None, None), ("alike", "alike"), ("4000", "100"))
    )
    assert ["tokens at p99 (--input-p99" in words for words in spread.assumed] == [True]
    assert (alike.assumed, given.assumed) == ((), ())
    times = [each.running.ttft_s for each in (alike, given, spread) if each.running is not None]
    assert times == sorted(times)
    assert times[0] < times[2] / 1.1


def test_a_number_in_flight_is_of_one_length_and_says_so() -> None:
    load = ServeFlags(concurrency="8", input_tokens="500", output_tokens="50")
    (words,) = predicted_of("vllm serve Qwen/Qwen3-4B", load).assumed
    assert "of one length" in words


@pytest.mark.parametrize(
    ("command", "switch"),
    [
        ("vllm serve Qwen/Qwen3-4B", "--no-async-scheduling"),
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-4B", "--disable-overlap-schedule"),
    ],
)
def test_a_switch_that_ends_the_overlap_costs_host_time_every_step(command: str, switch: str) -> None:
    """As much as versions pay that have none (vLLM before 0.14): what was hidden of it before."""
    load = ServeFlags(concurrency="1", input_tokens="100", output_tokens="400")
    with_it, without = (predicted_of(words, load).running for words in (command, f"{command} {switch}"))
    assert with_it is not None
    assert without is not None
    ahead = serving_stack(with_it.plan.request.engine)
    after = without_overlap(ahead)
    one, step_s = np.array([1.0]), np.array([with_it.tpot_s - ahead.host_s])
    more_s = host_s(after, one, step_s) - host_s(ahead, one, step_s)
    assert without.tpot_s - with_it.tpot_s == pytest.approx(more_s[0], rel=0.1)


VLLM, SGLANG = "vllm serve Qwen/Qwen3-4B", "python3 -m sglang.launch_server --model-path Qwen/Qwen3-4B"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (VLLM, "--enforce-eager"),
        (VLLM, "-O0"),
        (VLLM, "-cc.cudagraph_mode=NONE"),
        (VLLM, '--compilation-config \'{"cudagraph_mode": "NONE"}\''),
        (VLLM, "--max-cudagraph-capture-size 4"),
        (SGLANG, "--disable-cuda-graph"),
        (SGLANG, "--cuda-graph-max-bs 4"),
    ],
)
def test_steps_that_no_graph_holds_wait_for_their_launches(command: str, words: str) -> None:
    """Of eight in flight: graphs that are off, and graphs of at most four."""
    load = ServeFlags(concurrency="8", input_tokens="100", output_tokens="400")
    with_it, without = (predicted_of(line, load).running for line in (command, f"{command} {words}"))
    assert with_it is not None
    assert without is not None
    assert without.tpot_s > 1.2 * with_it.tpot_s


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (f"{VLLM} --tensor-parallel-size 4 --disable-custom-all-reduce", ""),
        (f"export NCCL_P2P_DISABLE=1\n{VLLM} --tensor-parallel-size 2", "through host memory"),
        (f"export NCCL_P2P_LEVEL=LOC\n{VLLM} --tensor-parallel-size 2", "through host memory"),
    ],
)
def test_slow_reductions_that_a_file_asks_for_are_priced(command: str, shown: str) -> None:
    """NCCL's for those of few tokens, or NCCL's own through the host for those of prompts."""
    load = ServeFlags(concurrency="1", input_tokens="8000", output_tokens="100")
    usual = command.replace(" --disable-custom-all-reduce", "").rpartition("\n")[2]
    fast, slow = (predicted_of(line, load).running for line in (usual, command))
    assert fast is not None
    assert slow is not None
    assert slow.ttft_s > fast.ttft_s if shown else slow.tpot_s > fast.tpot_s
    texts = {"serve.sh": command}
    said = judged(read_texts(texts), texts, {}, load, {}, gpu="h100-sxm", compares=False).slowing
    assert [what.endswith(f"{shown}, not NVLink or PCIe") for what, _ in said] == [True] * bool(shown)


def test_mixed_chunks_let_decodes_go_on_while_prompts_are_computed(tmp_path: Path) -> None:
    """Prompts that come while another request decodes stop it in SGLang, unless its steps are mixed."""
    trace = write_trace(tmp_path / "t.jsonl", count=24, gap_s=0.05, inputs=8000, outputs=200)
    first = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --max-running-requests 32"
    first_request_s = []
    for switch in ("", " --enable-mixed-chunk"):
        flags = ServeFlags(trace=trace)
        audit = audited_server_texts({"s.sh": first + switch}, flags, {}, gpu="h100-sxm")
        assert audit is not None
        running = audit.loads[0].running
        assert running is not None
        first_request_s.append(float(running.simulation.tpot_s[0]))
    apart, mixed = first_request_s
    assert mixed < apart


@pytest.mark.parametrize("rate", ["60/s", "600/s"])
def test_what_gets_through_an_overloaded_server_is_what_it_carries(rate: str) -> None:
    """Ten times the load is sent in the second, and as many tokens come out."""
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 16"
    found = predicted_of(
        command, ServeFlags(gpu="h100-sxm", rate=rate, input_tokens="1000", output_tokens="300")
    )
    assert found.running is not None
    estimate = found.running.plan.estimate
    assert "without end" in found.running.broken
    assert estimate.completed_per_s == pytest.approx(found.running.requests_per_s, rel=0.03)
    assert estimate.output_tokens_per_s == pytest.approx(300 * estimate.completed_per_s, rel=0.05)
    assert estimate.request_rate_per_s == float(rate.removesuffix("/s"))


@pytest.mark.parametrize(
    ("gpu", "words", "told"),
    [
        ("rtx-pro-6000", "--tensor-parallel-size 2", True),
        ("rtx-pro-6000", "", False),
        ("rtx-4090", "--tensor-parallel-size 2", False),
        ("h100-sxm", "--tensor-parallel-size 2", False),
    ],
)
def test_peer_access_over_pcie_is_taken_for_granted_and_told(gpu: str, words: str, told: bool) -> None:
    """With what a step takes without it; not of GPUs that have none, or links of their own."""
    load = ServeFlags(concurrency="64", input_tokens="500", output_tokens="100")
    texts = {"serve.sh": f"vllm serve Qwen/Qwen3-4B {words}"}
    (audit,) = judged(read_texts(texts), texts, {}, load, {}, gpu=gpu, compares=False).loads
    said = [words for words in audit.assumed if "through their host" in words]
    assert bool(said) is told


def test_a_host_without_peer_access_is_priced_by_what_its_file_says() -> None:
    """NCCL's reductions through the host's memory, and none of the engine's own."""
    load = ServeFlags(concurrency="64", input_tokens="500", output_tokens="100")
    usual = "vllm serve Qwen/Qwen3-4B --tensor-parallel-size 2"
    forbidden = f"export NCCL_P2P_DISABLE=1\n{usual} --disable-custom-all-reduce"
    assert predicted_on_pcie(forbidden, load) > 1.1 * predicted_on_pcie(usual, load)


def predicted_on_pcie(command: str, load: ServeFlags) -> float:
    """Seconds of a token on GPUs that have PCIe alone."""
    texts = {"serve.sh": command}
    (audit,) = judged(read_texts(texts), texts, {}, load, {}, gpu="rtx-pro-6000", compares=False).loads
    assert audit.running is not None
    return audit.running.tpot_s


def test_a_server_refuses_requests_longer_than_it_takes_and_serves_the_others(tmp_path: Path) -> None:
    """As if they were not in the trace: nothing of what is said is of them."""
    short, long = (
        [json.dumps({"arrival_s": i, "input_tokens": n, "output_tokens": 50}) for i in range(6)]
        for n in (800, 5000)
    )
    both, alone = tmp_path / "both.jsonl", tmp_path / "alone.jsonl"
    both.write_text("\n".join(line for pair in zip(short, long, strict=True) for line in pair))
    alone.write_text("\n".join(short))
    audits = []
    for trace in (both, alone):
        flags = ServeFlags(trace=trace)
        command = f"{SERVER.format(batch=8)} --max-model-len 4096"
        audits.append(audited_server_texts({"s.sh": command}, flags, {}, gpu="h100-sxm"))
    (mixed,), (kept,) = (audit.loads for audit in audits if audit is not None)
    assert [what for what, _ in mixed.findings] == [
        "6 of 12 requests are refused, being longer than 4,096 tokens: what is said is of the others"
    ]
    assert not kept.findings
    assert mixed.running is not None
    assert kept.running is not None
    assert list(mixed.running.simulation.ttft_s) == pytest.approx(
        list(kept.running.simulation.ttft_s), rel=0.01
    )
    every = tmp_path / "long.jsonl"
    every.write_text("\n".join(long))
    found = audited_server_texts({"s.sh": command}, ServeFlags(trace=every), {}, gpu="h100-sxm")
    assert found is not None
    assert (found.loads[0].running, found.loads[0].fits) == (None, False)


@pytest.mark.parametrize("load", [ServeFlags(concurrency="4"), ServeFlags(rate="2/s")])
def test_a_prediction_stands_before_what_was_read_and_has_a_row_a_request(load: ServeFlags) -> None:
    """What was asked comes first; a table for a program holds requests, whatever sends them."""
    texts = {"s.sh": SERVER.format(batch=16)}
    answer = server_answer(judged(read_texts(texts), texts, {}, load, {}, gpu="h100-sxm", compares=False))
    titles = [section.title for section in answer.sections]
    assert titles.index("Read") > next(i for i, title in enumerate(titles) if title.startswith("Under"))
    assert {"arrival_s", "ttft_s", "tpot_s"} <= answer.records[0].keys()
    judging = server_answer(judged(read_texts(texts), texts, {}, load, {}, gpu="h100-sxm"))
    titles = [section.title for section in judging.sections]
    assert titles.index("Read") < next(i for i, title in enumerate(titles) if title.startswith("Under"))


def test_a_cell_of_a_table_for_programs_holds_one_value() -> None:
    """No record and no list stands in a cell, whatever the answer's document holds."""
    texts = {"s.sh": SERVER.format(batch=4)}
    load = ServeFlags(concurrency="64")
    answer = server_answer(judged(read_texts(texts), texts, {}, load, {}, gpu="h100-sxm"))
    (row,) = csv.DictReader(io.StringIO(csv_text(answer.records)))
    assert float(row["predicted.ttft.p99_s"]) > float(row["predicted.ttft.p50_s"])
    assert "always wait" in row["findings"]
    assert not any(value[:1] in "{[" or "': " in value for value in row.values() if value)
