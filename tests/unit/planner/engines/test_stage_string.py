"""Megatron's layout of pipeline stages as a string: groups, repetitions, and what is none."""

import pytest

from planner.engines.megatron_lm.stage_string import modules_of_string, stages_of_string


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("E(tt|)(t|)*2L", (2, 1, 1, 0)),
        ("E((t|)*2tt|)*2L", (1, 1, 2, 1, 1, 2, 0)),
        ("Et*3|t*2L", (3, 2)),
        ("E, t | t L", (1, 1)),
    ],
)
def test_a_group_stands_as_often_as_its_number_says_and_once_without(
    text: str, layers: tuple[int, ...]
) -> None:
    assert stages_of_string(text) == layers


def test_prediction_modules_are_counted_in_their_groups() -> None:
    """Two modules of one stage, by a group without a number and by a letter with one."""
    assert modules_of_string("Et|t(m)(m)L") == modules_of_string("Et|tm*2L") == (0, 2)


@pytest.mark.parametrize("text", ["E|L", "Et|xL", "E(t|L", "(t)*999999"])
def test_what_says_no_stages_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="layout"):
        stages_of_string(text)
