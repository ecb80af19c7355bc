"""Dumps of unusual machines and fabrics, and damaged ones: a cluster, or three lines that say what is wrong."""

import random
import time

import pytest

from topology.base.errors import InputError
from topology.base.units import GB
from topology.builders import build
from topology.discover.cluster import discover, dump_facts
from topology.discover.fabric import FabricFacts, TierFacts
from topology.discover.node import NodeFacts, from_smi_topo


def ib_dump(leaves: dict[str, list[str]], cables: list[tuple[str, str]] = [], named: bool = True) -> str:  # noqa: B006
    """An `ibnetdiscover` dump: hosts of each switch, each on an adapter of its own, and cables between switches."""
    both = [*cables, *((b, a) for a, b in cables)]
    lines = []
    for number, switch in enumerate(dict.fromkeys([*leaves, *(a for a, _ in both)])):
        lines += [
            "switchguid=0x1",
            f'Switch\t65 "S-{switch}"\t\t# "switch" enhanced port 0 lid {number} lmc 0',
        ]
        for host in leaves.get(switch, []):
            name = f"{host} mlx5_{number}" if named else "MT4129 ConnectX7 Mellanox Technologies"
            lines.append(f'[1]\t"H-{number}"[1](aa) \t\t# "{name}" lid 7 4xNDR')
        lines += [f'[40]\t"S-{b}"[1]\t\t# "switch" lid 2 4xNDR' for a, b in both if a == switch]
    return "\n".join(lines)


HOSTS = ["n0", "n1", "n2", "n3"]


def test_a_rail_only_fabric_is_a_cluster() -> None:
    """Two leaves, every host on both, no spine: one unit of two rails, and NICs are what limits a host."""
    facts = dump_facts(ib_dump({"aa": HOSTS, "bb": HOSTS}))
    assert isinstance(facts, FabricFacts)
    assert (facts.hosts, facts.rails, facts.nics_per_host, facts.nic_bandwidth_bytes_per_s) == (
        4,
        2,
        2,
        50 * GB,
    )
    assert facts.tiers == (TierFacts(name="leaf", hosts_per_unit=4),)
    cluster = build(discover([facts], "h100-sxm").spec)
    h = cluster.hierarchy
    assert (h.num_gpus, h.rails, h.symmetric) == (32, 2, True)
    assert [(level.unit_gpus, level.uplink_bytes_per_s) for level in h.levels] == [(8, 2 * 50 * GB / 8)]
    switches = [device for device, data in cluster.graph.nodes(data=True) if data["kind"] == "switch"]
    assert len(switches) == 2


def test_one_leaf_is_a_cluster() -> None:
    """Nothing above it, nothing beside it."""
    facts = dump_facts(ib_dump({"aa": HOSTS}))
    assert isinstance(facts, FabricFacts)
    assert (facts.hosts, facts.rails, facts.tiers) == (4, 1, (TierFacts(name="leaf", hosts_per_unit=4),))
    assert build(discover([facts], "h100-sxm").spec).hierarchy.num_gpus == 32


def test_leaves_that_only_a_spine_joins_are_units() -> None:
    """The same hosts on one leaf each, a spine above: units of two."""
    facts = dump_facts(ib_dump({"aa": HOSTS[:2], "bb": HOSTS[2:]}, [("aa", "cc"), ("bb", "cc")]))
    assert isinstance(facts, FabricFacts)
    assert facts.tiers == (TierFacts(name="leaf", hosts_per_unit=2, oversubscription=2.0),)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (ib_dump({"aa": HOSTS, "bb": HOSTS}, named=False), "names no hosts"),
        (ib_dump({"aa": HOSTS[:2], "bb": HOSTS[2:]}), "the fabric is disconnected"),
    ],
)
def test_a_fabric_that_makes_no_cluster_is_refused(text: str, what: str) -> None:
    """Adapters without host names cannot be counted; leaves that nothing joins are two fabrics."""
    with pytest.raises(InputError, match=what):
        dump_facts(text)


def test_a_large_fabric_is_read_in_seconds() -> None:
    """Hosts were looked for in the list of every leaf."""
    hosts = [f"n{i}" for i in range(4000)]
    leaves = {f"a{i:x}": hosts[i * 20 : i * 20 + 20] for i in range(200)}
    text = ib_dump(leaves, [(leaf, f"f{spine:x}") for leaf in leaves for spine in range(20)])
    begun = time.process_time()
    assert dump_facts(text).source == "ibnetdiscover"
    assert time.process_time() - begun < 5


