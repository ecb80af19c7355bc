"""What a server drafts ahead of its model, by the words of its engine: the drafter, its tokens a step."""

from __future__ import annotations

import json

from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import drafter_of
from planner.audit.facts import JobFacts
from planner.formats.settings import whole_or_none
from planner.questions.serving.speculation import MOST_DRAFTS

UNPRICED = (
    "a server without speculation, or one whose drafter and number of drafts its files say and its model has "
    "(plan serve --draft-tokens asks with it)"
)


def drafts_of(facts: JobFacts, model: ModelSpec, assumed: list[str]) -> tuple[str, int] | None:
    """The drafter and its tokens a step, ("", 0) without speculation; None where they are not priced.

    A layer of the model's own is called mtp, nextn or, by SGLang, EAGLE; a head trained for it EAGLE-3.
    """
    value = facts.value("said.speculation")
    if value is None and facts.value("said.draft_tokens") and model.num_nextn_predict_layers:
        value = "mtp"  # vLLM before 0.8: a number of drafts alone takes the model's own layer (issue 14117)
    if value is None:
        return "", 0
    method, count = str(value), facts.value("said.draft_tokens")
    if method.lstrip().startswith("{"):
        try:
            config = json.loads(method)
        except ValueError:
            return None
        method, count = str(config.get("method", "")), config.get("num_speculative_tokens", count)
    drafts, word = whole_or_none(count), method.lower()
    layered = "mtp" in word or "nextn" in word or word == "eagle"
    drafter = "mtp" if layered and model.num_nextn_predict_layers else "eagle3" if word == "eagle3" else ""
    if not drafter or drafts is None or not 0 < drafts <= MOST_DRAFTS:
        return None
    accepted = drafter_of(drafter).acceptance
    assumed.append(f"{accepted:.0%} of drafts are accepted: no file says it (plan serve --acceptance)")
    return drafter, drafts
