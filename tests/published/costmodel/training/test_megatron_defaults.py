"""Step times of Megatron-LM started without a flag of overlap, on one node of A100 and on four of H800.

Source: FlagOpen/FlagPerf@1b5a030 training/nvidia, llama3_8B-megatron and llama2_70B-megatron: README.md prints
tokens per second and GPU. The arguments stand in training/benchmarks/llama3_8B/megatron/pretrain_llama3.sh:
sequence parallelism, the distributed optimizer and Transformer Engine, and no ``--tp-comm-overlap``,
``--overlap-grad-reduce`` or ``--overlap-param-gather``, which are off unless stated.
"""

import pytest

from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_run
from costmodel.kernels.tables import load_calibration

CAL = load_calibration()
LLAMA_3_8B = {
    "model": "Llama3-8B", "sequence_length": "8192", "global_batch_size": "512", "gpu": "a100-sxm-80gb",
    "num_gpus": "8", "recompute": "selective", "framework": "Megatron-LM (Megatron-Core)",
}  # fmt: skip
LLAMA_2_70B = {
    "model": "Llama2-70B", "sequence_length": "4096", "gpu": "h800-sxm", "num_gpus": "32",
    "recompute": "none", "framework": "Megatron-LM (2023-11)",
}  # fmt: skip
COMMON = {
    "precision": "bf16", "flash_attention": "1", "sequence_parallel": "1", "zero_stage": "1", "microbatch_size": "1",
}  # fmt: skip
NODE = [(1, 2, 4, 141.7), (1, 4, 2, 158.6), (2, 2, 2, 153.8), (4, 2, 1, 174.4), (1, 8, 1, 194.9), (8, 1, 1, 213.9),
        (2, 4, 1, 172.3)]  # fmt: skip
"""Tensor-parallel, pipeline and data-parallel degree, seconds of a step of 512 sequences."""
NODES = [(8, 4, 44, 8.774), (4, 8, 44, 7.117), (4, 8, 1024, 144.3)]
"""Tensor-parallel and pipeline degree, sequences of a step, its seconds."""


def _errors(rows: list[dict[str, str]]) -> list[float]:
    """Signed errors of rows, all of which are priced."""
    errors = [result.error for result in predict_rows(rows, CAL)]
    return [error for error in errors if error is not None]


@pytest.mark.parametrize("framework", ["Megatron-LM (Megatron-Core)", "Megatron-LM", "Megatron-LM main"])
def test_megatron_overlaps_nothing_unless_a_flag_says_so(framework: str) -> None:
    """NeMo's and Megatron-Bridge's recipes set the flags of overlap, the command line alone does not."""
    row = {**LLAMA_3_8B, **COMMON, "framework": framework, "step_time_s": "170", "tp": "8"}
    stated = read_run({**row, "tp_overlap": "1"}).stack.timing.tp_overlap_share
    timing = read_run(row).stack.timing
    assert (timing.tp_overlap_share, timing.gradient_overlap, timing.parameter_overlap) == (0, False, False)
    assert stated >= 0.5


def test_seven_layouts_of_one_node_are_met_within_ten_percent() -> None:
    """Tensor parallelism over all eight GPUs takes 1.5 times as long as pipelines of two: transfers show."""
    rows = [
        {**LLAMA_3_8B, **COMMON, "tp": str(tp), "pp": str(pp), "dp": str(dp), "step_time_s": str(seconds)}
        for tp, pp, dp, seconds in NODE
    ]
    errors = _errors(rows)
    assert len(errors) == len(NODE)
    assert max(map(abs, errors)) < 0.1


def test_halved_links_are_met_within_five_percent() -> None:
    """An H800 has half the links of an H100, over which eight ranks send what nothing hides."""
    rows = [
        {
            **LLAMA_2_70B, **COMMON, "tp": str(tp), "pp": str(pp), "dp": "1", "global_batch_size": str(batch),
            "step_time_s": str(seconds),
        }
        for tp, pp, batch, seconds in NODES
    ]  # fmt: skip
    errors = _errors(rows)
    assert len(errors) == len(NODES)
    assert max(map(abs, errors)) < 0.05
