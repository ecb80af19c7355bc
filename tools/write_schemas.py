"""Write docs/schemas, the JSON Schema of every `--json`: `python tools/write_schemas.py [COMMAND …]`.

A schema is derived from the types that a document is written from: dataclasses field by field, with what
their docstrings say and the unit of the last word of a name; documents that are put together by hand are
listed in `forms`. Objects are closed: a key that is not listed is refused, one that is listed stands in every
answer, unless it is optional. Within a version a field may be added, never removed or retyped
(`tests/cli/schema_fields.json` has those that were shipped). A change beyond that raises `VERSIONS`, and the
file of the old version stays.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs" / "schemas"
SHIPPED: Final = ROOT / "tests" / "cli" / "schema_fields.json"
"""Fields of the latest version of every schema, by path, with their types."""
FILES: Final = ROOT / "tests" / "unit" / "planner" / "audit" / "files"
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
    "verify": ((FIRST, "--no-proof"),),
    "diff": ((FIRST, SECOND), (SECOND, FIRST)),
    "sweep": (("--model", "8b", "--gpus", "8,16"),),
    "ladder": (SMALL,),
    "audit": (
        (str(FILES / "deepseek_v3.sh"),),
        (str(FILES / "megatron.log"),),
        (SERVER, "--gpu", "h100-sxm"),
        (SERVER, "--gpu", "h100-sxm", "--rate", "4/s", "--input", "2000", "--output-tokens", "300"),
    ),
    "memory": (("70b",), ("deepseek-v3", "--sequence-length", "32k"), ("mixtral-8x7b",)),
    "models": ((), ("70b",), ("mixtral-8x7b",), ("deepseek-v3",)),
    "gpus": ((), ("h100",), ("--machines",)),
    "engines": ((), ("megatron-core",), ("torchtitan",)),
    "recipes": ((),),
    "rule": ((), ("memory",), ("stage-bound",)),
    "topology": (("--gpus", "16"), ("--gpu", "gb200", "--gpus", "72")),
}
"""Questions by command, whose answers must hold to its schema."""
REFUSAL: Final = "refusal"
"""Names the schema of what every command writes that has no answer."""
VERSIONS: Final[Mapping[str, int]] = {
    "memory": 3, "verify": 1, "recipes": 1, "diagnose": 1, "watch": 1, "accuracy": 1, "calibrate": 1,
    "bench": 1, "run": 1, "validate": 1, "tokenize": 1, "convert": 1, REFUSAL: 1,
}  # fmt: skip
"""Of a schema; `USUAL_VERSION` where nothing is said."""
USUAL_VERSION: Final = 2
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
UNITS: Final[Mapping[str, str]] = {
    "s": "seconds", "bytes": "bytes", "gib": "GiB", "flop": "floating-point operations", "usd": "US dollars",
    "wh": "watt-hours", "w": "watts", "tokens": "tokens", "requests": "requests", "samples": "samples",
    "days": "days", "hours": "hours", "gbit": "Gbit", "gb": "GB", "tflops": "TFLOP/s",
    "chance": "a chance, 0 to 1", "share": "a share, 0 to 1", "mfu": "a share, 0 to 1",
    "hfu": "a share, 0 to 1",
}  # fmt: skip
"""Units by the word of a key that names them."""


@dataclass(frozen=True, slots=True)
class Record:
    """An object of these keys and no others.

    Attributes:
        fields: The form of each key's value.
        optional: Keys that an answer may lack.
        patterns: Forms of further keys, by the regular expression that they match.
    """

    fields: Mapping[str, Any]
    optional: frozenset[str] = frozenset()
    patterns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ByName:
    """An object whose keys are names of things, each with a value of one form."""

    form: Any


@dataclass(frozen=True, slots=True)
class OneOf:
    """A document of one of several forms."""

    forms: tuple[Any, ...]


def optional(**forms: Any) -> Record:
    """An object whose every key may be absent."""
    return Record(forms, frozenset(forms))


def nullable(form: Any) -> OneOf:
    """A form, or null where a question has none."""
    return OneOf((form, type(None)))


def record_of(kind: type, **more: Any) -> Record:
    """The fields of a dataclass, and more beside them."""
    hints = get_type_hints(kind, include_extras=True)
    named = {each.name: hints[each.name] for each in fields(kind) if each.init}  # type: ignore[arg-type]
    return Record({**named, **more})


def unit_of(name: str) -> str:
    """The unit that a key's words name; empty where they name none.

    >>> unit_of("step_time_s"), unit_of("tokens_per_s_per_gpu"), unit_of("served_per_s"), unit_of("layers")
    ('seconds', 'tokens per second per gpu', 'per second', '')
    """
    words = name.split("_")
    at = words.index("per") if "per" in words else len(words)
    unit = UNITS.get(words[at - 1], "") if at else ""
    rest = ["second" if word == "s" else word for word in words[at:]]
    return " ".join(filter(None, (unit, *rest)))


@cache
def field_texts(kind: type) -> Mapping[str, str]:
    """What a dataclass says of its fields: under *Attributes* of its docstring, or in texts after them."""
    texts: dict[str, str] = {}
    _, _, attributes = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    for match in re.finditer(r"^    (\w+): (.+(?:\n {6,}.+)*)", attributes, re.MULTILINE):
        texts[match[1]] = " ".join(match[2].split())
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    body = getattr(tree, "body", [])
    for before, after in pairwise(body):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
            name, value = getattr(before.target, "id", ""), getattr(after.value, "value", None)
            if isinstance(value, str):
                texts[name] = " ".join(value.split())
    return texts


class Writer:
    """Schemas of forms; dataclasses are written once, under `$defs`."""

    def __init__(self, more: Mapping[type, Mapping[str, Any]]) -> None:
        """Start without definitions.

        Args:
            more: Keys that documents have beside the fields of a dataclass.
        """
        self.definitions: dict[str, Schema] = {}
        self._more = more

    def of(self, form: Any) -> Schema:
        """The schema of a form."""
        if form is Any:
            return {}
        if isinstance(form, type) and form in _PLAIN:
            return {"type": _PLAIN[form]}
        if isinstance(form, Record):
            return self._closed(form, {})
        if isinstance(form, ByName):
            return {"type": "object", "additionalProperties": self.of(form.form)}
        if isinstance(form, OneOf):
            return _either([self.of(each) for each in form.forms])
        if isinstance(form, list):
            return {"type": "array", "items": self.of(form[0])}
        if isinstance(form, type) and is_dataclass(form):
            return self._definition(form)
        return self._generic(get_origin(form), get_args(form))

    def _generic(self, origin: Any, inner: tuple[Any, ...]) -> Schema:
        """The schema of a type with parameters."""
        if origin is Literal:
            return {"enum": list(inner)}
        if origin in (Union, types.UnionType):
            return _either([self.of(each) for each in inner])
        if origin is tuple and inner[1:] != (...,):
            return {"type": "array", "prefixItems": [self.of(each) for each in inner], "items": False}
        if origin in (tuple, list, Sequence, frozenset):
            return {"type": "array", "items": self.of(inner[0])}
        if origin in (Mapping, dict):
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        raise TypeError(f"no schema is known of {origin!r}")

    def _definition(self, kind: type) -> Schema:
        """A dataclass, by reference."""
        if kind.__name__ not in self.definitions:
            self.definitions[kind.__name__] = {}  # so that one which holds itself ends
            closed = self._closed(record_of(kind, **self._more.get(kind, {})), field_texts(kind))
            first = (inspect.getdoc(kind) or "").partition("\n")[0]
            self.definitions[kind.__name__] = {"description": first, **closed}
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def _closed(self, form: Record, texts: Mapping[str, str]) -> Schema:
        """An object that has its keys and no others."""
        return {
            "type": "object",
            "properties": {
                name: {**self.of(each), **_described(name, texts)} for name, each in form.fields.items()
            },
            **({"patternProperties": {key: self.of(each) for key, each in form.patterns.items()}}
               if form.patterns else {}),
            "required": [name for name in form.fields if name not in form.optional],
            "additionalProperties": False,
        }  # fmt: skip


_PLAIN: Final[Mapping[Any, str]] = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
}  # fmt: skip


def _either(schemas: Sequence[Schema]) -> Schema:
    """One of several; plain types stand in one list."""
    plain = sorted({each["type"] for each in schemas if each.keys() == {"type"}})
    others = [each for each in schemas if each.keys() != {"type"}]
    first: Schema = {"type": plain[0] if len(plain) == 1 else plain}
    if not others:
        return first
    return {"anyOf": [*others, *([first] if plain else [])]}


def _described(name: str, texts: Mapping[str, str]) -> Schema:
    """What is known of a field: its text and its unit."""
    unit = unit_of(name)
    parts = (texts.get(name, ""), f"Unit: {unit}." if unit else "")
    text = " ".join(filter(None, parts))
    return {"description": text} if text else {}


def forms() -> dict[str, Any]:
    """The form of every command's document."""
    from app.reports.model_memory import ModelMemory
    from costmodel.layout import ParallelLayout
    from costmodel.memory.fit import Fit
    from planner.analysis.campaign.watch import Watched
    from planner.analysis.explain import Explanation
    from planner.plan import Plan
    from planner.rules.meanings import Meaning
    from planner.search.verify import Verification

    choice = Record({"first": Any, "second": Any})
    quantity = Record({"first": float | None, "second": float | None, "relative": float | None})
    rung = {
        "value": int, "verdict": Literal["refused"] | Fit, "out_of_memory_chance": float,
        "peak_memory_bytes": float, "memory_lower_bytes": float, "memory_upper_bytes": float,
        "capacity_bytes": float, "step_time_s": float, "tokens_per_s": float, "reason": str,
    }  # fmt: skip
    unpriced = frozenset(rung) - {"value", "verdict", "reason"}
    return {
        "train": Plan,
        "estimate": Plan,
        "serve": _serve_form(),
        "explain": OneOf((Explanation, _refusal_form(Literal["infeasible"]))),
        "verify": record_of(Verification, holds=bool),
        "watch": OneOf((Watched, _server_watch_form())),
        "diff": Record({
            "first": str, "second": str, "choices": ByName(choice),
            "quantities": ByName(quantity),
        }),
        "sweep": _sweep_form(),
        "ladder": Record({
            "knob": Literal["length", "microbatch", "rank", "gpus"], "last_that_fits": int | None,
            "layout": ParallelLayout | None,
            "rungs": [Record(rung, unpriced)], "switches": [Record({"flag": str, **rung}, unpriced)],
        }),
        "audit": OneOf((_job_form(), _server_form())),
        "memory": record_of(ModelMemory, state_bytes=float),
        "models": _models_form(),
        "gpus": _gpus_form(),
        "engines": _engines_form(),
        "recipes": Record({"recipes": [_recipe_form()]}),
        "rule": OneOf((Record({"rules": [Meaning]}), Meaning)),
        "topology": _topology_form(),
        "diagnose": _diagnosis_form(),
        "accuracy": _accuracy_form(),
        "calibrate": _calibration_form(),
        "bench": _bench_form(),
        "run": _run_form(),
        "validate": _validation_form(),
        "tokenize": _tokenized_form(),
        "convert": _published_form(),
        REFUSAL: _refusal_form(),
    }  # fmt: skip


