"""Every example of docs/diagnose.md that shows an answer is run, and answers that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.cli import run
from tests.unit.planner.diagnose.simulated import FAULTS, simulate, write_ranks
from tests.unit.planner.diagnose.test_serving import QUICK, SLOW, metrics

PAGE = Path(__file__).parents[2] / "docs" / "diagnose.md"
EXAMPLE = re.compile(r"^```console\n\$ plan diagnose ([a-z-]+)/\n(.+)\n```$", re.MULTILINE)
EXAMPLES = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))


QUESTIONS = ("resnet", "eight-nodes", "server")
"""Folders of whole questions; others are called after a fault."""
OF_IMAGES = {"nvjet_hsh_gemm": "sm90_xmma_fprop_implicit_gemm", "flash_fwd_kernel": "cudnn::bn_fw_tr_1C11"}
"""What the kernels of a network of convolutions are called."""


def write_question(name: str, folder: Path) -> None:
    """The records that somebody who asks has."""
    if name == "server":
        counts = {f"request_{each}_time_seconds": QUICK for each in ("prefill", "decode")}
        counts |= {"request_queue_time_seconds": SLOW, "e2e_request_latency_seconds": SLOW}
        (folder / "metrics.txt").write_text(metrics(counts))
    elif name == "eight-nodes":
        write_ranks(simulate(3, "slow link", shape=(2, 4)), folder)
    elif name == "resnet":
        job = simulate(0, "loader", shape=(1, 4))
        for event in (event for of in job.events.values() for event in of):
            event["name"] = OF_IMAGES.get(event["name"], event["name"])
        write_ranks(job, folder)
    else:
        write_ranks(simulate(0, name.replace("-", " ")), folder)


@pytest.mark.parametrize(("folder", "verdict"), EXAMPLES)
def test_an_example_is_answered_as_the_page_says(
    folder: str, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / folder).mkdir()
    write_question(folder, tmp_path / folder)
    assert run(["diagnose", str(tmp_path / folder)]) == 0
    text = capsys.readouterr().out
    assert " ".join(text.partition("\n\n")[0].split()) == verdict
    assert len(text.splitlines()) <= 40


def test_the_page_has_examples() -> None:
    folders = {folder for folder, _ in EXAMPLES}
    assert {folder.replace("-", " ") for folder in folders - set(QUESTIONS)} <= set(FAULTS)
    assert set(QUESTIONS) <= folders
    assert len(EXAMPLES) == len(folders) > len(QUESTIONS)
