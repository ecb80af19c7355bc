"""Counts as people type them: groups of three digits are a number, a list is none, a suffix means one thing."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.base.counts import (
    SIZES,
    SUFFIXES,
    TOTALS,
    listed_counts,
    parse_count,
    parse_counts,
    suffix_note,
)
from topology.base.errors import InputError

COUNTS = st.integers(1, 10**9)


@given(COUNTS)
def test_digits_are_the_number_and_groups_of_three_are_it_or_refused(number: int) -> None:
    """A grouped number is read as itself; where its groups double it may be a list, and nothing is guessed."""
    assert parse_count(str(number), "--gpus") == number
    grouped = f"{number:,}"
    try:
        assert parse_count(grouped, "--gpus") == number
        assert parse_count(f"{number:_}", "--gpus") == number
    except InputError:
        parts = [int(part) for part in grouped.split(",")]
        assert all(b % a == 0 and (b // a) & (b // a - 1) == 0 for a, b in itertools.pairwise(parts))


@pytest.mark.parametrize("power", range(31))
def test_every_power_of_two_may_be_grouped(power: int) -> None:
    """The counts that this field writes: 1,024, 8,192, 16,384, 131,072."""
    assert parse_count(f"{2**power:,}", "--gpus") == 2**power


@given(st.lists(COUNTS, min_size=2, max_size=4), st.sampled_from([",", ", ", " ,", ";"]))
def test_a_list_is_never_one_number_of_its_digits_put_together(counts: list[int], comma: str) -> None:
    """Of several counts either all are refused, or they are groups of three digits of one number."""
    text = comma.join(map(str, counts))
    try:
        value = parse_count(text, "--gpus")
    except InputError:
        return
    assert f"{value:,}" == text


@given(st.integers(0, 14), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_counts_that_double_are_a_list(first: int, steps: list[int]) -> None:
    """What is swept doubles: 32,64 and 256,512 and 128,256,512 are refused wherever one number is asked."""
    powers = [first]
    for step in steps:
        powers.append(powers[-1] + step)
    text = ",".join(str(2**power) for power in powers)
    assert len(listed_counts(text)) == len(powers)
    with pytest.raises(InputError, match="is a list"):
        parse_count(text, "--gpus")


@pytest.mark.parametrize(
    "text",
    ["1,6", "1,23", "1,2345", "1,024,5", ",64", "64,", "1,,024", "32.000", "16.384", "1_6", "32_64", "1 024",
     "32 64", "[32, 64]", "(8,16)", "1024,", "-8", "0", "", "k", "8kk", "0x20", "1e", "inf", "nan", "8.5"],
)  # fmt: skip
def test_what_is_no_count_is_refused_in_three_lines(text: str) -> None:
    """Nothing is dropped from a text to make it a number."""
    with pytest.raises(InputError) as refused:
        parse_count(text, "--gpus")
    assert len(str(refused.value).splitlines()) == 3
    assert "--gpus" in refused.value.what


@pytest.mark.parametrize(
    ("text", "size", "total"),
    [("16k", 16384, 16000), ("16K", 16384, 16000), ("4M", 2**22, 4 * 10**6), ("1.5k", 1536, 1500)],
)
def test_a_suffix_means_one_thing_for_each_kind_of_count(text: str, size: int, total: int) -> None:
    """Sizes are in powers of two, totals in powers of ten."""
    assert parse_count(text, "--gpus", suffixes=SIZES) == size
    assert parse_count(text, "--tokens", suffixes=TOTALS) == total


def test_billions_and_trillions_are_totals() -> None:
    """15T tokens are 15 · 10¹²; no machine or step has as many of anything."""
    assert parse_count("15T", "--tokens", suffixes=TOTALS) == 15 * 10**12
    assert parse_count("1B", "--tokens", suffixes=TOTALS) == 10**9
    with pytest.raises(InputError, match="not a possible number"):
        parse_count("1B", "--gpus")


def test_a_note_says_what_a_suffix_was_read_as() -> None:
    """Digits need none."""
    assert suffix_note("16k", 16384, "--gpus", "GPU") == ("--gpus 16k is 16,384 GPUs",)
    assert suffix_note("16384", 16384, "--gpus", "GPU") == ()


def test_commas_separate_the_counts_of_a_list() -> None:
    """A group of digits is no count of its own, so a grouped number is refused with the way to write it."""
    assert parse_counts("32,64,8..16", "--gpus") == (32, 64, 8, 16)
    assert parse_counts("256,512", "--batch") == (256, 512)
    with pytest.raises(InputError, match="write --gpus 1024"):
        parse_counts("1,024", "--gpus")


def test_the_table_of_suffixes_is_that_of_the_documents() -> None:
    """Each kind of count has its row, each suffix its number."""
    page = (Path(__file__).parents[4] / "docs" / "library.md").read_text(encoding="utf-8")
    for kind, suffixes in SUFFIXES.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {kind} |")]
        cells = [cell.strip() for cell in row.strip("|").split("|")[1:]]
        written = {10**9: "10⁹", 10**12: "10¹²"}
        for cell, name in zip(cells, ("k", "m", "b", "t"), strict=True):
            value = int(suffixes.get(name, 0))
            assert cell == (written.get(value, f"{value:,}") if value else "")