def _server_watch_form() -> Record:
    """How a running server stands."""
    from planner.audit.serving.printed_load import PrintedLoad
    from planner.diagnose.finding import StepFinding

    names = (
        "running_requests", "waiting_requests", "cache_used_share", "predicted_per_s", "lower_per_s",
        "upper_per_s",
    )  # fmt: skip
    return Record({
        "engine": str, **dict.fromkeys(names, float | None), "load": PrintedLoad | None, "slow": bool,
        "missing": str, "findings": [StepFinding],
    })  # fmt: skip


def _refusal_form(status: Any = None) -> Record:
    """Why a command has no answer; of which kind, where it has but one."""
    from app.reports.refusal import Status
    from planner.law import Violation
    from planner.search.infeasible import RequestChange

    return Record({
        "status": status or Status, "violations": tuple[Violation, ...], "rejected": Mapping[str, int],
        "nearest": tuple[RequestChange, ...], "error": str, "cause": str, "help": str, "exit_code": int,
    })  # fmt: skip


def _accuracy_form() -> OneOf:
    """Rows and errors by group, of training runs or of serving runs."""
    from costmodel.accuracy.anchor import Anchor
    from costmodel.accuracy.serving import ServingSummary
    from costmodel.accuracy.training import Summary
    from costmodel.training.constants import Constant

    row = {
        **dict.fromkeys(("id", "status", "reason", "source", "gpu", "framework", "model", "stack"), str),
        "not_priced": str,
        **dict.fromkeys((
            "measured_step_time_s", "predicted_step_time_s", "lower_s", "upper_s", "step_time_error",
            "measured_peak_memory_gib", "predicted_peak_memory_gib", "memory_upper_gib", "memory_error",
            "oom_chance",
        ), float | None),
        "oom": bool | None, "oom_risk": bool | None,
    }  # fmt: skip
    served = {
        **dict.fromkeys(("id", "status", "reason"), str),
        **dict.fromkeys(
            ("measured_ttft_s", "predicted_ttft_s", "measured_tpot_s", "predicted_tpot_s"), float | None
        ),
    }
    errors = record_or_nulls(Summary)
    training = {
        "rows": [Record(row)], "summary": [errors], "anchor": Anchor, "summary_without_anchor": errors,
        "constants": [record_of(Constant, name=str)],
    }  # fmt: skip
    return OneOf((
        Record(training, frozenset({"anchor", "summary_without_anchor", "constants"})),
        Record({"rows": [Record(served)], "summary": [record_or_nulls(ServingSummary)]}),
    ))  # fmt: skip


