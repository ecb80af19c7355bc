"""The shape of the house: few loose files, and wings that say their topic."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOSE = {"topology": 7, "costmodel": 5, "planner": 4, "executor": 4, "app": 7, "meshplan": 4}
FILES = sorted(path for package in LOOSE for path in (ROOT / package).rglob("*.py"))
WINGS = sorted({path.parent for path in FILES if path.parent.parent != ROOT})


def modules(folder: Path) -> int:
    """Files of code directly in a folder."""
    return sum(path.name != "__init__.py" for path in folder.glob("*.py"))


def test_few_files_lie_loose_at_the_top_of_a_package() -> None:
    """What is in no wing is named by every wing, or starts the program."""
    loose = {package: modules(ROOT / package) for package in LOOSE}
    assert {package: count for package, count in loose.items() if count > LOOSE[package]} == {}


def test_a_wing_says_what_it_is_about() -> None:
    """A wing is one topic and a file one idea, however many and however long."""
    silent = [w for w in WINGS if not (w / "__init__.py").read_text(encoding="utf-8").startswith('"""')]
    assert silent == []
