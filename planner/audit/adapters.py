"""Adapters and frozen weights that files state, in the words of any tool: never priced as a whole model.

Names are those of PEFT's `LoraConfig` and of the programs around it: TRL, LLaMA-Factory, Axolotl, ms-swift,
NeMo. The kind is stated by one word and its sizes by others; a size alone may mean nothing
(TRL ignores ``lora_r`` without ``use_peft``), so such a job is not priced until the kind is stated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.updates.adapters import Adapter, AdapterKind, AdapterTarget, BaseFormat
from planner.audit.facts import SKIPPED_PARTS, tables_switched_off
from planner.formats.python_config import CLASS
from planner.formats.settings import NOT_KNOWN, Setting, number, truth_of, whole_or_none
from topology.base.errors import InputError, shortened

_OF_PROGRAMS = (
    "peft_config.__class__", "lora_config.__class__", "config.__class__", "model.fast_language_model",
    "model._component_", "tune.recipe", "litgpt.recipe",
)  # fmt: skip
"""Variables of programs that may hold an adapter: by the class or the function that makes it."""
_KINDS = (
    "tuner_type", "train_type", "sft_type", "finetuning_type", "adapter", "peft_type", "peft_scheme",
    "peft_method", "peft", "tuning_type", "lora_type", "peft._target_",
    *_OF_PROGRAMS,
)  # fmt: skip
"""Words whose value names what is trained."""
_SWITCHES = (
    "use_peft",
    "use_lora",
    "lora",
    "enable_lora",
    "use_qlora",
    "use_dora",
    "use_rslora",
    "load_lora",
)
_RANKS = (
    "lora_rank",
    "lora_r",
    "lora_dim",
    "peft.dim",
    "lora.rank",
    "lora.r",
    "lora_config.r",
    "peft_config.r",
    "config.r",
    "model.r",
    "adapter_dim",
)
_ALPHAS = ("lora_alpha", "lora.alpha", "lora_config.lora_alpha", "peft.alpha")
_DROPOUTS = ("lora_dropout", "lora.dropout", "lora_config.lora_dropout")
_TARGETS = ("lora_attn_modules", "lora_target", "lora_target_modules", "target_modules", "lora_targets")
_EVERYWHERE = ("lora_target_linear", "match_all_linear", "apply_lora_to_mlp", "lora_mlp")
_FOUR, _EIGHT = ("load_in_4bit",), ("load_in_8bit",)
_BITS = ("quantization_bit", "quant_bits", "quantization_bits", "bits")
_QUANTIZERS = ("quantize",)
_OF_LITGPT = ("lora_query", "lora_key", "lora_value", "lora_projection", "lora_mlp")
"""LitGPT's switches of matrices (litgpt/finetune/lora.py): query and value are on, the others off."""
_WHOLE = ("full", "none", "false", "no", "0", "", "null")
_NAMES: Mapping[str, AdapterKind] = {"lora": "lora", "qlora": "qlora", "dora": "dora"}
_PARTS: Mapping[AdapterTarget, re.Pattern[str]] = {
    "attention": re.compile(r"\b(?:[qkvo]_proj|c_attn|qkv|linear_qkv|linear_proj|query\w*|dense)\b"),
    "mlp": re.compile(r"\b(?:gate_proj|up_proj|down_proj|linear_fc[12]|w[123]|mlp|c_fc|c_proj)\b"),
}
_ALL = re.compile(r"\b(?:all|all-linear|all_linear|linear)\b")
_CONFIG = re.compile(r"(?:lora|peft)config|get_peft_model|\.q?lora_|lora_finetune|finetune_lora")
"""Classes whose instances are adapters, functions of Unsloth and torchtune that build one, recipes."""
_TABLE = re.compile(r"(?:lora|peft)config")
"""Classes whose arguments are the sizes of an adapter (peft/tuners/lora/config.py)."""
RANK_OF_BRIDGE = 32
"""Rank of `LoRA` of Megatron-Bridge (src/megatron/bridge/peft/lora.py)."""
_OF_PEFT = "programs around PEFT have"
USUAL_RANK = 8
"""Rank of `LoraConfig` of PEFT, and of LLaMA-Factory and ms-swift, where no word states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedAdapter:
    """What files state of an adapter.

    Attributes:
        adapter: It as it is priced; None where it cannot be.
        why: Why it is not priced; empty where it is.
        assumed: What was taken for granted for its price.
    """

    adapter: Adapter | None = None
    why: str = ""
    assumed: tuple[str, ...] = ()


def stated_adapter(settings: Iterable[Setting], *, rank_decides: bool = False) -> StatedAdapter | None:
    """The adapter that settings state; None where they train a whole model.

    Args:
        settings: Of the files.
        rank_decides: Whether a rank above zero alone switches an adapter on (`Family.rank_decides`).
    """
    given = _named(settings)
    kind = _kind(given)
    sizes = [setting for name in _RANKS if (setting := given.get(name)) is not None and setting.value]
    sizes = [setting for setting in sizes if whole_or_none(setting.value) != 0]
    if kind is None and sizes and (rank_decides or _base("", given) != "half"):
        kind = "lora"  # of a base in few bits an adapter alone is trained
    if kind is None and sizes and "lora_module_name" in given:
        kind = "lora"  # DeepSpeed-Chat: a rank above zero replaces the linear layers of these modules
    if kind is None:
        frozen = _frozen(given)
        if frozen:
            return StatedAdapter(why=frozen)
        if sizes and not _says_whole(given):
            word = f"{sizes[0].name} {sizes[0].value}"
            return StatedAdapter(why=f"{word} is stated, and no word says whether an adapter is trained")
        return None
    if kind not in _NAMES:
        return StatedAdapter(why=f"{kind} is stated, which is not priced")
    return _priced(kind, given)


def _named(settings: Iterable[Setting]) -> dict[str, Setting]:
    """Settings by the ends of their names, the first of each."""
    given = tuple(settings)
    off = tables_switched_off(given)
    by_ending: dict[str, Setting] = {}
    for setting in given:
        path = setting.path
        if SKIPPED_PARTS.intersection(path[:-1]) or any(path[: len(table)] == table for table in off):
            continue
        for length in (1, 2):
            by_ending.setdefault(".".join(path[-length:]), setting)
    for setting in given:  # whatever a program calls the variable that holds an adapter's table
        if setting.path[-1] == CLASS and _TABLE.fullmatch(_text(setting)):
            of_table = (each for each in given if each.path[:-1] == setting.path[:-1])
            return by_ending | {f"lora_config.{each.path[-1]}": each for each in of_table}
    return by_ending


def _text(setting: Setting | None) -> str:
    """The value of a setting in small letters; empty where there is none."""
    if setting is None or setting.value is None:
        return ""
    return str(setting.value).strip().strip("'\"").lower()


def _kind(given: Mapping[str, Setting]) -> str | None:
    """What is trained in place of all weights; None where no word names it."""
    kind: str | None = None
    for name in _KINDS:
        text = _text(given.get(name))
        if name not in given or text in _WHOLE or (name in _OF_PROGRAMS and not _CONFIG.search(text)):
            continue
        if text == NOT_KNOWN:
            return "an adapter that only a run knows"
        kind = "lora" if text in ("true", "yes", "1", "peft") or _CONFIG.search(text) else text
        kind = "qlora" if ".qlora_" in text else kind
        break
    if kind is None:
        on = [name for name in _SWITCHES if name in given and truth_of(given[name].value)]
        kind = ("dora" if "use_dora" in on else "lora") if on else None
    if kind == "lora" and truth_of(given["use_dora"].value if "use_dora" in given else None):
        kind = "dora"
    return kind


def _says_whole(given: Mapping[str, Setting]) -> bool:
    """Whether a word says that all weights are trained."""
    kinds = any(name in given and _text(given[name]) in _WHOLE for name in _KINDS if name not in _OF_PROGRAMS)
    return kinds or any(name in given and truth_of(given[name].value) is False for name in _SWITCHES)


def _frozen(given: Mapping[str, Setting]) -> str:
    """A base in few bits without an adapter, which no optimizer trains."""
    for name in (*_FOUR, *_EIGHT):
        if name in given and truth_of(given[name].value):
            return f"{given[name].name} is stated, and no word says which adapter is trained beside it"
    return ""


def _base(kind: str, given: Mapping[str, Setting]) -> BaseFormat:
    """The format of the frozen weights."""
    bits = next((whole_or_none(given[name].value) for name in _BITS if name in given), None)
    four = any(name in given and truth_of(given[name].value) for name in _FOUR)
    eight = any(name in given and truth_of(given[name].value) for name in _EIGHT)
    quantizer = next((_text(given[name]) for name in _QUANTIZERS if name in given), "")
    if four or bits == 4 or re.search(r"\b(?:nf4|fp4)\b", quantizer):
        return "nf4"
    if eight or bits == 8 or "int8" in quantizer:
        return "int8"
    return "nf4" if kind == "qlora" else "half"


def _priced(kind: str, given: Mapping[str, Setting]) -> StatedAdapter:
    """An adapter of a kind that is priced, of the sizes that are stated."""
    assumed: list[str] = []
    rank = next((whole_or_none(given[name].value) for name in _RANKS if name in given), None)
    if rank is None:
        rank, whose = (
            (RANK_OF_BRIDGE, "Megatron-Bridge has") if _is_of_bridge(given) else (USUAL_RANK, _OF_PEFT)
        )
        assumed.append(f"an adapter of rank {rank}, as {whose} it where none is stated")
    base = _base(kind, given)
    if base != "half" and kind == "dora":
        return StatedAdapter(why=f"dora beside a base in {base} is not priced")
    modules = " ".join(
        " ".join((_text(given[name]), *(word.lower() for word in given[name].more)))
        for name in _TARGETS
        if name in given
    )
    unnamed = not modules and not _everywhere(given)
    some = "PEFT" if _is_of_peft(given) else "LitGPT" if _is_of_litgpt(given) else ""
    targets = ("attention",) if unnamed and some else _targets(modules, given)
    if unnamed and some:
        assumed.append(
            f"an adapter on every matrix of attention: {some} has some of them where none is named"
        )
    if not targets:
        return StatedAdapter(why=f"an adapter of {modules!r} is stated, whose matrices are not known")
    if "lora_module_name" in given and "only_optimize_lora" not in given:
        assumed.append("embeddings and norms as frozen: without only_optimize_lora they are trained too")
    if modules and not _ALL.search(modules):
        assumed.append(f"an adapter on every matrix of {' and '.join(targets)}: {_first(modules)} is stated")
    names: dict[str, Any] = {"kind": "qlora" if base in ("nf4", "int8") else _NAMES[kind], "base": base}
    dropout = next((number(given[name].value) for name in _DROPOUTS if name in given), None)
    alpha = next((number(given[name].value) for name in _ALPHAS if name in given), None)
    try:
        adapter = Adapter(rank=rank, targets=targets, dropout=dropout or 0.0, alpha=alpha or None, **names)
    except InputError as impossible:
        return StatedAdapter(why=f"{kind} is stated, and {impossible.cause}")
    return StatedAdapter(adapter=adapter, assumed=tuple(assumed))


MOST_LETTERS = 80
"""Of names of matrices in a sentence: those of a layer of a dense model are all told."""


def _first(modules: str) -> str:
    """Names of matrices, cut between two of them where they are too many for a sentence."""
    if len(modules) <= MOST_LETTERS:
        return modules
    names = re.split(r"[,\s]+", modules[: MOST_LETTERS + 1])[:-1]
    return f"{','.join(names)}, …" if names else shortened(modules, MOST_LETTERS)


def _targets(modules: str, given: Mapping[str, Setting]) -> tuple[AdapterTarget, ...]:
    """The blocks whose matrices have one; both where none are named."""
    if not modules or _everywhere(given) or _ALL.search(modules):
        return ("attention", "mlp")
    return tuple(target for target, names in _PARTS.items() if names.search(modules))


def _everywhere(given: Mapping[str, Setting]) -> bool:
    """Whether a word puts an adapter on every matrix."""
    return any(name in given and truth_of(given[name].value) for name in _EVERYWHERE)


def _is_of_bridge(given: Mapping[str, Setting]) -> bool:
    """Whether a recipe of Megatron-Bridge is told which adapter it trains."""
    return "peft_scheme" in given


def _is_of_litgpt(given: Mapping[str, Setting]) -> bool:
    """Whether LitGPT's own switches choose the matrices."""
    return any(name in given for name in ("litgpt.recipe", *_OF_LITGPT))


def _is_of_peft(given: Mapping[str, Setting]) -> bool:
    """Whether PEFT itself chooses the matrices: a `LoraConfig` of a program, or TRL's ``use_peft``.

    TRL hands ``lora_target_modules`` on as it is, none without a word (trl/trainer/model_config.py).
    PEFT then takes some of attention, query and value in most models (peft/utils/constants.py).
    """
    built = any("loraconfig" in _text(given.get(name)).replace("_", "") for name in _OF_PROGRAMS)
    return built or ("use_peft" in given and truth_of(given["use_peft"].value) is True)
