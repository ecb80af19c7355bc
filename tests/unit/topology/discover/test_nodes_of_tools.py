"""What a user of a cluster has first: scontrol, sinfo, kubectl describe, nvidia-smi -L, ibstat, topo -mp."""

from __future__ import annotations

import pytest

from topology.base.errors import InputError
from topology.base.units import GBIT
from topology.discover.cluster import discover
from topology.discover.fabric import FabricFacts
from topology.discover.node import NodeFacts
from topology.discover.recognise import dump_facts

SHOW_NODE = """\
NodeName=a-01 Arch=x86_64 CoresPerSocket=56
   Gres=gpu:h100:8(S:0-1)
   State=IDLE ThreadsPerCore=2 TmpDisk=0
NodeName=a-02 Arch=x86_64 CoresPerSocket=56
   Gres=gpu:h100:8(S:0-1)
   State=DOWN*+DRAIN ThreadsPerCore=2 Reason=NVLink error [root@2026-11-01]
NodeName=a-03 Arch=x86_64
   Gres=gpu:h100:8(S:0-1)
   State=MIXED
NodeName=cpu-1 Arch=x86_64
   Gres=(null)
   State=IDLE
"""
SHOW_JOB = """\
JobId=4711 JobName=pretrain
   JobState=RUNNING Reason=None
   NodeList=h[001-004]
   NumNodes=4 NumCPUs=384 NumTasks=32
   TRES=cpu=384,mem=4000G,node=4,billing=384,gres/gpu={total},gres/gpu:h200={total}
"""
SINFO = """\
HOSTNAMES GRES STATE
n001 gpu:a100:4 idle
n002 gpu:a100:4 mix
n003 gpu:a100:4 down*
"""
SINFO_LONG = """\
NODELIST   NODES PARTITION STATE REASON
n001       1     gpu*      idle  none
n002       1     gpu*      drain GPU fell off bus
"""
DESCRIBED = """\
Name:               w-1
Labels:             nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3
                    topology.k8s.aws/network-node-layer-3=nn-1
Unschedulable:      false
Capacity:
  nvidia.com/gpu:              8
Allocatable:
  nvidia.com/gpu:              7
Conditions:
  Type  Status
  Ready True


Name:               w-2
Labels:             nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3
Unschedulable:      false
Capacity:
  nvidia.com/gpu:              8
Allocatable:
  nvidia.com/gpu:              8
Conditions:
  Type  Status
  Ready False
"""
IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4129
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tLink layer: InfiniBand
CA 'mlx5_1'
\tPort 1:
\t\tState: Down
\t\tPhysical state: Disabled
\t\tRate: 10
CA 'mlx5_2'
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 100
"""
MATRIX = """\
{command}
\tGPU0\tGPU1\tNIC0\tCPU Affinity
GPU0\t X \tNODE\tPIX\t0-47
GPU1\tNODE\t X \tNODE\t0-47
NIC0\tPIX\tNODE\t X
"""
LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaa)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbb)\n"
QUERY = """\
<?xml version="1.0" ?>
<nvidia_smi_log><attached_gpus>2</attached_gpus>{gpus}</nvidia_smi_log>
"""
GPU = """\
<gpu id="{at}"><product_name>NVIDIA B200</product_name><fb_memory_usage><total>183359 MiB</total></fb_memory_usage>
<fabric><state>{state}</state><clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid><cliqueId>0</cliqueId>
<health><summary>{health}</summary><bandwidth>N/A</bandwidth><route_unhealthy>{route}</route_unhealthy></health></fabric></gpu>
"""


def _fabric(text: str) -> FabricFacts:
    facts = dump_facts(text)
    assert isinstance(facts, FabricFacts)
    return facts


def _node(text: str) -> NodeFacts:
    facts = dump_facts(text)
    assert isinstance(facts, NodeFacts)
    return facts


def test_nodes_that_cannot_run_a_job_are_left_out_with_their_reason() -> None:
    """Scontrol's manual: a node that is down, drained or failing gets no job."""
    facts = _fabric(SHOW_NODE)
    assert [(place.name, place.gpus, place.gpu) for place in facts.places] == [
        ("a-01", 8, "h100"),
        ("a-03", 8, "h100"),
    ]
    assert (
        facts.notes[0] == "1 of 4 nodes cannot run a job, and are left out: a-02 (down+drain: NVLink error)"
    )
    assert facts.notes[1] == "1 nodes have no GPUs and are left out: cpu-1"


