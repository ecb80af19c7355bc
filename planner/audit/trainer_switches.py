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
from planner.formats.settings import Scalar, truth_of, whole_or_none

ON: Mapping[str, tuple[str, str]] = {
    "said.flash_attention": ("attention_kernel", "fa2"),
    "said.sdp_attention": ("attention_kernel", "sdpa"),
    "said.eager_attention": ("attention_kernel", "unfused"),
    "said.liger": ("loss", "fused_linear"),
    "said.fused_loss": ("loss", "fused_cross_entropy"),
    "said.fused_head": ("loss", "fused_linear"),
    "said.compile": ("compile", "on"),
}
"""Words that are on or off, and the value that each says where it is on."""
NAMED: Mapping[str, str] = {"said.attention_kernel": "attention_kernel"}
"""Words with a value, and the switch that it is of."""
_OTHER_NAMES: Mapping[str, str] = {"disabled": "unfused", "flash_attention_4": "fa4"}
"""Values that tables of measured runs do not have: of LLaMA-Factory, of transformers."""
LOSSES: Mapping[str, str] = {
    "cewithchunkedoutputloss": "chunked:8",
    "linearcrossentropyloss": "chunked:8",
}
"""Classes of losses of torchtune, which go through the logits in chunks (torchtune/modules/loss: eight)."""
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
    loss = reading.facts.by_field.get("said.loss_class")
    if loss is not None and (chunks := LOSSES.get(str(loss.value).lower().rpartition(".")[2])):
        yield StatedSwitch(name="loss", value=chunks, fact=loss)
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
    if truth_of(reading.facts.value("said.update_in_backward")):
        fields["stack.updates_in_backward"] = True
    if paged_optimizer(reading):
        fields["stack.pages_moments"] = True
    if (ranks := second_shard(reading)) > 1:
        fields["stack.second_shard"] = ranks
    return fields


def second_shard(reading: Reading) -> int:
    """Ranks that share a second copy of the weights (DeepSpeed's hpZ); 1 where there is none.

    Optimizer and gradients stay those of all ranks (deepspeed/runtime/zero/partition_parameters.py).
    """
    return whole_or_none(reading.facts.value("said.second_shard")) or 1


def paged_optimizer(reading: Reading) -> str:
    """The name of an optimizer of bitsandbytes whose moments are paged; empty where none is named.

    They are managed memory (bitsandbytes/functional.py, get_paged), which no room of a GPU binds.
    """
    name = str(reading.facts.value("said.trainer_optimizer") or "").rpartition(".")[2]
    return name if name.lower().startswith("paged") else ""


def beside_switches(reading: Reading) -> Iterator[str]:
    """What words of switches say that nothing prices."""
    for each in trainer_switches(reading):
        if not each.is_priced:
            yield f"{each.fact.source}: {_WITHOUT}"
        elif each.fact.word.rpartition(".")[2] in BESIDE:
            yield f"{each.fact.word}: {BESIDE[each.fact.word.rpartition('.')[2]]}"
    if (ranks := second_shard(reading)) > 1:
        source = reading.facts.by_field["said.second_shard"].source
        yield f"{source} gathers weights of the backward among {ranks} GPUs: a step is priced as without it"
    if name := paged_optimizer(reading):
        yield f"moments of {name} are pages that leave a full GPU: memory has none, a step no way to the host"
    for setting in reading.settings:
        if meaning(setting, reading.family.words) in OTHERS and truth_of(setting.value):
            yield f"{setting.name} {setting.value}: {_WITHOUT}"
