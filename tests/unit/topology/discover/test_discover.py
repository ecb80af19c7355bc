"""What tools print about a cluster becomes a cluster; what is not understood is said."""

from pathlib import Path

import pytest

from topology.base.errors import InputError
from topology.base.units import GB
from topology.builders import build
from topology.discover.cluster import discover, dump_facts, read_facts
from topology.discover.fabric import FabricFacts, TierFacts
from topology.discover.layout import known_gpu
from topology.discover.node import NodeFacts


def smi(links: list[list[str]], nics: int = 0, *, odd: str = "") -> str:
    """An `nvidia-smi topo -m` matrix in the tool's format."""
    names = [f"GPU{i}" for i in range(len(links))] + [f"NIC{i}" for i in range(nics)]
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"])]
    for i, row in enumerate(links):
        lines.append("\t".join([f"GPU{i}", *row, *["NODE"] * nics, "0-31", "0"]))
    lines += ["\t".join([f"NIC{i}", *["NODE"] * (len(links) + nics)]) for i in range(nics)]
    legend = [
        "",
        odd,
        "Legend:",
        "",
        "  X    = self",
        "  NV#  = bonded set of # NVLinks",
        "NIC Legend:",
        "  NIC0: mlx5_0",
    ]
    return "\n".join([*lines, *legend])


def square(gpus: int, word: str) -> list[list[str]]:
    """A matrix with the same word between all GPUs."""
    return [[" X " if i == j else word for j in range(gpus)] for i in range(gpus)]


def test_eighteen_links_to_everyone_is_a_switch() -> None:
    """NV18 between all of eight GPUs cannot be 126 links of one: they go through NVSwitch."""
    facts = dump_facts(smi(square(8, "NV18"), nics=8))
    assert facts == NodeFacts(
        source="nvidia-smi topo -m", gpus=8, nics=8, scaleup="nvswitch", links_per_gpu=18
    )
    h = build(discover([facts], "h100-sxm").spec).hierarchy
    assert (h.gpus_per_node, h.scaleup.kind, h.scaleup.bandwidth_bytes_per_s) == (8, "nvswitch", 450 * GB)


def test_four_links_between_each_of_four_is_a_mesh() -> None:
    """A100 without a switch: twelve links, four to each peer."""
    facts = dump_facts(smi(square(4, "NV4")))
    h = build(discover([facts], "a100-sxm-80gb").spec).hierarchy
    assert (h.scaleup.kind, h.scaleup.bandwidth_bytes_per_s) == ("nvlink-mesh", 300 * GB)


def test_pairs_are_pairs_and_the_rest_is_pcie() -> None:
    """Bridged pairs are a level of two; links between some GPUs only are not planned on."""
    pairs = [
        [" X ", "NV4", "SYS", "SYS"],
        ["NV4", " X ", "SYS", "SYS"],
        ["SYS", "SYS", " X ", "NV4"],
        ["SYS", "SYS", "NV4", " X "],
    ]
    assert build(discover([dump_facts(smi(pairs))], "a100-pcie-80gb").spec).hierarchy.levels[0].unit_gpus == 2
    chain = [[" X ", "NV4", "SYS"], ["NV4", " X ", "NV4"], ["SYS", "NV4", " X "]]
    facts = dump_facts(smi(chain))
    assert isinstance(facts, NodeFacts)
    assert (facts.scaleup, len(facts.notes)) == ("pcie", 1)


def test_columns_of_other_drivers_are_read_and_odd_lines_are_said() -> None:
    """mlx5 columns, no affinity, colours; a line that is not understood is a note."""
    text = (
        smi(square(2, "PHB"), nics=1, odd="driver warning: clocks")
        .replace("NIC0", "mlx5_0")
        .replace("GPU0", "\x1b[4mGPU0\x1b[0m")
    )
    facts = dump_facts(text)
    assert isinstance(facts, NodeFacts)
    assert (facts.gpus, facts.nics, facts.scaleup) == (2, 1, "pcie")
    assert facts.notes == ("line not understood: 'driver warning: clocks'",)


