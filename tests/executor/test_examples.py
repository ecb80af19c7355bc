"""The examples run, agree with one device or one process, and print predicted beside measured."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.counts import cases_of_run, tries
from tests.patience import undisturbed
from tools.write_examples_page import PAGE, page

NUMBER = r"(-?[\d.,e+-]+)(%| ms| s|)"


def run(name: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[float, float]]:
    """Run one example and read its table: predicted and measured by row."""
    main = importlib.import_module(f"examples.{name}").main
    if arguments:
        main(list(arguments))
    else:
        main()
    rows = {}
    for line in capsys.readouterr().out.splitlines():
        found = re.match(rf"  (\S.*?)\s{{2,}}{NUMBER}\s+{NUMBER}$", line)
        if found:
            scale = {" ms": 1e-3, "%": 1e-2}
            predicted, measured = (
                float(found[i].replace(",", "")) * scale.get(found[i + 1], 1.0) for i in (2, 4)
            )
            rows[found[1].strip()] = (predicted, measured)
    return rows


DATA_PARALLEL = ["mnist_data_parallel", "resnet_data_parallel"]
SMALL_MODELS = ["hybrid_llm", "moe_expert_parallel", "fsdp_pipeline"]


@pytest.mark.clock
@pytest.mark.slow
@pytest.mark.parametrize("name", cases_of_run(DATA_PARALLEL, ["resnet_data_parallel"]))
def test_data_parallel_examples_report_scaling(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Step time, communication share and scaling efficiency, predicted from parts and measured."""
    rows = run(name, capsys, "--ranks", "2", "--steps", "2")
    assert set(rows) == {"step_s", "communication share", "scaling efficiency"}
    assert all(value > 0 for value in (*rows["step_s"], *rows["scaling efficiency"]))
    assert all(0 <= share < 1 for share in rows["communication share"])


