"""`plan topology` and `plan gpus` as a user sees them."""

import csv
import io
import json
from pathlib import Path

import pytest

from app.cli import run
from topology.base.units import GB


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Standard output of a command that succeeds."""
    assert run(list(words)) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Standard error of a command that is refused with exit code 2 and an empty standard output."""
    assert run(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split(":")[0] for line in captured.err.splitlines()[-3:]] == ["error", "cause", "help"]
    return captured.err


def test_the_order_of_axes_decides_their_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    """Context parallelism keeps NVLink as the fastest axis and gets a NIC as the slowest."""
    words = ["topology", "--gpus", "16384", "--layout", "tp=8,cp=2,pp=16", "--json"]
    near = json.loads(answer(capsys, *words, "--order", "tp,dp,pp,cp"))
    far = json.loads(answer(capsys, *words, "--order", "cp-pp-dp-tp"))
    ring = [
        {axis["axis"]: axis["ring_bytes_per_s"] for axis in document["axes"]}["cp"]
        for document in (near, far)
    ]
    assert ring == [450 * GB, 50 * GB]


def test_the_table_names_levels_uplinks_and_bisection(capsys: pytest.CaptureFixture[str]) -> None:
    """A person reads boundaries, rates and what binds; no escape codes off a terminal."""
    out = answer(capsys, "topology", "--gpus", "512")
    assert "\x1b" not in out
    for word in (
        "bisection 12.8 TB/s",
        "leaf",
        "uplink per GPU",
        "ring busbw",
        "all-to-all algbw",
        "8 rails",
        "node uplink",
    ):
        assert word in out


def test_csv_has_a_row_per_axis(capsys: pytest.CaptureFixture[str]) -> None:
    """A spreadsheet reads the axes with units in the column names."""
    out = answer(capsys, "topology", "--gpus", "64", "--layout", "tp=8,pp=2", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["axis"], row["size"]) for row in rows] == [("tp", "8"), ("dp", "4"), ("pp", "2")]
    assert float(rows[1]["ring_bytes_per_s"]) == 50 * GB


def test_expert_groups_are_shown_inside_their_block(capsys: pytest.CaptureFixture[str]) -> None:
    """Members of ep are expert_tp apart: 32 of them span four nodes."""
    out = answer(capsys, "topology", "--gpus", "64", "--layout", "tp=8,ep=32", "--json")
    (ep,) = [axis for axis in json.loads(out)["axes"] if axis["axis"] == "ep"]
    assert (ep["stride"], ep["nodes"]) == (1, 4)


def test_a_discovered_cluster_is_written_and_planned_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A dump becomes a TOML file that names the same cluster."""
    dump, toml = tmp_path / "topo.txt", tmp_path / "mine.toml"
    dump.write_text(
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tPIX\tPIX\t0-7\nGPU1\tPIX\t X \tPIX\t0-7\nNIC0\tPIX\tPIX\t X\n"
    )
    words = ["--discover", str(dump), "--gpu", "l40s", "--gpus", "8", "--toml", str(toml), "--json"]
    first = json.loads(answer(capsys, "topology", *words))
    second = json.loads(answer(capsys, "topology", "--cluster", str(toml), "--json"))
    assert (first["num_gpus"], first["gpus_per_node"], first["scaleup"]["kind"]) == (8, 2, "pcie")
    assert first["fingerprint"] == second["fingerprint"]
    assert any("taken from pcie-l40s" in note for note in first["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no cluster was named"),
        (("--gpus", "12"), "12 % 8 = 4"),
        (("--gpus", "0"), "--gpus 0"),
        (("--gpus", "2.5"), "--gpus 2.5"),
        (("--gpus", "64", "--gpu", "h1000-sxm"), "did you mean: h100-sxm"),
        (("--cluster", "dgx-h1000"), "dgx-h100"),
        (("--cluster", "no/such/file.toml"), "does not exist"),
        (("--cluster", "dgx-h100", "--gpu", "l40s"), "two clusters"),
        (
            ("--gpus", "64", "--layout", "tp=8,dp=4"),
            "dp 4 · cp 1 · tp 8 · pp 1 = 32, and the cluster has 64 GPUs",
        ),
        (("--gpus", "64", "--layout", "tp=8,qp=4"), "'qp=4'"),
        (("--gpus", "64", "--layout", "tp=0"), "'tp=0'"),
        (("--gpus", "64", "--layout", "tp=8,ep=5"), "ep·expert_tp = 5"),
        (("--gpus", "64", "--order", "tp,up"), "--order tp,up"),
    ],
)
def test_bad_input_is_answered_in_three_lines(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """Exit code 2, the numbers in the cause, nothing on standard output."""
    assert said in refusal(capsys, "topology", *words)


def test_advice_on_a_layout_that_does_not_fill_fits_what_was_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody who left dp out is told to leave it out."""
    words = ("topology", "--gpus", "24", "--layout")
    assert "leave dp out" in refusal(capsys, *words, "tp=8,dp=2")
    assert "choose tp·pp that divides 24" in refusal(capsys, *words, "tp=8,pp=2")


