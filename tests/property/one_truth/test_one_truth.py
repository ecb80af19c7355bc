"""A quantity has one value on every surface, and a word stands only where its number carries it.

Random questions of training, campaigns, serving and audits go through the command line, JSON, CSV, Markdown, the
report, the saved folder and the pages. Values are read from what is printed, by their labels. A search that this
process has done is not done again (`tests/answers.py`); `python benchmarks/one_truth.py --questions 200` asks more,
each surface by itself.
"""

import re
from collections import defaultdict

import pytest

from tests.counts import cases_of_run, tries
from tests.property.one_truth.claims import CLAIMS, unsupported
from tests.property.one_truth.lines import Line
from tests.property.one_truth.quantities import PATTERNS, Statement, contradictions, statements, values_in
from tests.property.one_truth.questions import KINDS, question
from tests.property.one_truth.surfaces import ANSWERED, limited, surfaces
from tests.property.one_truth.values import NUMBER, Interval

QUESTIONS = 30
ON_EVERY_PAGE = tries(len(KINDS) + 1, 5)
"""Every so manyth is put to every page of the dashboard too, which costs most; the seeded question of each kind always is."""
SEEDED = {kind: KINDS.index(kind) for kind in ("training", "campaign", "serving", "audit")}
"""A question of each kind, for contradictions that are put in."""
ASKED_LATER = [number for number in range(QUESTIONS) if number in SEEDED.values() or number >= len(KINDS)]
"""The suite puts the seeded questions to every surface anyway (`test_every_page_gives_the_answer_of_the_others`)."""
LEAST_STATED = {
    "training": {"step_time": 8, "peak_memory": 8, "mfu": 6, "out_of_memory_chance": 6, "evidence_runs": 6},
    "campaign": {"days": 6, "dollars": 6, "days_band_low": 5, "goodput": 5, "checkpoint_interval": 5},
    "serving": {"gpus": 4, "ttft_p99": 3, "usd_per_hour": 3, "mean_queue": 3, "kv_tokens": 3},
    "audit": {"predicted": 4, "best": 4, "peak_memory": 4, "distance": 4},
}
"""Surfaces that state a quantity at least, of one question at least: else a label has changed and nothing is compared."""


@pytest.mark.slow
@pytest.mark.parametrize("number", cases_of_run(range(QUESTIONS), ASKED_LATER))
def test_one_question_has_one_answer_everywhere(number, tmp_path, pages_answer_here):
    """No two surfaces give one quantity two values; no word stands against the numbers beside it."""
    asked = limited(question(number))
    _, lines = surfaces(asked, tmp_path, every=(number + 1) % ON_EVERY_PAGE == 0)
    stated = statements(lines, PATTERNS[asked.kind])
    assert contradictions(stated) == []
    assert unsupported(lines, stated) == []


@pytest.fixture(scope="module", params=sorted(SEEDED))
def answered(request, tmp_path_factory, pages_answer_here):
    """The kind of a question, and its lines on all surfaces."""
    for number in range(SEEDED[request.param], 60, len(KINDS)):
        asked = limited(question(number))
        code, lines = surfaces(asked, tmp_path_factory.mktemp(request.param))
        stated = statements(lines, PATTERNS[request.param])
        if code == ANSWERED and stated.keys() >= LEAST_STATED[request.param].keys():
            return request.param, lines
    raise AssertionError(f"no question of {request.param} is answered")


_STANDS_AT = {
    "tied": ("Also considered", "1"),
    "best_out_of_memory_chance": ("Times", "its memory"),
    "full_out_of_memory_chance": ("Without headroom", "memory"),
}
"""Where the words of some quantities stand."""
_LEAST_CHANCE = 0.01
"""Chances below print as one text, so that a fifth more of one may read the same."""
_OPPOSITE = {"true": "false", "false": "true", "True": "False", "False": "True"}


def test_every_page_gives_the_answer_of_the_others(answered):
    """No two surfaces give one quantity of the seeded question two values, and words stand beside their numbers."""
    kind, lines = answered
    stated = statements(lines, PATTERNS[kind])
    assert contradictions(stated) == []
    assert unsupported(lines, stated) == []