def record_or_nulls(kind: type) -> Record:
    """The fields of a dataclass of numbers, which are null where there is nothing to say."""
    form = record_of(kind).fields
    return Record({name: float | None if each is float else each for name, each in form.items()})


def _calibration_form() -> Record:
    """The levels of a server, and every benchmark before and after."""
    from costmodel.calibration.bench_files import Figures
    from costmodel.serving.levels import ServingLevel

    latencies = dict.fromkeys(("ttft_before_s", "ttft_after_s", "tpot_before_s", "tpot_after_s"), float)
    run = record_of(Figures, file=str, layout=str, **latencies)
    return Record({"level": ServingLevel, "runs": [run]})


def _bench_form() -> OneOf:
    """Measurements, those of a plan's shapes beside predictions, or the links between hosts."""
    from costmodel.kernels.measurement import Measurement
    from executor.bench.node_pairs import Pair

    pair = Record({**record_of(Pair).fields, "hosts": list[str]})
    between = {
        "hosts": list[str], "pairs": [pair], "slow_pairs": list[list[str]], "slow_hosts": list[str],
        "measurements": [Measurement],
    }  # fmt: skip
    measured = Record({**record_of(Measurement).fields, "predicted": float}, frozenset({"predicted"}))
    return OneOf(([measured], Record(between)))


