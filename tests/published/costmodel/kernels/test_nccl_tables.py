"""Collective times against nccl-tests: the single-node tables, and published runs of 1 to 20 nodes.

Published bus bandwidths are cited from: ml-engineering by S. Bekman (A100, H200, B200 nodes), AWS
awsome-distributed-training (p4de, p5), coreweave/nccl-tests (H100, GB200), NVIDIA/nccl issues.
"""

import numpy as np
import pytest

from costmodel.kernels.collectives import collective_time
from costmodel.kernels.tables import load_calibration
from topology.base.units import GIB, MIB
from topology.builders import default_cluster

CAL = load_calibration()
TABLES = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300", "l40s")


@pytest.mark.parametrize("name", TABLES)
def test_single_node_tables_are_reproduced_at_their_own_points(shared_dir, name):
    """Every measured point (median over library versions) is met within 2 %; most within float32."""
    pandas = pytest.importorskip("pandas")
    rows = pandas.read_csv(shared_dir / "kernels" / "nccl_single_node.csv")
    rows = rows[(rows.gpu == name) & (rows.dtype == "half")]
    rows = rows.groupby(["collective", "num_gpus", "bytes"]).latency_s.median().reset_index()
    h = default_cluster(name, 8).hierarchy
    for collective, points in rows.groupby("collective"):
        op = "all_to_all" if collective == "alltoall" else collective
        found = collective_time(CAL, h, op, points.bytes.to_numpy(), points.num_gpus.to_numpy(), 1)
        assert np.abs(found / points.latency_s.to_numpy() - 1).max() < 0.02, collective


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm"])
def test_message_sizes_left_out_are_predicted(name):
    """Every third size dropped from the table: the rest predicts it within 6 % in the median (1 MiB and more)."""
    arrays = CAL.arrays(name)
    sizes = arrays["nccl_bytes"].astype(float)
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        table = arrays[f"nccl_{op}"].astype(float)
        kept = np.ones(len(sizes), dtype=bool)
        kept[1:-1:3] = False
        guess = np.array([np.interp(np.log(sizes[~kept]), np.log(sizes[kept]), row[kept]) for row in table])
        off = np.abs(np.exp(guess - table[:, ~kept]) - 1)[:, sizes[~kept] >= MIB]
        assert np.median(off) < 0.06, op


# gpu, GPUs, NIC bytes/s per GPU (None: the reference machine's), bytes, measured bus bandwidth in GB/s, tolerance
PUBLISHED = [
    ("a100-sxm-80gb", 8, None, 1 * GIB, 229.0, 0.03),
    ("a100-sxm-80gb", 8, None, 16 * GIB, 234.9, 0.03),
    ("h200-sxm", 8, None, 1 * GIB, 463.6, 0.03),
    ("h200-sxm", 8, None, 16 * GIB, 482.3, 0.03),
    ("b200-sxm", 8, None, 16 * GIB, 845.7, 0.03),
    ("h200-sxm", 5, None, 8 * GIB, 414.2, 0.06),
    ("h200-sxm", 6, None, 8 * GIB, 435.6, 0.06),
    ("h200-sxm", 7, None, 8 * GIB, 460.0, 0.06),
    ("gb200", 72, None, 512 * MIB, 586.1, 0.15),
    ("gb200", 72, None, 8 * GIB, 834.6, 0.15),
    ("gb200", 144, None, 1 * GIB, 596.1, 0.10),
    ("gb200", 144, None, 16 * GIB, 810.4, 0.10),
    ("gb200", 1440, None, 512 * MIB, 150.95, 0.15),
    ("gb200", 1440, None, 16 * GIB, 405.7, 0.10),
    ("h100-sxm", 96, None, 1 * GIB, 365.9, 0.15),
    ("h100-sxm", 96, None, 8 * GIB, 386.6, 0.10),
    ("h100-sxm", 16, None, 64 * MIB, 209.2, 0.15),
    ("h100-sxm", 16, None, 1 * GIB, 436.95, 0.10),
    ("h100-sxm", 16, None, 16 * GIB, 487.1, 0.05),
    ("b200-sxm", 32, None, 1 * GIB, 361.99, 0.10),
    ("b200-sxm", 32, None, 16 * GIB, 381.8, 0.05),
    ("h200-sxm", 32, None, 4 * GIB, 364.9, 0.10),
    ("a100-sxm-80gb", 16, 6.25e9, 2 * GIB, 78.3, 0.15),
    ("mi300x", 8, None, 4 * GIB, 312.9, 0.15),
]


@pytest.mark.parametrize(("gpu", "num_gpus", "nic", "size", "bus", "tolerance"), PUBLISHED)
def test_published_all_reduce(gpu, num_gpus, nic, size, bus, tolerance):
    """Bus bandwidth of published all-reduces, 1 to 20 nodes."""
    nodes = max(num_gpus, 8)
    h = default_cluster(gpu, nodes, nic_bandwidth_bytes_per_s=nic).hierarchy
    seconds = float(collective_time(CAL, h, "all_reduce", size, num_gpus, 1))
    assert 2 * (num_gpus - 1) / num_gpus * size / seconds / 1e9 == pytest.approx(bus, rel=tolerance)


@pytest.mark.parametrize(
    ("nodes", "low", "high"), [(2, 0.5, 1.0), (8, 0.5, 0.95), (32, 0.3, 0.75), (128, 0.15, 0.45)]
)
def test_a_gibibyte_scales_out_as_measured(nodes, low, high):
    """Efficiency of 1 GiB over 400 GB/s of NICs falls with nodes (SimAI: .92, .90, .74 and .31)."""
    h = default_cluster("h100-sxm", 8 * nodes).hierarchy
    n = 8 * nodes
    share = (n - 1) / n * GIB / 400e9 / float(collective_time(CAL, h, "all_gather", GIB, n, 1))
    assert low < share < high


def test_all_to_all_of_eight_nodes():
    """8 MiB per GPU over 8 H800 nodes move at 24.4 GB/s (NVIDIA/nccl#1531)."""
    h = default_cluster("h800-sxm", 64).hierarchy
    seconds = float(collective_time(CAL, h, "all_to_all", 8 * MIB, 64, 1))
    assert 63 / 64 * 8 * MIB / seconds / 1e9 == pytest.approx(24.44, rel=0.1)
