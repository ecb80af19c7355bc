"""A bundle starts the engine that was planned for, on every launcher, and stops where something is not named."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from costmodel.layout import ParallelLayout
from planner.engines.contracts import CONTRACTS
from planner.launch.bundle import LAUNCHERS, bundle
from planner.launch.entries import ENTRIES
from planner.launch.node_order import HOSTS, KEEPS
from planner.plan import Plan, from_json
from tests.unit.planner.engines.priced import priced
from topology.base.errors import InputError

LAYOUT = ParallelLayout(dp=16, zero_stage=3)
REPLICAS = ("horovod", "tensorflow")
PAIRS = [
    (engine, how)
    for engine in ENTRIES
    for how in LAUNCHERS
    if KEEPS[how] == HOSTS or not ENTRIES[engine].lists_hosts
]
"""Engines, and the launchers that can tell them what they need."""


@cache
def plan_for(engine: str) -> Plan:
    """Two nodes of eight GPUs, priced by the engine's own profile; a small model where all hold it whole."""
    if engine in REPLICAS:
        return priced(ParallelLayout(dp=16), "llama-3.2-1b", stack=CONTRACTS[engine].stacks[0])
    return priced(LAYOUT, stack=CONTRACTS[engine].stacks[0])


def written(folder: Path, engine: str, launcher: str) -> Path:
    """The folder with its files."""
    for name, text in bundle(plan_for(engine), engine, launcher)[0].items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("engine", "launcher"), PAIRS)
def test_every_file_is_sound(engine: str, launcher: str) -> None:
    """Shell scripts parse, no path is absolute but those inside a container, the plan is the plan."""
    files, _ = bundle(plan_for(engine), engine, launcher)
    for name, text in files.items():
        if name.endswith((".sh", ".sbatch")):
            done = subprocess.run(["bash", "-n"], input=text, text=True, check=False, capture_output=True)
            assert (name, done.returncode, done.stderr) == (name, 0, "")
            assert not [line for line in text.splitlines() if " /" in line.replace(" >/dev/null", "")]
        if name.endswith(".py"):
            compile(text, name, "exec")
    assert from_json(files["plan.json"]).layout == plan_for(engine).layout
    assert files["ranks.csv"].splitlines()[-1] == "15,1,1,7"


@pytest.mark.parametrize(("engine", "launcher"), PAIRS)
def test_shellcheck_finds_nothing(engine: str, launcher: str, tmp_path: Path) -> None:
    """Not even a matter of style, in scripts and in what they source."""
    tool = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if tool is None:
        pytest.skip("shellcheck is not installed")
    written(tmp_path, engine, launcher)
    sourced = (
        "environment.sh",
        "hosts.sh",
        "megatron_args.sh",
    )  # read with start.sh, which uses what they set
    scripts = sorted(
        path.name
        for path in tmp_path.iterdir()
        if path.suffix in (".sh", ".sbatch") and path.name not in sourced
    )
    call = [tool, "--shell=bash", "--external-sources", "--check-sourced", *scripts]
    done = subprocess.run(call, cwd=tmp_path, text=True, check=False, capture_output=True)
    assert ("start.sh" in scripts, done.returncode, done.stdout) == (True, 0, "")


@pytest.mark.parametrize(
    ("launcher", "file", "words"),
    [("slurm", "train.sbatch", "srun .*--cpu-bind=none"), ("mpi", "mpirun.sh", "mpirun .*--bind-to none")],
)
def test_the_ranks_of_a_node_have_all_its_cores(launcher: str, file: str, words: str) -> None:
    """One task starts all of them: bound to the core or socket of one task they would share that."""
    assert re.search(words, bundle(plan_for("megatron"), "megatron", launcher)[0][file])


@pytest.mark.parametrize("launcher", ["kubernetes", "pytorchjob", "kubeflow", "skypilot"])
def test_manifests_are_yaml_with_a_pod_a_node(launcher: str) -> None:
    """A reader sees two nodes of eight GPUs."""
    reader = pytest.importorskip("yaml", reason="PyYAML is not installed")
    files, _ = bundle(plan_for("megatron"), "megatron", launcher)
    (text,) = (text for name, text in files.items() if name.endswith(".yaml"))
    document = reader.safe_load(text)
    spec = document.get("spec", document)
    found = {
        "skypilot": lambda: spec["num_nodes"],
        "kubernetes": lambda: spec["replicatedJobs"][0]["template"]["spec"]["completions"],
        "pytorchjob": lambda: sum(one["replicas"] for one in spec["pytorchReplicaSpecs"].values()),
        "kubeflow": lambda: spec["trainer"]["numNodes"],
    }
    assert found[launcher]() == 2
    assert "8" in text


def environment(tmp_path: Path, **named: str) -> dict[str, str]:
    """An environment whose launchers only say how they were called."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir(exist_ok=True)
    for name in ("torchrun", "accelerate", "horovodrun", "python", "plan"):
        stub = bin_folder / name
        stub.write_text(
            f'#!/bin/bash\nprintf "%s\\n" {name} "$@"\n'
            'echo "queue=${CUDA_DEVICE_MAX_CONNECTIONS:-}"; echo "cluster=${TF_CONFIG:-}"\n'
        )
        stub.chmod(0o755)
    return {"PATH": f"{bin_folder}:{os.environ['PATH']}", "SKIP_PREFLIGHT": "1", **named}


STARTED_BY = {"accelerate": "accelerate", "horovod": "horovodrun", "tensorflow": "python"}
SAYS = {
    "megatron": "--use-megatron-fsdp", "horovod": "node0:8,node1:8", "meshplan": "my-run_dir/run.json",
    "tensorflow": 'cluster={"cluster": {"worker": ["node0:29500", "node1:29500"]}, "task": {"type": "worker", "index": 1}}',
}  # fmt: skip
"""What an engine is told that no other is, else its launcher's name."""


