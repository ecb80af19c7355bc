"""A number before a redirection is a descriptor only where it touches the operator, as a shell reads it."""

from __future__ import annotations

import pytest

from planner.formats.shell import script_of_text

LAST = [
    ("--tp 4 > f", "4"),
    ("--tp 4 >f", "4"),
    ("--tp 4 >> f", "4"),
    ("--tp 4 &> f", "4"),
    ("--tp 4&>f", "4"),
    ("--tp 4&>>f", "4"),
    ("--tp 4 > f 2>&1", "4"),
    ("--tp 4 2>f", "4"),
    ("--tp 4 2>> f 1>&2", "4"),
    ("--tp 4 >f>g", "4"),
    ("--tp 4 < f", "4"),
    ("--tp 4 <<< x", "4"),
    ("--tp 4 0<<EOF\nx\nEOF", "4"),
    ("--tp 4 << EOF\nx\nEOF", "4"),
    ("--tp 4 2>&1 | tee f", "4"),
    ("--tp 4 | tee f", "4"),
    ("--tp 4 \\\n  > f", "4"),
    ("--tp 4>f", "--tp"),
    ("--tp 4>>f", "--tp"),
    ("--tp '4'>f", "4"),
    ("> f 2>&1 --tp 4", "4"),
]


@pytest.mark.parametrize(("words", "last"), LAST)
def test_a_number_is_a_descriptor_only_where_it_touches(words, last):
    first = script_of_text(f"run {words}").started[0]
    assert [word.text for word in first.words] == ["run", "--tp", *([last] if last != "--tp" else [])]
