"""What each launcher says of a node, in the variables that it really sets; what contradicts is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.launch.nodes import Nodes
from executor.launch.schedulers import SCHEDULERS, check_gpus, nodes_here, nodes_line
from topology.base.errors import InputError

# As the launchers set them: seen of Open MPI 5.0.11 and MPICH 5.0.2, the others as their documentation or code says.
OPEN_MPI = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_NODE_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_num_procs": "2", "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-vm-18357@1", "PMIX_RANK": "1", "PMIX_HOSTNAME": "vm",
}  # fmt: skip
HYDRA = {
    "MPI_LOCALNRANKS": "1",
    "MPI_LOCALRANKID": "0",
    "PMI_HOSTNAME": "vm",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
PALS = {"PMI_SIZE": "2", "PMI_RANK": "1", "PMI_LOCAL_SIZE": "1", "PMI_LOCAL_RANK": "0"}
TRAIN_JOB = {
    "PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "PET_MASTER_PORT": "29500",
    "PET_MASTER_ADDR": "job-node-0-0.job", "JOB_COMPLETION_INDEX": "1", "KUBERNETES_SERVICE_HOST": "10.0.0.1",
}  # fmt: skip
PYTORCH_JOB = {
    "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "2", "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "auto", "KUBERNETES_SERVICE_HOST": "10.0.0.1",
}  # fmt: skip
RAY = {
    "RAY_JOB_ID": "02000000", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
    "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "41234",
}  # fmt: skip
SKYPILOT = {
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_TASK_ID": "sky-2026-11-25-08-00-00-000000_train_1",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
SAYS_ALL = {
    "Open MPI": (OPEN_MPI, "prterun-vm-18357@1"),
    "MPICH or Intel MPI": (HYDRA, "mpich-or-intel-mpi"),
    "Kubeflow": (TRAIN_JOB, "kubeflow"),
    "Ray Train": (RAY, "02000000"),
    "SkyPilot": (SKYPILOT, "sky-2026-11-25-08-00-00-000000_train_1"),
    "Slurm": (SLURM, "7.0.0"),
}
PMIX = {"PMIX_NAMESPACE": "prterun-vm-18357@1", "PMIX_RANK": "1"}
INDEXED = {"JOB_COMPLETION_INDEX": "1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def refused(environment: dict[str, str], asked: str | None = None) -> tuple[str, str, str]:
    """The three lines."""
    with pytest.raises(InputError) as raised:
        nodes_here(environment, asked)
    return raised.value.what, raised.value.cause, raised.value.fix


@pytest.mark.parametrize("name", SAYS_ALL)
def test_a_launcher_that_says_all_is_recognised_and_told_in_a_line(name: str) -> None:
    """The second of two nodes, whatever else is set; the name of the start is the same on every node."""
    environment, launch = SAYS_ALL[name]
    nodes = nodes_here({**environment, "PATH": "/bin", "HOME": "/root"})
    assert nodes == Nodes(count=2, rank=1, launch=launch, come=2, announced_by=name)
    assert nodes_line(nodes) == f"started by {name}: node 1 (from 0) of 2 nodes"


@pytest.mark.parametrize(("name", "environment"), [("MPICH or Intel MPI", PALS), ("Kubeflow", PYTORCH_JOB)])
def test_a_launcher_has_other_words_for_the_same(name: str, environment: dict[str, str]) -> None:
    """Cray's process manager; a PyTorchJob, whose RANK is that of the pod."""
    nodes = nodes_here(environment)
    assert (nodes.count, nodes.rank, nodes.announced_by) == (2, 1, name)


@pytest.mark.parametrize(("name", "environment"), [("PMIx", PMIX), ("Kubernetes", INDEXED)])
def test_a_launcher_that_does_not_say_how_many_needs_nnodes(name: str, environment: dict[str, str]) -> None:
    """An Indexed Job does not tell its pods how many they are; nor does PMIx in the environment."""
    assert refused(environment)[0] == f"{name} says which node this is, and not of how many"
    nodes = nodes_here(environment, "4")
    assert (nodes.count, nodes.rank, nodes.come, nodes.announced_by) == (4, 1, 4, name)
    assert nodes_here({**environment, SCHEDULERS[-1].rank[0]: "0", "PMIX_RANK": "0"}, "1") == Nodes()


