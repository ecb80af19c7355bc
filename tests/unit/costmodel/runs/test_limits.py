"""Rows that cannot be are refused with their arithmetic; sharding is read as the data's columns are documented."""

import pytest

from costmodel.accuracy.training_runs import read_run
from costmodel.runs.cells import UnsupportedRunError

LLAMA = {
    "id": "a", "model": "Llama-3-8B", "num_layers": "32", "hidden_size": "4096", "intermediate_size": "14336",
    "num_attention_heads": "32", "num_key_value_heads": "8", "vocab_size": "128256", "gated_mlp": "1",
    "sequence_length": "8192", "gpu": "h100-sxm", "num_gpus": "8", "global_batch_size": "8",
    "framework": "torchtitan", "precision": "bf16", "zero_stage": "3", "step_time_s": "2.0",
}  # fmt: skip
DEEPSEEK = {
    **LLAMA, "model": "DeepSeek-V3", "num_layers": "61", "hidden_size": "7168", "intermediate_size": "2048",
    "num_attention_heads": "128", "num_key_value_heads": "", "vocab_size": "129280", "num_experts": "256",
    "num_experts_per_token": "8", "sequence_length": "4096", "framework": "Megatron-Bridge", "zero_stage": "1",
    "dp": "8", "ep": "8", "step_time_s": "9.0",
}  # fmt: skip


def test_a_step_faster_than_the_peak_is_refused_with_the_division() -> None:
    """8 × (6·7.505e9·8,192 + 6·32·4,096·8,192²) FLOP over 8 × 989.4 TFLOP/s of an H100 are 426 ms.

    7.505e9 are the parameters of Llama-3-8B that multiply, all but its 128,256 × 4,096 embedding; causal
    attention has half of 12·S²·H a layer and sequence.
    """
    read_run({**LLAMA, "step_time_s": "0.44"})
    with pytest.raises(
        UnsupportedRunError, match=r"step_time_s = 0.42, yet 3.37e\+15 FLOP / \(8 × 989 TFLOP/s\) = 426 ms"
    ):
        read_run({**LLAMA, "step_time_s": "0.42"})


def test_weights_larger_than_all_memory_are_refused_with_the_product() -> None:
    """671.03 billion, the 17 billion that are no expert on every GPU, are more than eight H100 hold.

    A run that did not fit says nothing else.
    """
    with pytest.raises(
        UnsupportedRunError,
        match=r"671,026,419,200 parameters × 1.18 copies × 2 bytes = 1473 GiB of weights, yet 8 × 79.6 GiB",
    ):
        read_run(DEEPSEEK)
    assert read_run({**DEEPSEEK, "oom": "1", "step_time_s": ""}).out_of_memory


def test_weights_sharded_over_all_ranks_count_once() -> None:
    """A 70B on 8 GPUs: eight copies of 141 GB are too many, one shared by all is not."""
    sizes = {
        "num_layers": "80",
        "hidden_size": "8192",
        "intermediate_size": "28672",
        "num_attention_heads": "64",
    }
    row = {**LLAMA, **sizes, "model": "Llama-3-70B", "step_time_s": "9.0"}
    assert read_run(row).layout.zero_stage == 3
    with pytest.raises(UnsupportedRunError, match="8 copies"):
        read_run({**row, "zero_stage": "1"})
    with pytest.raises(UnsupportedRunError, match="8 copies"):
        read_run({**row, "shard_degree": "1"})


def test_degrees_that_do_not_multiply_to_the_gpus_are_refused_with_the_product() -> None:
    """dp·cp·tp·pp is the number of GPUs."""
    with pytest.raises(UnsupportedRunError, match="dp·cp·tp·pp = 4·1·4·1 = 16, not 8 GPUs"):
        read_run({**LLAMA, "dp": "4", "tp": "4"})


@pytest.mark.parametrize(
    ("dp", "cp", "stated", "ranks"),
    [("8", "1", "", 8), ("8", "1", "4", 4), ("8", "1", "8", 8), ("4", "2", "4", 8), ("4", "2", "2", 4),
     ("1", "8", "1", 8), ("1", "8", "", 8), ("1", "8", "8", 8)],
)  # fmt: skip
def test_state_is_shared_by_shard_degree_of_the_dp_ranks_and_all_their_cp_ranks(
    dp: str, cp: str, stated: str, ranks: int
) -> None:
    """The column counts dp ranks, of which each is cp GPUs that shard as well; empty means all."""
    layout = read_run({**LLAMA, "dp": dp, "cp": cp, "shard_degree": stated}).layout
    assert layout.effective_shard_degree == ranks


@pytest.mark.parametrize("stated", ["3", "16"])
def test_a_shard_degree_that_does_not_divide_dp_is_refused(stated: str) -> None:
    """Three of eight ranks, or sixteen of eight, share nothing evenly."""
    with pytest.raises(UnsupportedRunError, match=f"shard_degree = {stated} does not divide dp = 8"):
        read_run({**LLAMA, "shard_degree": stated})
