"""Rows of a runs CSV: every quirk of the schema, and every way a file or a row can be wrong."""

from pathlib import Path
from typing import Any

import pytest

from costmodel.accuracy import training
from costmodel.accuracy.training import RunResult, predict_rows, summarise
from costmodel.accuracy.training_runs import TrainingRun, read_rows, read_run
from costmodel.kernels.tables import load_calibration
from costmodel.runs.cells import UnsupportedRunError
from topology.base.errors import InputError

ROW = {
    "id": "a",
    "source": "mine",
    "model": "Llama-3-8B",
    "num_layers": "32",
    "hidden_size": "4096",
    "intermediate_size": "14336",
    "num_attention_heads": "32",
    "num_key_value_heads": "8",
    "vocab_size": "128256",
    "gated_mlp": "1",
    "sequence_length": "8192",
    "gpu": "h100-sxm",
    "num_gpus": "16",
    "nic_gbit_per_s_per_gpu": "400",
    "global_batch_size": "128",
    "framework": "NeMo 24.07",
    "dp": "4",
    "tp": "2",
    "pp": "2",
    "step_time_s": "10.0",
}


def test_missing_optional_columns_take_what_is_usual() -> None:
    """Virtual stages, ZeRO, microbatch and recompute may be absent; Megatron-Core interleaves layer by layer."""
    run = read_run(ROW)
    assert (run.layout.virtual_stages, run.layout.schedule) == (16, "interleaved")
    assert (run.layout.microbatch_size, run.layout.zero_stage, run.layout.recompute) == (1, 0, "none")
    assert (run.layout.sequence_parallel, run.stack.name) == (True, "megatron-core")
    assert run.model.head_dim == 128
    assert not run.model.tie_word_embeddings


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"schedule": "1F1B"}, "schedule", "1f1b"),
        ({"schedule": "1F1B-I", "virtual_stages": "4"}, "schedule", "interleaved"),
        ({"schedule": "ZB-H1"}, "schedule", "zb-h1"),
        ({"schedule": "ZBV"}, "virtual_stages", 2),
        ({"recompute": "full:4"}, "recompute", "full"),
        ({"zero_stage": "3", "shard_degree": "2"}, "shard_degree", 2),
        ({"sequence_parallel": "0"}, "sequence_parallel", False),
    ],
)
def test_columns_of_the_layout_are_read(change: dict[str, str], field: str, expected: object) -> None:
    """Schedules, recompute policies, sharding and sequence parallelism in the spelling of the data."""
    assert getattr(read_run({**ROW, **change}).layout, field) == expected


@pytest.mark.parametrize(
    ("recompute", "share"), [("none", 0.0), ("full", 1.0), ("full:4", 0.25), ("selective-layer", 0.5)]
)
def test_counts_of_recomputed_layers_become_shares(recompute: str, share: float) -> None:
    """full:N recomputes N layers of each of the two ranks' sixteen."""
    assert read_run({**ROW, "recompute": recompute}).recomputed_share == share


@pytest.mark.parametrize(
    ("fused", "profile"), [("", "megatron-lm-2021"), ("0", "megatron-lm-2021"), ("1", "megatron-core-noov")]
)
def test_megatron_with_fused_attention_is_not_that_of_2021(fused: str, profile: str) -> None:
    """The same name stands for two eras; attention tells them apart."""
    assert read_run({**ROW, "framework": "Megatron-LM", "flash_attention": fused}).stack.name == profile


@pytest.mark.parametrize(
    ("recompute", "profile"), [("full", "megatron-lm-2021"), ("selective", "megatron-lm-2022")]
)
def test_a_run_that_uses_what_came_later_is_of_the_later_version(recompute: str, profile: str) -> None:
    """Selective recomputation came to Megatron-LM in 2022."""
    row = {**ROW, "framework": "Megatron-LM", "flash_attention": "0", "recompute": recompute}
    assert read_run(row).stack.name == profile


