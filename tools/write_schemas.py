"""Write docs/schemas from answers of every command with `--json`: `python tools/write_schemas.py`.

A schema is what several answers of a command have in common: a key that each document has is required, a
value has one of the types seen or is null, and every other key is allowed. What stands inside depends on
the question, so nothing is required there. Within a version a schema may only loosen: what an
answer of today is, an answer of then was. A key that is renamed or dropped, or means another thing, is a new
version: raise it in `VERSIONS`, and keep the file of the old one.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[1] / "docs" / "schemas"
FILES: Final = Path(__file__).parents[1] / "tests" / "unit" / "planner" / "audit" / "files"
FIRST, SECOND = "{first}", "{second}"
"""Stand for two saved plans."""
SERVER: Final = "{server}"
"""Stands for the script of a server."""
SMALL: Final = ("--model", "8b", "--gpus", "8")
QUESTIONS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "train": (
        (*SMALL, "--tokens", "1T"),
        ("--model", "8b", "--gpus", "16", "--set", "layout.pp=2"),
        ("--model", "mixtral-8x7b", "--gpus", "64", "--objective", "memory"),
        ("--model", "8b", "--gpu", "b200-sxm", "--gpus", "8", "--precision", "fp8", "--adapter", "lora:r=16"),
    ),
    "estimate": (
        (*SMALL, "--set", "layout.tp=8"),
        ("--model", "8b", "--gpus", "16", "--set", "layout.tp=8", "--set", "layout.dp=2"),
    ),
    "serve": (
        ("--model", "8b", "--gpus", "1", "--rate", "1"),
        ("--model", "8b", "--rate", "2", "--engine", "sglang"),
        ("--model", "8b", "--rate", "5/s", "--ttft", "1s", "--tpot", "40ms"),
    ),
    "explain": ((FIRST,), (SECOND,)),
    "diff": ((FIRST, SECOND), (SECOND, FIRST)),
    "sweep": (("--model", "8b", "--gpus", "8,16"),),
    "ladder": (SMALL,),
    "audit": (
        (str(FILES / "deepseek_v3.sh"),),
        (str(FILES / "megatron.log"),),
        (SERVER, "--gpu", "h100-sxm"),
    ),
    "memory": (("70b",), ("deepseek-v3", "--sequence-length", "32k"), ("mixtral-8x7b",)),
    "models": ((), ("70b",), ("mixtral-8x7b",), ("deepseek-v3",)),
    "gpus": ((), ("h100",)),
    "engines": ((), ("megatron-core",), ("torchtitan",)),
    "rule": ((), ("memory",), ("stage-bound",)),
    "topology": (("--gpus", "16"), ("--gpu", "gb200", "--gpus", "72")),
}
"""Questions by command; the answers to them give its schema."""
VERSIONS: Final[Mapping[str, int]] = {"memory": 2}
"""Of a schema; 1 where nothing is said."""
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
MAPS: Final = frozenset(
    {"pins", "hidden_s", "pruned", "floors_s", "limits", "switches", "step_parts_s", "choices"}
)
"""Keys whose objects map names to values: which names they have is the answer, not its form."""
_FIELD: Final = re.compile(r"[a-z][a-z0-9_]*")
Schema = dict[str, Any]


def answered(command: str, words: Sequence[str]) -> Any:
    """The document that a command answers with."""
    from app.cli import run

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        run([command, *words, "--json"])
    return json.loads(out.buffer.getvalue().decode())


def schema_of(values: Iterable[Any], *, is_map: bool = False, is_document: bool = False) -> Schema:
    """What values have in common: their kinds, the keys of objects, the items of arrays.

    Args:
        values: Of several answers.
        is_map: Their keys are names of things.
        is_document: They are whole answers, of which all have a key that is required.

    >>> schema_of([{"tp": 8, "note": None}, {"tp": 4}], is_document=True)["required"]
    ['tp']
    """
    several = list(values)
    kinds = {_kind(value) for value in several}
    named = sorted(kinds if is_document else kinds | {"null"})  # where a question has none
    schema: Schema = {"type": named[0] if len(named) == 1 else named} if kinds - {"null"} else {}
    if lists := [value for value in several if isinstance(value, list)]:
        schema["items"] = schema_of(item for value in lists for item in value)
    if objects := [value for value in several if isinstance(value, dict)]:
        keys = list(dict.fromkeys(key for value in objects for key in value))
        if not is_map and all(_FIELD.fullmatch(key) for key in keys):
            schema["properties"] = {
                key: schema_of((value[key] for value in objects if key in value), is_map=key in MAPS)
                for key in keys
            }
            if is_document:
                schema["required"] = [key for key in keys if all(key in value for value in objects)]
        else:  # keys are names of things, such as rules or GPUs
            schema["additionalProperties"] = schema_of(item for value in objects for item in value.values())
    return schema


def _kind(value: Any) -> str:
    """The type of a value in JSON Schema; whole numbers are numbers: another answer may have a fraction."""
    kinds = {bool: "boolean", str: "string", list: "array", dict: "object", type(None): "null"}
    return kinds.get(type(value), "number")


def file_of(command: str) -> Path:
    """Where a schema is written."""
    return FOLDER / f"{command}.v{VERSIONS.get(command, 1)}.json"


def titled(command: str, schema: Schema) -> Schema:
    """A schema with what it is of."""
    head = {"$schema": DIALECT, "$id": file_of(command).name, "title": f"Answer of plan {command} --json"}
    return {**head, **schema}


def main() -> None:
    """Write the schemas of the commands that are named, or of all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plans = {FIRST: f"{folder}/first.json", SECOND: f"{folder}/second.json"}
        server = Path(folder) / "serve.sh"
        server.write_text("vllm serve Qwen/Qwen2.5-7B-Instruct --tensor-parallel-size 4\n", encoding="utf-8")
        for place, path in plans.items():
            gpus = "8" if place == FIRST else "16"
            plan = answered("train", ("--model", "8b", "--gpus", gpus))
            Path(path).write_text(json.dumps(plan), encoding="utf-8")
        for command in sys.argv[1:] or QUESTIONS:
            files = {**plans, SERVER: str(server)}
            questions = [[files.get(word, word) for word in words] for words in QUESTIONS[command]]
            answers = [answered(command, words) for words in questions]
            schema = titled(command, schema_of(answers, is_document=True))
            text = json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
            file_of(command).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
