"""A ladder: the last value that fits, and how far each switch takes it; every rung is what an estimate says."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

import meshplan
from app.actions.plan import given_plan
from app.cli import run
from costmodel.memory.fit import DOES_NOT_FIT_ABOVE, FITS_BELOW
from planner.analysis.ladder import SWITCHES, Knob, Ladder, climbed, turned
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from topology.base.errors import InputError

TITAN = Flags(
    model="8b", gpus="8", stack="torchtitan", settings=("layout.zero_stage=3",), global_batch_size="64"
)
TUNED = Flags(model="8b", gpus="1", stack="pytorch", adapter="qlora:r=16", sequence_length="1024", gpu="a100")
LARGE = Flags(model="70b", gpus="64", settings=("layout.tp=8", "layout.recompute=full"))
ASKED: dict[Knob, Flags] = {"length": TITAN, "microbatch": TUNED, "rank": TUNED, "gpus": LARGE}


def priced(flags: Flags) -> Plan:
    """As `plan estimate` prices it."""
    return given_plan(understand(flags).request)


@pytest.fixture(scope="module")
def ladders() -> dict[Knob, Ladder]:
    """One of each knob."""
    return {knob: climbed(flags, knob, priced) for knob, flags in ASKED.items()}


@pytest.mark.parametrize("knob", ASKED)
def test_the_last_that_fits_fits_and_the_next_does_not(knob: Knob, ladders: dict[Knob, Ladder]) -> None:
    """By the estimate of the same question."""
    ladder = ladders[knob]
    assert ladder.last is not None
    chance = priced(turned(ASKED[knob], knob, ladder.last.value)).estimate.out_of_memory_chance
    assert chance < FITS_BELOW
    step = {"length": 256, "microbatch": 1, "rank": 8}
    beyond = ladder.last.value // 2 if knob == "gpus" else ladder.last.value + step[knob]
    assert priced(turned(ASKED[knob], knob, beyond)).estimate.out_of_memory_chance >= FITS_BELOW


@pytest.mark.parametrize("knob", ASKED)
def test_rungs_end_with_the_first_that_does_not_fit(knob: Knob, ladders: dict[Knob, Ladder]) -> None:
    """Each doubles, or halves the GPUs; the words are those of the chances."""
    *before, end = ladders[knob].rungs
    assert end.verdict in ("does not fit", "refused")
    for rung in before:
        assert rung.plan is not None
        chance = rung.plan.estimate.out_of_memory_chance
        assert (rung.verdict == "fits") == (chance < FITS_BELOW)
        assert chance <= DOES_NOT_FIT_ABOVE
    values = [rung.value for rung in ladders[knob].rungs]
    assert all(b == (a // 2 if knob == "gpus" else 2 * a) for a, b in pairwise(values))


@pytest.mark.parametrize("knob", ASKED)
def test_a_switch_takes_it_as_far_as_an_estimate_with_it_says(
    knob: Knob, ladders: dict[Knob, Ladder]
) -> None:
    """Switches are listed by how far they go, each beyond the ladder without it."""
    ladder = ladders[knob]
    assert ladder.last is not None
    assert ladder.eased
    for each in ladder.eased:
        words = each.flag.removeprefix("--set ")
        changed = (
            replace(ASKED[knob], settings=(*ASKED[knob].settings, words))
            if each.flag.startswith("--set ")
            else replace(ASKED[knob], offload="optimizer")
        )
        plan = priced(turned(changed, knob, each.rung.value))
        assert plan.estimate.out_of_memory_chance < FITS_BELOW
        further = each.rung.value - ladder.last.value
        assert further < 0 if knob == "gpus" else further > 0
    gains = [each.rung.value for each in ladder.eased]
    assert gains == sorted(gains, reverse=knob != "gpus")


def test_a_switch_that_the_question_names_is_left_alone() -> None:
    """What somebody has set is no advice."""
    ladder = climbed(replace(TITAN, settings=(*TITAN.settings, "layout.recompute=full")), "length", priced)
    assert not any("recompute" in each.flag for each in ladder.eased)
    assert {name for name, _ in SWITCHES} > {"layout.recompute"}


def test_nothing_that_fits_is_said_with_what_would() -> None:
    """A job that is too large as it is names the switches with which it fits."""
    ladder = climbed(Flags(model="70b", gpus="64", settings=("layout.tp=8",)), "gpus", priced)
    assert ladder.last is None
    assert any("recompute=full" in each.flag for each in ladder.eased)


def test_a_rank_needs_an_adapter() -> None:
    """In three lines."""
    with pytest.raises(InputError, match="no adapter"):
        climbed(TITAN, "rank", priced)
    with pytest.raises(InputError, match="--gpus is missing"):
        climbed(replace(TITAN, gpus=None), "gpus", priced)


def test_command_and_library_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """One ladder, whoever asks."""
    words = ["ladder", "--model", "8b", "--gpus", "8", "--sequence-length", "4k", "--stack", "torchtitan"]
    words += ["--set", "layout.zero_stage=3", "--global-batch-size", "64", "--knob", "length"]
    assert run([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    there = meshplan.ladder(
        "8b", gpus=8, seq="4k", batch=64, stack="torchtitan", set={"layout.zero_stage": 3}, knob="length"
    )
    assert said == json.loads(json.dumps(there.document()))
    assert run(words) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        f"llama-3.1-8b: the largest sequence length that fits is {said['last_that_fits']:,}"
    )


def test_the_layout_is_named_and_the_best_one_is_turned_where_none_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A number of a plain layout is not taken for what the job can do: `plan` proves more."""
    words = ["ladder", "--model", "8b", "--gpus", "8"]
    assert run([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["layout"]["dp"] == 8
    best = meshplan.plan("8b", gpus=8)
    assert best.estimate.out_of_memory_chance < FITS_BELOW
    row = next(each for each in said["switches"] if f"layout.cp={best.layout.cp} " in each["flag"])
    assert row["value"] >= best.request.job.sequence_length
    assert said == json.loads(json.dumps(meshplan.ladder("8b", gpus=8).document()))
    assert run(words) == 0
    assert " with dp 8 · ZeRO-1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--model 70b --gpus 8", "no sequence length that was tried leaves room with dp 8"),
        (
            "--model gemma-4-31b --gpus 8 --set layout.tp=8",
            "refused at the first sequence length, 1,024: num_key_value",
        ),
    ],
)
def test_a_ladder_without_a_rung_is_a_no(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the exit code of `plan`, and the law where one refuses."""
    assert run(["ladder", *words.split()]) == 1
    assert told in " ".join(capsys.readouterr().out.split())


def test_an_unknown_knob_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With the nearest."""
    assert run(["ladder", "--model", "8b", "--gpus", "8", "--knob", "lenght"]) == 2
    assert "length" in capsys.readouterr().err