@pytest.mark.parametrize(
    ("name", "flag", "value"),
    [
        ("pipeline_serving", "--prompts", "0"),
        ("tensor_parallel_mlp", "--ranks", "0"),
        ("mnist_data_parallel", "--steps", "-1"),
        ("resnet_data_parallel", "--ranks", "two"),
        ("compressed_gradients", "--ranks", "0"),
        ("straggler", "--slower", "0"),
        ("straggler", "--slower", "nan"),
    ],
)
def test_counts_and_factors_are_at_least_one(
    name: str, flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others are refused before a rank starts."""
    with pytest.raises(SystemExit) as raised:
        importlib.import_module(f"examples.{name}").main([f"{flag}={value}"])
    assert raised.value.code == 2
    assert f"argument {flag}: {value!r} is no" in capsys.readouterr().err


def test_tensor_parallel_mlp_agrees_with_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    """The split MLP computes what the whole one does."""
    assert run("tensor_parallel_mlp", capsys, "--ranks", "2")["relative error"][1] < 1e-5


@pytest.mark.clock
@pytest.mark.slow
@pytest.mark.parametrize("schedule", cases_of_run(["1f1b", "interleaved"], ["1f1b"]))
def test_measured_bubble_is_that_of_the_replayed_schedule(
    schedule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bubble of four stages is near the replayed one, and interleaving makes it smaller than a fifth."""

    def wrong() -> str:
        predicted, measured = run("pipeline_transformer", capsys, "--schedule", schedule)["bubble share"]
        assert (predicted < 0.22) == (schedule == "interleaved")
        return "" if measured == pytest.approx(predicted, abs=0.08) else f"{measured} of {predicted}"

    assert undisturbed(wrong) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", cases_of_run(SMALL_MODELS, ["hybrid_llm", "fsdp_pipeline"]))
def test_small_models_train_as_in_one_process(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses of every step are those of one process; each rank stores what the cost model counts, exactly."""
    rows = run(name, capsys)
    losses = {row: values for row, values in rows.items() if row.startswith("loss of step")}
    stored = [values for row, values in rows.items() if "parameters per rank" in row]
    assert len(losses) == 4
    assert all(mine == pytest.approx(true, rel=1e-5) for true, mine in losses.values())
    assert [mine for _, mine in stored] == [predicted for predicted, _ in stored]
    assert len(stored) == (0 if name == "moe_expert_parallel" else 2)


@pytest.mark.slow
def test_compressed_gradients_send_what_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, in 16 bits and as factors, to the byte; PowerSGD sends less than a tenth."""
    importlib.import_module("examples.compressed_gradients").main(["--ranks", "2", "--steps", "4"])
    rows = re.findall(r"in a step\s+([\d,.e+]+)\s+([\d,.e+]+)", capsys.readouterr().out)
    predicted, measured = ([float(row[side].replace(",", "")) for row in rows] for side in (0, 1))
    assert measured == predicted
    whole, half, factors = measured
    assert half == pytest.approx(whole / 2, rel=1e-5)  # six digits are printed
    assert factors < whole / 10


@pytest.mark.clock
@pytest.mark.slow
def test_a_served_pipeline_picks_the_tokens_of_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    """First tokens of all prompts; together they take less than one after the other, as predicted."""
    rows = run("pipeline_serving", capsys, "--prompts", "6")
    assert rows["first tokens as in one process"] == (6, 6)
    predicted, measured = rows["busy share of the ranks"]
    assert predicted == pytest.approx(measured, abs=0.25)
    assert predicted > 1.5 / 4  # of four stages more than one works at a time


@pytest.mark.clock
@pytest.mark.slow
def test_a_straggler_costs_what_is_predicted_and_changes_no_loss(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host computes twice as long: the step grows by it, and losses are the same to the last digit; half of the hosts."""
    straggler = importlib.import_module("examples.straggler")
    hosts = tries(4, straggler.HOSTS)
    monkeypatch.setattr(straggler, "HOSTS", hosts)
    monkeypatch.setattr(straggler, "SLOW", hosts - 3)
    monkeypatch.setattr(
        straggler, "CASE", replace(straggler.CASE, layout=straggler.layout(dp=hosts, zero_stage=3))
    )
    rows = run("straggler", capsys, "--slower", "2")
    predicted, measured = rows["share of all GPUs lost to it"]
    assert measured == pytest.approx(predicted, abs=0.2)
    losses = [values for row, values in rows.items() if row.startswith("loss of step")]
    assert len(losses) == 3
    assert all(even == slow for even, slow in losses)


@pytest.mark.slow
def test_a_run_goes_on_without_a_killed_node(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step is there once, with the loss of a run that nobody disturbed; a third of the example's steps."""
    killed_node = importlib.import_module("examples.killed_node")
    monkeypatch.setattr(killed_node, "BEFORE", 9)
    monkeypatch.setattr(killed_node, "EVERY", 4)
    rows = run("killed_node", capsys)
    steps = rows.pop("steps without a gap")
    losses = [values for row, values in rows.items() if row.startswith("loss of step")]
    assert (steps[0] == steps[1], len(losses)) == (True, 2)
    assert all(disturbed == pytest.approx(calm, rel=1e-5) for calm, disturbed in losses)


def test_the_page_shows_what_every_example_prints() -> None:
    """Each that it names by its command has a table below; none has another's."""
    page = (Path(__file__).parents[2] / "examples" / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`python -m examples\.(\w+)`", page)
    assert named == re.findall(r"^`(\w+)`$", page, re.MULTILINE)
    folder = {
        path.stem
        for path in (Path(__file__).parents[2] / "examples").glob("*.py")
        if "def main" in path.read_text()
    }
    assert folder - set(named) <= {"diffusion"}


def test_the_page_is_not_written_for_a_name_that_it_has_not() -> None:
    """A typo runs nothing."""
    with pytest.raises(SystemExit, match=r"names no example stragler; it has .*straggler"):
        page(PAGE.read_text(encoding="utf-8"), ["stragler"])
