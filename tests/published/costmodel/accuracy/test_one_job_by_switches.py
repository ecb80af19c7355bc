"""One published job, three times: its switches alone move a step from 42 to 20 seconds."""

from pathlib import Path

import pytest

from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_rows
from costmodel.kernels.tables import load_calibration

TABLE = """\
model,gpu,num_gpus,engine,precision,sequence_length,global_batch_size,microbatch_size,tp,pp,cp,ep,dispatcher,\
moe_a2a_overlap,cuda_graph_scope,step_time_s
qwen3-30b-a3b,h100-sxm,16,Megatron-Bridge 26.08,bf16,4096,1024,1,1,1,1,16,alltoall,0,,42.2
qwen3-30b-a3b,h100-sxm,16,Megatron-Bridge 26.08,bf16,4096,1024,1,1,1,1,16,alltoall,1,,31.05
qwen3-30b-a3b,h100-sxm,16,Megatron-Bridge 26.08,bf16,4096,1024,1,1,1,1,16,hybridep,1,moe_router;moe_preprocess,20.15
"""
"""Megatron-Bridge issues 5123 and 3880, and its page of performance of 2026-08-03."""


def test_three_sets_of_switches_are_each_within_12_percent(tmp_path: Path) -> None:
    """Read from a table that names its model alone; the profile is that of its release."""
    path = tmp_path / "runs.csv"
    path.write_text(TABLE, encoding="utf-8")
    results = predict_rows(read_rows(path), load_calibration())
    assert [result.error for result in results] == [pytest.approx(0, abs=0.12)] * 3
