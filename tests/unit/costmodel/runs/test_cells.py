"""Cells of training and serving rows: one bad cell is a row with a reason, never a file with a defect."""

import math
from pathlib import Path

import pytest

from costmodel.accuracy.csv_table import MOST_CELLS, MOST_ROWS, Row, read_table
from costmodel.accuracy.serving import predict_serving_rows
from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_run
from costmodel.kernels.tables import load_calibration
from costmodel.runs.cells import UnsupportedRunError, count, degree, number_cell, yes_no_cell
from topology.base.errors import InputError

CAL = load_calibration()
TRAINING = {
    "id": "a", "model": "Llama-3-8B", "num_layers": "32", "hidden_size": "4096", "intermediate_size": "14336",
    "num_attention_heads": "32", "num_key_value_heads": "8", "head_dim": "128", "vocab_size": "128256",
    "gated_mlp": "1", "tie_word_embeddings": "0", "num_experts": "", "num_experts_per_token": "",
    "sequence_length": "8192", "gpu": "h100-sxm", "num_gpus": "16", "gpus_per_node": "8",
    "nic_gbit_per_s_per_gpu": "400", "global_batch_size": "128", "framework": "NeMo 24.07", "precision": "bf16",
    "dp": "4", "tp": "2", "pp": "2", "cp": "1", "ep": "1", "expert_tp": "1", "virtual_stages": "2",
    "microbatch_size": "1", "zero_stage": "1", "shard_degree": "4", "schedule": "", "recompute": "none",
    "sequence_parallel": "1", "flash_attention": "1", "cluster": "", "step_time_s": "10.0",
    "peak_memory_gib": "60", "oom": "0", "note": "", "url": "",
}  # fmt: skip
SERVING = {
    "id": "a run", "model": "Qwen/Qwen3-32B", "gpu": "h100-sxm", "engine": "trtllm", "engine_version": "1.0",
    "mode": "aggregated", "precision": "fp8", "kv_dtype": "", "input_tokens": "1024", "output_tokens": "512",
    "concurrency": "16", "tp": "4", "pp": "1", "attention_dp": "1", "moe_tp": "", "moe_ep": "",
    "ttft_s": "0.156", "tpot_s": "0.0084",
}  # fmt: skip
APART = {
    **SERVING, "mode": "disaggregated", "output_tokens": "8", "concurrency": "", "prefill_workers": "1",
    "prefill_tp": "4", "decode_workers": "1", "decode_tp": "4", "decode_batch": "2", "decode_attention_dp": "1",
    "decode_moe_ep": "0",
}  # fmt: skip
BAD = (
    "four", "nan", "inf", "-inf", "1e308", "1e18", "1e400", "9" * 400, "9" * 5000, "-1", "7.5", "1e-300", "²", "\0",
    "\ud800", "=1+1", "x" * 10_000, "2" + "\N{ARABIC-INDIC DIGIT THREE}", "None", "1,5", "../secret.toml", "a/b",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("8.0", 8), ("1e2", 100), ("", 1), ("0", None), ("-8", None), ("7.5", None)]
)
def test_a_count_is_whole_and_positive(text: str, value: int | None) -> None:
    """Whole numbers in any spelling; the default of an empty cell; nothing else."""
    if value is not None:
        assert count({"tp": text}, "tp", 1) == value
        return
    with pytest.raises(UnsupportedRunError, match="tp = "):
        count({"tp": text}, "tp", 1)


def test_a_degree_of_zero_is_one_and_a_negative_one_is_none() -> None:
    """Published tables write 0 for an axis that is not there; -1 was silently 1."""
    assert [degree({"ep": text}, "ep") for text in ("", "0", "0.0", "8")] == [1, 1, 1, 8]
    with pytest.raises(UnsupportedRunError):
        degree({"ep": "-1"}, "ep")


def test_a_yes_or_no_is_one_of_the_two() -> None:
    """A word that is neither is not taken for no."""
    assert [yes_no_cell({"oom": text}, "oom", default=False) for text in ("1", "True", "yes", "0", "no", "")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    with pytest.raises(UnsupportedRunError, match="neither yes nor no"):
        yes_no_cell({"oom": "perhaps"}, "oom", default=False)


def test_a_reason_repeats_only_the_beginning_of_a_cell() -> None:
    """A cell may hold a hundred thousand letters."""
    with pytest.raises(UnsupportedRunError) as refusal:
        number_cell({"step_time_s": "9" * 100_000}, "step_time_s")
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("row", [SERVING, APART], ids=["together", "apart"])
def test_any_cell_of_a_serving_row_may_be_anything(row: Row) -> None:
    """Each wrong cell is a reason of its row; a quarter of them ended the whole table."""
    rows = [{**row, column: bad} for column in row for bad in BAD]
    results = predict_serving_rows([*rows, row], CAL)
    assert results[-1].status == "ok"
    assert [r.reason for r in results if r.status == "error"] == []
    for result in results:
        assert result.status == "ok" or result.reason
        assert result.predicted_tpot_s is None or 0 < result.predicted_tpot_s < math.inf
        assert result.predicted_ttft_s is None or 0 < result.predicted_ttft_s < math.inf
        assert result.tpot_error is None or math.isfinite(result.tpot_error)


def test_any_cell_of_a_training_row_may_be_anything() -> None:
    """The same for training: a reason or a positive finite answer."""
    rows = [{**TRAINING, column: bad} for column in TRAINING for bad in BAD]
    results = predict_rows([*rows, TRAINING], CAL)
    assert results[-1].status == "ok"
    assert [r.reason for r in results if r.status == "error"] == []
    for result in results:
        assert result.status == "ok" or result.reason
        assert result.predicted_step_time_s is None or 0 < result.predicted_step_time_s < math.inf
        assert result.error is None or math.isfinite(result.error)


def test_no_path_is_taken_from_a_table(tmp_path: Path) -> None:
    """A row may name a machine; a file it names is opened for who vouches for the table, and nobody else."""
    secret = tmp_path / "secret.toml"
    secret.write_text('password = "x')
    for path in (str(secret), "secret.toml", "/dev/zero", "./a"):
        with pytest.raises(UnsupportedRunError, match="is a path, which is opened only with --trust-paths"):
            read_run({**TRAINING, "cluster": path})
    with pytest.raises(UnsupportedRunError, match="is not valid TOML"):
        read_run({**TRAINING, "cluster": str(secret)}, trust_paths=True)
    with pytest.raises(UnsupportedRunError, match="not a regular file"):
        read_run({**TRAINING, "cluster": "/dev/zero"}, trust_paths=True)
    assert read_run({**TRAINING, "cluster": "aws-p5.48xlarge"}).cluster.num_gpus == 16


def test_a_model_named_in_a_table_is_looked_for_in_the_catalog_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the folder that happens to be the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.json").write_text("{")
    (tmp_path / "folder").mkdir()
    for name in ("secret.json", "acme/secret.json", "folder"):
        (result,) = predict_serving_rows([{**SERVING, "model": name}], CAL)
        assert result.reason.startswith("unknown model")


def test_a_table_has_at_most_so_many_rows_and_cells(tmp_path: Path) -> None:
    """Two bytes of a row become a kilobyte of cells, so the file's size alone says little."""
    path = tmp_path / "runs.csv"
    path.write_text("id\n" + "1\n" * (MOST_ROWS + 1))
    with pytest.raises(InputError, match="too large"):
        read_table(path)
    columns = 10_000
    path.write_text(",".join(f"c{i}" for i in range(columns)) + "\n" + "1\n" * (MOST_CELLS // columns + 1))
    with pytest.raises(InputError, match="too large"):
        read_table(path)
