"""One file that repeats a training run: `settings.toml`, written beside it and read by `plan run --settings`.

Its keys are the flags of `plan run`, each with the value that was in effect, and the plan's file; `versions`
says with what it ran. A flag on the command line wins over the file.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topology.base.decode import read_toml, structure
from topology.base.version import VERSION

if TYPE_CHECKING:
    from executor.training.settings import RunSettings

SETTINGS_FILE, ASKED_PLAN_FILE = "settings.toml", "asked-plan.json"
TOKENIZERS, DATASETS = "tokenizers", "datasets"
PACKAGES = ("torch", "numpy", TOKENIZERS, DATASETS)
TABLES = ("versions", "checksums")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """What a settings file may say: flags of `plan run` by their names, none of them required.

    `plan` is a file beside it unless its path is absolute; `versions` are compared, differences are told;
    `checksums` of tokenizer and texts must be those of the files, where these are there.
    """

    plan: str | None = None
    data: str | None = None
    tokenizer: str | None = None
    text_field: str | None = None
    document_end: int | None = None
    eval_data: str | None = None
    eval_interval: int | None = None
    eval_batches: int | None = None
    steps: int | None = None
    pretrained: str | None = None
    device: str | None = None
    fp32: bool | None = None
    compile: bool | None = None
    async_tp: bool | None = None
    seed: int | None = None
    learning_rate: float | None = None
    warmup_steps: int | None = None
    lr_schedule: str | None = None
    decay_steps: int | None = None
    min_lr: float | None = None
    weight_decay: float | None = None
    adam_beta1: float | None = None
    adam_beta2: float | None = None
    adam_eps: float | None = None
    clip_norm: float | None = None
    router_loss: float | None = None
    checkpoint_every: int | None = None
    keep_checkpoints: int | None = None
    min_gpus: int | None = None
    notice: int | None = None
    profile_step: int | None = None
    wandb: bool | None = None
    interface: str | None = None
    preflight: bool | None = None
    nnodes: str | None = None
    rdzv_endpoint: str | None = None
    env: tuple[str, ...] | None = None
    run_key: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)


OTHER_NAMES = {
    "lr_schedule": "rate_shape",
    "compile": "compiles",
}  # of flags, where ranks read


def settings_text(run: RunSettings, *, min_gpus: int | None, notice_s: int) -> str:
    """The file of a run, with every value that is in effect."""
    values: dict[str, Any] = {
        "plan": ASKED_PLAN_FILE,
        "fp32": run.precision == "fp32",
        "min_gpus": min_gpus,
        "notice": notice_s,
    }
    for one in fields(RunFile):
        name = OTHER_NAMES.get(one.name, one.name)
        if one.name not in (*values, *TABLES):
            values[one.name] = getattr(run, name)
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
    found = {"meshplan": VERSION, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _require_checksums(found: RunFile, path: Path) -> None:
    """Refuse files that are not those of the run that is repeated."""
    from executor.data.contents import look_through
    from executor.data.hub import is_hub
    from executor.data.tokenizer import checksum_of
    from topology.base.errors import InputError

    for name, there in found.checksums.items():
        if not (is_hub(name) or Path(name).exists()):
            continue  # another may be given, or its opening says so
        if name == found.tokenizer:
            here = checksum_of(Path(name))
        else:
            here = look_through(name, field=found.text_field or "text", lanes=1).sha256
        if here != there:
            raise InputError(
                what=f"{name} is not what {path} was written with",
                cause=f"SHA-256 {there[:12]}… then, {here[:12]}… now",
                fix="put it back, or take its line out of [checksums] to train on what is there",
            )


def read_run_file(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parameters of `plan run` that a file sets, and what to tell of it; unknown keys are refused."""
    found = structure(read_toml(path), RunFile, str(path))
    given = {one.name: getattr(found, one.name) for one in fields(RunFile) if one.name not in TABLES}
    given = {name: value for name, value in given.items() if value is not None}
    plan = given.pop("plan", None)
    if plan is not None:
        given["plan_file"] = str(path.parent / plan)
    if "env" in given:
        given["env"] = list(given["env"])
    _require_checksums(found, path)
    here = versions()
    other = [
        f"{name} {there} there, {here.get(name, 'none')} here"
        for name, there in found.versions.items()
        if here.get(name) != there
    ]
    notes = (f"{path} was written with other versions ({', '.join(other)}): losses may differ",)
    return given, notes if other else ()
