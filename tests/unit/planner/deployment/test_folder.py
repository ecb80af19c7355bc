"""What `plan serve --save-dir` writes: scripts that a shell and shellcheck accept, with the plan's own commands."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from planner.deployment.client import client_words
from planner.deployment.folder import folder
from planner.deployment.placement import nodes_of, servers_of
from planner.deployment.vllm_sglang import router, served_checkpoint, server_commands
from planner.serving.plan import ServingPlan
from tests.unit.planner.deployment.fleets import SIXTY, SIZES, Size, resized, varied

ENGINES = ("vllm", "sglang", "trtllm")
CASES = [(engine, *sizes) for engine in ENGINES for sizes in SIZES]

RECORDER = """\
#!/bin/bash
printf '%s\\n' "$(printf '%q ' "${0##*/}" "$@")" >> "$RECORD"
for ((i = 0; i < 300 && $(wc -l < "$RECORD") < COUNT; i++)); do sleep 0.1; done
"""
"""Writes down how it was started, and ends when as many have as are expected."""


def written(plan: ServingPlan, path: Path) -> Path:
    """The folder on disk."""
    for name, text in folder(plan).items():
        (path / name).write_text(text, encoding="utf-8")
    return path


def test_every_script_is_one_for_bash_and_shellcheck(tmp_path: Path) -> None:
    """Of sixty plans, every engine and fleet among them; of shellcheck's remarks none is left, of any severity."""
    scripts = []
    for number in SIXTY:
        path = tmp_path / str(number)
        path.mkdir()
        scripts += sorted(written(varied(number), path).glob("*.sh"))
    assert len(scripts) > 2 * len(SIXTY)
    for script in scripts:
        done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(
        [checker, "--external-sources", "--source-path=SCRIPTDIR", "--severity=style", *map(str, scripts)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(("engine", "prefill", "decode"), CASES)
def test_scripts_run_the_commands_of_the_plan_with_addresses_filled_in(
    engine: str, prefill: Size | None, decode: Size, tmp_path: Path
) -> None:
    """Started with recorders in place of the programs, each script runs exactly its commands."""
    plan = resized(engine, prefill, decode)
    path = written(plan, tmp_path)
    servers = servers_of(plan)
    hosts = {f"NODE_{node}": f"10.0.0.{node}" for node in range(nodes_of(servers))}
    record = tmp_path / "bin"
    record.mkdir()
    for program in ("vllm", "python", "trtllm-serve", "srun", "vllm-router", "nginx", "curl"):
        (record / program).write_text("#!/bin/bash\n" if program == "curl" else RECORDER, encoding="utf-8")
        (record / program).chmod(0o755)

    def ran(script: str, count: int = 1) -> list[list[str]]:
        out = tmp_path / f"{script}.said"
        environment = {"PATH": f"{record}:/usr/bin:/bin", "RECORD": str(out), "COUNT": str(count), **hosts}
        subprocess.run(["bash", str(path / script)], env=environment, timeout=60, check=True)
        return sorted(shlex.split(line) for line in out.read_text(encoding="utf-8").splitlines())

    def filled(words: list[str]) -> list[str]:
        start = 1 + max((i for i, w in enumerate(words) if re.match(r"[A-Z_]+=", w)), default=-1)
        return [re.sub(r"<address of node (\d+)>", r"10.0.0.\1", word) for word in words[start:]]

    first = server_commands(plan, servers[0])
    node = min(first)
    expected = [
        filled(words) for one in servers for at, words in server_commands(plan, one).items() if at == node
    ]
    assert ran(f"node{node}.sh", len(expected)) == sorted(expected)
    assert ran("loadtest.sh") == [client_words(plan, served_checkpoint(plan))]
    if len(servers) > 1:
        assert ran("router.sh") == [filled(router(plan))]
        read = [file for file in (path / "router.yaml", path / "router.conf") if file.exists()]
        assert len(read) == (engine == "trtllm")
        assert not any("<address" in file.read_text(encoding="utf-8") for file in read)
    else:
        assert "router.sh" not in {p.name for p in path.iterdir()}


def test_a_script_of_several_nodes_asks_for_their_addresses(tmp_path: Path) -> None:
    """Three lines of setup cannot be forgotten: it stops before anything starts."""
    path = written(resized("vllm", None, (3, 16)), tmp_path)
    done = subprocess.run(["bash", str(path / "node0.sh")], env={"PATH": "/usr/bin:/bin"}, capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode != 0
    assert "name the address of node 0" in done.stderr
    assert not (path / "logs").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_readme_has_ten_lines_at_most_and_names_files_that_are_there(engine: str) -> None:
    """Steps in their order, of the smallest and of a large fleet."""
    for sizes in SIZES:
        files = folder(resized(engine, *sizes))
        lines = [line for line in files["README.md"].splitlines() if line]
        for step in ("hosts.sh", "address of node", "on each of them"):  # said by the steps before, if at all
            assert sum(step in line for line in lines) <= (step == "hosts.sh"), lines
        assert len(lines) <= 10
        named = set(re.findall(r"[\w-]+\.(?:sh|yaml)", files["README.md"]))
        assert named <= files.keys()
        assert "loadtest.sh" in named
        assert ("kubernetes.yaml" in named) == ("kubernetes.yaml" in files)
        assert "kubernetes.yaml" in files or any(decode[1] > 8 for decode in sizes if decode)
