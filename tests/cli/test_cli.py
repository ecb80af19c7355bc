"""The command line as a process: what it prints where, and the exit code it leaves with."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planner.plan import from_json, to_json
from tests.cli.commands import ROOT, plan, plan_process, without_signs_of_life
from tests.cli.documents import held_to_schema

ESTIMATE = ("estimate", "--model", "llama-3.1-8b", "--gpus", "8", "--set", "tp=2", "--set", "zero_stage=1")
CLUSTER = """
[[nodes]]
gpu = "h100-sxm"
count = 2
machine = "dgx-h100"
"""


def assert_three_lines(done: subprocess.CompletedProcess[str], *expected: str) -> None:
    """Exit 1 or 2, exactly three lines on stderr; on stdout the same for a program, or nothing."""
    assert done.returncode in (1, 2), done.stderr
    if "--json" in done.args:
        assert held_to_schema("refusal", done.stdout)["exit_code"] == done.returncode
    else:
        assert done.stdout == ""
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "cause", "help"], (
        done.stderr
    )
    for text in expected:
        assert text in done.stderr


def test_help_imports_nothing_heavy():
    """After `import app.cli` and `plan --help`, no package that costs time to import is loaded."""
    heavy = [
        "numpy",
        "torch",
        "ortools",
        "pandas",
        "plotly",
        "streamlit",
        "networkx",
        "scipy",
        "cattrs",
        "rich",
    ]
    code = (
        "import sys, app.cli\n"
        "app.cli.run(['--help'])\n"
        f"sys.stderr.write(','.join(name for name in {heavy!r} if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "Usage: plan" in done.stdout


def test_the_main_job_loads_no_solver() -> None:
    """A plan whose bound meets its split is proven without the solver, and imports nothing else that is heavy."""
    heavy = ["torch", "ortools", "pandas", "plotly", "streamlit", "networkx", "scipy", "rich", "pydantic"]
    code = (
        "import sys, app.cli\n"
        "code = app.cli.run(['--model', '70b', '--gpus', '32', '--json'])\n"
        f"loaded = [name for name in {heavy!r} if name in sys.modules]\n"
        "sys.stderr.write(f' {code} {loaded}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["optimality"]["status"] == "proven"
    assert done.stderr.endswith(" 0 []")


@pytest.mark.parametrize(
    ("words", "converts"),
    [
        (["--model", "71b", "--gpus", "8", "--set", "layout.tp=2"], False),
        (["--model", "7é", "--gpus", "8"], True),
        (["train", "--model"], False),
    ],
)
def test_plain_flags_need_no_converter(words: list[str], converts: bool) -> None:
    """Text is read as it is; only what is not plain is given to pydantic, which typer converts with."""
    code = (
        f"import sys, app.cli\nsys.stdout.write(str(app.cli.run({words!r})))\n"
        "sys.stdout.write(f\" {'pydantic' in sys.modules}\")\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"2 {converts}"


def test_flags_left_to_typer_are_still_refused() -> None:
    """A number that is none, a required word that is missing and half a surrogate pair end in three lines."""
    for words in (["bench", "--gpus", "x"], ["diff"], ["--model", "\udce9", "--gpus", "8"]):
        done = plan(*words)
        assert done.returncode == 2
        assert [line.split(":")[0] for line in done.stderr.splitlines()[-3:]] == ["error", "cause", "help"]


def test_every_listed_command_has_a_file_with_help():
    """`plan COMMAND --help` works for every command that `plan --help` lists."""
    listing = plan_process("--help")
    assert listing.returncode == 0
    from app.cli import COMMANDS

    for name in COMMANDS:
        assert re.search(rf"^  {name} ", listing.stdout, re.MULTILINE)
        done = plan(name, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"Usage: plan {name}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--model", "71b", "--gpus", "8"), "unknown model '71b'"),
        (("--model", "resnet50", "--gpus", "8"), "use --model torchvision:resnet50"),
        (("--model", "whisper-base", "--gpus", "8"), "PATH/config.json, its own, which transformers reads"),
        (("--model", "8b", "--gpus", "8", "--offload", "nvme"), "--offload parameters"),
        (("--model", "8b", "--gpus", "8", "--offload", "optimizer:0.5:nvme"), "not known"),
        (("--model", "8b", "--gpus", "8", "--set", "job.gradient_compression=topk:0.01"), "from 67 replicas"),
        (("--model", "8b", "--gpus", "8", "--set", "job.local_steps=50"), "there are average:H, diloco:H"),
        (("--model", "llama-3.1-70", "--gpus", "8", "--gpu", "h10"), "GPU 'h10'"),
        (("--model", "llama", "--gpus", "8"), "llama-3.1-70b"),
        (("--model", "8b", "--gpus", "8", "--gpu", "h100x"), "h100-sxm"),
        (("--model", "8b", "--cluster", "dgx-h1000"), "dgx-h100"),
        (("--model", "8b", "--gpus", "8", "--stack", "megatronx"), "megatron-core"),
        (("--model", "8b", "--gpus", "8", "--precision", "int3"), "bf16"),
        (("--model", "8b", "--gpus", "0"), "--gpus 0"),
        (("--model", "8b", "--gpus", "-8"), "--gpus -8"),
        (("--model", "8b", "--gpus", "2.5"), "--gpus 2.5"),
        (("--model", "8b", "--gpus", "1e30"), "1,000,000"),
        (("--model", "8b", "--gpus", "9" * 400), "--gpus"),
        (("--model", "8b", "--gpus", "12"), "12 GPUs do not fill nodes of 8"),
        (("--gpus", "8"), "--model"),
        (("--model", "8b"), "--gpus"),
        (("--model", "gpt-3-13b", "--gpus", "8", "--sequence-length", "4k"), "the 2048 positions"),
        (("--model", "8b", "--gpus", "8", "-b", "7", "--set", "dp=2"), "7 % (2·1) = 1"),
        (("--model", "8b", "--gpus", "8", "--set", "tp=8", "--set", "pp=8", "--set", "dp=2"), "= 128 GPUs"),
        (("--model", "8b", "--gpus", "8", "--set", "tp=8", "--set", "layout.tp=4"), "set twice"),
        (("--model", "8b", "--gpus", "8", "--set", "tpp=8"), "'tpp'"),
        (("--model", "8b", "--gpus", "8", "--set", "tp"), "layout.tp=8"),
        (("--model", "8b", "--gpus", "8", "--set", "job.optimiser=x"), "job.optimiser"),
        (("--model", "8b", "--gpus", "32", "--set", "cluster.gpus_per_node=4", "--set", "cluster.count=4"), "4 nodes of 4 GPUs are 16"),
        (("--model", "8b", "--gpus", "8", "--set", "cluster.nic_bandwidth_bytes_per_s=-1"), "nic_bandwidth_bytes_per_s"),
        (("--model", "8b", "--gpus", "8", "--set", "cluster.nic_bandwidth_bytes_per_s=NaN"), "nic_bandwidth_bytes_per_s"),
        (("--model", "8b", "--gpus", "8", "--deadline", "soon"), "'soon'"),
        (("--model", "8b", "--gpus", "8", "--deadline", "30d"), "--deadline 30d came without --tokens"),
        (("--model", "8b", "--gpus", "8", "--tokens", "many"), "--tokens many"),
        (("--model", "8b", "--gpus", "8", "--format", "xml"), "markdown"),
        (("--model", "8b", "--gpus", "8", "--json", "--format", "csv"), "two formats"),
        (("--model", "8b", "--gpus", "8", "--output", "/nowhere/plan.json"), "/nowhere/plan.json"),
        (("--model", "8b", "--gpus", "8", "--bogus"), "--bogus"),
        (("--model", "no-such-file/config.json", "--gpus", "8"), "does not exist"),
        (("--model", "8b", "--gpu", "h100-sxm", "--cluster", "dgx-h100"), "--gpu h100-sxm"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_answered_in_three_lines(arguments, expected):
    """What is wrong, the numbers, and the change that fixes it; nothing on stdout, no traceback."""
    assert_three_lines(plan("estimate", *arguments), expected)


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        ("train", ("--gpus", "8.."), "8..1024"),
        ("train", ("--gpus", "8", "--optimizer", "muon"), "--set job.optimizer=muon"),
        ("train", ("--gpus", "8", "--tp", "4"), "--set layout.tp=4"),
        ("sweep", ("--gpus", "8", "--qlora", "4"), "--adapter qlora:r=16"),
    ],
)
def test_words_of_other_programs_are_answered_with_our_own(command, words, expected):
    """An option that is none here, and what says the same."""
    assert_three_lines(plan(command, "--model", "8b", *words), expected)


def test_an_unknown_command_suggests_the_nearest():
    """`plan estimat` means `plan estimate`."""
    assert_three_lines(plan_process("estimat"), "did you mean estimate")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "not valid JSON"),
        (b'{"num_hidden_layers": 32', "not valid JSON"),
        (b"[]", ""),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"{}", ""),
        (b'{"model_type": "llama", "num_hidden_layers": NaN}', "NaN"),
        (b"", "not valid JSON"),
    ],
)
def test_a_broken_model_file_is_answered_in_three_lines(tmp_path, content, expected):
    """Truncated, empty, binary or senseless `config.json`."""
    (tmp_path / "config.json").write_bytes(content)
    assert_three_lines(plan("estimate", "--model", str(tmp_path / "config.json"), "--gpus", "8"), expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[[nodes]\n", "not valid TOML"),
        (CLUSTER + "gpuz = 3\nfoo = 1\n", "nodes[0].foo"),
        (CLUSTER + "gpuz = 3\nfoo = 1\n", "nodes[0].gpuz"),
        (CLUSTER + "nic_bandwidth_bytes_per_s = nan\n", "nic_bandwidth_bytes_per_s"),
        (CLUSTER + "nic_bandwidth_bytes_per_s = -1\n", "nic_bandwidth_bytes_per_s"),
        (CLUSTER + "nic_bandwidth_bytes_per_s = 1e99\n", "nic_bandwidth_bytes_per_s"),
        (CLUSTER.replace("2", "0"), "count"),
        (CLUSTER.replace("2", "9" * 30), "too large"),
        (CLUSTER.replace("h100-sxm", "h1000"), "h1000"),
        ("", ""),
    ],
)
def test_a_broken_cluster_file_is_answered_in_three_lines(tmp_path, content, expected):
    """Every mistake is reported with its path."""
    (tmp_path / "cluster.toml").write_text(content)
    assert_three_lines(
        plan("estimate", "--model", "8b", "--cluster", str(tmp_path / "cluster.toml")), expected
    )


TREE = """
[[switches]]
name = "core"
[[switches]]
name = "left"
parent = "{left_parent}"
uplink_bandwidth_bytes_per_s = 1e11
[[switches]]
name = "{right}"
parent = "{right_parent}"
uplink_bandwidth_bytes_per_s = 1e11
[[nodes]]
machine = "dgx-h100"
count = 1
switch = "left"
[[nodes]]
machine = "dgx-h100"
count = 1
switch = "{right}"
"""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"left_parent": "right", "right": "right", "right_parent": "left"}, ""),
        ({"left_parent": "core", "right": "left", "right_parent": "core"}, "left"),
        ({"left_parent": "core", "right": "right", "right_parent": "nowhere"}, "nowhere"),
        ({"left_parent": "core", "right": "right", "right_parent": ""}, ""),
    ],
    ids=["cyclic", "duplicate", "missing", "disconnected"],
)
def test_a_fabric_that_is_no_tree_is_answered_in_three_lines(tmp_path, names, expected):
    """Cycles, duplicate names, missing parents and unconnected parts of the fabric are refused."""
    (tmp_path / "cluster.toml").write_text(TREE.format(**names))
    assert_three_lines(
        plan("estimate", "--model", "8b", "--cluster", str(tmp_path / "cluster.toml")), expected
    )


def test_paths_that_are_no_files_are_answered_in_three_lines(tmp_path):
    """A directory, a file used as a folder, an unreadable file."""
    (tmp_path / "file.json").write_text("{}")
    for path in (tmp_path, tmp_path / "file.json" / "x.json", Path("/proc/self/mem")):
        assert_three_lines(plan("diff", str(path), str(path)), str(path))


@pytest.mark.parametrize(
    "text", ["{}", "[]", "null", *(f'{{"schema_version": {v}}}' for v in (2, 3, 4, 99)), "not json"]
)
def test_a_file_that_is_no_plan_is_answered_in_three_lines(tmp_path, text):
    """Every command that reads a plan says so."""
    (tmp_path / "plan.json").write_text(text)
    assert_three_lines(plan("diff", str(tmp_path / "plan.json"), str(tmp_path / "plan.json")))


def test_markup_and_escape_codes_in_names_are_harmless(tmp_path):
    """A hostile file name cannot move the cursor or add lines."""
    assert_three_lines(plan("estimate", "--model", "\033[31mx\n\nerror: y", "--gpus", "8"))
    assert "\033" not in plan("estimate", "--model", "\033[31mx", "--gpus", "8").stderr


def test_data_on_stdout_and_everything_else_on_stderr():
    """`--json` prints one document; how a lenient name was understood is said beside it."""
    done = plan_process(
        "estimate", "--model", "8b", "--gpus", "8", "--set", "tp=2", "--set", "zero_stage=1", "--json"
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["layout"]["dp"] == 4
    assert done.stderr == "note: model 8b is llama-3.1-8b\n"


def test_no_escape_codes_without_a_terminal():
    """A pipe gets plain text."""
    assert "\033" not in plan_process(*ESTIMATE).stdout


def test_a_terminal_gets_colour_unless_no_color_is_set():
    """NO_COLOR wins over the terminal."""
    assert "\033[" in in_terminal(*ESTIMATE)
    assert "\033[" not in in_terminal(*ESTIMATE, NO_COLOR="1")


def in_terminal(*arguments: str, **environment: str) -> str:
    """Run `plan` with a pseudo-terminal as stdout."""
    import pty

    master, slave = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment}
    if "NO_COLOR" not in environment:
        env.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "app", *arguments], cwd=ROOT, env=env, stdout=slave, close_fds=True
    ) as process:
        os.close(slave)
        text = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            text += chunk
        process.wait(60)
    os.close(master)
    return text.decode()


def test_an_answer_can_be_written_to_a_file_in_the_format_of_its_name(tmp_path):
    """`--output plan.json` is JSON, `.csv` is CSV, `.md` is Markdown; stdout stays empty."""
    for name, start in (
        ("plan.json", "{"),
        ("plan.csv", "rank,tp,pp"),
        ("plan.md", "# llama-3.1-8b"),
        ("plan.txt", "llama"),
    ):
        done = plan(*ESTIMATE, "--output", str(tmp_path / name))
        assert (done.returncode, done.stdout) == (0, "")
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_a_layout_that_does_not_fit_is_estimated_and_leaves_with_1():
    """The table says which stage needs what; the exit code says that it is not a plan."""
    done = plan("estimate", "--model", "llama-3.1-405b", "--gpus", "8", "--set", "tp=8")
    assert done.returncode == 1
    assert "Does not fit" in done.stdout


def test_a_reader_that_leaves_early_is_no_error():
    """`plan … | head -1` ends quietly."""
    command = f"{sys.executable} -m app {' '.join(ESTIMATE)} | head -1"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, without_signs_of_life(done.stderr)) == (0, "")
    assert done.stdout.startswith("llama-3.1-8b on 8 × h100-sxm")


def test_a_defect_is_reported_in_three_lines_and_its_traceback_only_with_debug():
    """Exit 3, no traceback; `--debug` shows it."""
    code = (
        "import sys, app.cli\n"
        "app.cli.loaded = lambda name: 1 / 0\n"
        "sys.exit(app.cli.run(sys.argv[1:]))\n"
    )  # fmt: skip
    for arguments, shown in ((["diff"], False), (["diff", "--debug"], True)):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (3, "")
        assert ("Traceback" in done.stderr) == shown
        assert "ZeroDivisionError" in done.stderr


def test_a_defect_that_says_a_whole_answer_is_shown_in_part(capsys: pytest.CaptureFixture[str]):
    """Its first letters, and where it was: a screen, and no megabytes."""
    from app.errors import run_guarded

    def broken() -> int:
        raise ValueError("figure " * 100_000)

    assert run_guarded(broken, debug=False) == 3
    shown = capsys.readouterr().err
    assert "ValueError: figure figure" in shown
    assert "test_cli.py" in shown
    assert len(shown) < 2000


def test_an_interrupt_leaves_with_130():
    """Ctrl-C is not an error of anybody."""
    from app.errors import run_guarded

    def interrupted() -> int:
        raise KeyboardInterrupt

    assert run_guarded(interrupted, debug=False) == 130


def test_a_plan_can_be_diffed_with_itself(tmp_path):
    """Nothing is chosen differently and every change is 0 %."""
    path = tmp_path / "plan.json"
    path.write_text(plan(*ESTIMATE, "--json").stdout)
    done = plan("diff", str(path), str(path), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["choices"] == {}


def test_an_estimate_is_a_plan_that_reads_back():
    """The document of `plan estimate --json` is a Plan."""
    done = plan(*ESTIMATE, "--json")
    assert to_json(from_json(done.stdout)).strip() == done.stdout.strip()


def test_smaller_nodes_are_as_many_as_the_gpus_asked_for() -> None:
    """`--gpus` counts GPUs, whatever the settings make of a node."""
    done = plan(
        "estimate",
        "--model",
        "llama-3.2-1b",
        "--gpus",
        "16",
        "--set",
        "cluster.gpus_per_node=4",
        "--set",
        "tp=1",
        "--json",
    )
    (node,) = json.loads(done.stdout)["request"]["cluster"]["nodes"]
    assert (node["count"], node["gpus_per_node"], node["nics_per_node"]) == (4, 4, 4)


def test_estimate_recomputes_layers_only_where_it_may() -> None:
    """Left open, nothing is recomputed and what would ease it is named; as memory asks for, as few as fit."""
    question = ("estimate", "--model", "405b", "--gpus", "1024", "--set", "tp=8", "--set", "pp=8", "--json")
    left_open = json.loads(plan(*question).stdout)
    free = json.loads(plan(*question, "--set", "recompute=full:auto").stdout)
    assert sum(left_open["recompute_of_stage"]) == 0
    assert left_open["layout"]["recompute"] == "none"
    assert any(text.startswith("enough memory is left free with") for text in left_open["assumptions"])
    assert sum(free["recompute_of_stage"]) > 0
    assert free["layout"]["recompute"] == "full"
    assert free["estimate"]["peak_memory_bytes"] < left_open["estimate"]["peak_memory_bytes"]
    assert free["estimate"]["out_of_memory_chance"] < 0.05
    assert any(text.startswith("not given") and "zero_stage 1" in text for text in free["assumptions"])


def test_the_readme_shows_a_real_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transcript is what the first command prints on 80 columns, but for the time of the search."""
    monkeypatch.setenv("COLUMNS", "80")
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("```text\n$ plan --model 70b --gpus 32\n")[2].partition("```")[0]
    answer = plan("--model", "70b", "--gpus", "32").stdout
    searched = r"layouts in [\d.]+ m?s"
    texts = (re.sub(searched, "", " ".join(text.split())) for text in (shown, answer))
    assert next(texts) == next(texts)


