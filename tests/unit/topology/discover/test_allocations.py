"""Allocations in every form that tells them: what is read, with its source, and what is refused."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.topology.discover.test_nodes_of_tools import DESCRIBED, SHOW_JOB, SHOW_NODE, SINFO
from topology.base.errors import InputError
from topology.base.units import GB
from topology.builders import build
from topology.catalog import discovered
from topology.discover.cluster import discover, dump_facts, read_facts
from topology.discover.fabric import FabricFacts
from topology.discover.formats.products import is_kind
from topology.discover.here import here, infiniband_devices
from topology.discover.hostlist import hosts_in
from topology.discover.layout import known_gpu
from topology.discover.node import NodeFacts
from topology.hardware.datasheets import gpu_sheets

TREE = "SwitchName=s0 Switches=s[1-2]\nSwitchName=s1 Nodes=n[1-4]\nSwitchName=s2 Nodes=n[5-8] LinkSpeed=100\n"
BLOCKS = "# b1=rack\nBlockName=b1 Nodes=t[01-18]\nBlockName=b2 Nodes=t[19-36]\nBlockSizes=18,36\n"
RINGS = "RingName=r1 Nodes=n[1-4]\nRingName=r2 Nodes=n[5-8]\n"
YAML = """- topology: a
  cluster_default: true
  tree:
    switches:
    - switch: top
      children: s[1-2]
    - {switch: s1, nodes: "n[1-4]"}
    - switch: s2
      nodes: n[5-8]
- topology: b
  flat: true
