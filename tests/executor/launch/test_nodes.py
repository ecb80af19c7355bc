"""What Slurm's variables may say, where ranks may listen, and what they are told of the environment."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import run
from costmodel.layout import ParallelLayout
from executor.launch.environment import check_named, environment_of_ranks, import_path
from executor.launch.nodes import Nodes, interfaces, listening_interface, loopback, placed
from executor.launch.run_lock import LOCK_FILE, run_lock
from executor.launch.schedulers import nodes_here
from executor.launch.supervise import meetings_of
from planner.plan import Plan, to_json
from topology.base.errors import InputError

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}


def of_slurm(*, rank: int, launch: str) -> Nodes:
    """One of two nodes."""
    return Nodes(count=2, rank=rank, launch=launch, come=2, announced_by="Slurm")


def test_a_job_of_two_nodes_is_read() -> None:
    """Each start of a run has its own name, the same on every node."""
    assert nodes_here(JOB) == of_slurm(rank=1, launch="7.0.0")
    again = {**JOB, "SLURM_STEP_ID": "3", "SLURM_RESTART_COUNT": "1"}
    assert nodes_here(again) == of_slurm(rank=1, launch="7.3.1")
    assert nodes_here({}) == Nodes()
    assert nodes_here({**JOB, "SLURM_STEP_NUM_NODES": "1"}) == Nodes()  # srun --nodes=1 in a larger job


@pytest.mark.parametrize("value", ["abc", "", "2(x3)", "0", "-1", "1.5", "²", "9" * 5000, "../7"])
@pytest.mark.parametrize(
    "name", ["SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NODEID", "SLURM_JOB_ID"]
)
def test_a_variable_that_is_no_count_is_named(name: str, value: str) -> None:
    """With its value and what to do; a rank and a job may be 0."""
    if value == "0" and name in ("SLURM_NODEID", "SLURM_JOB_ID"):
        return
    with pytest.raises(InputError) as raised:
        nodes_here({**JOB, name: value})
    assert (raised.value.what, repr(value[:80]) in raised.value.cause) == (f"{name} cannot be read", True)
    counts = [one for one in ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES") if one in JOB or one == name]
    alone = f"or unset {' and '.join(counts)} to run on this machine alone"
    assert raised.value.fix == f"set it as its launcher does, {alone}"
    assert nodes_here({one: text for one, text in JOB.items() if one not in counts}) == Nodes()


@pytest.mark.parametrize("value", ["8", "2(x3)", "1,8", "1(x2),2"])
def test_several_launchers_on_a_node_are_refused(value: str) -> None:
    """Slurm's repeated counts are read; one launcher starts all ranks of its node."""
    with pytest.raises(InputError, match="more than once on a node"):
        nodes_here({**JOB, "SLURM_STEP_TASKS_PER_NODE": value})


@pytest.mark.parametrize("value", ["", "abc", "1(x", "1(x0)", "1,,1", "-1"])
def test_counts_by_node_that_slurm_does_not_write_are_named(value: str) -> None:
    """As any other variable."""
    with pytest.raises(InputError, match="SLURM_STEP_TASKS_PER_NODE cannot be read"):
        nodes_here({**JOB, "SLURM_STEP_TASKS_PER_NODE": value})


def test_a_node_has_the_rank_of_its_place_in_the_plan() -> None:
    """By its name, whatever Slurm numbers it; a job of other hosts is refused unless its order is taken."""
    second, hosts = nodes_here(JOB), ("node9.cluster", "node10")
    here = JOB | {"SLURMD_NODENAME": "node9"}
    assert placed(second, hosts, here) == of_slurm(rank=0, launch="7.0.0")
    assert placed(second, (), here) == placed(second, hosts, here | {"HOSTS": "any"}) == second
    for wrong in (("node1", "node2"), ("node9", "node9.b"), ("node9", "node10", "node11")):
        with pytest.raises(InputError, match="other hosts than the job's"):
            placed(second, wrong, here)


def test_a_rank_beyond_the_nodes_is_named() -> None:
    """Node 2 of two nodes, counted from 0."""
    with pytest.raises(InputError, match="a number below SLURM_JOB_NUM_NODES = 2"):
        nodes_here({**JOB, "SLURM_NODEID": "2"})


