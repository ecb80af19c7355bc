"""The table of published pairs of one job with one switch changed is well formed.

`switch_pairs.csv`, one row a figure of a pair, tests only and never fitted on:

- id is the pair, a colon and the quantity; value_a and value_b are the switch's two values, a and b the figures.
- other_switches are those that both sides share; a column whose own switch changes is empty, and so is what the
  source does not state.
- source is a public address, or rows or cases of the shared data with the address that they state.
- full job stated: model, GPUs, layout, batch, length, precision and recomputation are all in the row.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

with Path(__file__).with_name("switch_pairs.csv").open(newline="", encoding="utf-8") as file:
    ROWS = tuple(csv.DictReader(file))
QUANTITIES = {"step_time", "tokens_per_s", "tflops", "peak_memory_gib"}
SWITCHES = {
    "attention_kernel", "bucket_bytes", "compile", "cp_kind", "cp_overlap", "cuda_graph_scope", "dispatcher",
    "dp_overlap", "exchange_overlap", "gemm_precision", "gradient_dtype", "grouped_experts", "kv_head_replication",
    "loss", "master_dtype", "moment_dtype", "offload", "pp_overlap", "primary_weight_dtype", "recompute", "routing",
    "routing_place", "sequence_parallel", "tp_overlap", "zero_stage",
}  # fmt: skip
COLUMN = {"gemm_precision": "precision", "recompute": "recompute", "zero_stage": "zero_stage"}
"""Columns of the job that a switch is."""
COUNTS = (
    "num_gpus", "sequence_length", "global_batch_size", "microbatch_size", "tp", "pp", "cp", "ep", "etp",
    "virtual_stages",
)  # fmt: skip
JOB = (
    "model", "gpu", "num_gpus", "sequence_length", "global_batch_size", "microbatch_size", "tp", "pp", "cp",
    "precision", "recompute",
)  # fmt: skip
FIGURES = ("id", "quantity", "a", "b")
"""Columns in which the rows of one pair differ."""


def pairs() -> dict[str, list[dict[str, str]]]:
    """Rows by their pair."""
    grouped = defaultdict[str, list[dict[str, str]]](list)
    for row in ROWS:
        grouped[row["id"].rpartition(":")[0]].append(row)
    return dict(grouped)


def shared_switches(row: dict[str, str]) -> list[str]:
    """Names of the switches that both sides share."""
    return [part.partition("=")[0] for part in row["other_switches"].split(";") if part]


def addresses(row: dict[str, str]) -> Sequence[str]:
    """Public addresses of a row's source."""
    return [
        word
        for word in row["source"].split()
        if word.startswith("https://") and urlsplit(word).path.strip("/")
    ]


def test_at_least_fifty_pairs_of_many_switches_and_publishers() -> None:
    """Three out of five pairs state the whole job, of many switches and publishers."""
    table = pairs()
    stated = {name for name, rows in table.items() if rows[0]["trust"] == "full job stated"}
    assert len(table) >= 50
    assert len(stated) >= 0.6 * len(table)
    assert len({rows[0]["switch"] for rows in table.values()}) >= 15
    assert len({urlsplit(addresses(row)[0]).path.split("/")[1] for row in ROWS}) >= 10


def test_each_row_changes_one_switch() -> None:
    """Both values are there and differ, and nothing else in the row says the switch."""
    for row in ROWS:
        assert row["switch"] in SWITCHES, row["id"]
        assert row["value_a"], row["id"]
        assert row["value_b"], row["id"]
        assert row["value_a"] != row["value_b"], row["id"]
        shared = shared_switches(row)
        assert row["switch"] not in shared, row["id"]
        assert len(shared) == len(set(shared)), row["id"]
        column = COLUMN.get(row["switch"])
        assert column is None or not row[column], row["id"]


def test_figures_and_counts_are_positive_and_sourced() -> None:
    """Figures are positive numbers, counts whole numbers, and a public address says where they are."""
    for row in ROWS:
        assert row["quantity"] in QUANTITIES, row["id"]
        assert float(row["a"]) > 0, row["id"]
        assert float(row["b"]) > 0, row["id"]
        assert addresses(row), row["id"]
        assert all(int(row[name]) >= 1 for name in COUNTS if row[name]), row["id"]
        assert row["zero_stage"] in {"", "0", "1", "2", "3"}, row["id"]


def test_rows_of_a_pair_are_of_one_job() -> None:
    """One pair's rows differ in the figure alone, once for each quantity."""
    for name, rows in pairs().items():
        assert name
        for row in rows:
            assert row["id"] == f"{name}:{row['quantity']}"
            assert {key: row[key] for key in row if key not in FIGURES} == {
                key: rows[0][key] for key in rows[0] if key not in FIGURES
            }, row["id"]
        assert len({row["quantity"] for row in rows}) == len(rows), name


def test_a_fully_stated_job_states_what_prices_it() -> None:
    """The trust of a row says no more than its columns."""
    for row in ROWS:
        assert row["trust"] in {"full job stated", "partly stated"}, row["id"]
        if row["trust"] == "full job stated":
            lacking = [name for name in JOB if not row[name] and name != COLUMN.get(row["switch"])]
            assert not lacking, (row["id"], lacking)


def test_layouts_use_no_more_gpus_than_the_job() -> None:
    """The degrees divide the GPUs, and the replicas' microbatches the batch."""
    for row in ROWS:
        if row["num_gpus"] and row["tp"] and row["pp"] and row["cp"]:
            replicas, remainder = divmod(
                int(row["num_gpus"]), int(row["tp"]) * int(row["pp"]) * int(row["cp"])
            )
            assert remainder == 0, row["id"]
            if row["global_batch_size"] and row["microbatch_size"]:
                assert int(row["global_batch_size"]) % (int(row["microbatch_size"]) * replicas) == 0, row[
                    "id"
                ]