"""
RING_YAML = "- topology: a\n  ring:\n    rings:\n    - ring: r\n      nodes: n[1-6]\n"
TORUS = "- topology: a\n  torus3d:\n    toruses:\n    - name: t\n      dims: {x: 2, y: 2, z: 2}\n      nodes: n[1-8]\n"
ENVIRONMENT = (
    "SLURM_JOB_NODELIST=n[2-5]\nSLURM_JOB_NUM_NODES=4\nSLURM_GPUS_ON_NODE=8\n"
    "SLURM_TOPOLOGY_ADDR=s0.s1.n2\nSLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node\n"
)


def node(
    name: str, rack: str, clique: str = "", product: str = "NVIDIA-GB200", gpus: int = 4
) -> dict[str, object]:
    """A Kubernetes node in the form of the API."""
    labels = {"x/topology-block": "b", "x/topology-rack": rack, "nvidia.com/gpu.product": product}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels | ({"nvidia.com/gpu.clique": clique} if clique else {})},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else {}},
    }


KUBERNETES = json.dumps(
    {
        "kind": "List",
        "items": [*(node(f"n{i}", f"r{i // 2}", f"u.{i // 2}") for i in range(4)), node("cpu", "r0", gpus=0)],
    }
)
AWS = json.dumps(
    {"Instances": [
        {"InstanceId": f"i-{i}", "InstanceType": "p5.48xlarge", "NetworkNodes": ["a", "b", f"c{i // 2}"], "CapacityBlockId": "null"}
        for i in range(4)
    ]}
)  # fmt: skip
OCI = json.dumps(
    [
        {"hpcIslandId": "i", "networkBlockId": "n", "localBlockId": f"l{i // 2}", "hostId": f"h{i}"}
        for i in range(4)
    ]
)
GOOGLE = json.dumps(
    [
        {
            "name": f"g{i}",
            "machineType": "zones/z/machineTypes/a3-highgpu-8g",
            "resourceStatus": {"physicalHost": f"/b/s{i // 2}/h{i}"},
        }
        for i in range(4)
    ]
)
RAY = str(
    [{"NodeID": f"{i}", "Alive": True, "NodeManagerHostname": f"n{i}", "Resources": {"GPU": 8.0, "accelerator_type:H100": 1.0},
      "Labels": {"ray.io/accelerator-type": "H100", "ray.io/node-group": "w"}} for i in range(3)]
)  # fmt: skip
NMX = json.dumps(
    [
        {"Name": f"n{i}", "DomainUUID": "u", "GpuIDList": ["a", "b", "c", "d"], "Health": "HEALTHY"}
        for i in range(3)
    ]
)
SUBDOMAINS = "switches:\n  top:\n    switches: [a, b]\nblocks:\n" + "".join(
    f"- switch: {leaf}\n  nodes: ['{leaf}[01-18]']\n  annotations:\n    accelerator.topology.test/domain: d\n{{}}"
    for leaf in "ab"
)
CLIQUES = "topology:\n  domains:\n  - uuid: u\n    cliques:\n    - id: 0\n      nodes: [a, b]\n    - id: 1\n      nodes: [c, d]\n"
GRAPH = json.dumps(
    [{"nodes": [{"id": "s", "device_type": "switch", "name": "leaf"}, *({"id": f"h{i}", "device_type": "host", "name": f"n{i}"} for i in range(2))],
      "links": [{"interfaces": [{"node": "s"}, {"node": f"h{i}"}]} for i in range(2)]}]
)  # fmt: skip
DIAGRAM = """## Example
```mermaid
graph TD
    C[Cluster: 5 GPUs]
    A[Rack A: 3 GPUs]
    B[Rack B: 2 GPUs]
    A1[Node A1: 2 GPUs]
    A2[Node A2: 1 GPU]
    B1[Node B1: 2 GPUs]

    C --> A
    C --> B
    A --> A1
    A --> A2
    B --> B1
```
"""
ROCM = "".join(
    f"===== {title} between two GPUs =====\n       GPU0   GPU1\nGPU0   0      {cell}\nGPU1   {cell}      0\n"
    for title, cell in (("Weight", "15"), ("Hops", "1"), ("Link Type", "XGMI"))
)


def query(*states: str, product: str = "NVIDIA GB200", mib: int = 189471, uuid: str = "0001-01") -> str:
    """`nvidia-smi -q -x` of GPUs, each well or lost."""
    gpus = "".join(
        f"<gpu><product_name>{product}</product_name><fb_memory_usage><total>{mib} MiB</total></fb_memory_usage>"
        f"<fabric><state>{state}</state><cliqueId>2</cliqueId><clusterUuid>{uuid}</clusterUuid></fabric></gpu>"
        for state in states
    )
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
    return f"{head}<nvidia_smi_log><attached_gpus>{len(states)}</attached_gpus>{gpus}</nvidia_smi_log>"


FORMS = {
    "Slurm tree": (TREE, 8), "Slurm block": (BLOCKS, 36), "Slurm ring": (RINGS, 8), "Slurm YAML": (YAML, 8),
    "Slurm ring YAML": (RING_YAML, 6), "Slurm torus": (TORUS, 8), "environment": (ENVIRONMENT, 4), "host names": ("n1\nn2\n", 2),
    "Kubernetes": (KUBERNETES, 4), "AWS": (AWS, 4), "OCI": (OCI, 4), "Google": (GOOGLE, 4), "Ray": (RAY, 3), "NMX": (NMX, 3),
    "sub-domains": (SUBDOMAINS.format(*["    accelerator.topology.test/sub-domain: r\n"] * 2), 36), "cliques": (CLIQUES, 4), "NetQ": (GRAPH, 2),
    "diagram": (DIAGRAM, 3), "Slurm nodes": (SHOW_NODE, 2), "Slurm job": (SHOW_JOB.format(total=32), 4), "sinfo": (SINFO, 2),
    "described nodes": (DESCRIBED, 1),
}  # fmt: skip


def stated(text: str) -> str:
    """The kind of GPU that a dump states, "" where it states none."""
    facts = dump_facts(text)
    return facts.gpu if isinstance(facts, NodeFacts) else known_gpu(facts.places)


NAMING = {name: text for name, (text, _) in FORMS.items() if stated(text)}
"""Forms that state the kind of GPU."""


@pytest.mark.parametrize("text", NAMING.values(), ids=NAMING)
def test_a_gpu_that_is_named_beside_a_dump_must_be_the_dumps(text: str) -> None:
    """Every other kind of the catalog is refused with both names; the dump's own word is taken."""
    kind = stated(text)
    own = discover([dump_facts(text)]).spec.nodes[0].gpu
    assert discover([dump_facts(text)], own).spec.nodes[0].gpu == own
    for other in gpu_sheets():
        if not is_kind(kind, other):
            with pytest.raises(InputError, match="two kinds of GPU") as refused:
                discover([dump_facts(text)], other)
            assert other in refused.value.cause
            assert kind in refused.value.cause
            assert kind in refused.value.fix


