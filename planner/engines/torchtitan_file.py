"""A plan as a torchtitan function that fills a `Trainer.Config` (0.3: Python, no TOML)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.engines.contract import Contract
from planner.engines.dotted import assignments
from planner.engines.limit import Variable
from planner.plan import Plan


def render(words: Mapping[str, Any], environment: tuple[Variable, ...]) -> str:
    """A function that fills a configuration."""
    lines = [f"# export {one.name}={one.value}: {one.why}" for one in environment]
    policy = words.get("activation_checkpoint")
    body = [f"    from torchtitan.distributed.activation_checkpoint import {policy}\n"] if policy else []
    for name, said in words.items():
        text = f"{said}.Config()" if name == "activation_checkpoint" and said else repr(said)
        body.append(f"    config.{name} = {text}")
    head = ["# torchtitan configuration: call apply_plan with the Trainer.Config of your model's flavour"]
    return "\n".join([
        *head, *lines, "", "", "def apply_plan(config):",
        '    """Fill a Trainer.Config with the plan\'s parallelism and batch."""', *body,
        "    return config\n",
    ])  # fmt: skip


def parse(text: str, _: Contract) -> dict[str, Any]:
    """What such a function assigns."""
    return assignments(text, "config")


def notes(plan: Plan) -> tuple[str, ...]:
    """What a flavour must compute with to be the plan's model."""
    model = plan.request.model
    scaling = model.rotary.scaling
    words = [f"norm_eps {model.norm_epsilon:g}"]
    if not model.learned_positions:
        words.append(f"rope_theta {model.rotary.theta:g}")
        words.append(f"rope scaling {f'{scaling.kind} {scaling.factor:g}' if scaling else 'none'}")
    return (f"name the flavour of the model: {', '.join([*words, *model.unmodelled])}",)