def test_a_directory_is_no_cluster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A path to a folder is answered like any other wrong file."""
    assert "is a directory" in refusal(capsys, "topology", "--cluster", str(tmp_path))


def test_gpus_are_listed_with_dated_prices(capsys: pytest.CaptureFixture[str]) -> None:
    """The table, and the whole facts with sources as JSON."""
    assert "h100-sxm" in answer(capsys, "gpus")
    listed = {gpu["name"]: gpu for gpu in json.loads(answer(capsys, "gpus", "--json"))["gpus"]}
    h100 = listed["h100-sxm"]
    assert h100["peak_flop_per_s"]["bf16"] == 989e12
    assert (h100["price"]["as_of"], bool(h100["source"])) == ("2026-07-20", True)
    assert listed["rtx-4090"]["price"] is None


def test_machines_are_listed_for_the_cluster_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """Every listed name is one that --cluster takes."""
    rows = list(csv.DictReader(io.StringIO(answer(capsys, "gpus", "--machines", "--format", "csv"))))
    assert "aws-p5.48xlarge" in {row["name"] for row in rows}
    assert "aws-p5.48xlarge" in answer(capsys, "gpus", "--machines")


def test_a_cluster_may_be_named_by_its_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--cluster` takes a topology and the job's list, and every figure names its source."""
    tree, job = tmp_path / "topology.conf", tmp_path / "job.txt"
    tree.write_text("SwitchName=s0 Switches=s[1-2]\nSwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-4]\n")
    job.write_text("n[2-3]\n")
    text = answer(capsys, "topology", "--cluster", f"{tree},{job}", "--gpu", "h100-sxm", "--json")
    found = json.loads(text)
    assert (found["num_gpus"], all(figure["source"] for figure in found["read"])) == (16, True)
    assert "not in" in refusal(
        capsys, "topology", "--cluster", f"{tree},{_written(job, 'n9')}", "--gpu", "h100-sxm"
    )


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_hosts_are_left_out_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster has what is left, and says what is not; a name that no host has gets the nearest."""
    words = ["topology", "--gpus", "64", "--without", "node[2-3],node5", "--degraded", "node0:gpu3"]
    document = json.loads(answer(capsys, *words, "--json"))
    assert document["num_gpus"] == 32
    assert document["cluster"]["left_out"] == ["node2", "node3", "node5", "node0:gpu3"]
    assert any("all of node0 stays idle" in note for note in document["notes"])
    assert "did you mean node" in refusal(capsys, "topology", "--gpus", "64", "--without", "nod17")
    assert "node4:gpu3" in refusal(capsys, "topology", "--gpus", "64", "--degraded", "node1")


def test_a_plan_names_the_nodes_that_idle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What was left out, and of what remains the node whose slow NIC is not worth using."""
    path = tmp_path / "c.toml"
    node = '[[nodes]]\nmachine = "dgx-h100"\ncount = 3\nhosts = ["a", "b", "c"]\n'
    path.write_text(f'degraded = ["b:nic=1 Gbit/s"]\n{node}')
    pins = [f"--set=layout.{pin}" for pin in ("tp=1", "pp=1", "cp=1", "recompute=none", "microbatch_size=1")]
    words = ["-m", "llama-3.2-1b", "--cluster", str(path), "--without", "c", "-b", "64", "-s", "2048", *pins]
    out = answer(capsys, *words)
    assert "idle nodes  b" in out
    assert "left out    c" in out


def test_a_missing_price_is_said_not_left_blank(capsys: pytest.CaptureFixture[str]) -> None:
    """Every GPU and machine has a dated price, or the words that none is published."""
    for words in (("gpus",), ("gpus", "--machines")):
        rows = [line for line in answer(capsys, *words).splitlines()[3:] if line.startswith("  ")]
        listed = [row for row in rows if not row.strip().startswith("sources")]
        assert listed
        assert all(("$" in row) != row.rstrip().endswith("none published") for row in listed)
