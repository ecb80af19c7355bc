"""Plan files: reading one, and every command that takes one."""

from __future__ import annotations

import functools
import json
from random import Random
from typing import Any

from tests.property.fuzz.mutate import json_of, mutated_text, mutated_tree
from tests.property.fuzz.surface import Box, answer_of_command


@functools.cache
def plan_texts() -> tuple[str, ...]:
    """Real plans: dense, with alternatives; experts over a pipeline."""
    import meshplan
    from planner.plan import to_json

    dense = meshplan.plan("8b", gpus=8, top=2)
    experts = meshplan.estimate("mixtral-8x7b", gpus=16, set={"tp": 2, "pp": 2, "ep": 4})
    return to_json(dense), to_json(experts)


@functools.cache
def plan_trees() -> tuple[Any, ...]:
    return tuple(json.loads(text) for text in plan_texts())


def make_plan(random: Random, story: list[str]) -> str:
    text = json_of(mutated_tree(random.choice(plan_trees()), random, story))
    return mutated_text(text, random, story) if random.random() < 0.1 else text


def read_plan(text: str, box: Box) -> object:
    from app.requests import plan_file

    repr(plan_file.read_plan(box.file("plan.json", text)))
    return None  # what a plan file claims is not our answer: its consumers say what holds


def use_plan(text: str, box: Box) -> object:
    from planner.engines.targets import TARGETS

    path, other = str(box.file("plan.json", text)), str(box.file("other.json", plan_texts()[0]))
    uses = [
        ["diff", path, other, "--json"],
        ["diff", other, path, "--json"],
        ["verify", path, "--no-proof", "--json"],
    ]
    uses += [["export", path, "--to", target] for target in TARGETS]
    uses += [["run", "--dry-run", path, "--run-dir", str(box.folder / "run")]]
    return answer_of_command(uses[sum(text.encode(errors="replace")) % len(uses)])


def explain_plan(text: str, box: Box) -> object:
    from app.actions.rule_check import check_rules
    from app.requests import plan_file

    path = box.file("plan.json", text)
    check_rules(plan_file.read_plan(path))  # the first part of `plan validate`, which alone needs no torch
    return answer_of_command(["explain", str(path), "--json"])
