"""What a serving question says of speculation: how many tokens are drafted, by what, how many are accepted.

A drafter takes time and memory of its own, so a question names one, or gets the one that its checkpoint
brings or that is published for most models.
"""

from __future__ import annotations

from typing import Any

from costmodel.job import ServingJob
from costmodel.models.catalog import listed_model, model_names
from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import drafter_of
from costmodel.serving.engine import serving_stack
from planner.questions.flags import ServeFlags
from planner.questions.words import share_of
from topology.base.counts import parse_count
from topology.base.errors import InputError

MOST_DRAFTS = 16
_HEADS = ("mtp", "eagle3")


def speculated(flags: ServeFlags, model: ModelSpec) -> dict[str, Any]:
    """The fields of a job that say what is speculated; none where nothing is.

    Raises:
        InputError: a drafter without drafts, one that the model or the engine does not have, or one of
            another vocabulary.
    """
    if not flags.draft_tokens:
        drafter = flags.drafter or flags.acceptance
        if drafter:
            flag = "--drafter" if flags.drafter else "--acceptance"
            raise InputError(
                what="speculation needs a number of tokens to draft",
                cause=f"{flag} {drafter}, and --draft-tokens is missing",
                fix="add for example --draft-tokens 3",
            )
        return {}
    name = _drafter(flags, model)
    engine = serving_stack(flags.engine or "vllm").name
    if engine == "trtllm" and name != "mtp":
        raise InputError(
            what="TensorRT-LLM is given no draft model here",
            cause=f"--drafter {name}: its options have other names in every release; mtp is written for it",
            fix="use --engine vllm or sglang",
        )
    share = share_of(flags.acceptance, "--acceptance") if flags.acceptance else drafter_of(name).acceptance
    drafts = parse_count(flags.draft_tokens, "--draft-tokens", largest=MOST_DRAFTS)
    return {"draft_tokens": drafts, "acceptance": share, "drafter": name}


def drafted_pins(job: ServingJob, engine: str) -> dict[str, int]:
    """Degrees that a drafter allows: no pipeline, and no attention ranks beside a model of SGLang's.

    SGLang 0.5.23 refuses the latter (`speculative_hook.py`); drafts of a pipeline are not priced.
    """
    if not job.drafter:
        return {}
    alone = engine == "sglang" and job.drafter not in _HEADS
    return {"pp": 1, **({"attention_dp": 1} if alone else {})}


def speculation_note(flags: ServeFlags, model: ModelSpec) -> tuple[str, ...]:
    """What was taken where the question does not say it."""
    values = speculated(flags, model)
    if not values:
        return ()
    name = values["drafter"]
    by = () if flags.drafter else (f"tokens are drafted by {name} (--drafter names others)",)
    kind = drafter_of(name)
    source = f"{values['acceptance']:.0%} of drafts are accepted (--acceptance; {kind.source})"
    return (*by, *(() if flags.acceptance else (source,)))


def _drafter(flags: ServeFlags, model: ModelSpec) -> str:
    """The drafter by its name: the one named, else that of the checkpoint, else an EAGLE-3 head."""
    named = (flags.drafter or "").lower()
    if not named:
        return "mtp" if model.num_nextn_predict_layers else "eagle3"
    if named == "mtp" and not model.num_nextn_predict_layers:
        known = [name for name in model_names() if listed_model(name).num_nextn_predict_layers]
        raise InputError(
            what=f"{model.name} has no layer that predicts several tokens",
            cause=f"--drafter mtp; those known to have one are {', '.join(known)}",
            fix="use --drafter eagle3, or a small model of the same vocabulary",
        )
    if named in _HEADS:
        return named
    small = listed_model(named)
    if small.vocab_size != model.vocab_size:
        sizes = f"{small.vocab_size:,} tokens, that of {model.name} {model.vocab_size:,}"
        raise InputError(
            what=f"{small.name} cannot draft for {model.name}",
            cause=f"its vocabulary has {sizes}",
            fix="name a model of the same family, or --drafter eagle3",
        )
    return small.name
