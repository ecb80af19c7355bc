"""Jobs that multiply in fp32, which no estimate knows: no word asks for sixteen bits, or a log prints fp32.

Megatron-LM trains in fp32 where neither ``--bf16`` nor ``--fp16`` is given, and prints so: "using
torch.float32 for parameters ..." (megatron/training/arguments.py).
"""

from __future__ import annotations

from planner.audit.contract_reading import contract_of, has_untold_words, states_all
from planner.audit.read import Reading

_WIDE = frozenset(("32", "32-true", "fp32", "float32", "torch.float32"))
"""How tools call fp32."""


def in_full_precision(reading: Reading) -> str:
    """Why a job is known to multiply in fp32, in words; empty where it is not.

    Args:
        reading: What the files say.
    """
    facts = reading.facts
    fact = facts.by_field.get("said.precision")
    if "job.precision" in facts.by_field or "said.bf16" in facts.unknown:
        return ""
    if fact is not None and not fact.word:
        return f"{fact.source} says so" if fact.value in _WIDE else ""
    if fact is not None and fact.word.rpartition(".")[2].strip("-") == "precision":
        return fact.source if str(fact.value).lower() in _WIDE else ""
    contract = contract_of(reading)
    if contract is None or reading.family.name != "Megatron-LM":
        return ""
    if "shell" not in reading.kinds.values() or has_untold_words(reading):
        return ""
    return "neither --bf16 nor --fp16 is given" if states_all(reading, contract) else ""
