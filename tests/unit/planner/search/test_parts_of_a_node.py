"""Any part of a node is planned, and any number of nodes: scripts name three or six GPUs of eight."""

from pathlib import Path

import pytest

from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from planner.plan import Plan, PlanRequest
from planner.search.search import search
from topology.builders import default_cluster
from topology.catalog import cluster
from topology.hardware.datasheets import gpu_sheets, reference_machine
from topology.spec import ClusterSpec

CARD = """
[[gpus]]
name = "my-card"
memory_bytes = "48 GiB"
memory_bandwidth_bytes_per_s = "900 GB/s"
peak_flop_per_s = { bf16 = "150 TFLOP/s" }
"""


def planned(spec: ClusterSpec) -> Plan:
    """The plan of a small model on a cluster."""
    job = TrainingJob(sequence_length=2048, global_batch_size=840)
    found = search(
        PlanRequest(model=model("llama-3.2-1b"), cluster=spec, job=job, stack="megatron-core", top=1)
    )
    assert isinstance(found, Plan), found
    return found


@pytest.mark.parametrize("gpus", [1, 3, 5, 6, 7, 24, 40])
def test_a_part_of_a_node_and_an_odd_number_of_nodes_are_planned(gpus: int) -> None:
    """Of eight GPUs a node, every one of them used."""
    assert planned(default_cluster("h100-sxm", gpus).spec).layout.num_gpus == gpus


@pytest.mark.parametrize("name", list(gpu_sheets()))
def test_every_part_of_every_reference_machine_is_a_cluster(name: str) -> None:
    """And so are three, five and seven whole machines."""
    per_node = reference_machine(gpu_sheets()[name]).gpus_per_node
    for gpus in (*range(1, per_node + 1), 3 * per_node, 5 * per_node, 7 * per_node):
        assert default_cluster(name, gpus).hierarchy.num_gpus == gpus


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rtx-3090", "figures of rtx-3090 are known, not measured here"),
        ("l20", "those of l40s reach"),
        ("h100-sxm", ""),
        ("mi300x", ""),
    ],
)
def test_a_card_whose_figures_alone_are_known_says_so(name: str, said: str) -> None:
    """Where no kernel of it was measured; what is recalled is named."""
    notes = [
        line for line in planned(default_cluster(name, 4).spec).estimate.assumptions if "figures of" in line
    ]
    assert [said in line for line in notes] == ([True] if said else [])


def test_a_described_card_says_what_was_taken_for_it(tmp_path: Path) -> None:
    """Beside the estimate, which is wider than that of a card with measured kernels."""
    (tmp_path / "own.toml").write_text(CARD, encoding="utf-8")
    lines = planned(cluster(tmp_path / "own.toml", 4).spec).estimate.assumptions
    assert [line for line in lines if line.startswith("my-card is described by its file")]
    assert [line for line in lines if line.startswith("nodes of my-card have 4 GPUs over pcie")]
