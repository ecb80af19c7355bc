"""The catalog holds every part and instance type known, each fact with its source and date."""

import csv
import dataclasses
import re
from pathlib import Path

import pytest

from topology import catalog
from topology.base.errors import InputError, UnknownNameError
from topology.base.units import GB, GIB, MIB, TERA
from topology.builders import build, default_cluster
from topology.hardware import datasheets

PARTS = {
    "a100-sxm-80gb": "A100-SXM4-80GB", "a100-sxm-40gb": "A100-SXM4-40GB", "a100-pcie-80gb": "A100-PCIe-80GB",
    "a100-pcie-40gb": "A100-PCIe-40GB", "h100-sxm": "H100-SXM5-80GB", "h100-pcie": "H100-PCIe-80GB",
    "h100-nvl": "H100-NVL-94GB", "h200-sxm": "H200-SXM-141GB", "h200-nvl": "H200-NVL", "gh200-96gb": "GH200-96GB",
    "b200-sxm": "B200-SXM", "b300-sxm": "B300-SXM", "gb200": "GB200", "gb300": "GB300", "l40s": "L40S", "l4": "L4",
    "a10": "A10", "a10g": "A10G", "v100-sxm-32gb": "V100-SXM2-16/32GB", "rtx-4090": "RTX4090",
    "mi250x-gcd": "MI250X (per OAM = 2 GCD)", "mi300x": "MI300X", "mi325x": "MI325X", "mi355x": "MI355X",
}  # fmt: skip
"""Our names of the parts of the hardware table."""


def rows(shared_dir: Path, name: str) -> list[dict[str, str]]:
    """Rows of a table beside the checkout."""
    with (shared_dir / name).open() as file:
        return list(csv.DictReader(file))


AS_REPORTED_MIB = {
    "h100-sxm": 81559, "h100-pcie": 81559, "h800-sxm": 81559, "h100-nvl": 95830, "h200-sxm": 143771,
    "b200-sxm": 183359, "gb200": 189471, "b300-sxm": 284208, "gb300": 284208,
    "l40s": 46068, "l4": 23034, "a10": 23028, "a10g": 23028, "rtx-4090": 24564, "h20-sxm": 97871, "rtx-a6000": 49140,
}  # fmt: skip
"""Memory as nvidia-smi reports it, where that is not the nominal size."""


def test_every_part_of_the_hardware_table_is_in_the_catalog(shared_dir: Path) -> None:
    """No part is left out, and none stands for two."""
    assert sorted(PARTS.values()) == sorted(row["name"] for row in rows(shared_dir, "hardware.csv"))


@pytest.mark.parametrize(("name", "mib"), AS_REPORTED_MIB.items())
def test_memory_is_what_the_driver_reports_where_the_data_sheet_rounds_up(name: str, mib: int) -> None:
    """Error correction takes a sixteenth of GDDR6: a plan for the nominal 48 GB of an L40S would not start."""
    assert catalog.gpu(name).memory_bytes == pytest.approx(mib * MIB, rel=1e-4)


def test_facts_equal_the_hardware_table(shared_dir: Path) -> None:
    """Dense peaks, memory, bandwidth and power are the table's, wherever the table has them."""
    table = {row["name"]: row for row in rows(shared_dir, "hardware.csv")}
    for ours, theirs in PARTS.items():
        row, gpu, dies = table[theirs], catalog.gpu(ours), datasheets.gpu_sheets()[ours].module_dies
        for dtype in ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4"):
            if row[f"{dtype}_tflops"]:
                assert gpu.peak_flop_per_s[dtype] == float(row[f"{dtype}_tflops"]) / dies * TERA, (
                    ours,
                    dtype,
                )
        if row["mem_bw_gbps"]:
            assert gpu.memory_bandwidth_bytes_per_s == float(row["mem_bw_gbps"]) / dies * GB
        if row["tdp_w"]:
            assert gpu.tdp_w == float(row["tdp_w"]) / dies
        if ours not in AS_REPORTED_MIB:
            assert gpu.memory_bytes == float(row["mem_gb"]) / dies * GIB
        assert gpu.memory_bytes <= float(row["mem_gb"]) * GIB
        if row["scaleup_uni_gbps"]:
            assert datasheets.gpu_sheets()[ours].scaleup_gb_per_s == float(row["scaleup_uni_gbps"]) / dies