def _run_form() -> OneOf:
    """How a run ended, what starts it, how another engine ended, or which claim kept it from starting."""
    from executor.training.settings import RunStatus

    ended = {
        "state": get_type_hints(RunStatus)["state"], "step": int, "steps": int, "run_dir": str,
        "published": _published_form(),
    }  # fmt: skip
    return OneOf((
        Record(ended, frozenset({"published"})),
        Record({"command": list[str] | str, "run_dir": str}),
        Record({"engine": str, "run_dir": str, "exit_code": int}),
        _validation_form(),
    ))  # fmt: skip


def _validation_form() -> Record:
    """Every claim of a plan with its verdict."""
    from executor.validation.report import ValidationReport

    return record_of(ValidationReport, passed=bool)


def _tokenized_form() -> Record:
    """What was written of texts."""
    from executor.data.tokenized import Tokenized

    return record_of(Tokenized)


def _published_form() -> Record:
    """What was written of a checkpoint."""
    return Record({"folder": str, "step": int, "dtype": str, "files": list[str], "bytes": int})


def _recipe_form() -> Record:
    """A row of the layout guide; numbers are texts, as its table has them."""
    from app.analysis.recipes import recipes

    return Record({**dict.fromkeys(recipes()[0], str), "command": str})


def _serve_form() -> OneOf:
    """A fleet, several fleets, a fleet followed through a day, what given servers do, or that none starts."""
    from planner.serving.plan import ServingPlan

    start: dict[str, Any] = {
        "starts": bool, "why": str, "weights_gib_per_gpu": float, "kv_cache_tokens": float,
        "longest_context": int, "max_concurrency": float,
    }  # fmt: skip
    refused = {**start, **_refusal_form(Literal["infeasible"]).fields}
    fleet = record_of(ServingPlan, **start)
    shared = Record({
        "machine": str | None, "provider": str | None, "machines": int, "num_gpus": int, "idle_gpus": int,
        "usd_per_hour": float | None, "apart_usd_per_hour": float | None,
        "services": [Record({"names": list[str], "plan": fleet})],
    })  # fmt: skip
    followed = Record(
        {
            "gpu_hours": float,
            "usd": float | None,
            "missed_share": float,
            "utilisation": float,
            "utilisation_per_usd": float | None,
            "requests": int,
            "time_s": list[float],
            "arrivals_per_s": list[float],
            "replicas": list[float],
            "backlog": list[float],
        }
    )
    by_policy = ByName(followed)
    return OneOf((fleet, shared, _server_form(), Record(refused), by_policy))


