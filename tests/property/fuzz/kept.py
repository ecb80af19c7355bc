"""What was measured: tables of runs, and the files that the user's disk keeps between plans."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from tests.property.fuzz.mutate import CANARY, json_of, mutated_cells, mutated_text, mutated_tree
from tests.property.fuzz.surface import Box, no_number
from tests.unit.costmodel.accuracy.test_serving_runs import ROW as SERVING_ROW


@functools.cache
def training_rows() -> tuple[dict[str, str], ...]:
    from costmodel.accuracy.training_runs import PUBLISHED_RUNS

    with PUBLISHED_RUNS.open(encoding="utf-8", newline="") as file:
        rows = [row | {"cluster": ""} for row in csv.DictReader(file)]
    return tuple(rows[::7])


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, fieldnames=list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def make_runs(rows: Callable[[], Sequence[dict[str, str]]], random: Random, story: list[str]) -> str:
    chosen = [mutated_cells(random.choice(rows()), random, story)]
    if random.random() < 0.2:
        chosen = [
            {
                **chosen[0],
                "cluster": random.choice((CANARY, "/dev/zero", "/etc/passwd", "aws-p5.48xlarge", "a.toml")),
            }
        ]
        story.append(f"cluster = {chosen[0]['cluster']}")
    text = _table(chosen)
    return mutated_text(text, random, story) if random.random() < 0.2 else text


def predict_runs(text: str, box: Box) -> object:
    from app.actions.accuracy import AccuracyQuestion, predicted_answer

    document = predicted_answer(AccuracyQuestion(runs=box.file("runs.csv", text))).document()
    answer: dict[str, Any] = json.loads(document, parse_constant=no_number)
    for row in answer["rows"]:
        if str(row["reason"]).startswith("MemoryError"):  # what one row breaks is told in its reason
            raise MemoryError(row["reason"])
    return answer


def serving_rows() -> Sequence[dict[str, str]]:
    more = {"moe_tp": "1", "moe_ep": "1", "pp": "1", "num_gpus": "", "cluster": ""}
    fleets = {
        "mode": "disaggregated",
        "prefill_workers": "1",
        "decode_workers": "1",
        "prefill_tp": "2",
        "decode_tp": "2",
    }
    return ({**SERVING_ROW}, {**SERVING_ROW, **more}, {**SERVING_ROW, **more, **fleets})


_MEASUREMENT: Mapping[str, Any] = {
    "what": "gemm", "cluster": "CLUSTER", "gpu": "h100-sxm", "dtype": "bf16", "inputs": {"m": 4096, "n": 4096, "k": 4096},
    "value": 2.1e-4, "unit": "s", "repeats": 10, "p10": 2e-4, "p50": 2.1e-4, "p90": 2.2e-4, "software": {"torch": "2.13"}, "when": "2026-01-01",
}  # fmt: skip
_COLLECTIVE = {
    **_MEASUREMENT,
    "what": "all_reduce",
    "inputs": {"bytes": 1e8, "size": 8, "stride": 1},
    "value": 4e-4,
}
_ANCHOR = {
    "name": "mine",
    "when": "2026-01-01",
    "levels": [{"stack": "megatron-core", "level": 1.1, "deviation": 0.05, "runs": 3, "name": ""}],
}


def make_kept(random: Random, story: list[str]) -> str:
    anchor = random.random() < 0.4
    text = json_of(mutated_tree(_ANCHOR if anchor else [dict(_MEASUREMENT), _COLLECTIVE], random, story))
    return mutated_text(text, random, story) if random.random() < 0.1 else text


def read_kept(text: str, box: Box) -> object:
    from app.store.run_log import read_state, read_steps
    from costmodel.kernels.saved import calibration_for
    from topology.builders import default_cluster

    spec = default_cluster("h100-sxm", 8).spec
    home = box.folder / "data" / "meshplan"
    anchor = text.lstrip().startswith('{"name"')
    file = home / ("anchors/mine.json" if anchor else "measurements/mine.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    for old in home.rglob("*.json"):
        old.unlink()
    box.file(str(file.relative_to(box.folder)), text.replace("CLUSTER", _fingerprint()))
    box.file("metrics.jsonl", text)
    box.file("status.json", text)
    answers: list[object] = [read_steps(box.folder), read_state(box.folder)]
    if anchor:
        from costmodel.accuracy.kept_anchors import kept_anchor

        return [*answers, kept_anchor("mine")]
    cal = calibration_for(spec)
    return [*answers, _times(cal)]


@functools.cache
def _fingerprint() -> str:
    from topology.builders import default_cluster

    return default_cluster("h100-sxm", 8).fingerprint()


def _times(cal: Any) -> Mapping[str, float]:
    """Seconds that a calibration gives for kernels and collectives near what was measured, and far from it."""
    from costmodel.kernels.collectives import collective_time
    from costmodel.kernels.compute import gemm_time
    from topology.builders import default_cluster

    cluster = default_cluster("h100-sxm", 8)
    found = {
        f"gemm{m}_s": float(gemm_time(cal, cluster.gpu, "bf16", float(m), 4096.0, 4096.0).seconds)
        for m in (1, 4096, 10**6)
    }
    sent = {
        f"sent{n}_s": float(collective_time(cal, cluster.hierarchy, "all_reduce", float(n), 8, 1))
        for n in (1, 10**8, 10**11)
    }
    return found | sent


def make_bench(random: Random, story: list[str]) -> str:
    from tests.unit.costmodel.calibration.test_bench_files import AIPERF, GENAI_PERF, SGLANG, VLLM

    tree = mutated_tree(random.choice((VLLM, SGLANG, GENAI_PERF, AIPERF)), random, story)
    text = json_of(tree)
    return mutated_text(text, random, story) if random.random() < 0.2 else text


def read_bench_file(text: str, box: Box) -> object:
    from costmodel.calibration.bench_files import read_bench

    return read_bench(box.file("bench.json", text))