def test_a_rank_of_an_mi250x_has_a_die() -> None:
    """rocm-smi, Slurm and torch count dies: 64 GiB and half the arithmetic of a module, eight of them a node."""
    found = catalog.gpu("mi250x")
    assert (found.name, found.memory_bytes, found.peak("bf16")) == ("mi250x-gcd", 64 * GIB, 191.5 * TERA)
    cluster = default_cluster("MI250X", 16)
    assert (cluster.spec.nodes[0].count, cluster.spec.nodes[0].gpus_per_node) == (2, 8)
    assert cluster.notes == ("mi250x-gcd is one of the 2 dies of a module: 8 of them are 4 modules",)
    assert default_cluster("h100", 16).notes == ()


def test_what_the_table_did_not_see_is_marked_unverified(shared_dir: Path) -> None:
    """A recalled or derived number is never passed off as read."""
    words = {
        "mem_bw": "memory_bandwidth",
        "mem,": "memory",
        "tdp": "tdp",
        "tf32": "tf32",
        "fp32": "fp32",
        "fp8": "fp8",
        "scaleup": "scaleup",
    }
    table = {row["name"]: row for row in rows(shared_dir, "hardware.csv")}
    for ours, theirs in PARTS.items():
        for word, fact in words.items():
            if re.search(rf"\b{word}", re.sub(r"\(.*?\)", "", table[theirs]["not_seen_fields"])):
                assert fact in catalog.gpu(ours).unverified, (ours, fact)


def test_every_gpu_of_the_measured_runs_is_known(shared_dir: Path) -> None:
    """The names are those of the tables of measured runs."""
    names = {
        row["gpu"] for name in ("training_runs_v2.csv", "serving_runs.csv") for row in rows(shared_dir, name)
    }
    assert names <= set(catalog.gpus())


def test_every_instance_type_is_a_machine_with_its_price(shared_dir: Path) -> None:
    """Each row of the instance table is a machine; its price, date and NICs are the row's."""
    machines = datasheets.machines()
    by_words = {re.sub("[^a-z0-9]", "", name): machine for name, machine in machines.items()}
    missing = []
    for row in rows(shared_dir, "instances.csv"):
        if row["provider"] == "NVIDIA reference":
            continue
        instance = re.sub("[^a-z0-9]", "", row["instance"].lower().removeprefix("standard_"))
        wanted = row["provider"].lower() + instance.removeprefix("gpu" if row["provider"] == "Lambda" else "")
        machine = by_words.get(wanted) or by_words.get(wanted.removesuffix("gb200nvl72"))
        if machine is None:
            missing.append(row["instance"])
            continue
        assert machine.gpus_per_node == int(row["n_gpus"])
        assert machine.usd_per_hour == (float(row["usd_per_hour"]) if row["usd_per_hour"] else None)
        if row["nics"]:
            assert (machine.nics_per_node, machine.nic_gbit_per_s) == (
                int(row["nics"]),
                float(row["nic_gbps_each"]),
            )
    assert missing == []


def test_every_fact_has_a_source_and_a_date() -> None:
    """No number without where it is from and when it was seen."""
    dated = re.compile(r"^20\d\d-\d\d-\d\d$")
    for entry in (
        *datasheets.gpu_sheets().values(),
        *datasheets.generations().values(),
        *datasheets.machines().values(),
        *datasheets.fabrics().values(),
    ):
        assert entry.source
        assert dated.match(entry.as_of)
    for machine in datasheets.machines().values():
        assert (machine.usd_per_hour is None) or machine.price_as_of


def test_unverified_names_facts_that_exist() -> None:
    """A mark points at a number of the entry."""
    for sheet in datasheets.gpu_sheets().values():
        known = {"memory_bandwidth", "memory", "tdp", "scaleup", "scaleup_links", "host", "pci_device"} | set(
            sheet.peak_tflop_per_s
        )
        assert set(sheet.unverified) <= known, sheet.name


