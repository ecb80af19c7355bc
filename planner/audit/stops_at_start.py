"""What tools over the Trainer stop at before their first step: two words of their files that contradict.

Each is an assertion of the tool itself, quoted beside it. A log with steps is of a job that had other words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.audit.read import Reading
from planner.formats.settings import Setting, truth_of, whole_or_none
from planner.law import Law, stop

_TRAINERS = ("HF Trainer", "LLaMA-Factory", "Axolotl", "ms-swift", "Unsloth")
"""Families whose jobs are Trainers of transformers."""
_BATCHES: Mapping[str, tuple[str, ...]] = {
    "train_micro_batch_size_per_gpu": ("per_device_train_batch_size", "micro_batch_size"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
}
"""Counts of DeepSpeed's file, and the Trainer's words for them."""
_WHOLE = "train_batch_size"
WEIGHTS_SHARED = 3
"""The stage of ZeRO that shares weights."""


def _ran(reading: Reading) -> bool:
    """Whether a log shows that the job started."""
    return reading.measured is not None and reading.measured.has_steps


def _is_trainer_over_deepspeed(reading: Reading) -> bool:
    """Whether a job that no log shows running is a Trainer's that is handed a file of DeepSpeed."""
    over_deepspeed = "said.deepspeed" in reading.facts.by_field
    return reading.family.name in _TRAINERS and over_deepspeed and not _ran(reading)


def _is_of_deepspeed(setting: Setting, reading: Reading) -> bool:
    """Whether a setting stands at the top of a DeepSpeed configuration."""
    return reading.kinds.get(setting.file) == "json" and len(setting.path) == 1


def _word(reading: Reading, *names: str) -> Setting | None:
    """The first setting of some names outside DeepSpeed's own file."""
    return next(
        (
            setting
            for setting in reading.settings
            if setting.path[-1].replace("-", "_") in names and not _is_of_deepspeed(setting, reading)
        ),
        None,
    )


def _counts(reading: Reading) -> Iterator[tuple[Setting, str, int]]:
    """Counts of DeepSpeed's file that are numbers, with what the Trainer has for them and in which word."""
    written = {
        setting.path[-1]: setting
        for setting in reversed(reading.settings)
        if _is_of_deepspeed(setting, reading) and (whole_or_none(setting.value) or 0) > 0
    }
    product, parts = reading.facts.count("cluster.num_gpus") or 0, []
    for name, words in _BATCHES.items():
        word = _word(reading, *words)
        count = 0 if word is None else whole_or_none(word.value) or 0
        product *= count
        if word is not None and count > 0:
            parts.append(word.name)
            if name in written:
                yield written[name], f"{word.name} {count}", count
    if _WHOLE in written and product > 0:
        yield written[_WHOLE], f"GPUs · {' · '.join(parts)} = {product}", product


def _batches(reading: Reading) -> tuple[str, str] | None:
    """transformers/integrations/deepspeed.py: "DeepSpeed config values that mismatch TrainingArguments"."""
    if not _is_trainer_over_deepspeed(reading):
        return None
    if (searched := _word(reading, "auto_find_batch_size")) is not None and truth_of(searched.value):
        return None
    wrong = [
        (setting, words, count)
        for setting, words, count in _counts(reading)
        if whole_or_none(setting.value) != count
    ]
    if not wrong:
        return None
    differ = "; ".join(f"{setting.name} {setting.value} beside {words}" for setting, words, _ in wrong)
    fix = ", ".join(f'"{setting.name}": "auto"' for setting, _, _ in wrong)
    return f"the Trainer stops where DeepSpeed's file has another batch: {differ}", f"set {fix}"


def _quantized_adapter(reading: Reading) -> tuple[str, str] | None:
    """axolotl/utils/schemas/peft.py: "Can't load qlora in 8bit", "Require cfg.load_in_4bit … for qlora".

    Without a word of four bits releases since 2026 take them, so that one says nothing.
    """
    if reading.family.name != "Axolotl" or _ran(reading):
        return None
    adapter, eight, four = (_word(reading, name) for name in ("adapter", "load_in_8bit", "load_in_4bit"))
    others = (_word(reading, name) for name in _OTHERWISE)
    if any(word is not None and str(word.value).lower() not in _OFF for word in others):
        return None
    if adapter is None or str(adapter.value).lower() in _OFF:
        held = next((word for word in (four, eight) if word is not None and truth_of(word.value)), None)
        if held is None:
            return None
        return f"{held.name} without an adapter: Axolotl trains no whole model in it", "set adapter: qlora"
    if str(adapter.value).lower() != "qlora":
        return None
    if eight is not None and truth_of(eight.value):
        return "adapter: qlora with load_in_8bit: Axolotl loads it in four bits alone", (
            "set load_in_4bit: true and load_in_8bit: false, or adapter: lora"
        )
    if four is not None and truth_of(four.value) is False:
        return "adapter: qlora without load_in_4bit: Axolotl loads it in four bits alone", (
            "set load_in_4bit: true, or adapter: lora"
        )
    return None


_OTHERWISE = ("merge_lora", "inference", "backend", "model_quantization_config")
"""Words of Axolotl beside which it loads a model otherwise."""
_OFF = ("", "none", "null", "false")


def _placed_model(reading: Reading) -> tuple[str, str] | None:
    """Transformers modeling_utils.py: "DeepSpeed Zero-3 is not compatible with passing a `device_map`".

    Only arguments that were made before the model tell it of the stage.
    """
    if not _is_trainer_over_deepspeed(reading) or reading.facts.count("said.zero_stage") != WEIGHTS_SHARED:
        return None
    placed, arguments = _word(reading, "device_map"), _word(reading, "__class__")
    if placed is None or arguments is None or placed.file != arguments.file or placed.line < arguments.line:
        return None
    if placed.value not in _PLACES:
        return None
    return f"device_map {placed.value} beside ZeRO-3: from_pretrained stops", "leave device_map out"


_PLACES = ("auto", "balanced", "balanced_low_0", "sequential", "cpu", "cuda")
"""Ways to place a model that are written out."""


STOPS_AT_START: tuple[Law[[Reading], [Reading]], ...] = (
    stop(name="batch-of-deepspeed", reads=("job.global_batch_size", "said.deepspeed"), stops=_batches),
    stop(name="quantized-adapter", reads=("said.adapter",), stops=_quantized_adapter),
    stop(name="device-map", reads=("said.zero_stage",), stops=_placed_model),
)
"""Contradictions of words, by tool."""
