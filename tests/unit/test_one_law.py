"""What is not allowed is one type, and a law of whole shares has one home, `costmodel.parallel.divisions`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import pytest

from costmodel.parallel.divisions import BATCH, EXPERT_RANKS, EXPERTS, HEADS, RANKS, Division
from planner.audit.findings import FILE_LAWS
from planner.engines.contracts import CONTRACTS
from planner.law import Law
from planner.plan import FREE
from planner.rules.check import rules_of
from tests.trees import nodes

HOME = "costmodel/parallel/divisions.py"
ENGINES_OWN = "planner/parsers/"
"""What runs in an engine's own interpreter sees nothing of the house: it repeats that engine's words."""
LAWS = {
    "heads": (r"(^|[._\[\"'])(num_attention_|whole_|query_)?heads\b", r"\b(tp|degree)\b"),
    "experts": (r"(^|[._\[\"'])(num_)?experts\b", r"\b(ep|tp)\b"),
    "batch": (r"(^|[._\[\"'])(global_)?batch(_size)?\b", r"\b(dp|replicas)\b"),
    "ranks": (r"\b(world|num_gpus|found|gpus)$", r"\btp\b.*\bpp\b|\bothers\b"),
    "expert ranks": (r"\b(stage|stage_ranks|block)\b", r"\bep\b|\bexpert_shards\b"),
}
"""What is divided, and what divides it, as an expression of ours spells them."""


def homes(each: Iterable[ast.AST]) -> list[str]:
    """The laws that a file asks by a remainder of its own."""
    laws: list[str] = []
    for node in each:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            whole, by = ast.unparse(node.left), ast.unparse(node.right)
            laws += [
                name
                for name, (left, right) in LAWS.items()
                if re.search(left, whole) and re.search(right, by)
            ]
    return laws


def test_no_other_file_asks_a_law_of_whole_shares() -> None:
    elsewhere = [
        (file, law)
        for file, each in nodes()
        if file != HOME and not file.startswith(ENGINES_OWN)
        for law in homes(each)
    ]
    assert elsewhere == []


def test_no_file_asks_a_data_sheet_for_one_format() -> None:
    """`Gpu.peak` says what a GPU computes a format in; a subscript fails where a data sheet lacks it."""
    asked = [
        file
        for file, each in nodes()
        for node in each
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr in ("peak_flop_per_s", "peak_tflop_per_s")
    ]
    assert asked == []


@pytest.mark.parametrize(
    ("line", "law"),
    [
        ("model.num_attention_heads % layout.tp", "heads"),
        ("heads % tp == 0", "heads"),
        ("s.model.num_experts % t.ep != 0", "experts"),
        ("batch % (dp * size)", "batch"),
        ("s.job.global_batch_size % (t.dp * t.microbatch_size)", "batch"),
        ("world % (tp * pp * cp)", "ranks"),
        ("t.stage_ranks % t.expert_shards", "expert ranks"),
    ],
)
def test_a_second_home_is_seen(line: str, law: str) -> None:
    """Each law as it stood in several files before."""
    assert homes(ast.walk(ast.parse(line))) == [law]


@pytest.mark.parametrize("law", [RANKS, HEADS, EXPERTS, EXPERT_RANKS, BATCH])
def test_a_law_says_its_numbers_and_the_way_out(law: Division) -> None:
    """Of every broken law: the rest, the text with every count, and a whole and a count that keep it."""
    for whole in range(1, 60):
        for first in range(1, 12):
            counts = (first, *(2 for _ in law.by[1:]))
            assert law.rest(law.nearest(whole, *counts), *counts) == 0
            assert law.rest(whole, law.largest(whole, first)) == 0
            if law.rest(whole, *counts):
                text = law.says(whole, *counts)
                assert all(str(number) in text for number in (whole, *counts))


TESTS, WORDS = {"broken", "stops"}, {"says", "explain", "stops"}
"""Fields of a record that judges: its test, and its words."""


def law_types(each: Iterable[ast.AST]) -> list[str]:
    """Classes that carry a test and the words for what fails it."""
    return [
        node.name
        for node in each
        if isinstance(node, ast.ClassDef)
        for names in [{ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}]
        if names & TESTS and names & WORDS
    ]


def test_one_type_says_what_is_not_allowed() -> None:
    assert [(file, name) for file, each in nodes() for name in law_types(each)] == [("planner/law.py", "Law")]


@pytest.mark.parametrize(
    "fields",
    ["broken: Callable\n    says: Callable", "broken: Callable\n    explain: Callable", "stops: Callable"],
)
def test_a_second_type_is_seen(fields: str) -> None:
    """As rules, limits and refusals were written before."""
    assert law_types(ast.walk(ast.parse(f"class Rule:\n    name: str\n    {fields}\n"))) == ["Rule"]


@pytest.mark.parametrize("engine", [FREE, *CONTRACTS])
def test_rules_limits_and_refusals_are_laws(engine: str) -> None:
    """Each under a name of its own; those of an engine with a source."""
    laws = rules_of(engine)
    contract = CONTRACTS.get(engine)
    assert {type(one) for one in (*laws, *(contract.refusals if contract else ()))} == {Law}
    assert len({law.name for law in laws}) == len(laws)
    assert all(law.source for law in laws if law.name.startswith(f"{engine}-"))


def test_words_say_rules_that_there_are() -> None:
    """A law of words that says a rule of plans names it, so that an audit says it once."""
    words = (*FILE_LAWS, *(law for one in CONTRACTS.values() for law in one.refusals))
    rules = {rule.name for engine in (FREE, *CONTRACTS) for rule in rules_of(engine)}
    named = {rule for law in words for rule in law.says_of}
    assert len(named) > 1
    assert named <= rules
