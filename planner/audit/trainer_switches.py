"""Switches of an engine that files of programs say in words of their own: of the Trainer, of tools over it.

Where an engine has a contract its own words are read by that (`planner.audit.contract_reading`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.stack import SoftwareStack
from costmodel.switches.profile import with_switches
from costmodel.switches.switch import sets_of, switch
from planner.audit.facts import JobFact, meaning
from planner.audit.read import Reading
from planner.engines.fields import stack_facts
from planner.formats.settings import Scalar, truth_of

ON: Mapping[str, tuple[str, str]] = {
    "said.flash_attention": ("attention_kernel", "fa2"),
    "said.sdp_attention": ("attention_kernel", "sdpa"),
    "said.eager_attention": ("attention_kernel", "unfused"),
    "said.liger": ("loss", "fused_linear"),
    "said.fused_loss": ("loss", "fused_cross_entropy"),
    "said.compile": ("compile", "on"),
}
"""Words that are on or off, and the value that each says where it is on."""
NAMED: Mapping[str, str] = {"said.attention_kernel": "attention_kernel"}
"""Words with a value, and the switch that it is of."""
_OTHER_NAMES: Mapping[str, str] = {"disabled": "unfused", "flash_attention_4": "fa4"}
"""Values that tables of measured runs do not have: of LLaMA-Factory, of transformers."""
_WITHOUT = "priced as without it"
BESIDE: Mapping[str, str] = {
    "use_liger_kernel": "norms, rotary positions and activations of Liger too, priced as without them",
    "use_liger": "norms, rotary positions and activations of Liger too, priced as without them",
    "enable_liger_kernel": "norms, rotary positions and activations of Liger too, priced as without them",
}
"""What words do beside their switch."""
HALF: Mapping[str, str] = {"gradient_dtype": "bf16"}
"""What torch makes of weights in sixteen bits: gradients that are no wider."""
OVER_HALF: Mapping[str, str] = {"adamw": "adamw-pure-bf16", "adamw-8bit": "adamw-8bit-no-master"}
"""Optimizers over such weights, which keep no master copy of them."""
_SHARDING = ("said.deepspeed", "said.fsdp", "said.launcher_config", "said.distributed_type")
"""Words of what shards a job, which keeps a wider copy of what it shards."""
OTHERS = ("said.other_attention", "said.kernels")
"""Words of kernels that nothing prices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedSwitch:
    """A value of a switch that a file says; "" where it is none that is known."""

    name: str
    value: str
    fact: JobFact

    @property
    def is_priced(self) -> bool:
        """Whether a term of the cost model answers to it."""
        return bool(self.value) and switch(self.name).value_of(self.value).is_priced


def trainer_switches(reading: Reading) -> Iterator[StatedSwitch]:
    """Switches that words of files say, each with where it stands."""
    for word, name in NAMED.items():
        fact = reading.facts.by_field.get(word)
        if fact is not None:
            text = str(fact.value).lower()
            yield StatedSwitch(name=name, value=switch(name).of_cell(_OTHER_NAMES.get(text, text)), fact=fact)
    for word, (name, value) in ON.items():
        fact = reading.facts.by_field.get(word)
        if fact is not None and (truth_of(fact.value) or _names_a_kind(fact.value)):
            yield StatedSwitch(name=name, value=value, fact=fact)
    half = half_weights(reading)
    if half is not None:
        yield from (StatedSwitch(name=name, value=value, fact=half) for name, value in HALF.items())


def half_weights(reading: Reading) -> JobFact | None:
    """The word with which weights are loaded and updated in sixteen bits; None where they are sharded."""
    facts = reading.facts
    sharded = facts.count("layout.zero_stage") or any(name in facts.by_field for name in _SHARDING)
    if sharded and not reading.family.shards_half:
        return None
    for setting in reading.settings:
        text = str(setting.value).strip("'\"").lower().rpartition(".")[2]
        is_half = text in ("bf16", "bfloat16", "bf16-true", "16-true", "auto") or truth_of(setting.value)
        if setting.path[-1] in reading.family.half_weights and is_half:
            source = f"{setting.name} {setting.value}"
            return JobFact(
                name="switch.gradient_dtype", value="bf16", line=setting.line, source=source,
                file=setting.file, word=setting.name,
            )  # fmt: skip
    return None


def _names_a_kind(value: Scalar) -> bool:
    """Whether a value that is neither yes nor no names how: a compiler."""
    return truth_of(value) is None and str(value).lower() not in ("no", "")


def fields_of_files(reading: Reading, stack: SoftwareStack) -> dict[str, Any]:
    """Fields of a profile that files say, with what the profile's own numbers bound."""
    fields: dict[str, Any] = {}
    for each in trainer_switches(reading):
        if each.is_priced:
            profile = stack_facts(with_switches(stack, {each.name: each.value}))
            fields |= {f"stack.{name}": profile[f"stack.{name}"] for name in sets_of(each.name)}
    return fields


def beside_switches(reading: Reading) -> Iterator[str]:
    """What words of switches say that nothing prices."""
    for each in trainer_switches(reading):
        if not each.is_priced:
            yield f"{each.fact.source}: {_WITHOUT}"
        elif each.fact.word.rpartition(".")[2] in BESIDE:
            yield f"{each.fact.word}: {BESIDE[each.fact.word.rpartition('.')[2]]}"
    for setting in reading.settings:
        if meaning(setting, reading.family.words) in OTHERS and truth_of(setting.value):
            yield f"{setting.name} {setting.value}: {_WITHOUT}"