XML = """<system version="1">
  <cpu numaid="0">
    <pci busid="ffff:ff:01.0" class="0x060400">
      <pci busid="0:10" class="0x030200" vendor="0x10de" device="0x20b2">{nvlink}</pci>
      <pci busid="0:11" class="0x030200" vendor="0x10de" device="0x20b2">{nvlink}</pci>
      <pci busid="0:1b" class="0x020000" vendor="0x1d0f" device="0xefa0"/>
    </pci>{extra}
  </cpu>
</system>"""


def test_an_nccl_file_names_gpus_by_their_device() -> None:
    """Device 0x20b2 is the 80 GB A100; without NVLink elements the reference machine fills in."""
    facts = dump_facts(XML.format(nvlink="", extra=""))
    assert isinstance(facts, NodeFacts)
    assert (facts.gpu, facts.gpus, facts.nics, facts.scaleup) == ("a100-sxm-80gb", 2, 1, "")
    assert build(discover([facts]).spec).hierarchy.scaleup.bandwidth_bytes_per_s == 300 * GB


def test_an_nccl_dump_tells_links_and_nic_speeds() -> None:
    """NVLinks to something that is no GPU go to a switch; a net's speed is in Mbit/s."""
    dump = XML.format(
        nvlink='<nvlink target="9:99" count="12" tclass="0x068000"/>',
        extra='<nic><net name="a" speed="200000"/></nic>',
    )
    facts = dump_facts(dump)
    assert isinstance(facts, NodeFacts)
    assert (facts.scaleup, facts.links_per_gpu, facts.nic_bandwidth_bytes_per_s) == ("nvswitch", 12, 25 * GB)


def test_devices_without_a_class_cannot_be_told_apart() -> None:
    """The refusal says what was missing."""
    facts = dump_facts(
        '<system version="1"><cpu numaid="0"><pci busid="0:16"/><pci busid="0:17"/></cpu></system>'
    )
    with pytest.raises(InputError, match="2 PCI devices have no class"):
        discover([facts], "a10g")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<system>", "not valid XML"),
        ("<graphs/>", "root is <graphs>"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "refused"),
        ("hello", "not recognised"),
        ("", "not recognised"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV4\n", "no `nvidia-smi topo -m` output"),
        ("switchguid=0x1\n", "no ibnetdiscover output"),
        ("blocks:\n", "no topograph model"),
    ],
)
def test_other_files_are_refused(text: str, said: str) -> None:
    """Each with the tool it could not be."""
    with pytest.raises(InputError, match=said):
        dump_facts(text)


def ib_dump(units: int, hosts: int, rails: int, spines: int) -> str:
    """An `ibnetdiscover` dump of `units` groups of `rails` leaves with `hosts` hosts, and spines above all."""
    lines = []
    for unit in range(units):
        for rail in range(rails):
            lines += [
                "",
                "switchguid=0x1",
                f'Switch\t65 "S-{unit}{rail}a"\t\t# "leaf" enhanced port 0 lid 1 lmc 0',
            ]
            for host in range(hosts):
                lines.append(
                    f'[{host + 1}]\t"H-{unit}{rail}{host}"[1](aa) \t\t# "node-{unit}-{host} mlx5_{rail}" lid 7 4xNDR'
                )
            lines.append('[60]\t"H-ff"[1](ff) \t\t# "Mellanox Technologies Aggregation Node" lid 193 4xNDR')
            for spine in range(spines):
                lines.append(f'[{40 + spine}]\t"S-{spine}b"[1]\t\t# "spine" lid 2 4xNDR')
    for spine in range(spines):
        lines += ["", f'Switch\t65 "S-{spine}b"\t\t# "spine" enhanced port 0 lid 1 lmc 0']
        for unit in range(units):
            lines += [f'[{unit}]\t"S-{unit}{rail}a"[1]\t\t# "leaf" lid 3 4xNDR' for rail in range(rails)]
    lines += [
        "",
        'Ca\t1 "H-000"\t\t# "node-0-0 mlx5_0"',
        '[1](aa) \t"S-00a"[1]\t\t# lid 7 lmc 0 "leaf" lid 1 4xNDR',
    ]
    return "\n".join(lines)


