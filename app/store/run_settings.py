"""One file that repeats a training run: `settings.toml`, written beside it and read by `plan run --settings`.

Its keys are the flags of `plan run`, each with the value that was in effect, and the plan's file; `versions`
says with what it ran. A flag on the command line wins over the file.
"""

from __future__ import annotations

import json
import platform
from dataclasses import field, fields, make_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from executor.training.option import asked_form, options_of
from executor.training.settings import Endurance, RunSettings
from topology.base.decode import read_toml, structure
from topology.base.version import VERSION

SETTINGS_FILE, ASKED_PLAN_FILE = "settings.toml", "asked-plan.json"
TOKENIZERS, DATASETS = "tokenizers", "datasets"
PACKAGES = ("torch", "numpy", TOKENIZERS, DATASETS)
TABLES = ("versions", "checksums")


_IN_A_FILE: Final = {Path | None: str | None, list[str] | None: tuple[str, ...] | None}
"""Types in which a file holds what a command line gives in others."""


def keys_of(*records: type) -> list[tuple[str, Any, Any]]:
    """Every key of a file of some records' settings, its type and a default of None: nothing is required."""
    forms = {
        option.key: asked_form(record, name)[0]
        for record in records
        for name, option in options_of(record).items()
    }
    return [
        ("plan", str | None, None),
        *((key, _IN_A_FILE.get(form, form | None), None) for key, form in forms.items()),
        ("versions", dict[str, str], field(default_factory=dict)),
        ("checksums", dict[str, str], field(default_factory=dict)),
    ]


RunFile: Final[Any] = make_dataclass(
    "RunFile", keys_of(RunSettings, Endurance), frozen=True, slots=True, kw_only=True
)
"""What a settings file may say: flags of `plan run` by their names, none of them required.

`plan` is a file beside it unless its path is absolute; `versions` are compared, differences are told;
`checksums` of tokenizer and texts must be those of the files, where these are there.
"""


def settings_text(run: RunSettings, endurance: Endurance) -> str:
    """The file of a run, with every value that is in effect."""
    values: dict[str, Any] = {"plan": ASKED_PLAN_FILE}
    for record in (run, endurance):
        for name, option in options_of(type(record)).items():
            values[option.key] = getattr(record, name)
    values["fp32"] = run.precision == "fp32"
    lines = ["# Written by plan run. Once more: plan run --settings THIS_FILE --run-dir ANOTHER_FOLDER"]
    lines += [f"{name} = {_toml(value)}" for name, value in values.items() if value not in (None, ())]
    used = {TOKENIZERS: run.tokenizer is not None, DATASETS: "hf:" in f"{run.data}{run.eval_data}"}
    installed = {name: value for name, value in versions().items() if used.get(name, True)}
    lines += ["", "[versions]", *(f"{name} = {_toml(value)}" for name, value in installed.items())]
    if run.checksums:
        lines += [
            "",
            "[checksums]",
            *(f"{_toml(name)} = {_toml(sha)}" for name, sha in run.checksums.items()),
        ]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """A value as TOML; text is quoted as JSON quotes it."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def versions() -> dict[str, str]:
    """What a run's numbers may depend on, as installed here."""
    result = {"meshplan": VERSION, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            result[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return result


def _require_checksums(value: Any, path: Path) -> None:
    """Refuse files that are not those of the run that is repeated."""
    from executor.data.contents import look_through
    from executor.data.hub import is_hub
    from executor.data.tokenizer import checksum_of
    from topology.base.errors import InputError
    from topology.base.files import file_mark

    for name, there in value.checksums.items():
        if not (is_hub(name) or Path(name).exists()):
            continue  # another may be given, or its opening says so
        if name == value.tokenizer:
            here = checksum_of(Path(name))
        elif ":" in there:
            here = str(file_mark(Path(name)))
        else:
            here = look_through(name, field=value.text_field or "text", lanes=1).sha256
        if here != there:
            raise InputError(
                what=f"{name} is not what {path} was written with",
                cause=f"SHA-256 {there.rpartition(':')[2][:12]}… then, {here.rpartition(':')[2][:12]}… now",
                fix="put it back, or take its line out of [checksums] to train on what is there",
            )


def read_run_file(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parameters of `plan run` that a file sets, and what to tell of it; unknown keys are refused."""
    result = structure(read_toml(path), RunFile, str(path))
    given = {item.name: getattr(result, item.name) for item in fields(RunFile) if item.name not in TABLES}
    given = {name: value for name, value in given.items() if value is not None}
    plan = given.pop("plan", None)
    if plan is not None:
        given["plan_file"] = str(path.parent / plan)
    if "env" in given:
        given["env"] = list(given["env"])
    _require_checksums(result, path)
    here = versions()
    other = [
        f"{name} {there} there, {here.get(name, 'none')} here"
        for name, there in result.versions.items()
        if here.get(name) != there
    ]
    notes = (f"{path} was written with other versions ({', '.join(other)}): losses may differ",)
    return given, notes if other else ()
