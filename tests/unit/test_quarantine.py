"""A flaky test is named with a reason, or it is no flaky test."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "tests" / "quarantine.txt").read_text(encoding="utf-8").splitlines()
ENTRIES = [line for line in LINES if line and not line.startswith("#")]


def test_every_quarantined_test_exists_and_has_a_reason() -> None:
    """A line is `tests/…/test_file.py::test_name  # why`."""
    broken = [line for line in ENTRIES if not names_a_test(line)]
    assert broken == []


def test_what_is_no_test_or_has_no_reason_is_found() -> None:
    """The check above can fail."""
    this = "tests/unit/test_quarantine.py::test_what_is_no_test_or_has_no_reason_is_found"
    assert [names_a_test(line) for line in (f"{this}  # why", this, f"{this}d  # why")] == [
        True,
        False,
        False,
    ]


def names_a_test(line: str) -> bool:
    """Whether a line names a test of a file, and says why."""
    name, _, reason = (part.strip() for part in line.partition("#"))
    path, _, test = name.partition("::")
    file = ROOT / path
    return (
        bool(reason)
        and file.is_file()
        and f"def {test.partition('[')[0]}(" in file.read_text(encoding="utf-8")
    )