def test_an_infiniband_dump_tells_rails_units_and_oversubscription() -> None:
    """Hosts that share leaves are one unit; ports down over ports up is the ratio."""
    facts = dump_facts(ib_dump(units=3, hosts=4, rails=2, spines=2))
    assert isinstance(facts, FabricFacts)
    assert (facts.hosts, facts.rails, facts.nics_per_host, facts.nic_bandwidth_bytes_per_s) == (
        12,
        2,
        2,
        50 * GB,
    )
    assert facts.tiers == (TierFacts(name="leaf", hosts_per_unit=4, oversubscription=2.0),)
    node = dump_facts(smi(square(8, "NV18"), nics=2))
    h = build(discover([node, facts], "h100-sxm").spec).hierarchy
    assert (h.num_gpus, h.rails) == (96, 2)
    assert [(level.unit_gpus, level.uplink_bytes_per_s) for level in h.levels] == [
        (8, 12.5 * GB),
        (32, 6.25 * GB),
    ]


def test_adapters_without_a_name_are_said() -> None:
    """A dump with unnamed adapters still gives a cluster, and a note with their number."""
    text = ib_dump(units=2, hosts=3, rails=1, spines=1).replace(
        "node-1-2 mlx5_0", "MT4129 ConnectX7   Mellanox Technologies"
    )
    facts = dump_facts(text)
    assert facts.notes[0] == "1 adapters carry no host name and are not counted as hosts"


MODEL = """# a comment
switches:
  core:
    labels:
      region: east
    switches:
    - spine-1
    - spine-2
  spine-1:
    switches:
    - leaf-1
    - leaf-2
  spine-2:
    switches:
    - leaf-3
    - leaf-4
blocks:
- switch: leaf-1
  nodes:
  - "node[01-18]"
  annotations:
    accelerator.topology.test/domain: nvl-1
- switch: leaf-2
  nodes: ["x[1-17]", "x20"]
  annotations:
    accelerator.topology.test/domain: nvl-2
- switch: leaf-3
  nodes:
  - a[100-117]
- switch: leaf-4
  nodes:
  - b[100-117]
"""


def test_a_topograph_model_tells_tiers_and_domains() -> None:
    """Leaves of 18 hosts, spines of 36, NVLink domains of 18; NVL72 racks of it are one domain each."""
    facts = dump_facts(MODEL)
    assert isinstance(facts, FabricFacts)
    assert (facts.hosts, facts.hosts_per_domain) == (72, 18)
    assert [(tier.name, tier.hosts_per_unit) for tier in facts.tiers] == [("leaf", 18), ("spine", 36)]
    assert build(discover([facts], "gb200").spec).hierarchy.gpus_per_node == 72
    assert build(discover([facts], "h100-sxm").spec).hierarchy.gpus_per_node == 8


def test_a_gpu_that_no_dump_names_must_be_given() -> None:
    """The help line shows the flag."""
    with pytest.raises(InputError, match="--gpu h100-sxm"):
        discover([dump_facts(MODEL)])
    with pytest.raises(InputError, match="nothing was discovered"):
        discover([])


def test_every_shared_sample_is_read_or_refused_with_a_reason(shared_dir: Path) -> None:
    """Real dumps of clouds and clusters: only files without GPUs or of another kind are refused."""
    refused = []
    for path in sorted((shared_dir / "topology_samples").iterdir()):
        if path.name == "README.md":
            continue
        try:
            facts = read_facts(path)
            rack = "gb200" in path.name or "nvl72" in path.name
            named = facts.gpu if isinstance(facts, NodeFacts) else known_gpu(facts.places)
            kind = "" if named else "gb200" if rack else "h100-sxm"
            assert build(discover([facts], kind).spec).hierarchy.num_gpus > 1
        except InputError:
            refused.append(path.name)
    assert refused == ["nccl_graph__azure_ncv4.xml", "nccl_topo__aws_g5.48xl.xml"]


def test_a_real_infiniband_fabric_is_understood(shared_dir: Path) -> None:
    """8 units of up to 18 hosts with 4 rails of NDR, 18 hosts on 16 uplinks or so."""
    facts = read_facts(shared_dir / "topology_samples" / "ibnetdiscover__topograph_example.txt")
    assert isinstance(facts, FabricFacts)
    assert (facts.rails, facts.nics_per_host, facts.nic_bandwidth_bytes_per_s) == (4, 4, 50 * GB)
    assert facts.tiers[0].hosts_per_unit == 18
    assert 1.0 <= facts.tiers[0].oversubscription < 1.5
