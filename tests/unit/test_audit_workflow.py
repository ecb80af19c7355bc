"""The workflow that docs/audit.md offers is a file, and gives the action inputs that it has."""

from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / "examples" / "audit-workflow.yml"


def test_the_workflow_gives_the_action_what_it_takes():
    """Inputs that the action declares, those that it requires among them."""
    action = yaml.safe_load((ROOT / ".github" / "actions" / "audit" / "action.yml").read_text("utf-8"))
    (step,) = (
        step
        for step in yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["audit"]["steps"]
        if "actions/audit" in step["uses"]
    )
    required = {name for name, entry in action["inputs"].items() if entry.get("required")}
    assert required <= set(step["with"]) <= set(action["inputs"])


def test_the_page_shows_the_file():
    """From its first trigger to its last line."""
    shown = WORKFLOW.read_text("utf-8").partition("name: audit jobs\n")[2]
    assert shown in (ROOT / "docs" / "audit.md").read_text("utf-8")