def test_a_dump_of_a_node_and_one_of_the_hosts_must_agree_on_the_gpu() -> None:
    """The two sources are named; one that states nothing contradicts nothing."""
    hosts = dump_facts(KUBERNETES)
    node_facts = NodeFacts(source="nvidia-smi -q", gpus=4, nics=4, scaleup="nvswitch", gpu="h100-sxm")
    with pytest.raises(InputError, match="two kinds of GPU") as refused:
        discover([node_facts, hosts])
    assert "nvidia-smi -q 'h100-sxm'" in refused.value.cause
    assert "'gb200'" in refused.value.cause
    assert discover([replace(node_facts, gpu=""), hosts]).spec.nodes[0].gpu == "gb200"


@pytest.mark.parametrize(("text", "hosts"), FORMS.values(), ids=FORMS)
def test_more_gpus_than_a_dump_lists_are_refused(text: str, hosts: int, tmp_path: Path) -> None:
    """A list of hosts is all there is: as many are planned as it has, and not one node more."""
    dump = tmp_path / "dump.txt"
    dump.write_text(text, encoding="utf-8")
    kind = "" if stated(text) else "h100-sxm"
    whole = discovered([dump], kind).spec
    assert discovered([dump], kind, whole.num_gpus).spec == whole
    with pytest.raises(InputError) as refused:
        discovered([dump], kind, whole.num_gpus + whole.nodes[0].gpus_per_node)
    assert str(whole.num_gpus) in refused.value.fix


@pytest.mark.parametrize(("text", "hosts"), FORMS.values(), ids=FORMS)
def test_every_form_names_its_hosts_and_every_figure_its_source(text: str, hosts: int) -> None:
    """The number of hosts, and a source for each figure."""
    facts = dump_facts(text)
    assert isinstance(facts, FabricFacts)
    assert (len(facts.places), all(figure.source for figure in facts.figures)) == (hosts, True)


def test_a_diagram_is_read_from_its_ends_up() -> None:
    """Boxes without others below them are hosts; boxes that do not add up, or have two above, are refused."""
    facts = dump_facts(DIAGRAM)
    assert isinstance(facts, FabricFacts)
    assert [(place.path, place.gpus) for place in facts.places] == [
        (("C", "A"), 2), (("C", "A"), 1), (("C", "B"), 2)
    ]  # fmt: skip
    for wrong in (
        DIAGRAM.replace("Rack A: 3", "Rack A: 4"), DIAGRAM.replace("B --> B1", "B --> B1\n    A --> B1"),
        DIAGRAM.replace("B --> B1", "B --> B1\n    B1 --> C"), DIAGRAM.replace("Node B1: 2 GPUs", "Node B1"),
    ):  # fmt: skip
        with pytest.raises(InputError):
            dump_facts(wrong)


def test_a_job_is_the_part_of_the_topology_that_its_list_names() -> None:
    """Four of eight hosts, three below one leaf and one below the other: racks that differ."""
    found = discover([dump_facts(TREE), dump_facts(ENVIRONMENT)], "h100-sxm").spec
    assert (found.num_nodes, [tier.units for tier in found.tiers]) == (
        4,
        [(3, 1)] if found.tiers[0].units else [None],
    )
    assert [level.unit_gpus for level in build(found).hierarchy.levels] == [8, 24]


def test_hosts_that_the_topology_does_not_have_are_refused() -> None:
    """A list of another cluster."""
    with pytest.raises(InputError, match="1 of 2 hosts"):
        discover([dump_facts(TREE), dump_facts("n1\nelse7\n")], "h100-sxm")