XML = """<system version="1"><cpu numaid="0"><pci busid="0:10" class="0x030200" device="0x2330">
<gpu dev="0">{link}</gpu></pci><pci busid="0:1b" class="0x020000"><nic><net name="a"{speed}/></nic></pci></cpu></system>"""
LINK = '<nvlink target="9:99" count="{}" tclass="0x068000"/>'


@pytest.mark.parametrize("speed", ["N/A", "", "-1", "nan", "inf", "1e300", "9" * 5000, "unknown"])
def test_a_speed_that_is_not_understood_is_said(speed: str) -> None:
    """Virtual machines write N/A; the reference machine's rate stands in."""
    facts = dump_facts(XML.format(link=LINK.format(18), speed=f' speed="{speed}"'))
    assert isinstance(facts, NodeFacts)
    assert (facts.nics, facts.nic_bandwidth_bytes_per_s, facts.links_per_gpu) == (1, None, 18)
    assert facts.notes == ("1 of 1 NICs have no speed that is understood",)
    assert build(discover([facts]).spec).hierarchy.num_gpus == 1


@pytest.mark.parametrize("count", ["", "N/A", "0", "-3", "nan", "9" * 5000, "1e9"])
def test_a_number_of_links_that_is_not_understood_is_said(count: str) -> None:
    """The reference machine of the GPU stands in."""
    facts = dump_facts(XML.format(link=LINK.format(count), speed=' speed="400000"'))
    assert isinstance(facts, NodeFacts)
    assert (facts.scaleup, facts.links_per_gpu, len(facts.notes)) == ("", None, 1)


@pytest.mark.parametrize(
    "text",
    [
        '<system name="\ud800"/>',
        "<system>" + "<pci>" * 50_000,
        "<system>" + '<pci class="0x030200">' * 5000 + "</pci>" * 5000 + "</system>",
        "<system>" + " " * 2**20 + "</system>",
        "\t" + "\t".join(f"GPU{i}" for i in range(20_000)),
        "GPU0\n" + "x" * 2**20,
        "\tGPU0\tefa" + "1" * 100_000 + "x",
    ],
    ids=["surrogate", "unclosed", "nested", "long", "many", "long line", "long word"],
)
def test_no_machine_is_so_large(text: str) -> None:
    """What would be paired or searched is counted first."""
    begun = time.process_time()
    with pytest.raises(InputError):
        dump_facts(text)
    assert time.process_time() - begun < 2


def test_lines_not_understood_are_listed_up_to_a_number() -> None:
    """A log before the matrix is not repeated whole."""
    facts = dump_facts(
        "noise\n" * 500 + "\tGPU0\tGPU1\nGPU0\t X \tNV9999999\nGPU1\tNV" + "9" * 5000 + "\t X \n"
    )
    assert isinstance(facts, NodeFacts)
    assert (facts.scaleup, len(facts.notes), facts.notes[-1]) == ("pcie", 21, "480 more lines not understood")


def model(switches: str = "", nodes: str = 'nodes: ["n[1-4]"]', switch: str = "a") -> str:
    """A topograph model of one block."""
    return f"switches:\n{switches}blocks:\n- switch: {switch}\n  {nodes}\n"


def below(name: str, *switches: str) -> str:
    """One switch and those below it."""
    return f"  {name}:\n    switches:\n" + "".join(f"    - {switch}\n" for switch in switches)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (model(below("b", "a") + below("a", "b")), "below itself"),
        (model(below("a", "a")), "below itself"),
        (
            model("".join(below(f"s{i + 1}", f"s{i}") for i in range(3000)), switch="s0"),
            "more than 16 switches",
        ),
        (model(below("b", "a") + below("c", "a")), "switch 'a' is below two switches"),
        (model(below("b", "a", "a")), "twice below one"),
        (model("    switches:\n    - a\n"), "listed before any switch"),
        (model("    switches:\n    - a\n" + below("b", "a")), "while parsing a block mapping"),
        (model(nodes="nodes: []"), "0 nodes"),
        (model(nodes="other: 1"), "0 nodes"),
        (model(nodes='nodes: ["n[0-99999999]"]'), "100,000,000 nodes"),
        (model(nodes='nodes: ["n[0-99999999999]"]'), "is no range"),
        (model(nodes='nodes: ["n[9-1]"]'), "is no range"),
        (model(nodes="nodes:\n  - n[0-99999999]"), "100,000,000 nodes"),
    ],
    ids=lambda value: value[:24].replace("\n", " "),
)
def test_a_model_that_is_no_tree_is_refused(text: str, cause: str) -> None:
    """A cycle was walked for ever, a range of a hundred million names written out."""
    begun = time.process_time()
    with pytest.raises(InputError) as error:
        dump_facts(text)
    assert cause in error.value.cause
    assert time.process_time() - begun < 2


