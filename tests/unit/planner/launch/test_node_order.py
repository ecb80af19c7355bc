"""The plan's placement reaches the ranks: each node finds its own line, whatever order a launcher has."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from planner.launch.bundle import LAUNCHERS, bundle
from planner.launch.machines import hosts_by_kind
from planner.launch.node_order import KEEPS, NodeOrder, node_order
from planner.plan import Plan, PlanRequest
from planner.rules.check import parse_pins
from planner.search.given_layout import plan_of_layout
from tests.unit.planner.engines.priced import priced
from tests.unit.planner.launch.test_bundle import plan_for
from topology.base.errors import InputError
from topology.base.units import format_seconds
from topology.builders import default_cluster
from topology.spec import ClusterSpec, SwitchSpec, TierSpec

CAL = load_calibration()
RACKS = ParallelLayout(dp=144, zero_stage=1)


@cache
def two_racks() -> Plan:
    """Thirty-six hosts of four GPUs, eighteen of which share a rack."""
    return priced(RACKS, gpu="gb200", global_batch_size=144)


def on(spec: ClusterSpec, num_gpus: int) -> Plan:
    """The plan of data-parallel ranks on a cluster."""
    base = plan_for("megatron")
    request = PlanRequest(
        model=base.request.model,
        cluster=spec,
        job=replace(base.request.job, global_batch_size=num_gpus),
        pins=parse_pins({"dp": num_gpus, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero_stage": 1}),
        memory_headroom=0.0,
    )
    found = plan_of_layout(request, CAL)
    assert isinstance(found, Plan), found
    return found


def tiered(*tiers: TierSpec) -> ClusterSpec:
    """Eight DGX H100 below switches."""
    return replace(default_cluster("h100-sxm", 64).spec, tiers=tiers)


def order_of(plan: Plan) -> NodeOrder:
    """Its order of nodes."""
    return node_order(plan, hosts_by_kind(plan))


def test_alike_nodes_have_no_order() -> None:
    """Below one leaf, and below leaves that lose nothing; the folder says so and asks for nothing."""
    assert not order_of(plan_for("megatron")).matters
    two_leaves = on(
        tiered(TierSpec(name="leaf", nodes_per_unit=4), TierSpec(name="spine", nodes_per_unit=8)), 64
    )
    assert (order_of(two_leaves).matters, order_of(two_leaves).together) == (False, 4)
    files, _ = bundle(two_leaves, "megatron", "slurm")
    assert "`HOSTS`: file" in bundle(two_racks(), "megatron", "slurm")[0]["README.md"]
    assert "`HOSTS`" not in files["README.md"]
    assert "Any order of nodes will do" in files["README.md"]
    assert "HOSTS:?" not in "".join(files.values())


def test_what_an_order_is_worth_is_priced() -> None:
    """Racks of a scale-up domain and leaves that lose bandwidth; blocks suffice where one boundary counts."""
    racks = order_of(two_racks())
    assert (racks.matters, racks.blocks_suffice, racks.together) == (True, True, 18)
    assert racks.apart_s > 1.5 * racks.step_time_s == 1.5 * racks.whole_s
    leaf, spine = (
        TierSpec(name="leaf", nodes_per_unit=2, oversubscription=4),
        TierSpec(name="spine", nodes_per_unit=4, oversubscription=4),
    )
    one = order_of(on(tiered(leaf, TierSpec(name="core", nodes_per_unit=8)), 64))
    two = order_of(on(tiered(leaf, spine, TierSpec(name="core", nodes_per_unit=8)), 64))
    assert one.matters
    assert (one.blocks_suffice, two.blocks_suffice, two.together) == (True, False, 2)
    assert two.step_time_s < two.whole_s < two.apart_s


def written(folder: Path, plan: Plan, launcher: str) -> Path:
    """The folder, whose program says which node it is."""
    files = dict(bundle(plan, "megatron", launcher)[0])
    files["environment.sh"] = "torchrun() { :; }\n"
    files["start.sh"] = files["start.sh"].replace("exec torchrun", 'echo "$NODE_RANK $MASTER_ADDR"; exit; :')
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def said(folder: Path, call: list[str], **named: str) -> tuple[int, str, str]:
    """How a call in the folder ends and what it says."""
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SKIP_PREFLIGHT": "1", **named}
    done = subprocess.run(call, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout.strip(), done.stderr


def hosts_with(name: str, line: int, count: int = 36) -> str:
    """A file of hosts that has this machine on a line, with comments and slots as MPI has them."""
    names = [f"tray-{index:02} slots=1" for index in range(count)]
    names[line] = name
    return "# racks r1, r2\n\n" + "\n".join(names)


@pytest.mark.parametrize("line", [0, 7, 35])
def test_a_node_is_the_rank_of_its_own_line(line: int, tmp_path: Path) -> None:
    """By its real name, against what a launcher numbered."""
    folder = written(tmp_path, two_racks(), "torchrun")
    (folder / "mine").write_text(hosts_with(socket.gethostname(), line))
    first = socket.gethostname() if line == 0 else "tray-00"
    launched = {"NODE_RANK": "3", "MASTER_ADDR": "elsewhere", "HOSTS": "mine"}
    assert said(folder, ["bash", "start.sh"], **launched)[:2] == (0, f"{line} {first}")
    assert said(folder, ["bash", "start.sh"], **launched | {"HOSTS": "any"})[:2] == (0, "3 elsewhere")


WRONG: Mapping[str, tuple[str, str]] = {
    "another machine": (hosts_with("tray-99", 4), "is none of mine"),
    "too few": (hosts_with(socket.gethostname(), 4, 35), "35 different ones in mine, not 36"),
    "one twice": (hosts_with(socket.gethostname(), 4) + "\ntray-07", "a host is twice"),
    "part of a name": (hosts_with(socket.gethostname()[:-1], 4), "is none of mine"),
    "a pattern": (hosts_with("*", 4), "is none of mine"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_of_other_hosts_stops(case: str, tmp_path: Path) -> None:
    """With what is wrong with it, before anything starts."""
    folder = written(tmp_path, two_racks(), "torchrun")
    text, told = WRONG[case]
    (folder / "mine").write_text(text)
    code, out, errors = said(folder, ["bash", "start.sh"], NODE_RANK="3", MASTER_ADDR="x", HOSTS="mine")
    assert (code != 0, out, told in errors) == (True, "", True), errors


def test_without_hosts_nothing_starts_where_the_order_matters(tmp_path: Path) -> None:
    """The message says what another order costs, and how to take it all the same."""
    folder = written(tmp_path, two_racks(), "torchrun")
    code, out, errors = said(folder, ["bash", "start.sh"], NODE_RANK="3", MASTER_ADDR="x")
    told = f"instead of {format_seconds(order_of(two_racks()).step_time_s)}; HOSTS=any"
    assert (code != 0, out, told in errors) == (True, "", True), errors
    code, _, errors = said(folder, ["bash", "start.sh"], NODE_RANK="3", MASTER_ADDR="x", HOSTS="nowhere")
    assert (code != 0, "no file nowhere" in errors) == (True, True)


SRUN = """#!/bin/bash
# a stand-in for a cluster: two of its nodes, numbered by name
echo "$*" > srun-words
while [ "$1" != bash ]; do shift; done
SLURM_PROCID=0 SLURMD_NODENAME=tray-20 "$@"
SLURM_PROCID=1 SLURMD_NODENAME=tray-03 "$@"
"""
MPIRUN = """#!/bin/bash
# a stand-in for a cluster: what -x does not name is not sent to its nodes
sent=()
[ "$1" != --version ] || exit 0
while [ "$1" != bash ]; do [ "$1" != -x ] || { shift; sent+=("$1=${!1}"); }; shift; done
env -i PATH="$PATH" "${sent[@]}" OMPI_COMM_WORLD_RANK=0 NODE_NAME=tray-20 "$@"
env -i PATH="$PATH" "${sent[@]}" OMPI_COMM_WORLD_RANK=1 NODE_NAME=tray-03 "$@"
"""


@pytest.mark.parametrize(
    ("launcher", "stub", "call"), [("slurm", SRUN, "train.sbatch"), ("mpi", MPIRUN, "mpirun.sh")]
)
def test_launchers_start_ranks_where_they_were_planned(
    launcher: str, stub: str, call: str, tmp_path: Path
) -> None:
    """Slurm numbers nodes by name and MPI as it likes: neither counts."""
    folder = written(tmp_path, two_racks(), launcher)
    (folder / "mine").write_text(hosts_with("tray-00", 0))
    for name, text in {"srun": stub, "mpirun": stub, "scontrol": "#!/bin/bash\necho tray-20\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    slurm = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_NODELIST": "tray-[00-35]", "SLURM_JOB_ID": "7"}
    named = dict.fromkeys(("MEGATRON_LM", "DATA_PATH"), "x")
    assert said(folder, ["bash", call], HOSTS="mine", **slurm, **named)[:2] == (0, "20 tray-00\n3 tray-00")
    if launcher == "slurm":  # which numbers its tasks alike
        assert (folder / "hosts-7").read_text().split() == [f"tray-{index:02}" for index in range(36)]
        assert "--distribution=arbitrary" in (folder / "srun-words").read_text()
        said(folder, ["bash", call], HOSTS="any", **slurm, **named)
        assert "--distribution" not in (folder / "srun-words").read_text()
    code, out, errors = said(folder, ["bash", call], **slurm)
    assert (code != 0, out, "HOSTS" in errors) == (True, "", True)


MAPPED = """#!/bin/bash
# the real one, asked where it would start what
[ "$1" = --version ] || set -- --display map --runtime-options donotlaunch "$@"
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 exec {mpirun} "$@"
"""


def test_open_mpi_numbers_its_processes_by_a_rankfile(tmp_path: Path) -> None:
    """Its own mapper has process n on the n-th host, in an order that is not that of their names."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("Open MPI is not installed")
    folder = written(tmp_path, two_racks(), "mpi")
    names = [f"tray-{index * 7 % 36:02}" for index in range(36)]
    (folder / "mine").write_text("# racks\n" + "\n".join(names) + "\n")
    (folder / "mpirun").write_text(MAPPED.format(mpirun=mpirun))
    (folder / "mpirun").chmod(0o755)
    code, out, errors = said(folder, ["bash", "mpirun.sh"], HOSTS="mine", HOME=str(folder))
    assert code == 0, errors
    mapped = re.findall(r"Data for node: (\S+)|Data for proc: \[\S+,(\d+)\]", out)
    hosts = [host for host, _ in mapped if host]
    assert [int(rank) for _, rank in mapped if rank] == list(range(36)), out
    assert hosts == names
    assert (folder / "rankfile").read_text().splitlines()[1] == "rank 1=tray-07 slot=*"


