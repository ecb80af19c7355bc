"""Files of settings for `plan run`: each is read, or refused."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.property.fuzz.mutate import mutated_text, mutated_tree, toml_of
from tests.property.fuzz.surface import Box

_FILES: tuple[dict[str, Any], ...] = (
    {
        "plan": "asked-plan.json",
        "steps": 100,
        "seed": 3,
        "fp32": True,
        "learning_rate": 3e-4,
        "env": ["PATH"],
    },
    {
        "data": "0.7=a.idx,0.3=b.npy",
        "eval_data": "c.npy",
        "lr_schedule": "wsd",
        "versions": {"torch": "2.13.0"},
    },
)


def make_settings(random: Random, story: list[str]) -> str:
    text = toml_of(mutated_tree(random.choice(_FILES), random, story))
    return mutated_text(text, random, story) if random.random() < 0.2 else text


def read_settings(text: str, box: Box) -> object:
    from app.store.run_settings import read_run_file

    return read_run_file(Path(box.file("settings.toml", text)))
