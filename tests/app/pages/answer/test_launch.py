"""What the page gives to take home is what the command line writes."""

import io
import zipfile

import pytest

from app.pages.answer.launch import archive, written
from planner.launch.bundle import bundle
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from tests.app.page_reading import SMALL, words
from topology.base.errors import InputError


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan that the pages of these tests show."""
    found = search(understand(Flags(**SMALL, tokens="1T")).request)
    assert isinstance(found, Plan)
    return found


def test_the_archive_holds_every_file_of_the_bundle(plan):
    """As `plan export --save-dir` writes them, scripts executable, the same bytes each time."""
    files, _ = bundle(plan, "megatron", "slurm")
    packed = archive(files)
    with zipfile.ZipFile(io.BytesIO(packed)) as box:
        assert {name: box.read(name).decode() for name in box.namelist()} == dict(files)
        assert box.getinfo("start.sh").external_attr >> 16 & 0o111
    assert archive(files) == packed


def test_the_files_of_the_page_are_those_of_the_command(plan):
    """Written in a process of the pool, and equal."""
    assert written("key", plan, "megatron", "torchrun") == (
        dict(bundle(plan, "megatron", "torchrun")[0]),
        bundle(plan, "megatron", "torchrun")[1],
    )


def test_an_engine_that_cannot_run_the_plan_says_so(plan):
    """The refusal of `plan export` reaches the page as it is."""
    with pytest.raises(InputError) as of_command:
        bundle(plan, "deepspeed", "slurm")
    with pytest.raises(InputError) as of_page:
        written("key", plan, "deepspeed", "slurm")
    assert str(of_page.value) == str(of_command.value)


def test_the_explanation_stands_on_the_page(open_page):
    """What binds it and the one change that helps most are those of `plan explain`."""
    page = open_page("what_if", **SMALL, picture="What would help most?")
    assert "What binds it" in words(page)
    tables = [list(frame.value.columns) for frame in page.dataframe]
    assert any({"change", "tokens/s"} <= set(columns) for columns in tables)
