"""A question is answered by what was found before only where it is the same, and the program is as it was written."""

from dataclasses import replace
from pathlib import Path

import pytest

import planner.rules.check
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.plan import PlanRequest
from tests.answers import Answers, question
from topology.builders import default_cluster


def asked(gpus: int = 8, **changes: object) -> PlanRequest:
    """A question, built anew."""
    job = TrainingJob(sequence_length=8192, global_batch_size=64)
    request = PlanRequest(model=model("8b"), cluster=default_cluster("h100-sxm", gpus).spec, job=job)
    return replace(request, **changes)  # type: ignore[arg-type]  # fields of a test


def test_equal_questions_are_one_whatever_tables_were_read() -> None:
    """Built twice, beside calibrations of which one has read its tables."""
    read = load_calibration()
    read.fits()
    assert question(asked(), read) == question(asked(), load_calibration()) is not None


def test_whatever_is_asked_otherwise_is_another_question() -> None:
    """Clusters, pins, jobs, numbers of alternatives."""
    others = [
        asked(), asked(16), asked(pins={"tp": 2}), asked(top=1), asked(memory_headroom=0.5),
        asked(job=TrainingJob(sequence_length=8192, global_batch_size=65)),
    ]  # fmt: skip
    assert len({question(one) for one in others}) == len(others)
    assert question(lambda: None) is None


def test_a_changed_program_is_asked_anew(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is neither taken from before nor left for others."""
    answers, found = Answers(), iter(range(9))
    search = answers.of("search", lambda _: next(found))
    assert [search(1), search(1)] == [0, 1]  # nobody has said that answers may be taken
    answers.asking = request.node
    monkeypatch.setattr("sys.argv", [])
    assert [search(1), search(1), search(2)] == [2, 2, 3]
    monkeypatch.setattr(planner.rules.check, "check", None)
    assert [search(1), search(1)] == [4, 5]


@pytest.mark.parametrize(("answer", "searches"), [("a plan", 1), (lambda: None, 2)], ids=["text", "no data"])
def test_a_dear_answer_is_handed_to_the_other_workers(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: object,
    searches: int,
) -> None:
    """Searched by one, read by the other; what cannot be written each worker finds itself."""
    searched: list[str] = []

    def search(which: str) -> object:
        searched.append(which)
        return answer

    for dear_s in (60.0, -1.0):  # cheap answers are not worth a file
        monkeypatch.setattr("tests.answers.DEAR_S", dear_s)
        searched.clear()
        for worker in (Answers(tmp_path), Answers(tmp_path)):
            worker.asking = request.node
            answered = worker.of("search", search)
            assert [answered("a question"), answered("a question")] == [answer, answer]
        assert len(searched) == (2 if dear_s > 0 else searches)