def _sweep_form() -> Record:
    """Points; one without a plan has what was asked, and why."""
    from costmodel.layout import ParallelLayout

    asked: dict[str, Any] = {
        "model": str, "gpu": str, "num_gpus": int, "sequence_length": int, "global_batch_size": int,
        "precision": str, "stack": str, "optimizer": str, "status": str, "reason": str,
    }  # fmt: skip
    planned: dict[str, Any] = {
        **dict.fromkeys((
            "step_time_s", "lower_s", "upper_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu",
            "scaling_efficiency", "communication_share", "peak_memory_bytes", "out_of_memory_chance",
            "search_time_s", "deadline_chance",
        ), float),
        **dict.fromkeys((
            "usd_per_billion_tokens", "days", "days_p10", "days_p90", "usd", "imposed_mfu",
        ), float | None),
        **record_of(ParallelLayout).fields, "axis_order": str, "shard_degree": int,
    }  # fmt: skip
    return Record(
        {
            "points": [Record({**asked, **planned}, frozenset(planned), {"^pinned_": int | str})],
        }
    )


def _models_form() -> OneOf:
    """A model's sizes and what they make, or a list of such."""
    from costmodel.models.spec import ModelSpec

    each = record_of(ModelSpec, parameters=int, active_parameters=int)
    return OneOf((Record({"models": [each]}), each))


def _gpus_form() -> OneOf:
    """The catalog of GPUs, or of machines."""
    from topology.hardware.datasheets import Machine
    from topology.hardware.gpu import Gpu
    from topology.hardware.prices import Price

    return OneOf(
        (
            Record({"schema_version": int, "gpus": [record_of(Gpu, price=Price | None)]}),
            Record(
                {
                    "schema_version": int,
                    "machines": [record_of(Machine, usd_per_gpu_hour=float | None)],
                }
            ),
        )
    )


def _engines_form() -> OneOf:
    """Engines with their presets, or the switches of one."""
    engine = Record(
        {
            "name": str,
            "title": str,
            "package": str,
            "releases": list[str],
            "presets": list[str],
        }
    )
    preset = Record(
        {
            "name": str,
            "engine": str,
            "description": str,
            "measured": bool,
            "source": str,
            "as_of": str,
        }
    )
    switch = Record(
        {
            "switch": str,
            "title": str,
            "value": str,
            "values": list[str],
            "set_by": str,
            "changes": list[str],
            "said_by": list[str],
            "what": str,
            "source": str,
            "as_of": str,
        }
    )
    return OneOf(
        (
            Record({"engines": [engine], "presets": [preset]}),
            Record({"preset": str, "switches": [switch]}),
        )
    )


def _topology_form() -> Record:
    """A cluster's levels and what each axis gets."""
    from topology.discover.places import Figure
    from topology.fabric.axis_report import AxisBandwidth
    from topology.fabric.hierarchy import Level
    from topology.fabric.link import Link
    from topology.spec import ClusterSpec

    return Record(
        {
            "schema_version": int,
            "cluster": ClusterSpec,
            "fingerprint": str,
            "num_gpus": int,
            "gpus_per_node": int,
            "gpus_per_host": int,
            "rails": int,
            "scaleup": Link,
            "nic": Link | None,
            "levels": [Level],
            "symmetric": bool,
            "bisection_bytes_per_s": float,
            "axis_order": list[str],
            "axes": [AxisBandwidth],
            "notes": list[str],
            "read": [Figure],
        }
    )


_READ: Final[Mapping[str, Any]] = {
    "schema_version": int, "files": [Record({"file": str, "kind": str})], "engine": str,
}  # fmt: skip
"""What every audit says of its files."""
_FACT: Final = Record({
    "field": str, "value": Any, "how": str, "file": str, "line": int, "said": str,
})  # fmt: skip
"""A fact of a file with its place."""


