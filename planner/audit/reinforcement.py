"""Steps that are more than training: answers that are generated, a reference or a reward that is computed.

Such a step shares its GPUs, or the time on them, with other models, and what is sharded, offloaded and kept
beside them its recipe decides. Nothing here prices that, so it is never priced as training alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.audit.read import Reading
from planner.audit.words import PREFERENCE
from planner.formats.settings import Setting

SUPERVISED = "sft"
"""Table of recipes whose steps are training alone, of engines that else generate: NeMo-RL's run_sft.py."""
_OFF = ("", "none", "null", "false", "no", "0")


def more_than_training(reading: Reading) -> str:
    """What of a job is no training, in words; empty where nothing is."""
    if reading.family.generates and not any(setting.path[0] == SUPERVISED for setting in reading.settings):
        return f"{reading.family.name} generates and scores answers beside it, as its recipes have it"
    named = next(_words(reading.settings), None)
    if named is None:
        return ""
    return f"{named.name} {named.value} has answers generated, or other models run, beside it"


def _words(settings: tuple[Setting, ...]) -> Iterator[Setting]:
    """Settings that only jobs with such steps have."""
    for setting in settings:
        values = PREFERENCE.get(setting.path[-1])
        value = str(setting.value).strip().lower()
        if values is not None and value not in _OFF and (not values or value in values):
            yield setting
