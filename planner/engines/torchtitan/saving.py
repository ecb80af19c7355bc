"""How often torchtitan saves and what it keeps: words of ``components/checkpointer`` of 0.3.0."""

from __future__ import annotations

from typing import Any

from planner.engines.fields import Facts
from planner.engines.setting import EngineSetting, Given, Word

_C = "checkpoint."


def _write_saving(facts: Facts) -> dict[str, Any]:
    """Checkpoints are off unless enabled; kept are the last ones."""
    if facts.get("campaign.save_interval_steps") is None:
        return {}
    return {
        f"{_C}enable": True,
        f"{_C}interval": facts["campaign.save_interval_steps"],
        f"{_C}keep_latest_k": facts["campaign.kept_checkpoints"],
        f"{_C}async_mode": "async" if facts["campaign.asynchronous"] else "disabled",
    }


def _read_saving(given: Given) -> dict[str, Any]:
    if not given[f"{_C}enable"]:
        return {}
    return {
        "campaign.save_interval_steps": given[f"{_C}interval"],
        "campaign.kept_checkpoints": given[f"{_C}keep_latest_k"],
        "campaign.asynchronous": given[f"{_C}async_mode"] != "disabled",
    }


SAVING = EngineSetting(
    words=(
        Word(name=f"{_C}enable", kind="flag", default=False, aliases=(f"{_C}enable_checkpoint",)),
        Word(name=f"{_C}interval", kind="int", default=500),
        Word(name=f"{_C}keep_latest_k", kind="int", default=10),
        Word(name=f"{_C}async_mode", default="disabled"),
    ),
    fields=("campaign.save_interval_steps", "campaign.kept_checkpoints", "campaign.asynchronous"),
    write=_write_saving,
    read=_read_saving,
)