def _job_form() -> Record:
    """An audit of a training job; groups hold what the files state, by field."""
    from costmodel.memory.fit import Fit
    from planner.audit.legal import Finding
    from planner.audit.unsettled import Unsettled
    from planner.audit.verdict import Verdict

    stated = Mapping[str, Any]
    memory = {"out_of_memory_chance": float, "fit": Fit}
    peak = dict.fromkeys(("peak_memory_bytes", "memory_lower_bytes", "memory_upper_bytes"), float)
    step = dict.fromkeys(("step_time_s", "lower_s", "upper_s"), float)
    measured = optional(
        step_time_s=float,
        from_rate=str,
        steps=int,
        tflops_per_gpu=float,
        tokens_per_s_per_gpu=float,
        tokens_per_s=float,
        samples_per_s=float,
        peak_memory_bytes=float,
    )
    predicted = Record(
        {**step, **peak, **memory, "mfu": float, "bound_by": str, "error": float}, frozenset({"error"})
    )
    best = Record(
        {
            "step_time_s": float,
            **peak,
            **memory,
            "status": str,
            "gap": float,
            "proof": str,
            "words": str,
            "layout": stated,
        }
    )
    change = Record(
        {
            "set": list[str],
            "remove": list[str],
            "whole": bool,
            "fields": stated,
            "step_time_s": float,
            "seconds_gained": float,
            "peak_memory_bytes": float,
            "memory_change_bytes": float,
            "tied": bool,
            **memory,
        }
    )
    residual = Record(
        {
            "open_s": float,
            "factor": float,
            "inside_band": bool,
            "unstated": list[str],
            "words": list[str],
            "link": nullable(Record({"of": str, "bytes_per_s": float, "taken_bytes_per_s": float})),
            "candidates": [Record({"what": str, "value": Any, "flag": str, **step})],
        }
    )
    return Record(
        {
            **_READ,
            "layout": stated,
            "job": stated,
            "model": stated,
            "cluster": stated,
            "switch": stated,
            "facts": [_FACT],
            "summary": list[str],
            "findings": [Finding],
            "measured": nullable(measured),
            "predicted": nullable(predicted),
            "best": nullable(best),
            "changes": [change],
            "slower_by": float | None,
            "tied": bool,
            "outruns_what_fits": bool,
            "basis": Literal["measured", "predicted"] | None,
            "evidence": list[str],
            "residual": nullable(residual),
            "doubted": list[str],
            "memory_level": float,
            "verdict": Verdict | None,
            "fits": bool | None,
            "out_of_memory_chance": float | None,
            "missing": list[str],
            "assumed": list[str],
            "unsettled": [Unsettled],
        }
    )


def _server_form() -> Record:
    """An audit of a server, or what given servers do under a load."""
    from app.reports.audit.server import PERCENTILES

    spread = Record(dict.fromkeys(("mean_s", *(f"p{level}_s" for level in PERCENTILES)), float))
    finding = Record({"message": str, "fix": str})
    start = nullable(
        Record(
            {
                "starts": bool | None,
                "weights_bytes": float,
                "cache_bytes": float,
                "cache_tokens": float,
                "longest_tokens": int,
                "max_concurrency": float,
                "finding": nullable(finding),
            }
        )
    )
    tcp = Record({"first_token_s": float | None, "requests_per_s": float, "busy": float})
    limits = Record(
        {**dict.fromkeys(("ttft_s", "tpot_s", "end_to_end_s"), float | None), "percentile": float}
    )
    predicted = Record(
        {
            "requests_per_s": float,
            "limits": nullable(limits),
            "mean_ttft_s": float,
            "mean_tpot_s": float,
            "broken": str,
            "over_tcp": nullable(Record({"least": tcp, "most": tcp})),
            **dict.fromkeys(("ttft", "tpot", "end_to_end", "queue"), spread),
            "output_tokens_per_s": float,
            "kv_used_share": float,
            "preemptions": int,
            "makespan_s": float,
        }
    )
    best = Record(
        {
            "requests_per_s": float,
            "layout": str,
            "servers": int,
            "p50_ttft_s": float,
            "p50_tpot_s": float,
            "status": str,
            "gap": float | None,
        }
    )
    change = Record(
        {
            "set": list[str],
            "whole": bool,
            "requests_per_s": float,
            "p50_ttft_s": float,
            "p50_tpot_s": float,
        }
    )
    load = Record(
        {
            "said": str,
            "concurrency": str | None,
            "rate": str | None,
            "input_tokens": str | None,
            "output_tokens": str | None,
            "measured": nullable(
                Record(
                    {
                        "requests_per_s": float | None,
                        "mean_ttft_s": float,
                        "mean_tpot_s": float,
                        "tool": str,
                    }
                )
            ),
            "slower_than_predicted": float | None,
            "predicted": nullable(predicted),
            "best": nullable(best),
            "behind_by": float | None,
            "findings": [finding],
            "assumed": list[str],
            "changes": [change],
            "fits": bool,
        }
    )
    server = Record(
        {
            "model": str,
            "gpu": str,
            "num_gpus": int,
            "replicas": int,
            "layout": str,
            "weights": str,
            "kv_dtype": str,
            "max_batch": int | None,
            "token_budget": int | None,
            "balance_steps": int,
            "gather_steps": int,
        }
    )
    prefill = Record(
        {
            "gpu": str,
            "replicas": int,
            "layout": str,
            "num_gpus": int,
            "max_batch": int | None,
            "token_budget": int | None,
            "start": start,
        }
    )
    return Record(
        {
            **_READ,
            "server": nullable(server),
            "prefill": nullable(prefill),
            "layout": Mapping[str, Any],
            "facts": [_FACT],
            "loads": [load],
            "start": start,
            "starts": bool | None,
            "why": str | None,
            "weights_gib_per_gpu": float | None,
            "kv_cache_tokens": float | None,
            "longest_context": int | None,
            "max_concurrency": float | None,
            "behind_by": float | None,
            "fits": bool | None,
            "missing": list[str],
            "assumed": list[str],
        }
    )