def test_enough_surfaces_state_each_quantity(answered):
    """A label that changes is noticed: what is not read is not compared."""
    kind, lines = answered
    stated = statements(lines, PATTERNS[kind])
    surfaces_of = {name: {each.line.surface for each in stated.get(name, ())} for name in LEAST_STATED[kind]}
    few = {
        name: sorted(found) for name, found in surfaces_of.items() if len(found) < LEAST_STATED[kind][name]
    }
    assert few == {}


def test_a_number_that_differs_on_one_surface_is_noticed(answered):
    """Each printed number of each quantity, a fifth larger on one surface alone, is a contradiction."""
    kind, lines = answered
    stated = statements(lines, PATTERNS[kind])
    unseen = []
    for name, values in stated.items():
        if len({each.line.surface for each in values}) < 2:
            continue
        for each in values:
            if not isinstance(each.value, Interval) or each.value.low <= 0.0:
                continue
            if name.endswith("chance") and each.value.high < _LEAST_CHANCE:
                continue
            (start, end), whole = each.span, each.line.whole
            another = _OPPOSITE.get(whole[start:end]) or re.sub(NUMBER, _a_fifth_more, whole[start:end])
            larger = whole[:start] + another + whole[end:]
            read = [
                Statement(line=each.line, value=value) for value in values_in(larger, PATTERNS[kind], name)
            ]
            others = [other for other in values if other.line is not each.line]
            if not contradictions({name: [*others, *read]}):
                unseen.append((name, each.line.surface, each.line.text))
    assert unseen == []


def _a_fifth_more(match: re.Match[str]) -> str:
    number = re.match(r"(?:[<>] )?[+-]?\$?([\d,]+(?:\.\d+)?)", match[0])
    assert number is not None
    value = float(number[1].replace(",", ""))
    return match[0].replace(number[1], f"{value * 1.2 + 1.0 if value else 1.0:.12g}", 1)


def test_words_against_their_numbers_are_noticed():
    """Each word, beside a number that does not carry it and beside none, is reported; beside one that does it is not."""
    samples = {
        "out_of_memory_chance": ("it fits", "it does not fit", "it is tight", "no layout fits"),
        "best_out_of_memory_chance": ("39 GiB of 80 GiB: fits",),
        "full_out_of_memory_chance": ("tight, 39 % chance of OOM",),
        "deadline_chance": ("meets the deadline of 3 days",),
        "budget_chance": ("Budget of $3: kept",),
        "gap": ("proven best of 3 layouts",),
        "busiest_level": ("No level of the fabric carries traffic here.",),
        "tied": ("dp 8  2 s  +0.4 % (tie)",),
    }
    tried = defaultdict(int)
    for claim in CLAIMS:
        for text in samples[claim.quantity]:
            place, label = _STANDS_AT.get(claim.quantity, ("", ""))
            line = Line(surface="page", place=place, label=label, text=text)
            if re.search(claim.words, line.whole) is None:
                continue
            tried[claim.words] += 1
            carries = min(max(claim.low, 0.0), 1.0) if claim.low > 0.0 else min(claim.high, 0.0)
            against = (
                0.99 if "tight" in claim.words else 0.0 if claim.words.startswith(r"\bno layout") else 0.5
            )
            assert unsupported([line], {}, [claim])
            assert unsupported([line], _stating(claim.quantity, against), [claim])
            assert not unsupported([line], _stating(claim.quantity, carries), [claim])
    assert set(tried) == {claim.words for claim in CLAIMS}


def test_a_word_is_held_to_the_number_of_its_own_clause():
    """A deadline's chance says nothing against a budget that is kept, and the other way round."""
    clauses = "deadline of 2 h kept with a chance of 52 % · budget of $3 kept (chance 99 %)"
    line = Line(surface="table", place="", label="time to train", text=clauses)
    assert unsupported([line], _stating("deadline_chance", 0.52) | _stating("budget_chance", 0.99)) == []
    assert unsupported([line], _stating("deadline_chance", 0.99) | _stating("budget_chance", 0.52)) != []


def _stating(quantity: str, value: float):
    line = Line(surface="--json", place="json", label=quantity, text=str(value))
    return {quantity: [Statement(line=line, value=Interval(value, value))]}
