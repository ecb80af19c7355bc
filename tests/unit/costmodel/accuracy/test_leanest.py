"""A run is expected to fail only if it does with all that its row does not state at its leanest."""

import pytest

from costmodel.accuracy.training import RunResult, predict_rows
from costmodel.kernels.tables import load_calibration

ROW = {
    "id": "a", "model": "llama-3.1-70b", "num_layers": "80", "hidden_size": "8192", "intermediate_size": "28672",
    "num_attention_heads": "64", "num_key_value_heads": "8", "vocab_size": "128256", "gated_mlp": "1",
    "sequence_length": "8192", "gpu": "h100-sxm", "num_gpus": "64", "global_batch_size": "128",
    "framework": "NeMo", "precision": "bf16", "tp": "4", "pp": "4", "dp": "4", "microbatch_size": "2",
    "step_time_s": "20",
}  # fmt: skip


def predicted(**cells: str) -> RunResult:
    """The row with these cells."""
    (result,) = predict_rows([{**ROW, **cells}], load_calibration())
    return result


def test_what_a_row_does_not_state_is_taken_at_its_leanest_before_it_is_said_to_fail() -> None:
    """No recomputation and whole states do not fit; nobody said that the run had them."""
    plain, lean = (
        {"recompute": "none", "zero_stage": "0", "sequence_parallel": "0"},
        {"recompute": "full", "zero_stage": "1", "sequence_parallel": "1"},
    )
    assert (predicted(**plain).flagged, predicted(**lean).flagged) == (True, False)
    unstated = predicted()
    assert not unstated.flagged
    assert unstated.out_of_memory_chance == pytest.approx(predicted(**lean).out_of_memory_chance)
    assert unstated.predicted_step_time_s == predicted(recompute="none").predicted_step_time_s


def test_what_is_stated_stays() -> None:
    """A run that states what needs most is still expected to fail."""
    assert predicted(recompute="none").out_of_memory_chance > predicted(recompute="full").out_of_memory_chance
    assert predicted(recompute="none", zero_stage="0", sequence_parallel="0").flagged