def test_nodes_without_a_launcher_have_their_number_from_the_environment() -> None:
    """As torchrun's --nnodes and --node-rank; without --nnodes a stray NODE_RANK means nothing."""
    expected = Nodes(count=4, rank=3, launch="nodes", least=2, come=4, announced_by="NODE_RANK")
    assert nodes_here({"NODE_RANK": "3"}, "2:4") == expected
    assert nodes_here({"NODE_RANK": "3"}) == nodes_here({}) == nodes_here({}, "1") == Nodes()
    what, cause, fix = refused({}, "4")
    assert (what, "from 0 to 3" in fix) == ("nothing says which of 4 nodes this is", True)
    assert all(one.name in cause for one in SCHEDULERS)
    assert refused({"NODE_RANK": "4"}, "4")[0] == "NODE_RANK cannot be read"


@pytest.mark.parametrize("asked", ["", "0", "4:2", "0:4", "2:", ":4", "-1", "2:4:8", "two", "²"])
def test_nnodes_is_a_number_or_a_range(asked: str) -> None:
    """As torchrun takes it."""
    assert refused(SLURM, asked)[0] == "--nnodes cannot be read"


def test_a_range_of_nodes_says_how_few_go_on() -> None:
    """Of an elastic job by its own variable too; a scheduler may have fewer than the most."""
    assert nodes_here(SLURM, "1:2").least == 1
    assert nodes_here({**TRAIN_JOB, "PET_NNODES": "1:2"}).least == 1
    few = nodes_here(SLURM, "2:4")
    assert (few.count, few.come, nodes_line(few)) == (
        4,
        2,
        "started by Slurm: node 1 (from 0) of 2 of at most 4 nodes",
    )


@pytest.mark.parametrize("asked", ["1", "3", "4", "3:4"])
def test_nnodes_that_contradicts_the_launcher_is_refused(asked: str) -> None:
    """Slurm's two nodes are not within it."""
    what, cause, _ = refused(SLURM, asked)
    assert (what, cause) == (
        "--nnodes contradicts what started this", f"--nnodes {asked}, Slurm says 2 nodes",
    )  # fmt: skip


@pytest.mark.parametrize("name", SAYS_ALL)
def test_several_launchers_on_a_node_are_refused(name: str) -> None:
    """One starts all ranks of its node; the line that helps is the launcher's own. Pods have one by nature."""
    scheduler = next(one for one in SCHEDULERS if one.name == name)
    environment = SAYS_ALL[name][0]
    for variable in scheduler.launchers:
        if variable in environment:
            what, cause, fix = refused({**environment, variable: "2"})
            assert what == f"{name} starts plan run more than once on a node"
            assert (variable in cause, scheduler.once in fix) == (True, True)


@pytest.mark.parametrize("value", ["abc", "", "-1", "1.5", "²", "9" * 5000, "../7"])
@pytest.mark.parametrize("name", SAYS_ALL)
def test_a_variable_that_is_no_count_is_named(name: str, value: str) -> None:
    """The rank and the count of every launcher."""
    scheduler = next(one for one in SCHEDULERS if one.name == name)
    environment = SAYS_ALL[name][0]
    for variable in (*scheduler.count, *scheduler.rank):
        if variable in environment and not (name == "Kubeflow" and variable == "RANK"):
            assert refused({**environment, variable: value})[0] == f"{variable} cannot be read"


def test_to_run_alone_is_offered_where_the_count_is_all_that_is_set() -> None:
    """Of MPI in a Slurm job, Slurm would count instead; a flag says something else; a pod's index stays."""
    bad = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "x"}
    assert "alone" not in refused(bad)[2]  # PMIx is still there
    without = {name: value for name, value in bad.items() if not name.startswith("PMIX")}
    assert refused(without)[2].endswith("or unset OMPI_COMM_WORLD_SIZE to run on this machine alone")
    for environment, asked in (({**without, **SLURM}, None), (without, "2"), ({"NODE_RANK": "x"}, "2")):
        assert "alone" not in refused(environment, asked)[2]


@pytest.mark.parametrize("name", SAYS_ALL)
def test_a_rank_beyond_the_nodes_is_named(name: str) -> None:
    """Node 2 of two, counted from 0."""
    scheduler = next(one for one in SCHEDULERS if one.name == name)
    variable = scheduler.rank[0]
    environment = {key: value for key, value in SAYS_ALL[name][0].items() if key != "JOB_COMPLETION_INDEX"}
    what, cause, _ = refused({**environment, variable: "2"})
    assert (what, "= 2" in cause) == (f"{variable} cannot be read", True)


