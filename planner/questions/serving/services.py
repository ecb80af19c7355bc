"""Several services that share one fleet: a file that names them, each a serving question of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import Asked, understand_serving
from planner.questions.words import setting_words, text_of
from topology.base.decode import read_toml
from topology.base.errors import InputError, shown
from topology.base.names import suggest

FIELD_OF_WORD: Mapping[str, str] = {
    "input": "input_tokens",
    "output": "output_tokens",
    "e2e": "end_to_end",
    "kv": "kv_dtype",
}
"""Fields of the words of a serving question, where they are called otherwise."""
UNIT_OF_WORD: Mapping[str, str] = {"ttft": "s", "tpot": "s", "e2e": "s", "rate": "/s"}
"""Units of plain numbers."""
OF_THE_FLEET = ("gpu", "gpus", "cluster", "provider", "usd_per_gpu_hour", "objective", "anchor", "spare")
"""Words of all services together, said beside the file."""
APART = ("concurrency", "trace", "router", "kv_offload")
"""Words of a question about one service alone."""
WORDS = tuple(
    {field: word for word, field in FIELD_OF_WORD.items()}.get(field.name, field.name)
    for field in fields(ServeFlags)
    if field.name not in (*OF_THE_FLEET, *APART, "settings")
)
MOST_SERVICES = 16
EXAMPLE = 'write [[services]] with for example model = "8b", rate = "20/s", ttft = "500ms"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service: its name, and its question."""

    name: str
    asked: Asked


def read_services(path: Path, flags: ServeFlags) -> tuple[Service, ...]:
    """The services of a file; what one does not say is as the flags beside it say.

    Raises:
        InputError: no services, too many, one without model or rate, an unknown word, two of one name, or
            flags that no fleet of several services has.
    """
    for flag in ("gpus", "cluster", *APART, "rate"):
        if getattr(flags, flag) is not None:
            name = flag.replace("_", "-")
            raise InputError(
                what=f"--{name} is not of several services",
                cause=f"--services {path} beside --{name} {shown(str(getattr(flags, flag)))}",
                fix="give every service its rate in the file; the smallest fleet is found",
            )
    document = read_toml(path)
    entries = document.get("services")
    if set(document) != {"services"} or not isinstance(entries, list) or not entries:
        cause = f"it has {', '.join(map(shown, document)) or 'nothing'}"
        raise InputError(f"{path} names no services", cause, EXAMPLE)
    if len(entries) > MOST_SERVICES:
        cause = f"{path} has {len(entries)}, at most {MOST_SERVICES} are planned together"
        raise InputError("too many services", cause, "plan them in several files")
    services = [_service(path, number, entry, flags) for number, entry in enumerate(entries, 1)]
    names = [service.name for service in services]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            what=f"two services are called {shown(twice)}", cause=f"in {path}", fix='say name = "…" of each'
        )
    return tuple(services)


def _service(path: Path, number: int, entry: Any, flags: ServeFlags) -> Service:
    """One service of the file."""
    where = f"{path}, service {number}"
    if not isinstance(entry, dict):
        raise InputError(f"{where} is no table", f"it is {shown(str(entry))}", EXAMPLE)
    values = dict(entry)
    name, settings = values.pop("name", None), values.pop("set", {})
    for word in values:
        if word not in WORDS:
            close = suggest(word, WORDS, count=2)
            known = f"words of a service are {', '.join(WORDS)}"
            fix = f"did you mean {' or '.join(close)}?" if close else known
            all_of_them = "a word of all services, said beside the file"
            of = all_of_them if word in OF_THE_FLEET else "no word of a service"
            raise InputError(what=f"{where}: {shown(word)} is not known", cause=f"it is {of}", fix=fix)
    if not isinstance(settings, dict):
        cause, fix = f"set = {shown(str(settings))}", 'write set = { "layout.tp" = 2 }'
        raise InputError(f"{where}: set is no table", cause, fix)
    words: dict[str, Any] = {
        FIELD_OF_WORD.get(word, word): text_of(value, unit=UNIT_OF_WORD.get(word, ""))
        for word, value in values.items()
    }
    merged = replace(flags, settings=(*flags.settings, *setting_words(settings)), **words)
    if not merged.rate or not merged.model:
        missing = "model" if not merged.model else "rate"
        cause = f"it says {', '.join(values) or 'nothing'}"
        raise InputError(what=f"{where} has no {missing}", cause=cause, fix=EXAMPLE)
    return Service(name=text_of(name) or f"{merged.model} {number}", asked=understand_serving(merged))