def _diagnosis_form() -> OneOf:
    """Where recorded steps went, or what records beside no trace explain."""
    from planner.diagnose.budget import Totals
    from planner.diagnose.finding import StepFinding
    from planner.diagnose.memory import MemoryResidual
    from planner.diagnose.model_size import ModelSize
    from planner.diagnose.prediction import PartResidual
    from planner.diagnose.serving import ServedSteps
    from planner.diagnose.stragglers import JobSlowdown
    from planner.traces.memory_snapshots import RecordedMemory

    parts, totals = Mapping[str, float], record_of(Totals).fields
    side = Record(
        {
            "hang": StepFinding | None,
            "slowdown": JobSlowdown | None,
            "memory": [RecordedMemory],
            "memory_budgets": [[MemoryResidual]],
            "servers": [str],
            "findings": [StepFinding],
        }
    )
    step = dict.fromkeys(("step_s", "lower_s", "upper_s"), float)
    return OneOf(
        (
            Record(
                {
                    "schema_version": int,
                    "gpu": bool,
                    "ranks": [int],
                    "world_size": int,
                    "step_s": float,
                    **totals,
                    "parts": parts,
                    "windows": [Record({"rank": int, "step": int, "source": str, **totals, "parts": parts})],
                    "layout": Record(
                        {
                            "world_size": int,
                            "degrees": Mapping[str, int],
                            "strides": Mapping[str, int],
                            "evidence": Mapping[str, str],
                        }
                    ),
                    "predicted": nullable(Record({"source": str, **step, "parts": parts})),
                    "residuals": [record_of(PartResidual, residual_s=float)],
                    "findings": [StepFinding],
                    "model": ModelSize | None,
                    "served": ServedSteps | None,
                    "notes": [str],
                    "beside": side,
                }
            ),
            side,
        )
    )


def more_keys() -> Mapping[type, Mapping[str, Any]]:
    """What documents say beside the fields of a dataclass."""
    from costmodel.campaign.record import Limit
    from costmodel.estimate import Estimate
    from costmodel.memory.fit import Fit
    from planner.plan import Alternative, Plan

    return {
        Estimate: {"fit": Fit, "allocator_peak_bytes": float},
        Alternative: {"fit": Fit | None},
        Plan: {"missed": tuple[Limit, ...]},
    }


def keys_of_claims() -> Mapping[type, Mapping[str, Any]]:
    """What a validation says beside the fields of a dataclass."""
    from executor.validation.memory_trace import StageMemory

    return {StageMemory: {"difference": float}}


