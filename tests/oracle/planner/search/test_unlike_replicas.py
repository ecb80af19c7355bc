"""Microbatches of replicas of unlike speed, and rows of pools that others measured, judged by hand."""

import itertools
from pathlib import Path
from random import Random

import pytest

from benchmarks.sailor import links_of, predicted, rows_of
from benchmarks.unlike_replicas import least_s

RUNS = """\
model,mixed,gpus,nodes,pp,tp,dp,layers_per_stage,stage_kinds,mbs,gbs,real_s,use
OPT-350,no,8,2,2,4,1,12 14,1xGH-96:tp4 | 1xGH-96:tp4,8,32,0.657,yes
OPT-350,yes,4,2,2,2,1,12 14,1xRTX-3090:tp2 | 1xTitan-RTX:tp2,2,256,119.8,yes
OPT-350,yes,32,4,2,8,2,12 14,1xRTX-3090:tp8 1xRTX-2080:tp8 | 2xTitan-RTX:tp8,2,256,66.1,yes
OPT-350,no,8,2,2,4,1,12 14,1xGH-96:tp4 | 1xGH-96:tp4,8,32,0.657,no
"""
LINKS = """\
scope,gpu_a,gpus_a,gpu_b,bandwidth_bytes_per_s
intra-node,GH-96,4,GH-96,250e9
intra-node,RTX-3090,2,RTX-3090,50e9
intra-node,Titan-RTX,2,Titan-RTX,11e9
inter-node,GH-96,4,GH-96,92e9
inter-node,RTX-3090,2,Titan-RTX,0.1e9
"""


@pytest.mark.parametrize("seed", range(20))
def test_the_slowest_replica_ends_as_early_as_by_every_division(seed: int) -> None:
    """Of all ways to divide up to seven microbatches over up to three replicas of two kinds."""
    r = Random(seed)
    replicas = (r.randint(1, 2), 1)
    each_s, once_s = [(r.uniform(0.5, 2), r.uniform(0.5, 4)) for _ in range(2)]
    total = r.randint(3, 7)
    own = [kind for kind, count in enumerate(replicas) for _ in range(count)]
    by_hand = min(
        max(m * each_s[kind] + once_s[kind] for m, kind in zip(chosen, own, strict=True) if m)
        for chosen in itertools.product(range(total + 1), repeat=len(own))
        if sum(chosen) == total
    )
    assert least_s(replicas, each_s, once_s, total) == pytest.approx(by_hand)


def test_measured_rows_are_read_with_the_links_of_their_gpus(tmp_path: Path) -> None:
    """Embedding and head count as layers there, rows that are not to be used are left out."""
    (tmp_path / "sailor_runs.csv").write_text(RUNS)
    (tmp_path / "sailor_links.csv").write_text(LINKS)
    alike, mixed, unlike_replicas = rows_of(tmp_path)
    assert (alike.blocks, alike.per_node, alike.layout.tp) == ((11, 13), 4, 4)
    assert unlike_replicas.kinds == (frozenset({"RTX-3090", "RTX-2080"}), frozenset({"Titan-RTX"}))
    links = links_of(tmp_path)
    slow = predicted(mixed, links)
    sent_bytes = 128 * 2 * (2 * 2048 * 1024 * 4)  # hidden states in four bytes, and their gradients
    assert slow.time.pp_s > sent_bytes / 0.1e9
    assert predicted(alike, links).step_time_s < slow.step_time_s / 50
