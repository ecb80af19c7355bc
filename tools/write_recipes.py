"""Write the table of the layout guide: the proven layout of usual models on usual GPUs, at usual sizes.

Run `python tools/write_recipes.py` with the package installed, after a change of the cost model or the
search; it takes a quarter of an hour on two cores. `plan recipes` and docs/layout-guide.md read the table.
"""

from __future__ import annotations

import csv
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from app.analysis.recipes import COLUMNS, TABLE, recipe, recipes, recipes_answer
from app.reports.answer import Answer, render
from planner.questions.flags import Flags

MODELS = (
    "llama-3.2-1b", "llama-3.1-8b", "qwen3-14b", "gemma-3-27b", "qwen3-32b", "llama-3.1-70b", "gpt-3-175b",
    "llama-3.1-405b", "gpt-oss-20b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b", "llama-4-scout",
    "mixtral-8x22b", "qwen3-235b-a22b", "glm-4.5", "deepseek-v3", "kimi-k2",
)  # fmt: skip
GPUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "mi300x")
SIZES = ((8, "1Mtok"), (32, "4Mtok"), (128, "4Mtok"), (1024, "8Mtok"), (4096, "16Mtok"))
"""GPUs, and the tokens of a step that such a job takes."""


def row(cell: tuple[str, str, tuple[int, str]]) -> dict[str, str]:
    """One cell of the grid."""
    model, gpu, (count, batch) = cell
    flags = Flags(model=model, gpu=gpu, gpus=str(count), global_batch_size=batch, top="1")
    return {"as_of": f"{datetime.now(UTC):%Y-%m-%d}", **recipe(flags)}


PAGE = Path(__file__).resolve().parents[1] / "docs" / "layout-guide.md"
SHOWN = (
    ("llama-3.1-8b", "h100-sxm"),
    ("llama-3.1-8b", "h200-sxm"),
    ("llama-3.1-70b", "h100-sxm"),
    ("llama-3.1-70b", "b200-sxm"),
    ("deepseek-v3", "gb200"),
)
"""Model and GPU of the rows that the page prints."""


def write_page() -> None:
    """Put the rows of some models between the page's markers."""
    rows = [row for pair in SHOWN for row in recipes() if (row["model"], row["gpu"]) == pair]
    [table] = recipes_answer(rows).sections
    text = render(Answer(headline="", sections=(table,), document=str), "markdown").strip()
    page = PAGE.read_text(encoding="utf-8")
    block = f"<!-- recipes -->\n{text}\n<!-- /recipes -->"
    written = re.sub("<!-- recipes -->.*<!-- /recipes -->", lambda _: block, page, flags=re.DOTALL)
    PAGE.write_text(written, encoding="utf-8")


def main() -> None:
    """Plan every cell, two at a time; `--page` writes the page alone."""
    if sys.argv[1:] == ["--page"]:
        write_page()
        return
    cells = list(product(MODELS, GPUS, SIZES))
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else TABLE
    with path.open("w", encoding="utf-8", newline="") as file, ProcessPoolExecutor(2) as pool:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for number, record in enumerate(pool.map(row, cells), 1):
            writer.writerow(record)
            file.flush()
            sys.stderr.write(f"\r{number:,} of {len(cells):,}")
    sys.stderr.write("\n")


if __name__ == "__main__":
    main()
