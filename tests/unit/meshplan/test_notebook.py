"""The example notebook runs, cell by cell, as a reader runs it."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[3] / "examples" / "plan_a_job.ipynb"


def cells(kind: str) -> list[str]:
    """Source of each cell of a kind."""
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == kind]


def test_the_cells_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one namespace, in an empty folder; cells assert what their text says."""
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "notebook"}
    for number, code in enumerate(cells("code")):
        exec(compile(code, f"cell {number}", "exec"), names)  # noqa: S102 - the notebook is ours
    assert list(tmp_path.iterdir()) == []


def test_it_is_kept_without_what_a_run_prints() -> None:
    """Outputs would go stale: who opens it runs it."""
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert all(not cell.get("outputs") for cell in document["cells"])
    assert cells("markdown")[0].startswith("# ")