def test_the_command_line_says_it_in_three_lines(
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is written."""
    pytest.importorskip("torch")
    plan, folder = tmp_path / "wanted.json", tmp_path / "run"
    plan.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))), encoding="utf-8")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2(x3)")
    monkeypatch.delenv("SLURM_STEP_NUM_NODES", raising=False)
    assert run(["run", str(plan), "--run-dir", str(folder), "--device", "cpu", "--dry-run"]) == 2
    said = capsys.readouterr()
    assert (said.out, [line.partition(":")[0] for line in said.err.splitlines()[-3:]]) == (
        "",
        ["error", "cause", "help"],
    )
    assert "SLURM_JOB_NUM_NODES is '2(x3)'" in said.err
    assert not folder.exists()


def test_one_node_listens_on_loopback_and_several_where_they_are_told() -> None:
    """There is no default that would open a door, and no interface that is not there."""
    two = Nodes(count=2, rank=0, launch="7.0.0")
    assert listening_interface(Nodes(), "eth7") == loopback()
    assert listening_interface(two, loopback()) == loopback()
    with pytest.raises(InputError, match="give --interface NAME"):
        listening_interface(two, None)
    with pytest.raises(InputError, match="there is no network interface 'eth0,lo'"):
        listening_interface(two, "eth0,lo")
    assert loopback() in interfaces()


def test_ranks_get_what_is_listed_and_what_is_named() -> None:
    """Nothing else; sockets are on one interface whatever the user's variables say."""
    users = {
        "PATH": "/bin", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0",
        "WANDB_API_KEY": "w", "HF_TOKEN": "h", "AWS_SECRET_ACCESS_KEY": "a", "MASTER_ADDR": "evil", "MINE": "m",
    }  # fmt: skip
    given = environment_of_ranks(users, interface="lo", named=("MINE",))
    names = {"PATH", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "MINE"}
    ours = {
        "PYTORCH_ALLOC_CONF",
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_GLOO_LAZY_INIT",
        "TOKENIZERS_PARALLELISM",
    }
    assert set(given) == names | ours | {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "PYTHONPATH", "PYTHONSAFEPATH"}
    assert environment_of_ranks({"OMP_WAIT_POLICY": "ACTIVE"}, interface="lo")["OMP_WAIT_POLICY"] == "ACTIVE"
    assert (given["GLOO_SOCKET_IFNAME"], given["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    assert "WANDB_API_KEY" in environment_of_ranks(users, interface="lo", wandb=True)
    hub = {"HF_TOKEN": "secret", "HF_HUB_OFFLINE": "1", "https_proxy": "there"}
    assert not hub.keys() & environment_of_ranks(hub, interface="lo").keys()
    assert hub.items() <= environment_of_ranks(hub, interface="lo", hub=True).items()


def test_what_the_user_says_of_memory_and_records_stands(tmp_path: Path) -> None:
    """By torch's name of today or the one before."""
    given = environment_of_ranks({}, interface="lo", records=tmp_path)
    assert given["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert given["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "nccl-rank")
    users = {"PYTORCH_CUDA_ALLOC_CONF": "backend:native", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}
    users["TORCH_FR_DUMP_TEMP_FILE"] = "mine"
    theirs = environment_of_ranks(users, interface="lo", records=tmp_path)
    assert users.items() <= theirs.items()
    assert not theirs.keys() & {"PYTORCH_ALLOC_CONF", "TORCH_FR_BUFFER_SIZE"}


def test_no_path_of_ranks_is_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by name nor as what an empty or relative entry means."""
    monkeypatch.chdir(tmp_path)
    ours, *theirs = import_path(os.pathsep.join(("", ".", "lib", str(tmp_path), "/opt/site"))).split(
        os.pathsep
    )
    assert (Path(ours, "executor").is_dir(), theirs) == (True, ["/opt/site"])


@pytest.mark.parametrize("name", ["TOKEN=secret", "a b", "", "1A", "NOT_SET_ANYWHERE"])
def test_only_names_of_variables_that_are_set_are_given(name: str) -> None:
    """A value on the command line is refused, and not repeated."""
    with pytest.raises(InputError) as raised:
        check_named([name], {"TOKEN": "x"})
    assert "secret" not in str(raised.value)


def test_the_lock_of_a_foreign_folder_leads_nowhere_else(tmp_path: Path) -> None:
    """A link in its place is not followed: what it names would be overwritten."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="cannot be written"), run_lock(tmp_path, pytest.fail):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("link", ["7.0.0", "7.0.0/beat-0"])
def test_what_a_foreign_folder_says_of_nodes_leads_nowhere_else(link: str, tmp_path: Path) -> None:
    """Neither is a link followed in which nodes meet, nor one under the name of what they write."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "run/.meetings/7.0.0").mkdir(parents=True)
    if link == "7.0.0":
        (tmp_path / "run/.meetings/7.0.0").rmdir()
    (tmp_path / "run/.meetings" / link).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="leads elsewhere"):
        meetings_of(tmp_path / "run", "7.0.0")


def test_nodes_of_a_run_hold_their_own_locks(tmp_path: Path) -> None:
    """They share a folder; a second launcher on either is refused while ranks that inherited a lock live."""
    with run_lock(tmp_path, pytest.fail), run_lock(tmp_path, pytest.fail, 1) as second:
        inherited = os.dup(second)
        with pytest.raises(InputError, match="another run is under way"), run_lock(tmp_path, pytest.fail):
            pass
    with pytest.raises(InputError, match="another run is under way"), run_lock(tmp_path, pytest.fail, 1):
        pass
    os.close(inherited)
    with run_lock(tmp_path, pytest.fail, 1):
        pass


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on: some parallel file systems are mounted so."""
    said: list[str] = []

    def unsupported(_descriptor: int, _how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with run_lock(tmp_path, said.append):
        assert "cannot be locked (Function not implemented)" in said[0]