@pytest.mark.parametrize(
    "objective",
    [["memory"], ["cost"], ["gpus", "--tokens", "100B", "--deadline", "30d"]],
    ids=["memory", "cost", "gpus"],
)
def test_the_bound_of_every_objective_is_a_step_time(objective: list[str]) -> None:
    """No bound exceeds the step it bounds; the plan of least memory has a bound of its memory too."""
    found = json.loads(plan("--model", "8b", "--gpus", "16", "--json", "--objective", *objective).stdout)
    step_s, proof = found["estimate"]["step_time_s"], found["optimality"]
    assert 0 < proof["bound_s"] <= step_s * (1 + 1e-9)
    if objective == ["memory"]:
        peak_bytes = found["estimate"]["peak_memory_bytes"]
        assert proof["gap"] == pytest.approx(1 - proof["bound_bytes"] / peak_bytes)
        assert proof["gap"] <= 0.02
    else:
        assert proof["status"] == "proven"
        assert proof["bound_s"] == pytest.approx(step_s)


def test_the_whole_answer_prices_the_memory_left_free() -> None:
    """`--full` says what the headroom costs, as `plan explain` does; the brief answer searches once."""
    question = ("--model", "70b", "--gpus", "32")
    whole, brief = plan(*question, "--full").stdout, plan(*question).stdout
    section = whole[whole.index("Without headroom") :].split("\n\n")[0]
    assert section in plan("explain", *question).stdout
    assert "Without headroom" not in brief
