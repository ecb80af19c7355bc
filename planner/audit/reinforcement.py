"""Steps that are more than training: answers that are generated, a reference or a reward that is computed.

Such a step shares its GPUs, or the time on them, with other models, and what is sharded, offloaded and kept
beside them its recipe decides. Nothing here prices that. Where files state how many answers an update trains
on, the update alone is priced: never as the step, and no verdict of memory rests on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.audit.read import Reading
from planner.audit.words import PREFERENCE
from planner.formats.settings import Setting
from topology.base.units import format_seconds

SUPERVISED = "sft"
"""Table of recipes whose steps are training alone, of engines that else generate: NeMo-RL's run_sft.py."""
SUPERVISED_LOSS = ("loss_type", "sft_loss")
"""What tells slime that its samples are those of a file (slime/utils/arguments.py)."""
_OFF = ("", "none", "null", "false", "no", "0")


def more_than_training(reading: Reading) -> str:
    """What of a job is no training, in words; empty where nothing is."""
    if reading.family.generates and not any(setting.path[0] == SUPERVISED for setting in reading.settings):
        return f"{reading.family.name} generates and scores answers beside it, as its recipes have it"
    if any((each.path[-1], str(each.value)) == SUPERVISED_LOSS for each in reading.settings):
        return ""
    named = next(_words(reading.settings), None)
    if named is None:
        return ""
    return f"{named.name} {named.value} has answers generated, or other models run, beside it"


def update_alone(reading: Reading) -> str:
    """What is priced of a step that generates answers, in words; empty where nothing is.

    An update of the policy reads whole answers: its length and its batch must follow from what is stated.
    """
    facts = reading.facts
    stated = facts.count("job.sequence_length") and facts.count("job.global_batch_size")
    if not reading.family.generates or not stated:
        return ""
    batch, length = facts.count("job.global_batch_size"), facts.count("job.sequence_length")
    size = f"{batch:,} prompts with answers, {length:,} tokens at most"
    return f"an update of the policy alone is priced, {size}"


def without_whole_steps(reading: Reading) -> Reading:
    """Files without the steps of a log that are of everything together, where the update alone is priced.

    They are told, and compared with nothing.
    """
    log = reading.measured
    if log is None or not log.has_steps or not update_alone(reading) or not more_than_training(reading):
        return reading
    step = "" if log.step_time_s is None else f" of {format_seconds(log.step_time_s)}"
    why = f"the log's steps{step} are of generating, scoring and updating together: compared with nothing"
    return replace(reading, measured=None, doubts=[*reading.doubts, why])


def _words(settings: tuple[Setting, ...]) -> Iterator[Setting]:
    """Settings that only jobs with such steps have."""
    for setting in settings:
        values = PREFERENCE.get(setting.path[-1])
        value = str(setting.value).strip().lower()
        if values is not None and value not in _OFF and (not values or value in values):
            yield setting
