"""`plan models` lists what can be named, and describes one model part by part."""

import csv
import io
import json
from pathlib import Path

import pytest

from app.cli import run
from costmodel.models.catalog import model, model_names
from costmodel.models.parameters import parameter_count


def test_the_table_has_a_line_per_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Every catalogued name is printed once, with its parameters."""
    assert run(["models"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert set(model_names()) <= set(lines)
    assert ("70.6B" in lines["llama-3.1-70b"], "8 of 256" in lines["deepseek-v3"]) == (True, True)


def test_json_carries_exact_counts_of_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads the numbers, not their rounding."""
    assert run(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["models"]
    assert {entry["name"]: entry["parameters"] for entry in listed} == {
        name: parameter_count(model(name)) for name in model_names()
    }


def test_csv_has_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """A spreadsheet reads one row per model."""
    assert run(["models", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == list(model_names())


def test_one_model_is_described_part_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    """The parts of DeepSeek-V3 are its embedding, dense layers, expert layers and head."""
    assert run(["models", "deepseek-v3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("deepseek-v3: 671,026,419,200 parameters")
    assert [
        word
        for word in ("embedding", "attention + feed-forward", "attention + experts", "final norm and head")
        if word not in out
    ] == []


def test_a_config_file_is_described_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user sees what we read from their own config.json."""
    sizes = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", **sizes}))
    assert run(["models", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 124_439_808


def test_an_unknown_model_is_answered_in_three_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on stdout, the nearest names on stderr, exit code 2."""
    assert run(["models", "lamma-3.1-8b"]) == 2
    out, err = capsys.readouterr()
    assert (out, [line.split(":")[0] for line in err.splitlines()]) == ("", ["error", "cause", "help"])
    assert "llama-3.1-8b" in err


def test_a_truncated_config_is_answered_in_three_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A half-downloaded file is a wrong input, not a crash."""
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama", "hidden_si')
    assert run(["models", str(file)]) == 2
    out, err = capsys.readouterr()
    assert (out, [line.split(":")[0] for line in err.splitlines()]) == ("", ["error", "cause", "help"])