def test_ranges_are_counted_in_every_spelling() -> None:
    """Lists of ranges as Slurm writes them, with and without quotes."""
    for nodes, hosts in (
        ('nodes: ["n[1-3,7]", "m"]', 5), ("nodes: [n1, n2]", 2), ("nodes: n[08-10]", 3), ("nodes:\n  - a[1-2]b", 2),
    ):  # fmt: skip
        facts = dump_facts(model(nodes=nodes))
        assert isinstance(facts, FabricFacts)
        assert facts.hosts == hosts


def test_a_deep_tree_is_a_cluster() -> None:
    """Every tier has a name of its own, the one above all of them too."""
    switches = "".join(below(f"s{i + 1}", f"s{i}") for i in range(5)) + below("top", "s5")
    text = "switches:\n" + switches + "blocks:\n"
    text += "".join(
        f"- switch: {name}\n  nodes: ['n{i}-[1-2]']\n" for i, name in enumerate(["s0", "s1", "s3", "s5"])
    )
    found = discover([dump_facts(text)], "h100-sxm")
    names = [tier.name for tier in found.spec.tiers]
    assert names == ["leaf", "spine", "core"]  # of six switches above each other, three divide hosts
    assert build(found.spec).hierarchy.num_gpus == 64


def test_two_blocks_of_one_leaf_add_up() -> None:
    """NVLink domains may share a leaf."""
    facts = dump_facts(
        model(below("b", "a", "c")) + "- switch: a\n  nodes: [x, y]\n- switch: c\n  nodes: [z]\n"
    )
    assert isinstance(facts, FabricFacts)
    assert (facts.hosts, facts.tiers) == (7, (TierFacts(name="leaf", hosts_per_unit=6),))


def test_a_dump_of_endless_lines_is_refused() -> None:
    """Sixty-four megabytes of two letters were gigabytes of lines."""
    with pytest.raises(InputError, match="too long"):
        dump_facts("switchguid=\n" + "x\n" * 1_000_001)


SEEDS = (
    ib_dump({"aa": HOSTS[:2], "bb": HOSTS[2:]}, [("aa", "cc"), ("bb", "cc")]),
    ib_dump({"aa": HOSTS, "bb": HOSTS}),
    XML.format(link=LINK.format(18), speed=' speed="400000"'),
    "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tPIX\nGPU1\tNV18\t X \tPIX\nNIC0\tPIX\tPIX\t X \n",
    model(below("core", "b") + below("b", "a", "c")) + "- switch: c\n  nodes:\n  - m[1-4]\n",
)
WORDS = (
    "",
    '"',
    "[",
    "]",
    "N/A",
    "-1",
    "0",
    "9" * 30,
    "99999999",
    "\n",
    "\t",
    "  ",
    "a",
    "switches:",
    "- ",
    "GPU1",
    "\0",
    "é",
)


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_a_damaged_dump_is_read_or_refused(seed: int) -> None:
    """Cut, doubled, swapped: facts, or three lines; and what is read is a cluster, or three lines."""
    rng = random.Random(seed)
    for _ in range(400):
        text = SEEDS[seed]
        for _ in range(rng.randint(1, 4)):
            at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            middle = rng.choice((rng.choice(WORDS), text[at:to] * 2, text[at:to][::-1], rng.choice(WORDS)))
            text = text[:at] + middle + text[min(to, at + rng.randint(0, 40)) :]
        try:
            found = discover([dump_facts(text)], "h100-sxm")
            assert build(found.spec).hierarchy.num_gpus > 0
        except InputError:
            continue


APART = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\tNODE\t{word}\t0-47\t0
GPU1\tNV18\t X \tNODE\tPXB\tNODE\t0-47\t0
NIC0\tPIX\tNODE\t X \tNODE\tNODE
NIC1\tNODE\tPXB\tNODE\t X \tNODE
NIC2\t{word}\tNODE\tNODE\tNODE\t X
"""


@pytest.mark.parametrize(("word", "is_named"), [("NODE", True), ("PIX", False)])
def test_a_nic_that_shares_no_switch_with_a_gpu_is_named(word: str, is_named: bool) -> None:
    """It may be for storage: counted, it doubles what leaves a node on paper."""
    node = from_smi_topo(APART.format(word=word))
    assert node.nics == 3
    notes = [note for note in node.notes if "share no PCIe switch" in note]
    assert [note.partition(" share")[0] for note in notes] == (["NIC2"] if is_named else [])
    assert not is_named or "cluster.nics_per_node=2" in notes[0]
