"""What is said twice is one thing, or it is refused; a price is that of the GPU it was stated for."""

import json

import pytest

from app.cli import run

QUESTION = ["--model", "8b", "--gpus", "8"]


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["-b", "256", "--set", "job.global_batch_size=1024"], "--global-batch-size"),
        (["--precision", "fp8", "--set", "job.precision=bf16"], "--precision"),
        (["-s", "4096", "--set", "job.sequence_length=8192"], "--sequence-length"),
        (["--tokens", "1T", "--set", "job.total_tokens=2000000000000"], "--tokens"),
        (["--gpu", "b200", "--set", "cluster.gpu=h100-sxm"], "--gpu"),
    ],
)
def test_a_flag_and_a_setting_that_differ_are_refused(capsys, words, flag):
    """Neither is lost without a word."""
    assert run([*QUESTION, *words]) == 2
    error = capsys.readouterr().err
    assert f"error: {flag} and --set " in error
    assert "contradict each other" in error


NODES = """apiVersion: v1
kind: List
items:
- kind: Node
  metadata: {name: n1, labels: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3, nvidia.com/gpu.count: "8"}}
"""


@pytest.mark.parametrize("words", [["--gpu", "b200"], ["--set", "cluster.gpu=b200"]])
def test_a_dump_that_names_its_gpu_is_of_no_other(tmp_path, capsys, words):
    """However the other is said."""
    dump = tmp_path / "nodes.yaml"
    dump.write_text(NODES)
    assert run(["--model", "8b", "--cluster", str(dump), *words]) == 2
    assert "two kinds of GPU are stated for the same hosts" in capsys.readouterr().err


def test_a_gpu_has_one_name_however_it_is_said(capsys):
    """By its flag and by its field."""
    for words in (["--gpu", "b200"], ["--set", "cluster.gpu=b200"]):
        assert run(["estimate", *QUESTION, "--set", "layout.tp=8", "--json", *words]) == 0
        assert json.loads(capsys.readouterr().out)["request"]["cluster"]["nodes"][0]["gpu"] == "b200-sxm"


@pytest.mark.parametrize(
    "words",
    [
        ["-b", "256", "--set", "job.global_batch_size=256"],
        ["--gpu", "h100", "--set", "cluster.gpu=h100-sxm"],
    ],
)
def test_what_is_said_twice_alike_is_taken(capsys, words):
    """In whatever spelling."""
    assert run(["estimate", *QUESTION, "--set", "layout.tp=8", *words]) == 0


def test_a_machine_with_another_gpu_has_no_price_of_the_first(capsys):
    """A p5 costs what its H100 cost; with B200 nobody said."""
    words = [
        "estimate",
        "--model",
        "8b",
        "--cluster",
        "aws-p5.48xlarge",
        "--gpus",
        "8",
        "--set",
        "layout.tp=8",
    ]
    assert run([*words, "--json"]) == 0
    priced = json.loads(capsys.readouterr().out)
    assert run([*words, "--set", "cluster.gpu=b200-sxm", "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert priced["request"]["cluster"]["usd_per_gpu_hour"] > 0
    assert other["request"]["cluster"]["usd_per_gpu_hour"] is None
    assert other["estimate"]["usd_per_step"] is None