def test_a_job_cannot_have_another_number_of_hosts_than_its_list() -> None:
    """The environment contradicts itself."""
    with pytest.raises(InputError, match="SLURM_JOB_NUM_NODES is 5"):
        dump_facts(ENVIRONMENT.replace("NODES=4", "NODES=5"))


def test_a_domain_larger_than_the_product_is_refused_and_its_sub_domains_are_planned_on() -> None:
    """36 trays of GB200 are no NVSwitch; two racks of 18 are two of 72 GPUs at 900 GB/s."""
    with pytest.raises(InputError, match="36 nodes of 4 GPUs = 144"):
        discover([dump_facts(SUBDOMAINS.format("", ""))], "gb200")
    parts = [f"    accelerator.topology.test/sub-domain: {rack}\n" for rack in ("r1", "r2")]
    h = build(discover([dump_facts(SUBDOMAINS.format(*parts))], "gb200").spec).hierarchy
    assert (h.num_gpus, h.gpus_per_node, h.scaleup.bandwidth_bytes_per_s) == (144, 72, 900 * GB)
    with pytest.raises(InputError, match="37 nodes"):
        discover([dump_facts("BlockName=b Nodes=n[1-37]\n")], "gb200")


def test_labels_name_the_clique_and_the_product() -> None:
    """Two NVLink partitions of two trays; the node without GPUs is left out."""
    found = discover([dump_facts(KUBERNETES)])
    h = build(found.spec).hierarchy
    assert (h.gpu.name, h.num_gpus, h.gpus_per_node) == ("gb200", 16, 8)
    assert any("cpu" in note for note in found.notes)


def test_uneven_racks_have_the_bandwidth_of_their_own_hosts() -> None:
    """Three racks of 5, 4 and 3 hosts on a fabric that is not oversubscribed: a host keeps its NICs' rate."""
    text = "SwitchName=t Switches=s[1-3]\nSwitchName=s1 Nodes=a[1-5]\nSwitchName=s2 Nodes=b[1-4]\nSwitchName=s3 Nodes=c[1-3]\n"
    found = discover([dump_facts(text)], "h100-sxm").spec
    assert found.tiers[0].units == (5, 4, 3)
    h = build(found).hierarchy
    assert [level.uplink_bytes_per_s for level in h.levels] == [50 * GB, 50 * GB]


def test_a_lost_gpu_is_not_planned_with() -> None:
    """Three of four answer; the domain spans machines; a zero UUID does not."""
    facts = dump_facts(query("Completed", "Completed", "Completed", "GPU is lost"))
    assert isinstance(facts, NodeFacts)
    assert (facts.gpus, facts.gpu, facts.spans_hosts) == (3, "gb200", True)
    within = dump_facts(query(*["Completed"] * 8, product="NVIDIA H100 80GB HBM3", mib=81559, uuid="0000-00"))
    assert isinstance(within, NodeFacts)
    assert (within.gpus, within.gpu, within.spans_hosts) == (8, "h100-sxm", False)


def test_two_dumps_that_differ_are_refused() -> None:
    """Eight GPUs and two are not one machine."""
    with pytest.raises(InputError, match="contradict"):
        discover([dump_facts(query(*["N/A"] * 8)), dump_facts(ROCM)], "h100-sxm")


def test_xgmi_between_all_is_a_mesh() -> None:
    """rocm-smi's matrix of kinds."""
    facts = dump_facts(ROCM)
    assert isinstance(facts, NodeFacts)
    assert (facts.gpus, facts.scaleup) == (2, "nvlink-mesh")


def block_yaml(blocks: str, sizes: str = "[4]", extra: str = "") -> str:
    """A topology of blocks."""
    return f"- topology: a\n{extra}  block:\n    block_sizes: {sizes}\n    blocks:\n{blocks}"