def test_hosts_that_the_cluster_names_are_written(tmp_path: Path) -> None:
    """The plan leaves the two nodes of row a out; the file has the others' names in its order."""
    base = default_cluster("h100-sxm", 8).spec
    rows = "aabbbb"
    spec = replace(
        base,
        nodes=tuple(
            replace(base.nodes[0], name=f"gpu{i}", switch=f"row-{row}", count=1) for i, row in enumerate(rows)
        ),
        tiers=(),
        rail_optimized=False,
        switches=(
            SwitchSpec(name="room"),
            *(
                SwitchSpec(name=f"row-{row}", parent="room", uplink_bandwidth_bytes_per_s=2e11)
                for row in "ab"
            ),
        ),
    )
    plan = on(spec, 32)
    order = order_of(plan)
    assert (order.nodes, order.hosts, order.matters) == ((2, 3, 4, 5), ("gpu2", "gpu3", "gpu4", "gpu5"), True)
    folder = written(tmp_path, plan, "torchrun")
    assert (folder / "hosts").read_text().split() == list(order.hosts)
    assert (folder / "ranks.csv").read_text().splitlines()[-1] == "31,3,5,7,gpu5"
    assert said(folder, ["bash", "start.sh"], NODE_NAME="gpu4")[:2] == (0, "2 gpu2")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_keeps_the_order_or_refuses_with_numbers(launcher: str) -> None:
    """No manifest starts an order that was not priced, unless that is what was asked for."""
    keeps = KEEPS[launcher] in ("hosts", "blocks")
    if keeps:
        assert bundle(two_racks(), "megatron", launcher)[1] == bundle(two_racks(), "megatron", "slurm")[1]
        return
    with pytest.raises(InputError, match=f"{launcher} cannot keep") as refused:
        bundle(two_racks(), "megatron", launcher)
    order = order_of(two_racks())
    told = f"{format_seconds(order.apart_s)} instead of {format_seconds(order.step_time_s)}"
    assert f"{told}; 18 nodes share" in str(refused.value)
    _, notes = bundle(two_racks(), "megatron", launcher, nearest=True)
    assert told in notes[-1]


@pytest.mark.parametrize(("launcher", "file"), [("kubernetes", "jobset.yaml"), ("kubeflow", "trainjob.yaml")])
def test_pods_wait_for_kueue_to_place_them_by_index(launcher: str, file: str) -> None:
    """Slices of a rack's hosts; suspended, so that without Kueue nothing starts in another order."""
    text = bundle(two_racks(), "megatron", launcher)[0][file]
    assert 'podset-slice-size: "18"' in text
    assert "suspend: true" in text
    assert "kueue" not in bundle(plan_for("megatron"), "megatron", launcher)[0][file]


def test_ranks_of_a_node_are_one_host_s() -> None:
    """A file whose ranks jump between hosts has no launcher."""
    plan = plan_for("megatron")
    gpus = list(plan.mesh.gpu_of_rank)
    gpus[0], gpus[8] = gpus[8], gpus[0]
    mixed = replace(plan, mesh=replace(plan.mesh, gpu_of_rank=tuple(gpus)))
    with pytest.raises(InputError, match="node 0 of the plan has GPUs 8, 1, 2"):
        order_of(mixed)