def test_a_note_of_blocking_launches_is_heard() -> None:
    """The environment variable by its name, or in words."""
    for note in ("run with CUDA_LAUNCH_BLOCKING=1", "blocking launches off; launch blocking on"):
        assert read_run({**ROW, "note": note}).stack.timing.launch_blocking
    assert not read_run({**ROW, "note": "CUDA 12.8"}).stack.timing.launch_blocking


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_layers": ""}, "no num_layers"),
        ({"hidden_size": "many"}, "hidden_size = 'many' is not a positive number"),
        ({"num_gpus": "-8"}, "num_gpus = '-8' is not a positive number"),
        ({"dp": "3"}, "not 16 GPUs"),
        ({"gpu": "h9000"}, "h9000"),
        ({"schedule": "zigzag"}, "unknown schedule 'zigzag'"),
        ({"recompute": "most"}, "unknown recompute policy 'most'"),
        ({"precision": "int2"}, "unknown precision 'int2'"),
        ({"global_batch_size": "2"}, "global_batch_size 2"),
        ({"step_time_s": ""}, "nothing|no step_time_s"),
        ({"step_time_s": "nan"}, "step_time_s = 'nan'"),
        ({"ep": "3"}, "ep = 3 does not divide"),
        ({"model": "ours", "num_attention_heads": "7"}, "not a multiple of num_key_value_heads"),
        ({"note": "LoRA fine-tuning"}, "lora trains small matrices beside frozen weights"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(change: dict[str, str], reason: str) -> None:
    """Missing sizes, text in numbers, unknown names and impossible layouts each have their sentence."""
    with pytest.raises(UnsupportedRunError, match=reason):
        read_run({**ROW, **change})


def written(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    """A CSV file holding this text."""
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding=encoding)
    return path


def as_csv(*rows: dict[str, str]) -> str:
    """Rows as CSV text."""
    return "\n".join([",".join(ROW), *(",".join(row.values()) for row in rows)]) + "\n"


def test_a_byte_order_mark_does_not_hide_the_first_column(tmp_path: Path) -> None:
    """Spreadsheets write UTF-8 with a byte order mark."""
    assert read_rows(written(tmp_path, as_csv(ROW), "utf-8-sig"))[0]["id"] == "a"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no header line"),
        (" \n\n", "no header line"),
        ("a,b\n1,2\n", "no column num_layers"),
        ("id,gpu\n", "no row below it"),
    ],
)
def test_a_file_without_the_required_columns_is_refused(tmp_path: Path, text: str, cause: str) -> None:
    """An empty file or another table is an error of the file, not of its rows."""
    with pytest.raises(InputError) as refusal:
        read_rows(written(tmp_path, text))
    assert cause in refusal.value.cause


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_table_with_other_delimiters_is_read(tmp_path: Path, delimiter: str) -> None:
    """Spreadsheets of some countries write semicolons, and a paste writes tabs."""
    assert read_rows(written(tmp_path, as_csv(ROW).replace(",", delimiter))) == [ROW]


def test_a_row_with_more_cells_than_columns_is_not_guessed_at(tmp_path: Path) -> None:
    """An unquoted comma shifts every later cell, so the row says so in place of a wrong prediction."""
    rows = read_rows(written(tmp_path, as_csv(ROW).rstrip("\n") + ",8\n"))
    with pytest.raises(UnsupportedRunError, match="more cells than columns"):
        read_run(rows[0])


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"virtual_stages": "99"}, "stages for"),
        ({"num_gpus": "1e9", "dp": ""}, "num_gpus = '1e9' is more than the 1,048,576 that can be"),
        ({"gpus_per_node": "999999999"}, "gpus_per_node = '999999999' is more than the 1,024 that can be"),
        ({"gpus_per_node": "1e308"}, "gpus_per_node = '1e308' is more than"),
        ({"hidden_size": "1e308"}, "hidden_size = '1e308' is more than"),
        ({"num_layers": "1e8"}, "num_layers = '1e8' is more than the 1,024"),
        ({"global_batch_size": "1e18"}, "global_batch_size = '1e18' is more than"),
        ({"step_time_s": "1e300"}, "step_time_s = '1e300' is more than"),
        ({"step_time_s": "1e-300"}, "step_time_s = '1e-300' is not a positive number"),
    ],
)
def test_sizes_nobody_has_are_refused_at_once(cells: dict[str, str], reason: str) -> None:
    """A slip of the keyboard costs neither minutes nor memory."""
    with pytest.raises(UnsupportedRunError, match=reason):
        read_run({**ROW, **cells})


def test_a_missing_file_and_one_that_is_not_text_are_refused(tmp_path: Path) -> None:
    """Both are input errors with a fix."""
    with pytest.raises(InputError, match="does not exist"):
        read_rows(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a directory"):
        read_rows(tmp_path)
    with pytest.raises(InputError, match="not a text file"):
        read_rows(written(tmp_path, as_csv(ROW), "utf-16"))


def test_no_row_fails_the_others() -> None:
    """A table of good and bad rows is predicted where it can be, in order."""
    rows = [ROW, {**ROW, "id": "b", "dp": "3"}, {**ROW, "id": "c", "tp": "1", "dp": "8"}, {"id": "d"}]
    results = predict_rows(rows, load_calibration())
    assert [result.status for result in results] == ["ok", "unsupported", "ok", "unsupported"]
    assert [result.name for result in results] == ["a", "b", "c", "d"]
    total = summarise(results, by="source")[-1]
    assert (total.rows, total.unsupported, total.timed) == (4, 2, 2)


def test_rows_of_one_job_share_one_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are (a hundred thousand go through the command line in its tests)."""
    evaluated, predict = [], training._predict_or_say

    def counted(members: dict[int, TrainingRun], *rest: Any) -> dict[int, RunResult]:
        evaluated.append(len(members))
        return predict(members, *rest)

    monkeypatch.setattr(training, "_predict_or_say", counted)
    rows = [{**ROW, "tp": str(tp), "dp": str(8 // tp), "id": str(tp)} for tp in (1, 2, 4, 8)]
    results = predict_rows(rows * 250, load_calibration())
    assert evaluated == [1000]
    assert {result.status for result in results} == {"ok"}