BLOCK = "    - {block: b1, nodes: 'n[1-4]'}\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (YAML.replace("topology: b", "topology: a"), "defined twice"),
        (YAML.replace("children: s[1-2]", "children: s[1-3]"), "'s3' that is not defined"),
        (YAML.replace("nodes: n[5-8]", "children: top"), "below itself"),
        (YAML.replace("nodes: n[5-8]", "nodes: n[8-5]"), "no range"),
        (YAML.replace("nodes: n[5-8]", "node: n[5-8]"), "unknown key 'node'"),
        (YAML.replace("flat: true", "flat: false"), "has 0 kinds"),
        (YAML.replace("flat: true", "flat: true\n  ring: {rings: [{ring: r, nodes: x}]}"), "has 2 kinds"),
        (YAML.replace("cluster_default: true", "cluster_default: maybe"), "neither true nor false"),
        (YAML.replace("- topology: b\n  flat", "- flat"), "no name"),
        (YAML.replace("switch: s2\n", "switch: s1\n"), "defined twice"),
        (YAML.replace("      children: s[1-2]", "      children: s[1-2]\n      nodes: n9"), "both children and nodes"),
        (block_yaml(BLOCK + BLOCK), "defined twice"),
        (block_yaml(BLOCK + "    - {block: b2, nodes: 'n[4-5]'}\n"), "two places"),
        (block_yaml(BLOCK, "[4, 12]"), "no power of two"),
        (block_yaml(BLOCK, "[8, 4]"), "no power of two"),
        (block_yaml(BLOCK, "[-4]"), "no positive numbers"),
        (block_yaml(BLOCK, "four"), "no positive numbers"),
        (TORUS.replace("n[1-8]", "n[1-7]"), "its dimensions hold 8"),
        (TORUS.replace("x: 2", "x: 0"), "three numbers"),
        (RING_YAML.replace("ring: r\n", "ring: r\n      size: 3\n"), "unknown key"),
        ("- topology: a\n  tree: *b\n", "found undefined alias|has an alias"),
        ("- topology: a\n  tree:\n    switches:\n    - switch: s\n", "names no nodes"),
        ("SwitchName=a Nodes=n1 Colour=red\n", "unknown word"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n1\n", "mixes"),
        ("BlockName=b Nodes=n[0-2000000000]\n", "no range|more than"),
        (json.dumps({"kind": "Topology", "spec": {"levels": [{"nodeLabel": "x/rack"}]}}), "they are Topology"),
        (json.dumps({"Instances": [{"InstanceId": "i", "NetworkNodes": None}]}), "no NetworkNodes"),
        (query("GPU is lost"), "1 GPUs are lost"),
        (query("Completed").replace("<attached_gpus>1", "<attached_gpus>2"), "attached_gpus is 2"),
    ],
    ids=lambda value: value[:0],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_the_reason(text: str, cause: str) -> None:
    """As the tool that reads the file would."""
    with pytest.raises(InputError) as error:
        discover([dump_facts(text)], "h100-sxm")
    assert re.search(cause, str(error.value))


def test_roots_are_separate_fabrics() -> None:
    """The larger one is planned on, and that is said."""
    found = discover([dump_facts("SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-6]\n")], "h100-sxm")
    assert found.spec.num_nodes == 4
    assert any("2 fabrics that nothing joins" in note for note in found.notes)


def test_a_machine_outside_a_job_says_what_it_cannot_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is installed; inside a job the list of hosts is enough with a GPU."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="nvidia-smi is not installed"):
        here("h100-sxm", {})
    found = here("h100-sxm", {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "8"})
    assert (found.spec.num_gpus, any("scontrol is not installed" in note for note in found.notes)) == (
        16,
        True,
    )
    (tmp_path / "mlx5_0" / "ports" / "1").mkdir(parents=True)
    (tmp_path / "mlx5_0" / "ports" / "1" / "rate").write_text("400 Gb/sec (4X NDR)\n", encoding="utf-8")
    assert infiniband_devices(tmp_path) == ["mlx5_0 400 Gb/sec (4X NDR)"]