def keys_of_explanations() -> Mapping[type, Mapping[str, Any]]:
    """What an explanation says beside the fields of a dataclass."""
    from costmodel.campaign.record import Limit
    from planner.analysis.explain import Explanation

    return {Explanation: {"missed": tuple[Limit, ...]}}


BESIDE: Final = {
    "train": more_keys,
    "estimate": more_keys,
    "explain": keys_of_explanations,
    "run": keys_of_claims,
    "validate": keys_of_claims,
}
"""What the documents of a command say beside the fields of dataclasses."""


def schema_of(command: str) -> Schema:
    """The whole schema of a command's document."""
    writer = Writer(BESIDE[command]() if command in BESIDE else {})
    body = writer.of(forms()[command])
    head = {
        "$schema": DIALECT,
        "$id": file_of(command).name,
        "title": TITLE.get(command, f"Answer of plan {command} --json"),
    }
    return {**head, **body, **({"$defs": writer.definitions} if writer.definitions else {})}


TITLE: Final = {REFUSAL: "What any plan COMMAND --json writes that has no answer"}
"""Titles of schemas that are no command's."""


def file_of(command: str) -> Path:
    """Where a schema is written."""
    return FOLDER / f"{command}.v{VERSIONS.get(command, USUAL_VERSION)}.json"


def field_types(schema: Schema) -> dict[str, str]:
    """Types of all fields by their path, those of definitions under their name; required ones are marked.

    >>> field_types({"type": "object", "properties": {"tp": {"type": "integer"}}, "required": ["tp"]})
    {'tp': 'integer, required'}
    """
    bodies = {"": schema, **schema.get("$defs", {})}
    return {
        f"{name}:{path}" if name else path: text
        for name, body in bodies.items()
        for path, text in _fields_of(body, "")
    }


def _fields_of(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    """Fields of an object and of what it holds."""
    for name, each in schema.get("properties", {}).items():
        at = f"{path}.{name}" if path else name
        yield at, _type_words(each) + (", required" if name in schema.get("required", ()) else "")
        yield from _fields_of(each, at)
    for number, each in enumerate(schema.get("anyOf", ())):
        yield from _fields_of(each, f"{path}|{number}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _fields_of(schema[key], f"{path}[]")
    for key, each in schema.get("patternProperties", {}).items():
        yield from _fields_of(each, f"{path}/{key}/")


def _type_words(schema: Schema) -> str:
    """A type in words."""
    if "anyOf" in schema:
        return " or ".join(map(_type_words, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(sorted(map(repr, schema["enum"])))
    kinds = schema.get("type", schema.get("$ref", "anything").rpartition("/")[2])
    inner = schema.get("items")
    words = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    return f"{words} of {_type_words(inner)}" if isinstance(inner, dict) else words


def shipped_fields() -> dict[str, dict[str, str]]:
    """Fields of every schema as it is now, under the name of its file."""
    return {file_of(command).stem: field_types(schema_of(command)) for command in forms()}


def answered(command: str, words: Sequence[str]) -> Any:
    """The document that a command answers with."""
    from app.cli import run

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        run([command, *words, "--json"])
    return json.loads(out.buffer.getvalue().decode())


def saved_files(folder: Path) -> dict[str, str]:
    """Files that `QUESTIONS` name, by what stands for them: two plans, and the script of a server."""
    files = {FIRST: folder / "first.json", SECOND: folder / "second.json", SERVER: folder / "serve.sh"}
    files[SERVER].write_text(
        "vllm serve Qwen/Qwen2.5-7B-Instruct --tensor-parallel-size 4\n", encoding="utf-8"
    )
    for place, gpus in ((FIRST, "8"), (SECOND, "16")):
        plan = answered("train", ("--model", "8b", "--gpus", gpus))
        files[place].write_text(json.dumps(plan), encoding="utf-8")
    return {place: str(path) for place, path in files.items()}


def main() -> None:
    """Write the schemas of the commands that are named, or of all, and add their fields to those shipped."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for command in sys.argv[1:] or forms():
        text = json.dumps(schema_of(command), indent=1, ensure_ascii=False) + "\n"
        file_of(command).write_text(text, encoding="utf-8")
    before = json.loads(SHIPPED.read_text(encoding="utf-8")) if SHIPPED.is_file() else {}
    now = shipped_fields()  # what was shipped stays as it was: the test refuses what differs
    kept = {**before, **{name: {**each, **before.get(name, {})} for name, each in now.items()}}
    SHIPPED.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
