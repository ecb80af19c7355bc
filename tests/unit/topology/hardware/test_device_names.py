"""A device is the part that its whole name and its memory say, or it is asked for."""

import pytest

from topology.base.errors import InputError
from topology.base.units import GIB
from topology.hardware.device_names import gpu_of_device


@pytest.mark.parametrize(
    ("name", "memory_gib", "part"),
    [
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", 39.4, "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", 79.2, "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", 79.1, "h100-sxm"),
        ("NVIDIA H100 PCIe", 79.1, "h100-pcie"),
        ("NVIDIA H100 NVL", 93.1, "h100-nvl"),
        ("NVIDIA H200", 139.8, "h200-sxm"),
        ("NVIDIA H200 NVL", 139.8, "h200-nvl"),
        ("NVIDIA GH200 480GB", 94.5, "gh200-96gb"),  # the name has its CPU's memory
        ("NVIDIA B200", 178.4, "b200-sxm"),
        ("NVIDIA L4", 22.0, "l4"),
        ("NVIDIA L40S", 44.4, "l40s"),
        ("NVIDIA A10", 22.1, "a10"),
        ("NVIDIA A10G", 22.1, "a10g"),
        ("Tesla V100-SXM2-16GB", 15.8, "v100-sxm-16gb"),
        ("NVIDIA GeForce RTX 4090", 23.6, "rtx-4090"),
        ("NVIDIA B300 SXM6 AC", 268.6, "b300-sxm"),
        ("Tesla V100-PCIE-32GB", 31.7, "v100-pcie-32gb"),
        ("Tesla T4", 14.6, "t4"),
        ("NVIDIA GeForce RTX 3090", 23.7, "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", 23.7, "rtx-3090-ti"),
        ("NVIDIA GeForce RTX 5090", 31.4, "rtx-5090"),
        ("NVIDIA RTX 6000 Ada Generation", 47.5, "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 94.9, "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 94.9, "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 94.9, "rtx-pro-6000-max-q"),
        ("NVIDIA A800-SXM4-80GB", 79.2, "a800-sxm-80gb"),
        ("NVIDIA A800 80GB PCIe", 79.2, "a800-pcie-80gb"),
        ("NVIDIA H800 PCIe", 79.1, "h800-pcie"),
        ("NVIDIA H20-3e", 139.8, "h20-sxm-141gb"),
        ("NVIDIA H20", 95.0, "h20-sxm"),
        ("NVIDIA GH200 144G HBM3e", 142.0, "gh200-144gb"),
        ("NVIDIA A40", 44.4, "a40"),
        ("NVIDIA L20", 44.5, "l20"),
        ("NVIDIA GB10", 119.6, "gb10"),
        ("AMD Instinct MI300X", 191.7, "mi300x"),
        ("AMD Instinct MI300X OAM", 192.0, "mi300x"),
        ("AMD Instinct MI300X VF", 191.7, "mi300x"),
        ("AMD Instinct MI250X", 64.0, "mi250x-gcd"),
        ("AMD Instinct MI250X/MI250", 64.0, "mi250x-gcd"),  # ROCm's one name for the dies of both
        ("AMD Instinct MI250X / MI250", 64.0, "mi250x-gcd"),
    ],
)
def test_a_driver_name_is_its_own_part(name, memory_gib, part):
    """Board and memory decide, not the family alone."""
    assert gpu_of_device(name, memory_gib * GIB) == part


@pytest.mark.parametrize(
    ("name", "memory_gib"),
    [
        ("NVIDIA A100-SXM-64GB", 63.4),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.8),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 15.6),
        ("NVIDIA GeForce RTX 4090 D", 23.6),
        ("NVIDIA GeForce RTX 2080", 7.8),
        ("NVIDIA L2", 22.4),
        ("AMD Instinct MI300X VF", 24.0),  # a part of one
        ("AMD Instinct MI250", 64.0),  # has less units
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", 64.0),
        ("AMD Instinct MI250X", 128.0),  # no device is a whole module
        ("", 80.0),
    ],
)
def test_a_part_that_the_catalog_lacks_is_asked_for(name, memory_gib):
    """Never the nearest of its family."""
    with pytest.raises(InputError, match="not in the catalog by its own name") as raised:
        gpu_of_device(name, memory_gib * GIB)
    assert repr(name) in raised.value.cause
    assert "--gpu" in raised.value.fix


def test_bench_asks_the_device_for_its_name_and_memory(monkeypatch):
    """A 40 GB A100 is measured as itself, not as the family's usual part."""
    from app.actions.bench import gpu_here

    monkeypatch.setattr("executor.bench.devices.driver_name", lambda: "NVIDIA A100-SXM4-40GB")
    monkeypatch.setattr("executor.bench.devices.gpu_memory_bytes", lambda: int(39.4 * GIB))
    assert gpu_here() == "a100-sxm-40gb"
