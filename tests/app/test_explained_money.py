"""`plan explain` says what was asked: money where cost is the objective, and the chances of limits of a run."""

import pytest

from app.reports.answer import Facts
from app.reports.explain import explanation_answer
from planner.analysis.explain import Explanation
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search

ASKED = {"model": "llama-3.1-8b", "gpus": "8", "gpu": "h100-sxm", "tokens": "1B"}
NOTHING = Explanation(shares=(), memory="", links=(), runner_up=None, what_if=(), switches=())


@pytest.mark.parametrize(
    ("asked", "names", "told"),
    [
        ({}, {"step time", "run", "layout"}, ()),
        ({"deadline": "20d"}, {"step time", "run", "layout"}, ("deadline of 20 days", "chance")),
        ({"budget": "1M"}, {"step time", "run", "layout"}, ("budget of $1", "chance")),
        ({"objective": "cost"}, {"step time", "cost", "run", "layout"}, ()),
    ],
)
def test_an_explanation_says_what_was_asked(asked, names, told):
    plan = search(understand(Flags(**ASKED, **asked)).request)
    assert isinstance(plan, Plan)
    first = explanation_answer(plan, NOTHING).sections[0]
    assert isinstance(first, Facts)
    pairs = dict(first.pairs)
    assert pairs.keys() == names
    assert all(words in pairs["run"] for words in told)
