"""What the note of a row of measured runs states of its engine: words that are known, and what denies them.

A note is prose. A word in it is a setting only where its own clause does not deny it: `no CUDA graphs`,
`LoRA disabled`, `async_tp=False` and `--no-async-tp` state the opposite of what they name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

STATED: Final[Mapping[str, str]] = {
    "async tensor parallelism": r"async tp",
    "dropped tokens": r"token drop",
    "CUDA graphs": r"\bcg\b|cuda ?graph",
    "flash_attention_2": r"flash att(?:entio)?n 2",
    "flash_attention_3": r"flash att(?:entio)?n 3",
    "flash_attention_4": r"flash att(?:entio)?n 4",
    "fused lm head": r"fused lm head",
    "lm head in chunks": r"lm head in chunks",
    "blocking launches": r"launch blocking",
    "FP8 activations": r"fp8 activation store",
    "FP32 gradients": r"fp32 grad accumulation",
    "attention inside documents": r"attention (?:of|inside|within) (?:each |short |packed )*documents?"
    r"|\bdocument mask(?:s|ing)?\b|\bblock causal\b",
    "activation offload": r"\bactivations? offload",
    "memory of processes": r"nvidia smi",
    "dropout": r"\bdropout 0?\.\d{0,3}[1-9]",
    "further tokens": r"\bmtp\b",
    "LoRA": r"\blora\b",
    "QLoRA": r"\bqlora\b",
    "DoRA": r"\bdora\b",
}
"""Everything that is read in a note: what it states, and its words in small letters without dashes."""

_CLAUSE = re.compile(r"[;,()\[\]|]|\.\s|\bbut\b|\bthen\b|\binstead\b")
_DENIED_BEFORE = re.compile(
    r"\b(?:no|not|non|never|without|w/o|neither|nor|lacks?|excludes?|excluding|except|disabl\w*|deactivat\w*"
    r"|skip\w*|avoid\w*|(?:do|does|did|is|are|was|were)n't)\b(?! only)(?:\s+[^\s]+){0,3}\s*$"
)
_DENIED_AFTER = re.compile(
    r"^\w*(?:\s+\w+ing|\s+kernels?|\s+capture)?\s*"
    r"(?:[=:]\s*(?:0\b|false|off|no\b|none|disabled|null)"
    r"|(?:is|are|was|were|being|has been|have been|had been|been|stays?|turned|switched|set to|to be)*\s*"
    r"(?:disabled|deactivated|off\b|unused|unavailable|false|never|absent|excluded|removed|skipped|no\b"
    r"|not\s+(?:yet |been )?(?:used|enabled|on\b|active|applied|captured|stated|set|run|in use|trained"
    r"|supported|available|measured|included|present|possible)))"
)
_VERB = re.compile(r"(?:is|are|was|were)n't")


def stated(text: str, what: str) -> bool | None:
    """Whether a text states something of `STATED`, or denies it; None where it has no word of it.

    >>> stated("trained with CUDA graphs", "CUDA graphs"), stated("CUDA graphs disabled", "CUDA graphs")
    (True, False)
    >>> stated("CUDA_LAUNCH_BLOCKING=0", "blocking launches"), stated("bf16", "CUDA graphs")
    (False, None)

    Args:
        text: The note, as written.
        what: A key of `STATED`.
    """
    plain = _VERB.sub(lambda verb: f"{verb.group()[:-3]} not", re.sub(r"[_\-–]+", " ", text.lower()))
    result = [
        not (_DENIED_BEFORE.search(clause[: word.start()]) or _DENIED_AFTER.match(clause[word.end() :]))
        for clause in _CLAUSE.split(plain)
        for word in re.finditer(STATED[what], clause)
    ]
    return any(result) if result else None