@pytest.mark.parametrize(
    ("text", "names", "gpus", "note"),
    [
        (SINFO, ["n001", "n002"], 4, "1 of 3 nodes cannot run a job, and are left out: n003 (down)"),
        (
            SINFO_LONG,
            ["n001"],
            None,
            "1 of 2 nodes cannot run a job, and are left out: n002 (drain: GPU fell off bus)",
        ),
    ],
)
def test_a_table_of_sinfo_is_read_by_its_head(
    text: str, names: list[str], gpus: int | None, note: str
) -> None:
    facts = _fabric(text)
    assert [place.name for place in facts.places] == names
    assert {place.gpus for place in facts.places} == {gpus}
    assert facts.notes == (note,)


def test_a_job_has_the_gpus_that_its_resources_divide_into() -> None:
    """32 GPUs on 4 nodes are 8 each; 30 are not the same on each, so that nothing is told of a node."""
    assert {(place.gpus, place.gpu) for place in _fabric(SHOW_JOB.format(total=32)).places} == {(8, "h200")}
    assert {place.gpus for place in _fabric(SHOW_JOB.format(total=30)).places} == {None}
    assert _fabric(SHOW_JOB.format(total=32)).of_job


def test_a_job_that_waits_has_no_hosts_to_plan_on() -> None:
    with pytest.raises(InputError, match="no hosts yet"):
        dump_facts("JobId=1 JobName=x\n   JobState=PENDING Reason=Priority\n   NodeList=(null)\n")


def test_a_described_node_offers_what_it_can_allocate() -> None:
    """Seven of eight; the node that is not ready is left out."""
    facts = _fabric(DESCRIBED)
    assert [(place.name, place.gpus, place.gpu) for place in facts.places] == [("w-1", 7, "h100-sxm")]
    assert facts.notes[0].startswith("w-1 offers 7 of its 8 GPUs")
    assert any("w-2" in note and "not ready" in note for note in facts.notes)


def test_a_list_of_gpus_counts_them_and_slices_are_refused() -> None:
    assert (_node(LIST).gpus, _node(LIST).gpu) == (2, "h100-sxm")
    with pytest.raises(InputError, match="slices"):
        dump_facts(LIST + "  MIG 3g.40gb     Device  0: (UUID: MIG-111)\n")
    with pytest.raises(InputError, match="differ"):
        dump_facts(LIST + "GPU 2: NVIDIA A100-SXM4-80GB (UUID: GPU-ccc)\n")


def test_ports_that_are_down_or_slower_do_not_exchange() -> None:
    facts = _node(IBSTAT)
    assert (facts.nics, facts.nic_bandwidth_bytes_per_s) == (1, 400 * GBIT)
    assert facts.notes[0] == "1 of 3 ports are not up: mlx5_1"
    assert facts.notes[1].startswith("mlx5_2 at 100 Gbit/s beside 1 at 400")


def test_a_matrix_that_leaves_links_out_says_nothing_of_them() -> None:
    """`nvidia-smi topo --help`: -mp shows paths over PCIe alone; -m of the same card without links is a fault."""
    hidden = discover([dump_facts(MATRIX.format(command="$ nvidia-smi topo -mp"))], "h100-sxm")
    shown = discover([dump_facts(MATRIX.format(command=""))], "h100-sxm")
    assert (hidden.spec.nodes[0].scaleup, shown.spec.nodes[0].scaleup) == ("nvswitch", "pcie")
    assert any("no link joins the GPUs" in note for note in shown.notes)
    assert not any("no link joins the GPUs" in note for note in hidden.notes)


@pytest.mark.parametrize(
    ("state", "health", "route", "says"),
    [
        ("Completed", "Healthy", "N/A", ""),
        (
            "Completed",
            "Unhealthy",
            "True",
            "summary Unhealthy on 2 of 2 GPUs, route_unhealthy True on 2 of 2 GPUs",
        ),
        ("In Progress", "Healthy", "False", "fabric In Progress on 2 of 2 GPUs"),
    ],
)
def test_what_a_driver_says_of_a_broken_fabric_is_told(
    state: str, health: str, route: str, says: str
) -> None:
    gpus = "".join(GPU.format(at=at, state=state, health=health, route=route) for at in range(2))
    notes = " ".join(_node(QUERY.format(gpus=gpus)).notes)
    assert (says in notes) if says else ("healthy" not in notes)
