"""One switch of one job, published both ways: the model moves as the publisher measured (`switch_pairs.csv`).

Never fitted on. A pair whose model, length or batch is not stated, or whose kind of layer is not priced, is left
out; so are DeepEP's over EFA, a network without the GPU-started sends that it is made of.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from costmodel.accuracy.training import RunResult, predict_rows
from costmodel.kernels.tables import load_calibration
from costmodel.runs.cells import Row
from costmodel.runs.model_names import named_model

TABLE = Path(__file__).with_name("switch_pairs.csv")
SAME, ALIKE = 0.03, 0.05
"""A measured change below 3 % has no sign; a predicted one below 5 % agrees with it."""
WITHIN = 0.15
PRECISIONS = {"fp8_current_scaling": "fp8", "fp8_tensorwise": "fp8", "fp8_rowwise": "fp8", "": "bf16"}
COPIED = ("gpu", "num_gpus", "sequence_length", "global_batch_size", "microbatch_size", "tp", "pp", "cp", "ep", "zero_stage", "virtual_stages")  # fmt: skip
POLICIES = ("none", "full", "selective", "selective-op", "")
SCALINGS = ("tensorwise", "rowwise")
COLUMNS = {
    "exchange_overlap": "moe_a2a_overlap", "loss": "chunked_loss", "primary_weight_dtype": "weight_dtype",
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Measured and predicted ratio of the second value to the first; of time or memory."""

    name: str
    switch: str
    measured: float
    predicted: float

    @property
    def sign_holds(self) -> bool:
        """Whether both move the same way, or neither moves."""
        measured, predicted = self.measured - 1, self.predicted - 1
        return (abs(measured) < SAME and abs(predicted) < ALIKE) or measured * predicted > 0

    @property
    def ratio_holds(self) -> bool:
        """Whether they move about as far."""
        return abs(self.predicted / self.measured - 1) <= WITHIN


def cell(name: str, value: str) -> dict[str, str]:
    """A switch of the table as a cell of measured runs."""
    if name == "recompute":
        return {name: value} if value in POLICIES else {"recompute_modules": value.replace(",", ";")}
    if name == "dp_overlap":
        return {"gradient_overlap": value, "parameter_overlap": value}
    if name == "offload":
        return {name: "" if value in ("none", "off") else value}
    yes_no = {"on": "1", "off": "0"} if name in ("exchange_overlap", "sequence_parallel") else {}
    if name == "gemm_precision":
        scaling = value.partition("_")[2]
        return {"precision": PRECISIONS.get(value, value)} | (
            {"fp8_scaling": scaling} if scaling in SCALINGS else {}
        )
    value = yes_no.get(value, value)
    return {COLUMNS.get(name, name): value.replace(",", ";") if name == "cuda_graph_scope" else value}


def side(pair: Row, value: str) -> Row:
    """One side of a pair as a row of measured runs; its step is a placeholder that breaks no bound."""
    named = named_model(pair["model"])
    if named is None:
        return {"id": pair["id"]}
    model = named[0]
    row = {
        "id": pair["id"], "model": pair["model"], "num_layers": f"{model.num_layers}",
        "hidden_size": f"{model.hidden_size}", "num_attention_heads": f"{model.num_attention_heads}",
        "framework": f"{pair['engine']} {pair['engine_release']}".strip(), "flash_attention": "1",
        "precision": PRECISIONS.get(pair["precision"], pair["precision"]), "step_time_s": "100000",
    }  # fmt: skip
    if model.is_moe:
        row |= {
            "num_experts": f"{model.num_experts}",
            "num_experts_per_token": f"{model.num_experts_per_token}",
        }
    row |= {name: pair[name] for name in COPIED if pair[name]}
    row["dp"] = str(
        int(pair["num_gpus"] or 1) // (int(pair["tp"] or 1) * int(pair["pp"] or 1) * int(pair["cp"] or 1))
    )
    stated = (word.partition("=") for word in pair["other_switches"].split(";") if word)
    for name, text in [
        ("recompute", pair["recompute"]),
        *((n, v) for n, _, v in stated),
        (pair["switch"], value),
    ]:
        row |= cell(name, text)
    return row


def priced() -> Iterator[Pair]:
    """Every pair whose sides are both priced."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        pairs = [row for row in csv.DictReader(file) if "EFA" not in row["note"]]
    rows = [side(pair, pair[which]) for pair in pairs for which in ("value_a", "value_b")]
    results = predict_rows(rows, load_calibration())
    for at, pair in enumerate(pairs):
        memory = pair["quantity"] == "peak_memory_gib"
        first, second = (_value(result, memory=memory) for result in results[2 * at : 2 * at + 2])
        if first and second:
            a, b = float(pair["a"]), float(pair["b"])
            measured = b / a if pair["quantity"] in ("step_time", "peak_memory_gib") else a / b
            yield Pair(pair["id"], pair["switch"], measured, second / first)


def _value(result: RunResult, *, memory: bool) -> float | None:
    """What a side is predicted at."""
    return result.predicted_peak_memory_bytes if memory else result.predicted_step_time_s


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    """Every pair that is priced."""
    return list(priced())


def test_enough_pairs_of_enough_switches_are_priced(pairs: list[Pair]) -> None:
    """At least forty of ten switches."""
    assert len(pairs) >= 80
    assert len({pair.switch for pair in pairs}) >= 10


def test_nine_of_ten_move_the_right_way(pairs: list[Pair]) -> None:
    """Faster is predicted faster, smaller smaller."""
    assert sum(pair.sign_holds for pair in pairs) >= 0.9 * len(pairs), [p for p in pairs if not p.sign_holds]


def test_seven_of_ten_move_about_as_far(pairs: list[Pair]) -> None:
    """Within 15 % of the measured ratio."""
    assert sum(pair.ratio_holds for pair in pairs) >= 0.7 * len(pairs), [
        p for p in pairs if not p.ratio_holds
    ]


def test_a_switch_with_the_wrong_sign_is_noticed(pairs: list[Pair]) -> None:
    """A model that moves every pair the other way fails both."""
    turned = [Pair(p.name, p.switch, p.measured, 1 / p.predicted) for p in pairs]
    assert sum(pair.sign_holds for pair in turned) < 0.5 * len(turned)
    assert sum(pair.ratio_holds for pair in turned) < 0.7 * len(turned)