REFUSED = {"NCCL graph dump"}
WITHOUT_HOSTS = (
    "k8s/kueue-sample-gpu-queues.yaml", "slurm_conf/gcp-slurm-topology.md", "k8s/topograph-node-labels.md",
    "ib/topograph-ibnetdiscover-bad.out",
)  # fmt: skip
"""Texts and settings that name no hosts, and one that is damaged: three lines, never a cluster."""


def test_every_sample_is_read_as_an_expert_reads_it(shared_dir: Path) -> None:
    """Hosts, GPUs of a host, units of each size: right, wrong or refused, row by row."""
    folder = shared_dir / "allocations"
    counts = {"right": 0, "refused": 0}
    wrong = []
    for row in csv.DictReader((folder / "expected.csv").read_text(encoding="utf-8").splitlines()):
        path = folder / row["file"]
        if not path.is_file():
            continue
        refusing = row["kind"] in REFUSED or row["nodes"] == "0" or row["file"] in WITHOUT_HOSTS
        try:
            facts = read_facts(path)
        except InputError:
            counts["refused"] += 1
            if not refusing:
                wrong.append(row["file"])
            continue
        said = " | ".join(f"{figure.name} {figure.value}" for figure in facts.figures)
        if refusing or not _agrees(row, facts, said):
            wrong.append(f"{row['file']}: {said}")
        else:
            counts["right"] += 1
    print(counts, "wrong:", wrong)  # noqa: T201 - the count is what this test is run for
    assert wrong == []


def _agrees(row: dict[str, str], facts: NodeFacts | FabricFacts, said: str) -> bool:
    """Whether facts are those of a row: every count of hosts, GPUs and units that it gives."""
    if isinstance(facts, NodeFacts):
        lost = "lost" in row["scale_up_domains"]
        nics = re.match(r"(\d+) NICs", row["rails"])
        links = all(part in said for part in re.findall(r"\d+ xgmi of width \d+", row["scale_up_domains"]))
        return (
            facts.gpus == int(row["gpus_per_node"]) - lost
            and links
            and (not nics or facts.nics == int(nics[1]))
        )
    named = {place.name for place in facts.places} | set(facts.known)
    units = re.findall(r"\b\d+x[1-9]\d*\b", " ".join((row["scale_up_domains"], row["racks_or_blocks"])))
    return (not row["nodes"] or len(named) == int(row["nodes"])) and all(
        re.search(rf"\b{unit}\b", said) for unit in units
    )


def test_host_expressions_are_written_out_as_slurm_does(shared_dir: Path) -> None:
    """Counts of the shared list."""
    for row in csv.DictReader(
        (shared_dir / "allocations" / "hostlists.csv").read_text(encoding="utf-8").splitlines()
    ):
        if row["count"] == "error":
            with pytest.raises(InputError):
                hosts_in(row["expression"])
        else:
            assert len(hosts_in(row["expression"])) == int(row["count"])


def test_hosts_keep_their_names() -> None:
    """In the order of the tree; an instance's id is no name that a host answers to."""
    tree = "SwitchName=s0 Switches=s[1-2]\nSwitchName=s1 Nodes=n9,n2\nSwitchName=s2 Nodes=n10,n1\n"
    spec = discover([dump_facts(tree, "t")], gpu="h100-sxm").spec
    assert spec.hosts == ("n9", "n2", "n10", "n1")
    assert spec.nodes[0].times(3).hosts == ("n9", "n2", "n10")
    assert spec.nodes[0].times(8).hosts == discover([dump_facts(AWS, "a")]).spec.hosts == ()
    assert (
        build(spec).fingerprint()
        == build(replace(spec, nodes=(replace(spec.nodes[0], hosts=()),))).fingerprint()
    )


@pytest.mark.parametrize("hosts", [("n1",), ("n1", "n1"), ("n1", "a b")])
def test_names_of_hosts_are_one_for_each(hosts: tuple[str, ...]) -> None:
    """Other numbers of them, one twice and what is no name are refused."""
    spec = discover([dump_facts("n[1-2]", "hosts.txt")], gpu="h100-sxm").spec
    with pytest.raises(InputError, match="host"):
        build(replace(spec, nodes=(replace(spec.nodes[0], hosts=hosts),)))
