"""Runs in phases: the sequence of layouts is the best of all, and phases that change nothing change nothing."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cli import run
from costmodel.campaign.failures import default_model
from costmodel.kernels.tables import load_calibration
from planner.analysis.campaign.phases import least_sequence, mean_s, reshard_s, run_of_phases, total_s
from planner.campaign.finish import with_campaign
from planner.plan import Plan, PlanRequest
from planner.questions.flags import Flags
from planner.questions.phases import read_phases
from planner.search.given_layout import plan_of_layout
from planner.search.search import search
from topology.base.errors import InputError

FLAGS = Flags(model="405b", gpus="16384", top="1")
WORLD = default_model("h100-sxm")
SHORT = 'sequence_length = "8k"\nglobal_batch_size = 2048\n'
LONG = 'sequence_length = "128k"\nglobal_batch_size = 128\n'


def found(request: PlanRequest) -> Plan:
    """The best plan, which there must be."""
    answer = search(request)
    assert isinstance(answer, Plan)
    return answer


def pinned(request: PlanRequest) -> Plan | None:
    """The plan of a pinned layout."""
    answer = plan_of_layout(request, load_calibration())
    return answer if isinstance(answer, Plan) else None


def written(folder: Path, *phases: str) -> Path:
    """A file of phases."""
    path = folder / "run.toml"
    path.write_text("".join(f"[[phases]]\n{phase}\n" for phase in phases))
    return path


def asked(folder: Path, *phases: str):
    """The run of these phases."""
    return run_of_phases(read_phases(written(folder, *phases), FLAGS)[0], WORLD, found, pinned)


TIMES = st.floats(0.1, 10) | st.just(math.inf)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_no_sequence_of_candidates_takes_less(data: st.DataObject, phases: int, candidates: int) -> None:
    """Against every sequence, for any times and any cost of a change."""
    rows = [data.draw(st.lists(TIMES, min_size=candidates, max_size=candidates)) for _ in range(phases)]
    shape = (phases - 1, candidates, candidates)
    changes = data.draw(st.lists(st.floats(0, 5), min_size=math.prod(shape), max_size=math.prod(shape)))
    seconds, switch = np.array(rows), np.array(changes).reshape(shape)
    sequences = itertools.product(range(candidates), repeat=phases)
    least = min(total_s(seconds, sequence, switch) for sequence in sequences)
    assert total_s(seconds, least_sequence(seconds, switch), switch) == pytest.approx(least)


def test_one_phase_is_the_run_without_phases(tmp_path: Path) -> None:
    """The same plan, the same campaign."""
    (only,) = asked(tmp_path, f'name = "all"\ntokens = "15T"\n{SHORT}').runs
    alone = with_campaign(
        found(read_phases(written(tmp_path, f'name = "all"\ntokens = "15T"\n{SHORT}'), FLAGS)[0][0].request)
    )
    assert only.plan.layout == alone.layout
    assert only.plan.campaign == alone.campaign
    assert only.reshard_s == 0


def test_a_deadline_is_that_of_all_phases(tmp_path: Path) -> None:
    """One phase keeps it as often as its campaign says; two halves are less likely to than each alone."""
    flags = Flags(model="8b", gpus="8", top="1", deadline="140d")
    words = 'tokens = "{}"\nsequence_length = "8k"\nglobal_batch_size = 512\n'

    def chance(*tokens: str) -> tuple[float | None, list[float | None]]:
        """Of a run whose phases train so many tokens, and of each phase as if it were all."""
        phases = (f'name = "{n}"\n{words.format(each)}' for n, each in enumerate(tokens))
        done = run_of_phases(read_phases(written(tmp_path, *phases), flags)[0], WORLD, found, pinned)
        alone = [one.plan.campaign.deadline_chance for one in done.runs if one.plan.campaign is not None]
        return done.deadline_chance, alone

    whole, (alone,) = chance("1T")
    assert whole is not None
    assert whole == alone
    assert 0.1 < whole < 0.9
    halves, each = chance("0.5T", "0.5T")
    assert halves == pytest.approx(whole, abs=0.05)
    assert each == [1.0, 1.0]


def test_two_equal_phases_are_one(tmp_path: Path) -> None:
    """No reshard between, and together the mean time of the whole."""
    halves = asked(tmp_path, *(f'name = "{n}"\ntokens = "7.5T"\n{SHORT}' for n in "ab"))
    whole = asked(tmp_path, f'name = "all"\ntokens = "15T"\n{SHORT}')
    assert halves.runs[0].plan.layout == halves.runs[1].plan.layout == whole.runs[0].plan.layout
    assert sum(run_.reshard_s for run_ in halves.runs) == 0
    assert halves.mean_days == pytest.approx(whole.mean_days, rel=1e-4)
    assert halves.one_layout_days == pytest.approx(halves.mean_days)


def test_a_layout_changes_where_that_pays(tmp_path: Path) -> None:
    """Long sequences after short ones: a reshard of minutes for days; for a few steps none."""
    often = asked(
        tmp_path,
        f'name = "8k"\ntokens = "14T"\n{SHORT}',
        f'name = "128k"\ntokens = "1T"\npause = "1h"\n{LONG}',
    )
    first, second = often.runs
    assert first.plan.layout != second.plan.layout
    assert second.reshard_s == pytest.approx(max(reshard_s(one.plan, WORLD) for one in often.runs))
    parts = sum(mean_s(one.plan, WORLD) for one in often.runs) + second.reshard_s + 3600
    assert often.mean_days * 86400 == pytest.approx(parts)
    assert often.mean_days == pytest.approx(often.each_best_days)
    assert often.one_layout_days is None or often.one_layout_days > often.mean_days
    assert often.days.p10 < often.days.p50 < often.days.p90


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ((), "is no file of phases"),
        (('name = "a"\ntokens = "1T"\nlearning_rate = 1\n',), "learning_rate"),
        (('name = "a"\n',), "tokens"),
        (('name = "a"\ntokens = "many"\n',), "many"),
        (('name = "a"\ntokens = "1T"\n', 'name = "a"\ntokens = "1T"\n'), "two phases of one name"),
        (('name = "a"\ntokens = "1T"\npause = "soon"\n',), "soon"),
        (('name = "a"\ntokens = true\n',), "tokens"),
    ],
)
def test_files_that_say_nothing_are_refused(tmp_path: Path, phases: tuple[str, ...], said: str) -> None:
    """By name; and tokens that the flags say too."""
    with pytest.raises(InputError, match=said):
        read_phases(written(tmp_path, *phases), FLAGS)
    with pytest.raises(InputError, match="--tokens and --phases"):
        read_phases(written(tmp_path, *phases), Flags(model="405b", gpus="64", tokens="1T"))
    with pytest.raises(InputError, match="does not go with --phases"):
        read_phases(written(tmp_path, *phases), Flags(model="405b", gpus="64", global_batch_size="64..128"))


@pytest.mark.parametrize("pause", ["-1h", "soon"])
def test_a_pause_that_is_no_time_is_named_with_its_file_and_phase(tmp_path: Path, pause: str) -> None:
    """Which of many phases it is, where it is written, and what was written."""
    path = written(
        tmp_path, 'name = "8k"\ntokens = "1T"\n', f'name = "32k"\ntokens = "1T"\npause = "{pause}"\n'
    )
    with pytest.raises(InputError) as refused:
        read_phases(path, FLAGS)
    assert [word in refused.value.what for word in (str(path), "'32k'", "pause")] == [True] * 3
    assert pause in refused.value.cause


def test_the_command_answers_in_words_and_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every format, with the same phases."""
    path = written(tmp_path, f'name = "8k"\ntokens = "10T"\n{SHORT}')
    words = ["--model", "405b", "--gpus", "16384", "--phases", str(path)]
    assert run(words) == 0
    assert "Run in phases" in capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    assert '"reshard_s": 0.0' in capsys.readouterr().out
    assert run([*words, "--format", "csv"]) == 0
    assert "phase,tokens" in capsys.readouterr().out
