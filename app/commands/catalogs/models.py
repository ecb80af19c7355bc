"""`plan models [NAME]`: the models that can be named, or one of them part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.flags.completion import model_completion
from app.flags.shared import AsJson, OutputFile, OutputFormat

if TYPE_CHECKING:
    from app.reports.answer import Answer
    from costmodel.models.spec import ModelSpec


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|FILE]",
            help="One model, or the path of a config.json.",
            autocompletion=model_completion,
        ),
    ] = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """List the known models with their parameters, or those of a family (llama), or describe one."""
    from app.reports.answer import emit
    from costmodel.models.catalog import model, models
    from topology.base.errors import AmbiguousNameError

    try:
        answer = _list(tuple(models().values())) if name is None else _describe(model(name))
    except AmbiguousNameError as several:
        answer = _list(tuple(models()[each] for each in several.suggestions))
    return emit(answer, wanted=output_format, as_json=as_json, output=output)


def model_record(spec: ModelSpec) -> dict[str, Any]:
    """Give one model as a flat record: its sizes, and what they make."""
    from costmodel.models.parameters import active_parameter_count, parameter_count
    from topology.base.decode import unstructure

    counts = {"parameters": parameter_count(spec), "active_parameters": active_parameter_count(spec)}
    sizes: dict[str, Any] = unstructure(spec)
    return {"name": sizes.pop("name"), **counts, **sizes}


def _list(specs: tuple[ModelSpec, ...]) -> Answer:
    """Give the table of all models."""
    from app.reports.answer import Answer, Table, json_text
    from topology.base.counts import counted

    records = tuple(model_record(spec) for spec in specs)
    columns = (
        "model",
        "parameters",
        "active",
        "layers",
        "hidden",
        "heads",
        "kv",
        "experts",
        "context",
        "vocabulary",
    )
    table = Table(
        title="",
        columns=columns,
        rows=tuple(_row(record) for record in records),
        note="any Hugging Face config.json works too: plan --model path/to/config.json",
    )
    return Answer(
        headline=counted(len(records), "model"),
        sections=(table,),
        document=lambda: json_text({"models": records}),
        records=records,
    )


def _row(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Give one line of the table."""
    experts = f"{record['num_experts_per_token']} of {record['num_experts']}" if record["num_experts"] else ""
    return (
        record["name"],
        _count(record["parameters"]),
        _count(record["active_parameters"]) if experts else "",
        str(record["num_layers"]),
        str(record["hidden_size"]),
        str(record["num_attention_heads"]),
        "latent" if record["kv_lora_rank"] else str(record["num_key_value_heads"]),
        experts,
        str(record["max_sequence_length"]),
        str(record["vocab_size"]),
    )


def _describe(spec: ModelSpec) -> Answer:
    """Give one model part by part."""
    from app.reports.answer import Answer, Facts, Table, json_text
    from costmodel.models.kinds import kind_title
    from costmodel.models.parameters import embedding_parameters, head_parameters, layer_parameters
    from costmodel.models.spec import layer_runs

    record = model_record(spec)
    runs = layer_runs(spec)
    parts = (
        ("embedding", embedding_parameters(spec), 1),
        *(
            (
                f"layer: {kind_title(spec, run.kind)}",
                layer_parameters(spec, run.kind),
                run.count,
            )
            for run in runs
        ),
        ("final norm and head" + (" (tied)" if spec.tie_word_embeddings else ""), head_parameters(spec), 1),
    )
    table = Table(
        title="Parameters",
        columns=("part", "each", "count", "together"),
        rows=tuple((part, f"{each:,}", str(count), f"{each * count:,}") for part, each, count in parts),
    )
    stated = {key: value for key, value in record.items() if value not in (0, "", None, False)}
    facts = Facts(
        title="Sizes",
        pairs=tuple(
            (key.replace("_", " "), f"{value:,}" if _is_count(value) else str(value))
            for key, value in stated.items()
        ),
    )
    return Answer(
        headline=f"{spec.name}: {record['parameters']:,} parameters",
        sections=(table, facts),
        document=lambda: json_text(record),
        records=(record,),
    )


def _is_count(value: object) -> bool:
    """Whether a value is a whole number (and not a truth value)."""
    return isinstance(value, int) and not isinstance(value, bool)


def _count(parameters: int) -> str:
    """Give a number of parameters in billions, three digits or more.

    >>> _count(70_553_706_496), _count(494_032_768)
    ('70.6B', '0.494B')
    """
    from topology.base.units import BILLION

    billions = parameters / BILLION
    return f"{billions:.3g}B" if billions < 1000 else f"{billions:.0f}B"
