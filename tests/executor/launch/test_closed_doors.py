"""A run of one node seen from outside: what listens, what its processes know and import, who may join, what stays.

One real run is started, looked at, and its launcher killed; each test reads one of the findings.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest

pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from executor.training.settings import METRICS_FILE
from planner.plan import Plan, to_json
from tests.executor.launch.processes import addresses, alive, family, words_of
from tests.patience import PATIENCE_S, wait_for

ROOT = Path(__file__).parents[3]
SECRETS = {
    name: f"do-not-tell-{name}"
    for name in ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT")
}
NAMED = {"MY_CLUSTER": "told-by-name"}
HOSTILE = "import os, pathlib; pathlib.Path(os.environ['HOME'], 'imported').touch(); raise SystemExit(9)"

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's /proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was seen of a run, and what was left of it."""

    ranks: tuple[int, ...]
    listening: frozenset[str]
    environments: tuple[str, ...]
    second_launcher: tuple[int, str]
    launcher: int
    left_running: tuple[int, ...]
    third_launcher: int
    written: str
    hostile_imported: bool


def start(folder: Path, plan: Path, log: Path, *flags: str) -> subprocess.Popen[bytes]:
    """Start `plan run` in a folder of packages that are called as ours."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    words = [
        "run",
        str(plan),
        "--run-dir",
        str(folder / "run"),
        "--device",
        "cpu",
        "--fp32",
        "--steps",
        "100000",
    ]
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "app", *words, "--checkpoint-every", "5", *flags],
            cwd=folder / "hostile",
            env={**environment, **SECRETS, **NAMED, "HOME": str(folder), "PYTHONPATH": str(ROOT)},
            stdout=stream,
            stderr=stream,
        )


@pytest.fixture(scope="module")
def findings(
    estimated_plan_of: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory, real_starts: None
) -> Findings:
    """Start a run, look, try to join, kill its launcher, look again."""
    folder = tmp_path_factory.mktemp("doors")
    for name in ("executor", "topology", "planner"):
        (folder / "hostile" / name).mkdir(parents=True)
        (folder / "hostile" / name / "__init__.py").write_text(HOSTILE)
    (folder / "hostile" / "torch.py").write_text(HOSTILE)
    plan, log, metrics = folder / "wanted.json", folder / "log", folder / "run" / METRICS_FILE
    plan.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))), encoding="utf-8")

    def steps() -> int:
        return metrics.read_text().count("\n") if metrics.exists() else 0

    launcher = start(folder, plan, log, *FLAGS)
    try:
        assert wait_for(lambda: steps() >= 2 or launcher.poll() is not None), log.read_text()
        members = family(launcher.pid)
        listening = addresses(members)
        ranks = tuple(member for member in members if b"executor.training.worker" in words_of(member))
        environments = tuple(Path(f"/proc/{rank}/environ").read_text() for rank in ranks)
        second = start(folder, plan, folder / "second", *FLAGS)
        refused = second.wait(timeout=PATIENCE_S), (folder / "second").read_text()
    finally:
        launcher.kill()
        launcher.wait()
    wait_for(lambda: not any(map(alive, members)), 10)
    left = tuple(filter(alive, members))
    for process in left:
        os.kill(process, signal.SIGKILL)
    third = start(folder, plan, folder / "third", *FLAGS, "--dry-run")
    texts = [path for path in (folder / "run").rglob("*") if path.is_file()]
    return Findings(
        ranks=ranks,
        listening=listening,
        environments=environments,
        second_launcher=refused,
        launcher=launcher.pid,
        left_running=left,
        third_launcher=third.wait(timeout=PATIENCE_S),
        written=log.read_text() + "".join(path.read_bytes().decode("latin-1") for path in texts),
        hostile_imported=(folder / "imported").exists(),
    )


FLAGS: tuple[str, ...] = ("--env", "MY_CLUSTER")


@pytest.mark.slow
def test_a_run_of_one_node_listens_on_loopback_only(findings: Findings) -> None:
    """Two ranks and what they are forked from; of gloo's sockets it is seen that looking works."""
    assert len(findings.ranks) == 3
    assert {ip_address(found).is_loopback for found in findings.listening} == {True}


@pytest.mark.slow
def test_ranks_know_no_secret_of_the_user(findings: Findings) -> None:
    """Of the environment they get what is listed and what was named; nothing of the rest is written down."""
    for environment in findings.environments:
        assert [name for name in SECRETS if name in environment] == []
        assert "MY_CLUSTER=told-by-name" in environment
    assert [value for value in SECRETS.values() if value in findings.written] == []


@pytest.mark.slow
def test_packages_in_the_working_directory_are_not_imported(findings: Findings) -> None:
    """Someone's own `executor/` beside the data is not ours."""
    assert not findings.hostile_imported


@pytest.mark.slow
def test_a_second_launcher_is_refused_by_name_of_the_first(findings: Findings) -> None:
    """Its process, its machine and since when."""
    code, said = findings.second_launcher
    assert code == 2
    assert [line.partition(":")[0] for line in said.splitlines()[-3:]] == ["error", "cause", "help"]
    assert f"process {findings.launcher} on {os.uname().nodename} since 20" in said


@pytest.mark.slow
def test_a_killed_launcher_leaves_nothing_behind(findings: Findings) -> None:
    """Kill −9 of the launcher ends its ranks; the folder is free again for the next."""
    assert findings.left_running == ()
    assert findings.third_launcher == 0
