"""`plan calibrate --serving`: levels of a user's own server, kept for `plan serve --anchor`."""

import json
from pathlib import Path

import pytest

from app.cli import run
from tests.cli.documents import held_to_schema
from tests.unit.costmodel.calibration.test_bench_files import AIPERF, SGLANG, VLLM


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels of a test never reach the user's folder."""
    monkeypatch.setenv("MESHPLAN_DATA", str(tmp_path / "data"))


def bench(tmp_path: Path, document: object) -> str:
    """A result on disk."""
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


SERVER = ("--gpu", "h100", "--weights", "fp8", "--set", "layout.tp=2")
QUESTION = ("serve", "--model", "qwen3-32b", "--gpu", "h100", "--gpus", "1", "--weights", "fp8", "--input", "500",
            "--output", "50", "--concurrency", "4", "--json")  # fmt: skip


def test_levels_are_fitted_kept_and_planned_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The errors fall, and the plan that uses the levels is slower by them."""
    slow = {**VLLM, "mean_tpot_ms": 38.0, "mean_ttft_ms": 900.0}
    words = ["calibrate", "--serving", bench(tmp_path, slow), *SERVER, "--name", "mine", "--json"]
    assert run(words) == 0
    shown = capsys.readouterr()
    found = held_to_schema("calibrate", shown.out)
    assert "plan serve --anchor mine" in shown.err
    assert found["level"]["engine"] == "vllm"
    assert found["level"]["kernel"] > 1
    (one,) = found["runs"]
    assert abs(one["tpot_after_s"] - 0.038) < 0.5 * abs(one["tpot_before_s"] - 0.038)
    plans = []
    for more in ((), ("--anchor", "mine")):
        assert run([*QUESTION, *more]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    assert plans[1]["estimate"]["tpot"]["p50_s"] > plans[0]["estimate"]["tpot"]["p50_s"]
    assert any("kernels ×" in line for line in plans[1]["assumptions"])


def test_an_anchor_of_another_server_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it was fitted on."""
    assert run(["calibrate", "--serving", bench(tmp_path, VLLM), *SERVER, "--name", "mine"]) == 0
    assert "Figures read" in capsys.readouterr().out
    assert run([*QUESTION, "--engine", "trtllm", "--anchor", "mine"]) == 2
    assert "fitted on vllm on h100-sxm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--serving is missing"),
        (["--serving", "VLLM", "--serving", "SGLANG"], "several engines"),
        (["--serving", "AIPERF", "--model", "no-such-model"], "no-such-model"),
        (["--serving", "VLLM", "--weights", "ternary"], "ternary"),
        (["--serving", "VLLM", "--set", "layout.cp=2"], "layout.cp=2"),
        (["--serving", "VLLM", "--engine", "ollama"], "ollama"),
        (["--serving", "VLLM", "--gpu", "b200", "--model", "70b", "--weights", "bf16"], "another server"),
    ],
)
def test_what_cannot_be_is_refused_in_three_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    """Error, cause, help."""
    for name, document in (("VLLM", VLLM), ("SGLANG", SGLANG), ("AIPERF", AIPERF)):
        (tmp_path / name).write_text(json.dumps(document), encoding="utf-8")
    named = [str(tmp_path / word) if word in ("VLLM", "SGLANG", "AIPERF") else word for word in words]
    assert run(["calibrate", *named]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert told in "\n".join(shown)
    assert [line.split(":")[0].strip() for line in shown][-3:] == ["error", "cause", "help"]
