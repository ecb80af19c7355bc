"""The layout guide says what a search says now: a sample here, every row at night."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.analysis.recipes import COLUMNS, command_of, recipe, recipes
from costmodel.memory.fit import fit_of
from planner.questions.flags import Flags
from tests.cli.commands import plan
from tests.counts import IS_NIGHTLY

ROWS = recipes()
SAMPLE = ROWS if IS_NIGHTLY else [row for row in ROWS if row["step_time_s"] and row["num_gpus"] == "32"][::16]
PAGE = Path(__file__).parents[2] / "docs" / "layout-guide.md"


@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: f"{row['model']} {row['gpu']} {row['num_gpus']}")
def test_a_row_is_what_a_search_finds(row: dict[str, str]) -> None:
    """Layout, step, band and memory to the digits that are kept."""
    flags = Flags(
        model=row["model"], gpu=row["gpu"], gpus=row["num_gpus"], global_batch_size=row["batch"], top="1"
    )
    assert {"as_of": row["as_of"], **recipe(flags)} == {name: text for name, text in row.items() if text}


def test_rows_are_whole() -> None:
    """18 models, 6 kinds, 5 sizes, each once; every word of memory is that of its chance; all are proven."""
    assert len(ROWS) == len({(row["model"], row["gpu"], row["num_gpus"]) for row in ROWS}) == 18 * 6 * 5
    for row in ROWS:
        assert tuple(row) == COLUMNS
        if row["status"] == "infeasible":
            assert row["reason"]
            continue
        assert row["status"] in ("proven", "best-found")
        assert row["fit"] == fit_of(float(row["out_of_memory_chance"])) == "fits"
        assert float(row["lower_s"]) < float(row["step_time_s"]) < float(row["upper_s"])


def test_the_command_shows_rows_and_how_to_ask_anew() -> None:
    """By a lenient name and a kind; what is not in the guide is refused with what is."""
    done = plan("recipes", "70b", "--gpu", "h100-sxm")
    assert done.returncode == 0
    shown = re.findall(r"^  llama-3.1-70b +h100-sxm +([\d,]+)", done.stdout, re.MULTILINE)
    assert set(shown) == {"8", "32", "128", "1,024", "4,096"}
    assert command_of(
        next(row for row in ROWS if row["model"] == "llama-3.1-70b" and row["gpu"] == "h100-sxm")
    )
    assert plan("recipes", "70b", "--gpu", "t4").returncode == 2
    assert "model of the guide" in plan("recipes", "gpt-2").stderr


def test_the_page_shows_rows_of_the_table() -> None:
    """Every step that stands on the page is one of the table's, beside its layout."""
    block = (
        PAGE.read_text(encoding="utf-8").partition("<!-- recipes -->")[2].partition("<!-- /recipes -->")[0]
    )
    lines = [
        line.split(" | ") for line in block.splitlines() if line.startswith("| llama") or "deepseek" in line
    ]
    layouts = {(row["model"], row["gpu"], f"{int(row['num_gpus']):,}"): row["layout"] for row in ROWS}
    shown = [cells for cells in lines if len(cells) > 5]
    assert len(shown) >= 20
    for cells in shown:
        key = (cells[0].removeprefix("| "), cells[1], cells[2])
        assert cells[4] == layouts[key] or cells[4].startswith("none")
