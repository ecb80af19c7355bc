"""The diagnose page: what `plan diagnose` says of dropped files, its ranks over time, and what differs."""

import json
from itertools import pairwise

import pytest

from app.analysis.diagnosed_uploads import diagnosed_upload
from app.figures.diagnosis import residual_waterfall, step_lanes
from app.figures.diagnosis_view import diagnosis_view
from app.figures.style import alt_text
from app.pages import diagnose
from planner.diagnose.diagnosis import diagnosed
from planner.questions.flags import Flags
from tests.app.page_reading import words
from tests.unit.planner.diagnose.simulated import simulate, write_ranks
from tests.unit.planner.diagnose.test_beside_prediction import SCRIPT
from topology.base.errors import InputError


@pytest.fixture
def recorded(tmp_path):
    """Four ranks, of which the last loads late, and their script."""
    paths = write_ranks(simulate(0, "slow rank", shape=(1, 4)), tmp_path)
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT.format(gpus=4, tp=1, more=""))
    return [*paths, script]


def test_lanes_are_the_middle_step_of_each_rank(recorded):
    """Parts of a lane follow each other, fill the step, and last about as long as the budget says."""
    diagnosis = diagnosed(recorded, Flags(gpu="h100-sxm"))
    view = diagnosis_view(diagnosis)
    assert [*view.lanes] == ["rank 0", "rank 1", "rank 2", "rank 3", "predicted"]
    for rank in range(4):
        parts = view.lanes[f"rank {rank}"]
        middle = sorted(diagnosis.job.budgets[rank], key=lambda each: each.seconds)[1]
        assert sum(part.seconds for part in parts) == pytest.approx(middle.seconds)
        assert all(a.start_s + a.seconds == pytest.approx(b.start_s) for a, b in pairwise(parts))
        computed = sum(part.seconds for part in parts if part.term == "compute")
        recorded_s = sum(middle.parts[name] for name in ("GEMM", "attention", "elementwise"))
        assert computed == pytest.approx(recorded_s, abs=0.06 * middle.seconds)  # slots of 0.4 %
    assert sum(part.seconds for part in view.lanes["predicted"]) == pytest.approx(view.predicted_s)


def test_the_waterfall_goes_from_the_prediction_to_the_record(recorded):
    view = diagnosis_view(diagnosed(recorded, Flags(gpu="h100-sxm")))
    bars = residual_waterfall(view).data
    assert [bars[0].y[0], bars[-1].y[0]] == ["predicted", "recorded"]
    ratio = bars[-1].x[0] / bars[0].x[0]
    assert ratio == pytest.approx(view.recorded_s / view.predicted_s, rel=0.01)
    assert "predicted" in alt_text(step_lanes(view))


def test_dropped_files_say_what_the_command_line_says(recorded):
    files = [(path.name, path.read_bytes()) for path in recorded[:4]]
    headline, sections, view = diagnosed_upload(files, Flags())
    culprit = simulate(0, "slow rank", shape=(1, 4)).rank
    assert headline.endswith(f"% of it goes to slow rank (rank {culprit})")
    assert [section.title for section in sections][1:3] == ["Causes", "Where a step goes"]
    assert len(view.lanes) == 4
    causes = sections[1]
    assert causes.ordered
    assert all(line.count("\nfix: ") == 1 for line in causes.lines)


def test_a_refusal_names_the_upload_and_no_folder():
    with pytest.raises(InputError) as error:
        diagnosed_upload([("../../evil rank0.json", json.dumps({"traceEvents": []}).encode())], Flags())
    assert "evil_rank0.json" in str(error.value)
    assert "meshplan-" not in str(error.value)


def test_an_empty_page_says_what_to_drop(open_page):
    assert "torch.profiler" in words(open_page("diagnose"))
    assert callable(diagnose.render)