def test_every_gpu_is_of_a_generation_that_is_described() -> None:
    """Rates and rules ask its traits; a GPU of a user's own architecture is taken for what is built today."""
    sheets = datasheets.gpu_sheets().values()
    assert {sheet.architecture for sheet in sheets} == set(datasheets.generations()) - {"other"}
    described = dataclasses.replace(catalog.gpu("h100"), architecture="mine")
    assert datasheets.generation_of(described).name == "other"


def test_an_alias_means_one_gpu_and_is_no_other_gpus_name() -> None:
    """Data can be edited by anyone."""
    written = [alias for sheet in datasheets.gpu_sheets().values() for alias in sheet.aliases]
    assert len(written) == len(set(written))
    assert not set(written) & set(datasheets.gpu_sheets())


@pytest.mark.parametrize("name", catalog.cluster_names())
def test_every_machine_builds_a_cluster(name: str) -> None:
    """One machine, rack or unit of each kind has a hierarchy of all its GPUs, within its data sheet."""
    cluster = catalog.cluster(name)
    h = cluster.hierarchy
    assert (h.num_gpus, h.gpu.name, h.symmetric) == (cluster.num_gpus, cluster.gpu.name, True)
    assert h.num_gpus % h.gpus_per_node == 0
    assert h.scaleup.bandwidth_bytes_per_s > 0


@pytest.mark.parametrize("name", sorted(catalog.gpus()))
def test_every_gpu_has_a_default_cluster(name: str) -> None:
    """64 of any GPU, in its reference machine, are more than one node apart from rack-scale ones."""
    from topology.builders import default_cluster

    h = default_cluster(name, 64).hierarchy
    assert h.num_gpus == 64
    assert bool(h.levels) == (h.gpus_per_node < 64 or h.scaleup.kind == "nvlink-pairs")


def test_lenient_names_mean_the_sxm_part() -> None:
    """A family name is its SXM part; a full name is itself."""
    assert [catalog.gpu(name).name for name in ("H100", "b200", "A100 80GB", "l40s", "4090", "GB200")] == [
        "h100-sxm", "b200-sxm", "a100-sxm-80gb", "l40s", "rtx-4090", "gb200",
    ]  # fmt: skip


def test_unknown_names_come_with_suggestions() -> None:
    """A typing mistake is answered with the closest names."""
    with pytest.raises(UnknownNameError) as gpu:
        catalog.gpu("h1000-sxm")
    with pytest.raises(UnknownNameError) as cluster:
        catalog.cluster("dgx-h1000")
    assert gpu.value.suggestions[0] == "h100-sxm"
    assert "dgx-h100" in cluster.value.suggestions


def test_prices_are_dated_and_of_the_first_provider_that_lists_one() -> None:
    """H100 is quoted at the price of eight of them in one machine."""
    price = catalog.price("h100")
    assert price is not None
    assert (price.machine, price.usd_per_gpu_hour, price.as_of) == (
        "aws-p5.48xlarge",
        55.04 / 8,
        "2026-07-20",
    )
    assert catalog.price("rtx-4090") is None


def test_several_machines_without_nics_are_refused() -> None:
    """A machine whose network is not known is used alone, and the error says so."""
    assert catalog.cluster("lambda-8x-h100-sxm5").num_gpus == 8
    with pytest.raises(InputError, match="disconnected"):
        catalog.cluster("lambda-8x-h100-sxm5", 16)


def test_what_if_is_replace() -> None:
    """A spec with one field replaced is another cluster with another fingerprint."""
    from dataclasses import replace

    cluster = catalog.cluster("dgx-h100", 32)
    node = replace(cluster.spec.nodes[0], nic_bandwidth_bytes_per_s=100 * GB)
    faster = build(replace(cluster.spec, nodes=(node,)))
    assert (
        faster.hierarchy.levels[0].uplink_bytes_per_s == 64 * GB
    )  # the PCIe link, not the NIC, is now narrowest
    assert faster.fingerprint() != cluster.fingerprint() == catalog.cluster("dgx-h100", 32).fingerprint()
