"""How the words of each engine become files, and its files words again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.engines import accelerate, bridge, deepspeed, meshplan, program
from planner.engines.contract import Contract
from planner.engines.limit import Variable
from planner.engines.megatron_lm import script
from planner.engines.torchtitan import file as torchtitan
from planner.engines.wrappers import tensorflow
from planner.plan import Plan

Files = Mapping[str, str]
"""Texts by file name, the main one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The files of one engine.

    Attributes:
        render: A plan, its words and the environment as files.
        parse: The words of such files.
        notes: What is left to the user.
    """

    render: Callable[[Plan, Mapping[str, Any], tuple[Variable, ...]], Files]
    parse: Callable[[Files, Contract], Mapping[str, Any]]
    notes: Callable[[Plan], tuple[str, ...]] = lambda _: ()


def _of_file(
    file_name: str,
    render: Callable[[Mapping[str, Any], tuple[Variable, ...]], str],
    parse: Callable[[str, Contract], Mapping[str, Any]],
    notes: Callable[[Plan], tuple[str, ...]] = lambda _: (),
) -> Format:
    """The format of an engine that has one file."""
    return Format(
        render=lambda _, words, environment: {file_name: render(words, environment)},
        parse=lambda files, contract: parse(files[file_name], contract),
        notes=notes,
    )


def _tokenizer(plan: Plan) -> tuple[str, ...]:
    size = plan.request.model.vocab_size
    return (f"choose the tokenizer: its vocabulary, at most {size:,}, is padded to the model's",)


def _with_program(form: Format) -> Format:
    """The same, and what a program of the user's own takes from the plan."""
    return Format(
        render=lambda plan, words, environment: {
            **form.render(plan, program.of_engine(words), environment),
            **program.render(words),
        },
        parse=lambda files, contract: {**form.parse(files, contract), **program.parse(files)},
        notes=form.notes,
    )


PLAN_FILE = "plan.json"
FORMATS: Mapping[str, Format] = {
    "megatron": _of_file("megatron_args.sh", script.render, script.parse, _tokenizer),
    "megatron-bridge": _of_file("bridge_plan.py", bridge.render, bridge.parse, bridge.notes),
    "torchtitan": _of_file("torchtitan_plan.py", torchtitan.render, torchtitan.parse, torchtitan.notes),
    "deepspeed": _with_program(
        _of_file("ds_config.json", deepspeed.render, deepspeed.parse, deepspeed.notes)
    ),
    "accelerate": _with_program(
        Format(
            render=lambda _, words, environment: accelerate.render(words, environment),
            parse=accelerate.parse,
        )
    ),
    "colossalai": _with_program(_of_file("colossalai_plan.json", deepspeed.render, deepspeed.parse)),
    "horovod": _with_program(_of_file("horovod_plan.json", deepspeed.render, deepspeed.parse)),
    "tensorflow": _with_program(
        _of_file("tensorflow_plan.json", deepspeed.render, deepspeed.parse, tensorflow.notes)
    ),
    "meshplan": Format(
        render=lambda plan, *_: {PLAN_FILE: meshplan.render(plan)},
        parse=lambda files, _: meshplan.parse(files[PLAN_FILE]),
    ),
}
"""Files of every engine that has a contract."""
