"""A row that states the layers of its stages is priced with them."""

from __future__ import annotations

import pytest

from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_run
from costmodel.case import Case
from costmodel.kernels.tables import load_calibration
from costmodel.models.spec import layer_order
from costmodel.pipeline.stage_costs import StageSplit, step_time
from costmodel.pipeline.stages import ranks_of_chunks, runs_of_ranks
from costmodel.runs.cells import UnsupportedRunError
from costmodel.training.stages import stage_costs

CAL = load_calibration()
ROW = {
    "id": "a", "model": "DeepSeek-V3", "num_layers": "61", "hidden_size": "7168", "intermediate_size": "2048",
    "num_attention_heads": "128", "vocab_size": "129280", "num_experts": "256", "num_experts_per_token": "8",
    "sequence_length": "4096", "gpu": "h100-sxm", "num_gpus": "512", "global_batch_size": "4096",
    "framework": "Megatron-Core", "precision": "bf16", "tp": "2", "pp": "8", "virtual_stages": "1", "ep": "64",
    "dp": "32", "zero_stage": "1", "step_time_s": "50", "mtp_layers": "1",
}  # fmt: skip


def predicted(**cells: str) -> float:
    """Seconds of a step of the row with these cells."""
    (result,) = predict_rows([{**ROW, **cells}], CAL)
    return result.predicted_step_time_s or 0.0


@pytest.mark.parametrize(
    ("chunks", "layers"),
    [("1", (7, 8, 8, 8, 8, 8, 8, 6)), ("1", (10, 8, 8, 8, 8, 8, 8, 3)), ("2", (4,) * 7 + (3,) + (4,) * 7 + (2,))],
)  # fmt: skip
def test_a_step_is_that_of_the_stated_split(chunks: str, layers: tuple[int, ...]) -> None:
    """As the solver's costs of stages have it."""
    cells = {"virtual_stages": chunks, "stage_layers": ";".join(map(str, layers))}
    run = read_run(ROW | cells)
    assert run.chunk_layers == layers
    costs = stage_costs(
        Case(model=run.model, cluster=run.cluster, job=run.job, stack=run.stack, cal=CAL), run.layout
    )
    held = runs_of_ranks(ranks_of_chunks(run.layout), layers, costs.runs, layer_order(run.model))
    split = StageSplit(layers_of_stage=held, recompute_of_stage=(0,) * 8)
    assert predicted(**cells) == pytest.approx(step_time(costs, split), rel=1e-9)


def test_the_even_split_stated_is_the_even_split() -> None:
    """61 layers and a module on eight stages."""
    assert predicted(stage_layers="8;8;8;8;8;8;8;5") == predicted()


def test_rows_of_one_job_with_other_splits_are_priced_apart() -> None:
    """Each with its own."""
    splits = ("", "7;8;8;8;8;8;8;6", "10;8;8;8;8;8;8;3")
    together = predict_rows([{**ROW, "stage_layers": split} for split in splits], CAL)
    assert [one.predicted_step_time_s for one in together] == [predicted(stage_layers=s) for s in splits]


def test_one_stage_has_no_split() -> None:
    """Its number of layers says nothing more."""
    cells = {
        "num_gpus": "64",
        "pp": "1",
        "global_batch_size": "512",
        "stage_layers": "61",
        "step_time_s": "90",
    }
    assert read_run({**ROW, **cells, "num_layers": "4", "stage_layers": "4"}).chunk_layers == ()


@pytest.mark.parametrize(
    "said", ["8;8;8;8;8;8;8;8", "30;31", "8;8;8;8;8;8;8;x", "-1;8;8;8;8;8;8;14", "9" * 400]
)
def test_what_is_no_split_of_the_layers_refuses_the_row(said: str) -> None:
    """With the cell and what it has to sum to."""
    with pytest.raises(UnsupportedRunError, match="are not 61 layers in 8 chunks"):
        read_run({**ROW, "stage_layers": said})
