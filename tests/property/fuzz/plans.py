"""Plan files: reading one, and every command that takes one."""

from __future__ import annotations

import copy
import functools
import json
from random import Random
from typing import Any

from tests.property.fuzz.mutate import brief, json_of, mutated_text, mutated_tree
from tests.property.fuzz.surface import Box, answer_of_command, run_command


@functools.cache
def plan_texts() -> tuple[str, ...]:
    """Real plans: dense, with alternatives; experts over a pipeline; one that says when it is finished."""
    import meshplan
    from planner.campaign.finish import with_campaign
    from planner.plan import to_json

    dense = meshplan.plan("8b", gpus=8, top=2)
    experts = meshplan.estimate("mixtral-8x7b", gpus=16, set={"tp": 2, "pp": 2, "ep": 4})
    finished = with_campaign(meshplan.plan("8b", gpus=8, top=1, tokens="100B"))
    return to_json(dense), to_json(experts), to_json(finished)


@functools.cache
def plan_trees() -> tuple[Any, ...]:
    return tuple(json.loads(text) for text in plan_texts())


def make_plan(random: Random, story: list[str]) -> str:
    tree = random.choice(plan_trees())
    if random.random() < 0.15:
        return json_of(_tampered(tree, random, story))
    text = json_of(mutated_tree(tree, random, story))
    return mutated_text(text, random, story) if random.random() < 0.1 else text


def _tampered(tree: Any, random: Random, story: list[str]) -> Any:
    """A plan whose types are right and whose claims are not."""
    layers, ranks = tree["layers_of_stage"], len(tree["mesh"]["gpu_of_rank"])
    claims = (
        ("layers_of_stage", random.choice(([1] * len(layers), [-5, layers[0] + 5, *layers[1:]], [sum(layers)], [*layers, 0], []))),
        ("recompute_of_stage", random.choice(([-1], [900] * tree["layout"]["pp"], []))),
        ("mesh.gpu_of_rank", random.choice(([0] * ranks, list(range(1, ranks + 1)), [-1, *range(1, ranks)], []))),
        ("layout.tp", random.choice((2**31, 0, -1, 3))),
        ("layout.axis_order", random.choice((["nosuch"], ["tp"], ["tp", "tp", "pp", "dp", "cp"], []))),
        ("estimate.step_time_s", random.choice((1.0, 1e-9, -1.0, 0.0))),
        ("estimate.lower_s", 1e9),
        ("estimate.peak_memory_bytes", -1.0),
        ("optimality.bound_s", -1.0),
        ("request.cluster.nodes", []),
        ("request.model.num_layers", random.choice((10**8, 0, -1))),
        ("request.job.global_batch_size", random.choice((10**18, 0, 7))),
    )  # fmt: skip
    found = copy.deepcopy(tree)
    for path, value in random.sample(claims, random.choice((1, 1, 2))):
        *outer, name = path.split(".")
        node = found
        for key in outer:
            node = node[key]
        node[name] = value
        story.append(f"{path} = {brief(value)}")
    return found


def read_plan(text: str, box: Box) -> object:
    from app.requests import plan_file

    repr(plan_file.read_plan(box.file("plan.json", text)))
    return None  # what a plan file claims is not our answer: its consumers say what holds


def use_plan(text: str, box: Box) -> object:
    from planner.launch.targets import TARGETS

    path, other = str(box.file("plan.json", text)), str(box.file("other.json", plan_texts()[0]))
    uses = [
        ["diff", path, other, "--json"],
        ["diff", other, path, "--json"],
        ["verify", path, "--no-proof", "--json"],
    ]
    uses += [["export", path, "--to", target] for target in TARGETS]
    uses += [["run", "--dry-run", path, "--run-dir", str(box.folder / "run")]]
    words = uses[sum(text.encode(errors="replace")) % len(uses)]
    if words[0] not in ("export", "run"):
        return answer_of_command(words)
    code, _ = run_command(words)
    broken = structure_faults(json.loads(text)) if code == 0 else []
    if broken:
        raise AssertionError(f"launched by {words[0]} although {broken[0]}")
    return None


def structure_faults(plan: Any) -> list[str]:
    """Why a plan cannot be run whatever its numbers say."""
    layout, layers, gpus = plan["layout"], plan["layers_of_stage"], plan["mesh"]["gpu_of_rank"]
    holds = {
        "layers are not those of the model": sum(layers) == plan["request"]["model"]["num_layers"],
        "a stage has less than no layer": min(layers, default=-1) >= 0,
        "stages are not those of the layout": len(layers) == layout["pp"] * layout["virtual_stages"],
        "a stage recomputes layers it has not": all(
            0 <= count <= sum(layers) for count in plan["recompute_of_stage"]
        ),
        "two ranks share a GPU": len(set(gpus)) == len(gpus) and min(gpus, default=-1) >= 0,
    }
    return [fault for fault, held in holds.items() if not held]


def explain_plan(text: str, box: Box) -> object:
    from app.actions.planned_checks import check_rules
    from app.requests import plan_file

    path = box.file("plan.json", text)
    check_rules(plan_file.read_plan(path))  # the first part of `plan validate`, which alone needs no torch
    return answer_of_command(["explain", str(path), "--json"])
