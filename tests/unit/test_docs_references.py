"""What the documentation names exists: functions, files, tests, constants and links."""

import importlib
import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
PACKAGES = ("topology", "costmodel", "planner", "executor", "app", "meshplan")
NAME = re.compile(rf"`((?:{'|'.join(PACKAGES)})\.[\w.]+)`")
FILE = re.compile(rf"`((?:{'|'.join(PACKAGES)}|tests|tools|docs)/[\w./]+\.\w+)`")
TEST = re.compile(r"`(test_\w+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]*)?\)")


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute (of an attribute …) of one."""
    parts = dotted.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[depth:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_files_and_links_of_a_page_exist(page: Path) -> None:
    """Every dotted name imports, every path is a file, every link leads somewhere."""
    text = page.read_text(encoding="utf-8")
    assert [name for name in NAME.findall(text) if not exists(name)] == []
    assert [name for name in FILE.findall(text) if not (ROOT / name).is_file()] == []
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tests_named_by_a_page_exist(page: Path) -> None:
    """Every test a page leans on is a test function, or a file of tests."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    known = {path.stem for path in files}
    for path in files:
        known.update(re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")))
    assert set(TEST.findall(page.read_text(encoding="utf-8"))) - known == set()


def test_constants_named_by_the_cost_model_page_exist() -> None:
    """A name in italics with an underscore is a constant or a field of a stack."""
    from dataclasses import fields

    from costmodel.stack import StackMemory, StackTiming

    page = (ROOT / "docs/cost-model.md").read_text(encoding="utf-8")
    constants = tomllib.loads((ROOT / "costmodel/data/constants.toml").read_text(encoding="utf-8"))
    known = set(constants) | {field.name for group in (StackTiming, StackMemory) for field in fields(group)}
    assert set(re.findall(r"\*([a-z0-9]+(?:_[a-z0-9]+)+)\*", page)) - known == set()


def test_what_programs_read_first_lists_every_page() -> None:
    """`llms.txt` is written from the list of pages, and every page of the docs is in that list or below it."""
    tool = runpy.run_path(str(ROOT / "tools" / "write_llms.py"))
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert text == tool["page"]()
    listed = [ROOT / link for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert [str(path) for path in listed if not path.exists()] == []
    above = {path.parent if path.name == "README.md" else path for path in listed if path.parent != ROOT}
    left_out = [page.name for page in PAGES if not above & {page, *page.parents}]
    assert left_out == ["README.md"]  # the list itself
