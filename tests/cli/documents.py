"""Documents of `--json` held against the schemas of docs/schemas."""

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "schemas"


def schema_file(command: str) -> Path:
    """The schema of a command as it is today: the highest version."""
    return max(FOLDER.glob(f"{command}.v*.json"), key=lambda path: int(path.stem.rpartition(".v")[2]))


def problems(schema: Path, answer: object) -> list[str]:
    """What of an answer its schema does not say."""
    jsonschema: Any = pytest.importorskip("jsonschema")
    rules = jsonschema.Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))
    return [f"{error.json_path}: {error.message[:200]}" for error in rules.iter_errors(answer)]


def held_to_schema(command: str, text: str) -> Any:
    """A document that a command has written, once it holds to the schema of that command."""
    document = json.loads(text)
    assert problems(schema_file(command), document) == []
    return document
