"""A config.json of any family is an answer: what the catalog does not describe is traced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from app.cli import run


def test_a_configuration_that_the_catalog_has_not_is_traced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An encoder with a decoder: its config.json is all that is given."""
    file = tmp_path / "config.json"
    said = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}
    file.write_text(json.dumps(said), encoding="utf-8")
    assert run(["--model", str(file), "--gpus", "8", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["optimality"]["status"], plan["layout"]["tp"]) == ("proven", 1)


@pytest.mark.parametrize("command", ["estimate", "explain"])
def test_every_question_about_one_plan_traces_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `plan` answers by tracing, `plan estimate` and `plan explain` answer too."""
    file = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    file.write_text(json.dumps({"model_type": "bert", **sizes}), encoding="utf-8")
    assert run([command, "--model", str(file), "--gpus", "2"]) == 0
    answered = capsys.readouterr()
    headline = " ".join(answered.out.partition("\n\n")[0].split())
    assert headline.startswith(f"transformers:{file} on 2 × h100-sxm · 512 samples")
    assert "was run to trace it" in answered.err


def test_a_configuration_of_no_library_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three lines: what is not known, to whom."""
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "no-such-family"}', encoding="utf-8")
    assert run(["--model", str(file), "--gpus", "8"]) == 2
    lines = capsys.readouterr().err.splitlines()[-3:]
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "help"]
    assert "has no configuration of" in lines[0]


def test_without_the_library_its_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What to install, and nothing is started."""
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "bert"}', encoding="utf-8")
    monkeypatch.setattr("app.extras.find_spec", lambda name: None if name == "transformers" else True)
    assert run(["--model", str(file), "--gpus", "8"]) == 2
    assert "transformers is not installed" in capsys.readouterr().err
