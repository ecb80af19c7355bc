"""Degrees that are all stated have to multiply to the GPUs that start: no engine repairs its mesh."""

from __future__ import annotations

import pytest

from planner.audit.findings import findings_of
from planner.audit.given import given_by
from planner.audit.job import audited_job
from planner.audit.read import read_texts
from planner.questions.flags import Flags

TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
[parallelism]
data_parallel_replicate_degree = {copies}
data_parallel_shard_degree = {shards}
tensor_parallel_degree = {tp}
context_parallel_degree = {cp}
[activation_checkpoint]
mode = "full"
"""
MAXTEXT = (
    "python3 -m MaxText.train MaxText/configs/base.yml hardware=gpu model_name=llama2-7b max_target_length=2048 "
    "per_device_batch_size=1 remat_policy=full {axes}\n"
)


def stopped(text: str, name: str, gpus: str) -> bool:
    """Whether the mesh of a file is no mesh of so many GPUs."""
    flags = Flags(gpus=gpus, gpu="h100-sxm")
    reading = given_by(read_texts({name: text}), flags)
    found = findings_of(reading, audited_job(reading, flags), None)
    return any(finding.rule == "mesh" and finding.kind == "illegal" for finding in found)


@pytest.mark.parametrize("gpus", ["8", "16"])
@pytest.mark.parametrize(
    ("copies", "shards", "tp", "cp"),
    [(1, 8, 2, 1), (4, 4, 1, 1), (1, 8, 1, 1), (1, -1, 2, 1), (2, -1, 2, 2), (2, 2, 2, 2), (1, 4, 1, 2)],
)
def test_torchtitan_stops_at_a_mesh_of_other_processes(
    copies: int, shards: int, tp: int, cp: int, gpus: str
) -> None:
    """``ParallelDims``: replicate · shard · cp · tp · pp is the world, or shard is -1."""
    text = TITAN.format(copies=copies, shards=shards, tp=tp, cp=cp)
    expected = shards > 0 and copies * shards * tp * cp != int(gpus)
    assert stopped(text, "job.toml", gpus) is expected


@pytest.mark.parametrize(
    ("axes", "gpus", "stops"),
    [
        ("dcn_data_parallelism=16 ici_fsdp_parallelism=4", "128", True),
        ("dcn_data_parallelism=16 ici_fsdp_parallelism=8", "128", False),
        ("dcn_data_parallelism=16 ici_fsdp_parallelism=4 ici_tensor_parallelism=2", "128", False),
        ("dcn_data_parallelism=16 ici_fsdp_parallelism=4 ici_tensor_parallelism=-1", "128", False),
        ("dcn_data_parallelism=-1 ici_fsdp_parallelism=4", "128", False),
        ("ici_fsdp_parallelism=4", "128", False),
        ("dcn_data_parallelism=2", "128", False),
    ],
)
def test_maxtext_stops_at_a_mesh_of_other_devices(axes: str, gpus: str, stops: bool) -> None:
    """Within slices times over them; an axis of -1, said or by configs/base.yml, takes what is left."""
    assert stopped(MAXTEXT.format(axes=axes), "run.sh", gpus) is stops
