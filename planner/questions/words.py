"""The words of a call, as on the command line, and the request they make."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Any, TypedDict, Union, get_args, get_origin, get_type_hints

from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from costmodel.stack import SoftwareStack
from costmodel.stack import stack as find_stack
from planner.plan import RECOMPUTED_LAYERS, SPLIT_PINS, PlanRequest
from planner.questions.flags import Flags
from planner.questions.training import SWEPT, understand
from topology.base.counts import listed_counts
from topology.base.errors import InputError, shown
from topology.base.names import suggest
from topology.cluster import Cluster
from topology.spec import ClusterSpec

Model = str | Path | ModelSpec
CountWord = int | str


class JobWords(TypedDict, total=False):
    """What may be said about a training job; every word is that of a flag of `plan`, all may be left out.

    `gpus`, `seq` (tokens), `batch` (sequences) and `tokens` are numbers or texts such as ``"128k"``;
    `deadline` is seconds or a text such as ``"30d"``, `budget` dollars or ``"2M"``. `cluster` is a name, a
    file or a value, `without`
    hosts to leave out of it, `degraded` says which others are (``"node4:gpu3"``); `stack` and `precision` are
    names, `adapter` is one (``"lora:r=16"``), `expert_load` is a file of measured tokens by expert,
    `recompute_modules` are parts of a layer, `offload` is what waits in host memory (``"optimizer:0.5"``),
    `engine` is that of whose limits the plan keeps, ``any`` for none. `job` takes the place of the words that
    describe one.
    `layout` pins every field of a layout, or those of a table (``{"tp": 8, "pp": 4}``); `set` single fields
    of anything: ``{"layout.tp": 8, "cluster.count": 4}``.
    `anchor` is a table of your own runs, or the name it is kept under.
    """

    gpus: CountWord
    gpu: str
    cluster: str | Path | ClusterSpec | Cluster
    without: str | Sequence[str]
    degraded: str | Sequence[str]
    seq: CountWord
    batch: CountWord
    precision: str
    adapter: str
    expert_load: str | Path
    recompute_modules: str | Sequence[str]
    offload: str
    tokens: CountWord
    deadline: float | str
    budget: float | str
    job: TrainingJob
    stack: str | SoftwareStack
    engine: str
    layout: ParallelLayout | Mapping[str, object]
    set: Mapping[str, object]
    anchor: str | Path


class SearchWords(JobWords, total=False):
    """The same, and what chooses among layouts.

    `objective` is step-time (of a run also date), cost, gpus or memory; `top` counts alternatives;
    `memory_headroom` is the share of a GPU's memory to leave free; `failures` a file of what fails, for the
    campaign of a plan with tokens, `min_gpus` the fewest it goes on with.
    """

    objective: str
    top: CountWord
    memory_headroom: float | str
    failures: str | Path
    min_gpus: int


class GridWords(TypedDict, total=False):
    """The words of a sweep: `gpus`, `gpu`, `seq` and `batch` may be lists, or texts such as ``"8..64"``."""

    gpus: CountWord | Sequence[int]
    gpu: str | Sequence[str]
    cluster: str | Path | ClusterSpec | Cluster
    without: str | Sequence[str]
    degraded: str | Sequence[str]
    seq: CountWord | Sequence[int]
    batch: CountWord | Sequence[int]
    precision: str
    adapter: str
    expert_load: str | Path
    recompute_modules: str | Sequence[str]
    offload: str
    tokens: CountWord
    deadline: float | str
    stack: str | SoftwareStack
    engine: str
    layout: ParallelLayout | Mapping[str, object]
    set: Mapping[str, object]
    anchor: str | Path
    objective: str
    memory_headroom: float | str


LAYOUT_FIELDS = tuple(field.name for field in fields(ParallelLayout))
MOST_SHOWN = 4
"""Values of a list that a message repeats."""
_FIELD_OF_WORD = {"seq": "sequence_length", "batch": "global_batch_size"}
_OF_A_JOB = ("seq", "batch", "precision", "adapter", "expert_load", "offload", "tokens", "deadline", "budget")


def request_of(model: Model | PlanRequest, words: Mapping[str, Any], known: type) -> PlanRequest:
    """The request that a model and words make; a request stands for itself."""
    if isinstance(model, PlanRequest):
        if words:
            raise InputError(
                what="a request is complete",
                cause=f"{', '.join(words)} came beside it",
                fix="change the request with dataclasses.replace, or give a model and words",
            )
        return model
    return understood(model, flags_of(model, words, known), words)


def understood(model: Model, flags: Flags, words: Mapping[str, Any]) -> PlanRequest:
    """The request of flags, with the values of a call that have no name."""
    cluster, layout = words.get("cluster"), words.get("layout")
    request = understand(
        flags,
        model=model if isinstance(model, ModelSpec) else None,
        cluster=cluster.spec if isinstance(cluster, Cluster) else _if(cluster, ClusterSpec),
        job=words.get("job"),
    ).request
    if not isinstance(layout, ParallelLayout):
        return request
    pins = {field.name: getattr(layout, field.name) for field in fields(layout)}
    given = {name: value for name, value in pins.items() if value is not None}
    if layout.recompute == "full" and not {"recompute", *SPLIT_PINS} & request.pins.keys():
        given[RECOMPUTED_LAYERS] = "all"
    return replace(request, pins={**given, **request.pins})


def flags_of(model: Model, words: Mapping[str, Any], known: type) -> Flags:
    """Words as a command line would have them; values that have no name are left out."""
    require_known(words, known)
    if words.get("job") is not None and (both := [word for word in _OF_A_JOB if words.get(word) is not None]):
        raise InputError(
            what="two jobs were given", cause=f"job and {', '.join(both)}", fix="give the job, or its words"
        )
    stack = words.get("stack")
    flags: dict[str, Any] = {
        _FIELD_OF_WORD.get(word, word): text_of(value, unit="s" if word == "deadline" else "")
        for word, value in words.items()
        if word not in ("job", "layout", "set", "stack") and not isinstance(value, ClusterSpec | Cluster)
    }
    flags["stack"] = known_stack(stack) if isinstance(stack, SoftwareStack) else stack
    named = None if isinstance(model, ModelSpec) else str(model)
    settings = (*layout_settings(words.get("layout")), *setting_words(words.get("set")))
    return Flags(model=named, settings=settings, **flags)


def require_known(words: Mapping[str, Any], known: type) -> None:
    """Refuse words that no flag has, and values that no word takes."""
    names = list(known.__annotations__)
    for word in words:
        if word not in names:
            close = suggest(word, names, count=2)
            fix = f"did you mean {' or '.join(close)}?" if close else "use one of those"
            if word in LAYOUT_FIELDS and "layout" in names:
                fix = f'write layout={{"{word}": {words[word]!r}}}'
            raise InputError(
                what=f"{word} is no word of this call", cause=f"it takes {', '.join(names)}", fix=fix
            )
    require_kinds(words, known)


def require_kinds(words: Mapping[str, Any], known: type) -> None:
    """Refuse values of another kind than their words take, a list where one is planned above all."""
    for word, value in words.items():
        kinds = _kinds_of(known)[word]
        several = Sequence in _kinds_of(GridWords).get(word, ()) and known in (JobWords, SearchWords)
        if several and isinstance(value, str) and _FIELD_OF_WORD.get(word, word) in SWEPT:
            _require_one_count(word, value)
        number = type(value) is not bool and isinstance(value, Real) and bool({int, float} & {*kinds})
        if value is None or number or isinstance(value, _unlisted(kinds, value)):
            continue
        if Mapping in kinds or not isinstance(value, list | tuple | set | frozenset | range):
            raise InputError(
                what=f"{word} cannot be {shown(value)}",
                cause=f"it is of the type {type(value).__name__}; {word} takes {_named(kinds)}",
                fix=f"give {word} as on the command line",
            )
        listed = ", ".join(map(shown, itertools.islice(value, MOST_SHOWN)))
        raise InputError(
            what=f"{word} takes one value",
            cause=f"[{listed}] lists {len(value)}",
            fix=f"write meshplan.sweep(…, {word}=[{listed}])" if several else "ask once for each of them",
        )


def _require_one_count(word: str, text: str) -> None:
    """Refuse a text that lists counts, with the call that plans each of them."""
    parts = listed_counts(text)
    if len(parts) > 1:
        raise InputError(
            what=f"{word} takes one value",
            cause=f"{shown(text)} lists {' and '.join(parts)}",
            fix=f'write meshplan.sweep(…, {word}="{",".join(parts)}")',
        )


@functools.cache
def _kinds_of(known: type) -> Mapping[str, tuple[type, ...]]:
    """Classes of the values that each word takes."""
    return {
        word: tuple(get_origin(kind) or kind for kind in (get_args(hint) if _is_union(hint) else (hint,)))
        for word, hint in get_type_hints(known).items()
    }


def _is_union(hint: object) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _unlisted(kinds: tuple[type, ...], value: object) -> tuple[type, ...]:
    """The same classes, without that of lists where the value is text."""
    return tuple(kind for kind in kinds if kind is not Sequence) if isinstance(value, str | bytes) else kinds


def _named(kinds: tuple[type, ...]) -> str:
    """Classes by name."""
    return ", ".join(dict.fromkeys(kind.__name__ for kind in kinds))


def layout_settings(layout: object) -> tuple[str, ...]:
    """Fields of a layout that a table names, as `--set` has them; of a whole layout, none.

    >>> layout_settings({"tp": 8, "recompute": "full"})
    ('layout.tp=8', 'layout.recompute=full')

    Raises:
        InputError: it is neither a layout nor a table.
    """
    if layout is None or isinstance(layout, ParallelLayout):
        return ()
    if not isinstance(layout, Mapping):
        raise InputError(
            what="layout names no fields",
            cause=f"it is {shown(layout)}",
            fix='write layout={"tp": 8, "pp": 4}, or give a ParallelLayout',
        )
    given = {name if "." in str(name) else f"layout.{name}": value for name, value in layout.items()}
    return setting_words({name: value for name, value in given.items() if value is not None})


def text_of(value: object, *, unit: str = "") -> str | None:
    """A value as it would be typed: lists with commas, numbers with the unit of the word.

    >>> text_of([8, 16]), text_of(0.5, unit="s"), text_of("30d", unit="s"), text_of(None)
    ('8,16', '0.5s', '30d', None)
    """
    if value is None:
        return None
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, Sequence):
        return ",".join(str(part) for part in value)
    return f"{value}{unit}"


def setting_words(settings: Mapping[str, object] | None) -> tuple[str, ...]:
    """Settings as `--set` has them.

    >>> setting_words({"layout.tp": 8, "layout.sequence_parallel": True, "layout.axis_order": ("pp", "dp")})
    ('layout.tp=8', 'layout.sequence_parallel=true', 'layout.axis_order=pp-dp')
    """
    return tuple(f"{name}={_plain(value)}" for name, value in (settings or {}).items())


def _plain(value: object) -> str:
    """A value of a setting as text."""
    if isinstance(value, str):
        return value
    return "-".join(map(str, value)) if isinstance(value, tuple) else json.dumps(value)


def known_stack(stack: SoftwareStack) -> str:
    """The name of a profile; one that was changed has none, since a plan names its stack."""
    if find_stack(stack.name) != stack:
        raise InputError(
            what=f"this is not the profile {stack.name}",
            cause="it was changed, and a plan names the stack it is for",
            fix=f"give stack={stack.name!r}, and your own level as anchor",
        )
    return stack.name


def _if(value: Any, kind: type[ClusterSpec]) -> ClusterSpec | None:
    """The value, if it is a cluster in words."""
    return value if isinstance(value, kind) else None


def share_of(text: str, flag: str, *, most: float = 1) -> float:
    """A number between zero and `most`, or percent of it; percentiles may be written p90."""
    plain = text.strip().removesuffix("%").rstrip()
    hundredths = most / 100 if plain != text.strip() else 1.0
    if most == 100:
        plain = plain.removeprefix("p").removeprefix("P")
    try:
        value = number_of(plain, flag, least=0.0) * hundredths
    except InputError:
        example = "90" if most == 100 else "0.6 or 60%"
        raise InputError(
            what=f"{flag} {text} is not possible",
            cause=f"it is no number between 0 and {most:g}",
            fix=f"write it like {example}",
        ) from None
    if value > most:
        raise InputError(
            what=f"{flag} {text} is not possible",
            cause=f"it is at most {most:g}",
            fix=f"give {flag} between 0 and {most:g}",
        )
    return value


def number_of(text: str, flag: str, *, least: float = 1e-9) -> float:
    """A finite number of at least `least`."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise InputError(
            what=f"{flag} {text} is not possible",
            cause=f"{flag} is a positive number",
            fix=f"give {flag} a positive number",
        )
    return value