@pytest.mark.parametrize("engine", ENTRIES)
def test_start_runs_the_engine_with_the_plan(engine: str, tmp_path: Path) -> None:
    """On node 1 of 2, with everything named; without the last of it, it stops and says which."""
    folder = written(tmp_path, engine, "torchrun")
    (folder / "mine").write_text("node0\nnode1\n")
    named = {name: f"my-{name.lower()}" for name in ENTRIES[engine].variables}
    node = {"HOSTS": "mine", "NODE_NAME": "node0" if engine == "horovod" else "node1"}
    call = ["bash", str(folder / "start.sh"), "--more"]

    def run(**given: str) -> tuple[int, list[str], str]:
        told = environment(tmp_path, **given)
        done = subprocess.run(call, env=told, check=False, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines(), done.stderr

    code, said, errors = run(**node, **named)
    assert (code, errors, said[-3], said[-2]) == (0, "", "--more", "queue=")
    assert said[0] == STARTED_BY.get(engine, "torchrun")
    assert ("node0" in " ".join(said), SAYS.get(engine, said[0]) in said) == (True, True)
    bound = run(**node, **named, NUMA_BINDING="node")[1]
    assert ("--numa-binding=node" in bound) == (engine not in STARTED_BY)
    *_, last = named
    del named[last]
    code, said, errors = run(**node, **named)
    assert (code != 0, said, f"{last}: name the" in errors) == (True, [], True)


def test_horovodrun_of_the_first_node_starts_them_all(tmp_path: Path) -> None:
    """The others have nothing to do; a launcher whose hosts have no names yet is refused."""
    folder = written(tmp_path, "horovod", "slurm")
    (folder / "mine").write_text("node0\nnode1\n")
    told = environment(tmp_path, HOSTS="mine", NODE_NAME="node1", PROGRAM="train.py")
    done = subprocess.run(
        ["bash", str(folder / "start.sh")], env=told, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = subprocess.run(
        ["bash", str(folder / "start.sh")],
        env=told | {"HOSTS": "any", "NODE_RANK": "0"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode != 0, "told each by name" in done.stderr) == (True, True)
    with pytest.raises(InputError, match="kubernetes cannot tell this engine its hosts"):
        bundle(plan_for("horovod"), "horovod", "kubernetes")


def test_node_0_writes_the_run_that_all_train(tmp_path: Path) -> None:
    """Meshplan's own executor reads the settings of a run; the other nodes wait in the rendezvous."""
    folder = written(tmp_path, "meshplan", "torchrun")
    named = {name: f"my-{name.lower()}" for name in ENTRIES["meshplan"].variables}
    for rank in ("0", "1"):
        told = environment(tmp_path, NODE_RANK=rank, MASTER_ADDR="node0", **named)
        done = subprocess.run(
            ["bash", str(folder / "start.sh")], env=told, check=True, capture_output=True, text=True
        )
        wrote = done.stderr.splitlines()[:5]
        assert wrote == (["plan", "run", "plan.json", "--run-dir", "my-run_dir"] if rank == "0" else [])
        assert done.stdout.splitlines()[0] == "torchrun"


def test_slurm_keeps_the_nodes_of_a_rack_together() -> None:
    """Where a scale-up domain spans nodes the scheduler is told; elsewhere it is not."""
    layout = ParallelLayout(dp=72, zero_stage=1)
    rack = priced(layout, gpu="gb200", global_batch_size=144)
    files, _ = bundle(rack, "megatron", "slurm")
    assert "#SBATCH --segment=18" in files["train.sbatch"].splitlines()
    assert "#SBATCH --nodes=18" in files["train.sbatch"].splitlines()
    assert "share a rack by 18" in bundle(rack, "megatron", "ray")[0]["README.md"]
    assert "--segment" not in bundle(plan_for("megatron"), "megatron", "slurm")[0]["train.sbatch"]


def test_a_job_of_one_rack_says_so_to_kai_too() -> None:
    """KAI keeps a job together; two racks of one job are blocks within it, for which it has no word."""
    for racks, words in ((1, 1), (2, 0)):
        layout = ParallelLayout(dp=72 * racks, zero_stage=1)
        rack = priced(layout, gpu="gb200", global_batch_size=144 * racks)
        text = bundle(rack, "megatron", "kubernetes")[0]["jobset.yaml"]
        assert ("podset-slice-size" in text) == (racks > 1)
        assert text.count("kai.scheduler/topology-required-placement") == words


def test_a_plan_that_the_engine_cannot_be_told_has_no_bundle() -> None:
    """The refusal of the export is that of the bundle."""
    with pytest.raises(InputError, match="--for torchtitan"):
        bundle(plan_for("megatron"), "torchtitan", "slurm")
