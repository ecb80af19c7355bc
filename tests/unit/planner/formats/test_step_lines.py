"""Forms of step lines are rows of data: each says what its example says, behind whatever a launcher prints."""

import re

import pytest

from planner.formats.kinds import kind_of
from planner.formats.logs import is_log, measured_of
from planner.formats.progress import logged_steps
from planner.formats.step_lines import FORMS, PACE, Work, pace_of, step_line

PREFIXES = ("", "0: ", "[rank0]:", "1: [rank0]:", "[1,0]<stdout>:", "[default7]:", "\x1b[36m")
TITAN_2024 = "root - INFO - step: {step}  loss:  1.55  memory: 26.47GiB(33.47%)  wps: 1,786  mfu: 10.46%"
TITAN_2025 = (
    "[titan] 2026-01-02 20:24:06,144 - root - INFO - step: {step}  loss: 1.5  grad_norm: 2.5  "
    "memory: 26.47GiB(33.47%)  tps: 1,786  tflops: 103.40  mfu: 10.46%"
)
SWIFT = (
    "{{'loss': 1.2, 'memory(GiB)': 36.5, 'train_speed(iter/s)': 0.02, 'global_step/max_steps': '{step}/100'}}"
)
MAXTEXT = "completed step: {step}, seconds: 4.121, TFLOP/s/device: 250.1, Tokens/s/device: 3975.3, loss: 10.2"
AUTOMODEL = "step {step} | epoch 0 | loss 1.2 | lr 1.0e-05 | mem 20.5 GiB | tps 10213.12(10213.12/gpu) | x"
LINES = {
    "torchtitan 2024": TITAN_2024, "torchtitan 2025": TITAN_2025, "ms-swift": SWIFT, "MaxText": MAXTEXT,
    "AutoModel": AUTOMODEL,
}  # fmt: skip


def named(form: object) -> str:
    """A row of the table, for a report."""
    return f"{form.of}-{form.means}".replace(" ", "_")  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_a_form_says_what_its_example_says(form):
    """In SI units, alone and among all others, and its mark is there."""
    assert form.mark == form.mark.lower()
    assert form.mark in form.example.lower()
    assert form.number(form.example) == pytest.approx(form.value)
    assert getattr(step_line(form.example), form.means) == pytest.approx(form.value)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("form", FORMS, ids=named)
def test_what_stands_before_a_line_changes_nothing(form, prefix):
    """Rank, host and colour of launchers and loggers."""
    assert getattr(step_line(prefix + form.example), form.means) == pytest.approx(form.value)


@pytest.mark.parametrize("form", [form for form in FORMS if form.means in PACE], ids=named)
def test_a_line_with_a_pace_makes_a_text_a_log(form):
    """Not where it is commented out at the end of a script."""
    assert is_log(f"something\n{form.example}\n")
    assert not is_log(f"#!/bin/bash\n# {form.example}\n")
    assert kind_of(f"#!/bin/bash\nsrun python train.py\n# {form.example}\n", "job.sbatch") == "shell"


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("engine", LINES)
def test_current_engines_are_read_by_audit_and_watch_alike(engine, prefix):
    """One table of forms: what the audit measures, the watch follows step by step."""
    lines = [prefix + LINES[engine].format(step=step) for step in (10, 20, 30)]
    text = "\n".join(lines)
    assert kind_of(text, "train.txt") == "log"
    found, _, _ = measured_of(text)
    assert found.has_steps
    first = 1 if engine == "MaxText" else 0
    assert [one.step for one in logged_steps(lines)] == [10 + first, 20 + first, 30 + first]
    work = Work(gpus=4, tokens=65_536.0, samples=8, flop=1e15)
    steps = list(logged_steps(lines))
    followed = pace_of(
        work, step_s=steps[0].step_s, tokens_per_s_per_gpu=steps[0].tokens_per_s_per_gpu,
        tokens_per_s=steps[0].tokens_per_s,
    )  # fmt: skip
    assert found.pace(work) == followed


