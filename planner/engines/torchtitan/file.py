"""A plan as a torchtitan function that fills a `Trainer.Config` (0.3: Python, no TOML)."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from planner.engines.contract import Contract
from planner.engines.dotted import assignments
from planner.engines.limit import Variable
from planner.engines.torchtitan.kernels import CHUNKS
from planner.engines.torchtitan.precision import CONVERTERS
from planner.plan import Plan

_LISTED = "model.converters"


def render(words: Mapping[str, Any], environment: tuple[Variable, ...]) -> str:
    """A function that fills a configuration."""
    lines = [f"# export {variable.name}={variable.value}: {variable.why}" for variable in environment]
    policy = words.get("activation_checkpoint")
    body = [f"    from torchtitan.distributed.activation_checkpoint import {policy}\n"] if policy else []
    for name, value in words.items():
        if name in (_LISTED, CHUNKS):
            continue
        text = f"{value}.Config()" if name == "activation_checkpoint" and value else repr(value)
        body.append(f"    config.{name} = {text}")
    body += _in_chunks(words.get(CHUNKS))
    body += _conversion(words.get(_LISTED, ()), compiled=words["compile.enable"])
    head = ["# torchtitan configuration: call apply_plan with the Trainer.Config of your model's flavour"]
    return "\n".join([
        *head, *lines, "", "", "def apply_plan(config):",
        '    """Fill a Trainer.Config with the plan\'s parallelism and batch."""', *body,
        "    return config\n",
    ])  # fmt: skip


def _in_chunks(chunks: int | None) -> list[str]:
    """Statements that send a flavour's loss through so many chunks."""
    if chunks is None:
        return []
    return [
        "    from torchtitan.components.loss import ChunkedLossWrapper\n",
        '    inner = getattr(config.loss, "loss_fn", config.loss)',
        f"    config.loss = ChunkedLossWrapper.Config(num_chunks={chunks}, loss_fn=inner)",
    ]


def _conversion(converters: Sequence[str], *, compiled: bool) -> list[str]:
    """Statements that swap the linear layers of a model before it is built."""
    if not converters:
        return []
    called = [f"        {name}.Config({_arguments(name, compiled=compiled)})," for name in converters]
    return [
        f"    from torchtitan.components.quantization import {', '.join(converters)}\n",
        "    converters = [", *called, "    ]",
        "    for converter in converters:",
        "        config.model_spec.model = converter.build().convert(config.model_spec.model)",
    ]  # fmt: skip


def _arguments(name: str, *, compiled: bool) -> str:
    arguments = {**CONVERTERS[name].arguments, "model_compile_enabled": compiled}
    return ", ".join(f"{argument}={value!r}" for argument, value in arguments.items())


def parse(text: str, _: Contract) -> dict[str, Any]:
    """What such a function assigns, and the converters that it lists or gives to a `model_registry`."""
    assigned = assignments(text, "config")
    assigned.pop("model_spec.model", None)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ChunkedLossWrapper.Config"):
            for argument in node.keywords:
                if argument.arg == "num_chunks" and isinstance(argument.value, ast.Constant):
                    assigned[CHUNKS] = argument.value.value
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Converter.Config"):
            name = ast.unparse(node.func).removesuffix(".Config").rpartition(".")[2]
            assigned[_LISTED] = [*assigned.get(_LISTED, ()), name]
            for argument in node.keywords:
                if argument.arg == "recipe_name" and isinstance(argument.value, ast.Constant):
                    assigned.setdefault(f"{_LISTED}.recipe_name", argument.value.value)
    return assigned


def notes(plan: Plan) -> tuple[str, ...]:
    """What a flavour must compute with to be the plan's model."""
    model = plan.request.model
    scaling = model.rotary.scaling
    words = [f"norm_eps {model.norm_epsilon:g}"]
    if not model.learned_positions:
        words.append(f"rope_theta {model.rotary.theta:g}")
        words.append(f"rope scaling {f'{scaling.kind} {scaling.factor:g}' if scaling else 'none'}")
    return (f"name the flavour of the model: {', '.join([*words, *model.unmodelled])}",)