@pytest.mark.parametrize("value", ["a/b", "..", ".", "a b", "x" * 121, "é"])
def test_a_name_of_a_start_that_is_no_folder_is_named(value: str) -> None:
    """It names the folder in which nodes meet."""
    assert refused({**OPEN_MPI, "PMIX_NAMESPACE": value})[0] == "PMIX_NAMESPACE cannot be read"


def test_the_inner_launcher_counts() -> None:
    """Open MPI inside a Slurm job: its daemons are a step of one node less, and Slurm counts those."""
    outer = {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}
    for inner in (OPEN_MPI, HYDRA, RAY, SKYPILOT):
        assert nodes_here({**outer, **inner}) == nodes_here(inner)
    pods = {**INDEXED, "JOB_COMPLETION_INDEX": "5"}  # SkyPilot and Open MPI make pods of their own
    for inner in (OPEN_MPI, SKYPILOT):
        assert nodes_here({**pods, **inner}) == nodes_here(inner)
    assert nodes_here({**SLURM, **PMIX}) == nodes_here(SLURM)  # srun --mpi=pmix
    shell = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}  # of srun -n8 --pty bash
    assert nodes_here({**shell, **OPEN_MPI}) == nodes_here(OPEN_MPI)
    assert refused(shell)[0] == "Slurm starts plan run more than once on a node"


def test_a_pod_of_several_without_a_rank_is_refused() -> None:
    """An elastic PyTorchJob without a master: each pod would train alone."""
    elastic = {"PET_NNODES": "2:4", "PET_RDZV_BACKEND": "c10d", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    what, cause, fix = refused(elastic)
    assert (what, "PET_NNODES is 2:4" in cause) == ("nothing says which of 4 nodes this is", True)
    assert "set PET_NODE_RANK on each pod, from 0 to 3" in fix
    assert nodes_here({**elastic, "PET_NODE_RANK": "1"}).rank == 1
    assert nodes_here({**elastic, "NODE_RANK": "1"}, "2:4").rank == 1
    assert nodes_here(elastic, "1") == nodes_here({"PET_NNODES": "1"}) == Nodes()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({**TRAIN_JOB, "JOB_COMPLETION_INDEX": "0"}, "Kubeflow says node 1 of 2, Kubernetes says node 0"),
        (
            {**OPEN_MPI, **HYDRA, "PMI_SIZE": "4"},
            "Open MPI says node 1 of 2, MPICH or Intel MPI says node 1 of 4",
        ),
    ],
)
def test_launchers_that_contradict_each_other_are_refused(environment: dict[str, str], said: str) -> None:
    """Neither can have started the other: a variable is left over, or set by hand."""
    what, cause, fix = refused(environment)
    assert (what, cause, "unset" in fix) == ("two launchers contradict each other", said, True)


def test_a_list_of_hosts_of_another_length_is_refused() -> None:
    """Two addresses of three nodes."""
    what, cause, _ = refused({**SKYPILOT, "SKYPILOT_NUM_NODES": "3"})
    assert (what, cause) == (
        "SkyPilot contradicts itself",
        "SKYPILOT_NUM_NODES is 3, SKYPILOT_NODE_IPS lists 2",
    )


def test_a_node_with_fewer_gpus_than_ranks_is_refused() -> None:
    """Where its launcher says how many it has; none is what SkyPilot says of a machine without."""
    check_gpus(SKYPILOT, 8)
    check_gpus({**SKYPILOT, "SKYPILOT_NUM_GPUS_PER_NODE": "0"}, 8)
    check_gpus(SLURM, 16)
    with pytest.raises(InputError, match="SKYPILOT_NUM_GPUS_PER_NODE is 8, the plan has 16 ranks a node"):
        check_gpus(SKYPILOT, 16)


def test_a_name_says_one_thing() -> None:
    """Names of launchers are unique, and those they run inside of are among them."""
    names = [one.name for one in SCHEDULERS]
    assert len(names) == len(set(names))
    assert all(set(one.inside) <= set(names) - {one.name} for one in SCHEDULERS)
    assert all(not one.launchers or one.once for one in SCHEDULERS)


def test_the_page_names_every_variable() -> None:
    """Those that say how many nodes there are, which this is, and how often it was started there."""
    page = (Path(__file__).parents[3] / "docs" / "executor.md").read_text(encoding="utf-8")
    names = {
        name for one in SCHEDULERS for name in (*one.count, *one.rank, *one.launchers, one.hosts, one.gpus)
    }
    assert {name for name in names if name and f"`{name}`" not in page} == set()