@pytest.mark.parametrize("name", ["a.log", "slurm-1.out", "x.err", "train.log.1", "stdout.txt"])
@pytest.mark.parametrize(
    "line",
    ["[rank0]: hello: world", "1: [rank0]: {not json", "2026-01-02 03:04:05 INFO nothing", "{'loss': 1}"],
)
def test_what_is_called_or_looks_like_a_log_is_no_configuration(name, line):
    """Neither JSON nor YAML, whatever its first letter is."""
    assert kind_of(f"{line}\n" * 3, name) == "log"


def test_a_step_and_its_rate_on_two_lines_are_one_step():
    """OLMo-core and LLM Foundry print a number, then quantities below it."""
    lines = ["[step=1,200/9,000,epoch=1]", "    optim/lr=0.1", "    throughput/device/TPS=10,213", "x"]
    assert [(one.step, one.tokens_per_s_per_gpu) for one in logged_steps(lines)] == [(1200, 10213.0)]


def test_a_mllog_step_is_counted_by_its_number_or_its_samples():
    """MLPerf's runs say how many samples were seen; its times are in milliseconds since 1970."""
    record = ':::MLLOG {{"time_ms": {ms}, "key": "tracked_stats", "value": {value}, "metadata": {{"{name}": {n}}}}}'
    lines = [':::MLLOG {"key": "global_batch_size", "value": 1152, "time_ms": 1}']
    lines += [
        record.format(ms=10**12 + k, value='{"train_step_time": 14.2}', name="samples_count", n=1152 * k)
        for k in (1, 2)
    ]
    lines.append(record.format(ms=10**12, value='{"train_step_time": 14.0}', name="step", n=3))
    lines.append(record.format(ms=10**12, value='{"throughput": 5.0}', name="step", n=4))
    assert [(one.step, one.step_s) for one in logged_steps(lines)] == [(1, 14.2), (2, 14.2), (3, 14.0)]


@pytest.mark.parametrize("about", ["", ', "metadata": {}', ', "metadata": {"step": %d000000000}'])
def test_mllog_steps_without_a_count_of_steps_are_numbered_as_they_come(about):
    """Some runs name none, some count tokens without saying how many a step has."""
    line = ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 14.2}%s}'
    lines = [line % (about % n if "%" in about else about) for n in (3, 4, 5)]
    assert [one.step for one in logged_steps(lines)] == [1, 2, 3]


def test_a_bar_that_loads_a_model_is_not_the_training():
    """The longest bar is."""
    bars = [" 1/4 [00:01<00:03, 99.0s/it]", " 2/4 [00:02<00:02, 98.0s/it]"]
    bars += [f" {n}/200 [00:32<10:11, 3.25s/it]" for n in (1, 2, 3)]
    assert measured_of("\n".join(bars))[0].step_time_s == pytest.approx(3.25)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"step_s": 5.0, "tokens_per_s_per_gpu": 1.0}, ""),
        ({"tokens_per_s_per_gpu": 500.0}, "500 tokens/s per GPU"),
        ({"tokens_per_s": 2000.0}, "2,000 tokens/s"),
        ({"samples_per_s": 2.0}, "2 samples/s"),
        ({"flop_per_s_per_gpu": 50e12}, "50 TFLOP/s per GPU"),
    ],
)
def test_any_printed_rate_is_a_measurement(said, words):
    """Of four GPUs, 10,000 tokens, ten sequences and 10¹⁵ operations a step, each is five seconds."""
    found = pace_of(Work(gpus=4, tokens=10_000, samples=10, flop=1e15), **said)
    assert found is not None
    assert (found.step_s, found.from_rate) == (pytest.approx(5.0), words)
    assert re.match(r"[\d,.]+ \S+/s|$", found.from_rate)


@pytest.mark.parametrize(("printed", "said"), [("1e-320", None), ("1e16", None), ("1,786", 1786.0)])
def test_a_number_without_an_inverse_is_none(printed, said):
    """A rate that no step time follows from says nothing."""
    assert step_line(f"step: 2  loss: 2.0  tps: {printed} ").tokens_per_s_per_gpu == said
