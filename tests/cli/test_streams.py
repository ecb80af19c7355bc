"""What happens to an answer that cannot be written, and to files that we could write only in part."""

import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.errors import INTERRUPTED, run_guarded
from app.reports.answer import json_text
from app.terminal.streams import json_for
from costmodel.accuracy.kept_anchors import kept_anchor
from costmodel.kernels.saved import saved_measurements
from topology.base.atomic import write_atomically
from topology.base.errors import DamagedFileWarning, InputError

ROOT = Path(__file__).resolve().parents[2]
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
BASH = shutil.which("bash") or "/bin/bash"


def shell(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which `plan` is ours."""
    line = f'plan() {{ "{sys.executable}" -m meshplan "$@"; }}; {words}'
    found = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [BASH, "-c", line], env=found, capture_output=True, text=True, timeout=120, check=False
    )


def three_lines(text: str) -> list[str]:
    """First words of the last three lines."""
    return [line.split(":")[0] for line in text.splitlines()[-3:]]


@FULL
@pytest.mark.parametrize(
    "words",
    ["models --json > /dev/full", "--help > /dev/full", "--version > /dev/full", "models --output /dev/full"],
)
def test_a_full_disk_is_the_users_error(words: str):
    """What was to be written did not fit: exit code 2 and the reason, nothing of a defect."""
    done = shell(f"plan {words}")
    assert (done.returncode, three_lines(done.stderr)) == (2, ["error", "cause", "help"])
    assert "No space left on device" in done.stderr


def test_a_closed_stdout_is_named():
    """`>&-` leaves nowhere to write to."""
    done = shell("plan models >&-")
    assert (done.returncode, three_lines(done.stderr)) == (2, ["error", "cause", "help"])
    assert "stdout is closed" in done.stderr


def test_a_closed_stdout_is_no_matter_to_a_file(tmp_path: Path):
    """With --output nothing goes to stdout; the file does not take its number, and holds the answer alone."""
    done = shell(f"plan models 8b --output {tmp_path}/x.json >&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "x.json").read_text())["name"] == "llama-3.1-8b"


@pytest.mark.parametrize("stderr", ["2>&-", pytest.param("2>/dev/full", marks=FULL)])
def test_an_answer_survives_a_lost_stderr(stderr: str):
    """Notes that nobody can read do not cost the answer, and an error keeps its exit code."""
    done = shell(f"plan models 8b {stderr}; plan models nosuch {stderr}; echo $?")
    assert done.stdout.startswith("llama-3.1-8b")
    assert done.stdout.endswith("\n2\n")


def test_a_reader_that_leaves_early_is_no_error():
    """`| head -1` has what it wanted."""
    done = shell("plan models | head -1; echo ${PIPESTATUS[0]}")
    assert (done.stdout.splitlines()[1], done.stderr) == ("0", "")


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_ascii_output_is_spelled_not_questioned(environment: dict[str, str]):
    """Where only ASCII can be written, dots, arrows and multiplication signs are spelled in ASCII."""
    done = shell("plan --model llama-3.2-1b --gpus 1", **environment)
    assert (done.returncode, done.stdout.isascii(), "?" in done.stdout) == (0, True, False)
    assert "llama-3.2-1b on 1 x h100-sxm - " in done.stdout


def test_json_stays_json_in_ascii():
    r"""Letters become ``\uXXXX``, so a reader gets what a UTF-8 reader gets."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    said = {"name": "é · 8 × 語 𝄞", "half": "\ud800"}
    text = json_for(stream, json_text(said))
    assert (text.isascii(), json.loads(text)) == (True, said)


@pytest.mark.parametrize("after_s", [0.05, 0.5, 1.5])
def test_ctrl_c_is_answered_at_any_moment(after_s: float):
    """While importing, searching or writing: `interrupted` and 130, unless all was said before."""
    start = "import os; from meshplan.__main__ import main; os.write(1, b'.'); main()"
    words = [sys.executable, "-c", start, "--model", "70b", "--gpus", "256", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)  # Python has started, and this program with it
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert (process.returncode, said.splitlines()[-1:]) in (
        (130, ["interrupted"]),
        (0, said.splitlines()[-1:]),
    )
    assert "Traceback" not in said


def test_ctrl_c_inside_an_import_is_no_defect(capsys: pytest.CaptureFixture[str]):
    """A C extension turns it into an ImportError, which has it as its cause."""

    def start() -> int:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    assert run_guarded(start, debug=False) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What interrupts a write, even Ctrl-C, leaves the old file and nothing beside it."""

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "plan.json"
    write_atomically(file, "old")
    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, "new")
    assert ([path.name for path in tmp_path.iterdir()], file.read_text()) == (["plan.json"], "old")


def test_a_replaced_file_keeps_its_link_and_permissions(tmp_path: Path):
    """A link still points where it did, and who could read the file still can, and nobody else."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_atomically(link, "new")
    assert (link.is_symlink(), file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (True, "new", 0o640)


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path):
    """The user's umask decides, as for every file."""
    (tmp_path / "other").write_text("")
    write_atomically(tmp_path / "file", "half a pair: \ud800")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert (tmp_path / "file").read_text() == r"half a pair: \ud800"


def test_what_is_no_file_is_written_as_it_is():
    """A pipe can be named as the output."""
    done = shell("plan models 8b --output /dev/stdout | cat")
    assert (done.returncode, done.stdout.split(":")[0], done.stderr) == (0, "llama-3.1-8b", "")


@pytest.mark.parametrize("content", ["", "[{", '[{"what": 3}]', "[1]", "{}", "\x00", "[" * 100_000])
def test_a_damaged_measurement_is_named_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
):
    """One file of `plan bench` that cannot be read costs no plan; the note names it and what to do."""
    folder = tmp_path / "meshplan" / "measurements"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text(content)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.warns(DamagedFileWarning, match=r"broken\.json.*plan bench"):
        found = saved_measurements()
    assert found == ()


def test_a_plan_is_made_beside_a_damaged_measurement(tmp_path: Path):
    """The note is on stderr, the estimate on stdout, the exit code 0."""
    folder = tmp_path / "meshplan" / "measurements"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("[{")
    done = shell("plan --model llama-3.2-1b --gpus 1 --json", XDG_DATA_HOME=str(tmp_path))
    assert (done.returncode, json.loads(done.stdout)["layout"]["tp"]) == (0, 1)
    assert done.stderr.count("note: measurements passed over: ") == 1


@pytest.mark.parametrize(
    "content",
    ["[", '{"name": "a", "levels": [{"stack": "nemo", "level": -1.0, "deviation": 0.1, "runs": 1}]}'],
)
def test_a_damaged_anchor_says_how_to_keep_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
):
    """Who asks for it is told what is wrong with it; a level that makes times negative is damage too."""
    (tmp_path / "anchors").mkdir()
    (tmp_path / "anchors" / "mine.json").write_text(content)
    monkeypatch.setenv("MESHPLAN_DATA", str(tmp_path))
    with pytest.raises(InputError) as told:
        kept_anchor("mine")
    assert "--anchor RUNS.csv --name mine" in told.value.fix
