"""What the name of a checkpoint says: which model's shape it has, and what its weights are stored in.

A name is an organisation, a model, and words behind it: of tuning (``Instruct``, ``Thinking``), of a date or
a release (``2507``, ``v0.3``), of a format (``FP8``, ``AWQ``, ``w4a16``). None of these changes a shape. Any
other word does, or may: it is never dropped, so that what is not known stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from costmodel.models.sizes import WeightFormat
from topology.base.errors import LONGEST_SHOWN

FORMAT_OF_WORD: Mapping[str, WeightFormat] = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16", "half": "bf16", "none": "bf16",
    "dequantized": "bf16", "dequantised": "bf16",
    "fp8": "fp8", "fp8_block": "fp8", "fp8_static": "fp8", "w8a8_fp8": "fp8", "mxfp8": "fp8",
    "int8": "int8", "int8_wo": "int8", "w8a16": "int8", "w8a8": "int8", "8bit": "int8",
    "int4": "int4", "int4_wo": "int4", "w4a16": "int4", "awq": "int4", "gptq": "int4", "w4afp8": "int4",
    "w4a8": "int4", "4bit": "int4", "nf4": "int4", "autoround": "int4",
    "fp4": "fp4", "nvfp4": "fp4", "mxfp4": "fp4", "nvfp4a16": "fp4", "w4a16_mxfp4": "fp4",
    "w4a8_mxfp4_mxfp8": "fp4",
}  # fmt: skip
"""Names of weight formats in benchmark tables and checkpoint names."""
_OF_FORMATS = frozenset({
    "dynamic", "static", "quantized", "quantised", "quant", "kv", "block", "channel", "bnb", "marlin",
    "mixed", "qat", "unsloth",
})  # fmt: skip
"""Words beside a format: how its scales are taken, and who packs it."""
_TUNING = frozenset({
    "instruct", "chat", "it", "base", "pt", "hf", "coder", "math", "think", "thinking", "reasoning",
    "preview", "exp", "experimental", "turbo", "sft", "dpo", "rlhf", "rl", "moe", "mcore", "megatron",
    "original",
})  # fmt: skip
"""Words of what a model was trained for after its pretraining, and of whose form the files have."""
_MAKERS = frozenset({"meta", "nvidia"})
"""Organisations whose name stands before those of their models, too."""
_RELEASE = re.compile(r"\d{4}|v0\.\d+")
_SIZE = re.compile(r"(?<![\d.])((?:(?<![a-z0-9])[ae])?\d+(?:\.\d+)?(?:x\d+(?:\.\d+)?)?)(b|m|t)(?![a-z0-9])")
_PLAIN_SIZE = re.compile(r"(\d+(?:\.\d+)?)(b|m|t)")
_COUNT_OF = {"m": 1e6, "b": 1e9, "t": 1e12}
_BRACKETS = re.compile(r"\([^()]*\)")
_PLUS = re.compile(r"(?<=\w)\+(?!\w)")
_VERSION = re.compile(r"v[1-9]\d*(?:\.\d+)?")
_SPLIT = re.compile(r"[-_ ,]+|\.(?=[wW]\d)")


@dataclass(frozen=True, slots=True)
class Spelling:
    """A name without some of its words; `undated` where one was a date or a release, `untuned` of tuning."""

    text: str
    undated: bool = False
    untuned: bool = False


def bare(name: str) -> str:
    """A name without its organisation, and without remarks in brackets.

    >>> bare("meta-llama/Llama-3.1-8B (MLPerf v5.1)"), bare("command-r+")
    ('Llama-3.1-8B', 'command-r-plus')
    """
    model = _BRACKETS.sub("", name[:LONGEST_SHOWN].rstrip("/").rsplit("/", 1)[-1]).strip()
    return _PLUS.sub("-plus", model)


def spellings(name: str) -> Iterator[Spelling]:
    """The name, then without words of its format, then of tuning, then of dates and releases, last first.

    >>> [spelling.text for spelling in spellings("meta-llama/Meta-Llama-3-8B-Instruct")]
    ['Meta-Llama-3-8B-Instruct', 'Meta-Llama-3-8B', 'Llama-3-8B']
    >>> [spelling.text for spelling in spellings("Qwen/Qwen3-4B-Thinking-2507-FP8")][1:]
    ['Qwen3-4B-Thinking-2507', 'Qwen3-4B-2507', 'Qwen3-4B']
    """
    words = [word for word in _SPLIT.split(bare(name)) if word]
    yield Spelling("-".join(words))
    if any(word.lower() in FORMAT_OF_WORD for word in words):
        first = next(at for at, word in enumerate(words) if word.lower() in FORMAT_OF_WORD)
        after = {"v2", *_OF_FORMATS}  # of the quantised files, not of the model
        kept = [
            word
            for at, word in enumerate(words)
            if word.lower() not in FORMAT_OF_WORD
            and word.lower() not in (after if at > first else _OF_FORMATS)
        ]
        if kept and kept != words:
            words = kept
            yield Spelling("-".join(words))
    undated = untuned = False
    for dropped in (_names_tuning, _names_release):
        while len(words) > 1 and (droppable := [at for at in range(len(words)) if dropped(words, at)]):
            undated = undated or dropped is _names_release
            untuned = untuned or dropped is _names_tuning
            words = [word for at, word in enumerate(words) if at != droppable[-1]]
            yield Spelling("-".join(words), undated, untuned)


def _names_tuning(words: list[str], at: int) -> bool:
    """Whether a word is of tuning: not where a version follows, as in DeepSeek-Math-V2, which is no V2."""
    counted = at + 1 < len(words) and _VERSION.fullmatch(words[at + 1].lower()) is not None
    return words[at].lower() in (_TUNING if at else _MAKERS) and not counted


def _names_release(words: list[str], at: int) -> bool:
    return at > 0 and _RELEASE.fullmatch(words[at].lower()) is not None


def weight_format(name: str) -> WeightFormat:
    """What the name says that its weights are stored in, "" where it does not.

    >>> weight_format("Qwen/Qwen2.5-32B-Instruct-GPTQ-Int8"), weight_format("Llama-3.1-8B-quantized.w4a16")
    ('int8', 'int4')
    """
    words = [word.lower() for word in _SPLIT.split(bare(name))]
    stated = [FORMAT_OF_WORD[word] for word in words if word in FORMAT_OF_WORD]
    return stated[-1] if stated else ""


def states_nvfp4(name: str) -> bool:
    """Whether the four bits that the name says are NVFP4's, with a scale to sixteen weights.

    >>> states_nvfp4("nvidia/GLM-5.2-NVFP4"), states_nvfp4("gpt-oss-120b-mxfp4")
    (True, False)
    """
    return bool({"nvfp4", "nvfp4a16"} & {word.lower() for word in _SPLIT.split(bare(name))})


def stated_sizes(name: str) -> frozenset[str]:
    """Sizes that a name states: in all, of those that a token meets (``a3b``), and by experts (``8x7b``).

    >>> sorted(stated_sizes("Qwen3-30B-A3B")), stated_sizes("llama-3.1-70b"), stated_sizes("gpt-oss")
    (['30b', 'a3b'], frozenset({'70b'}), frozenset())
    """
    return frozenset(number + unit for number, unit in _SIZE.findall(name.lower()))


def count_of_size(size: str) -> float | None:
    """Parameters that a size in all states, none of any other size.

    >>> count_of_size("671b"), count_of_size("a3b")
    (671000000000.0, None)
    """
    match = _PLAIN_SIZE.fullmatch(size)
    return float(match[1]) * _COUNT_OF[match[2]] if match else None


def stated_versions(name: str) -> tuple[str, ...]:
    """Numbers of a name that count nothing: `qwen2.5-7b` is 2.5 with 7 B parameters.

    >>> stated_versions("qwen2.5-7b"), stated_versions("Llama-3.1-8B"), stated_versions("mixtral-8x7b")
    (('2.5',), ('3.1',), ())
    """
    return tuple(re.findall(r"(?<![\d.x])\d+(?:\.\d+)*(?![\d.]*[a-zA-Z\d])", name.lower()))
