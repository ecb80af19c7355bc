"""Compare, topology, accuracy, serving and executor: the numbers of the command line, and no exception ever."""

import json
import math
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from app.figures.serving import HOLLOW
from app.pages import accuracy
from app.pages.base.choices import KEPT
from app.pages.question.bar import BY_GPU
from app.quantities import format_percent
from app.reports.serving.plan import serving_answer
from app.reports.topology import parse_layout, topology_answer
from app.reports.training_accuracy import for_someone_new
from app.store.run_log import CHECKPOINT_FOLDER, RunStep, checkpoints_of
from costmodel.accuracy.left_out import ALL, left_out_errors, unseen_publishers
from costmodel.accuracy.training import predict_rows, summarise
from costmodel.accuracy.training_runs import PUBLISHED_RUNS, read_rows
from costmodel.evidence.table import RUNS
from costmodel.kernels.tables import load_calibration
from costmodel.layout import layout_words
from executor.training.settings import RunSettings, write_json
from planner.analysis.link_load import link_load
from planner.analysis.serving.fleets import find_fleet
from planner.plan import to_json
from planner.questions.flags import Flags, ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.questions.training import understand
from planner.search.search import search
from tests.app.page_reading import SMALL, numbers, packed, words
from topology.base.units import MIB, format_seconds, three_digits
from topology.builders import build, default_cluster

HOSTILE = "<img src=x onerror=alert(1)>"


def charts(page) -> list[str]:
    """Readings of the charts of a page."""
    return [chart.proto.alt for chart in page.get("plotly_chart")]


def test_fewer_than_two_plans_say_how_to_add_them(open_page):
    """An empty page explains itself, and shows its example when asked."""
    page = open_page("compare")
    assert "0 of 2 plans" in words(page)
    next(button for button in page.button if "example" in button.label).click()
    page.run()
    assert "B against A" in words(page)


@pytest.mark.parametrize("count", [2, 3])
def test_plans_from_the_url_stand_side_by_side(open_page, count):
    """One row a plan, one time chart, memory and links of each, and a difference to the first of each other."""
    asked = [packed(**SMALL), packed(**SMALL, settings=("tp=8",)), packed(**SMALL, settings=("tp=4",))][
        :count
    ]
    page = open_page("compare", **{"with": asked})
    assert len(charts(page)) == 1 + 2 * count
    table = page.dataframe[0].value
    expected = [
        format_seconds(search(understand(Flags(**SMALL, settings=pins)).request).estimate.step_time_s)
        for pins in ((), ("tp=8",), ("tp=4",))[:count]
    ]
    assert list(table["step time"]) == expected
    assert [head.value for head in page.subheader][1:] == ["B against A", "C against A"][: count - 1]


def test_uploaded_plans_are_compared(open_page):
    """Two plan.json files, under hostile names."""
    page = open_page("compare")
    for pins in ((), ("tp=8",)):
        text = to_json(search(understand(Flags(**SMALL, settings=pins)).request))
        page.file_uploader(key="plan_files").upload(f"{HOSTILE}.json", text.encode())
    page.run()
    assert len(charts(page)) == 5
    assert not page.exception


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[" * 50_000, b'{"schema_version": 99}'])
def test_a_bad_plan_is_answered_in_three_lines(open_page, content):
    """The same message as `plan explain`."""
    page = open_page("compare")
    page.file_uploader(key="plan_files").upload(f"{HOSTILE}.json", content)
    page.run()
    assert [line.split(":")[0] for line in page.code[0].value.splitlines()] == ["error", "cause", "help"]
    assert not page.exception


def test_the_topology_page_gives_the_numbers_of_the_command(open_page):
    """Levels and axes are the tables of `plan topology`; the map says what a GPU gets at every level."""
    page = open_page("topology", gpus="32", topology_layout="tp=8,pp=4")
    h = default_cluster("h100-sxm", 32)
    answer = topology_answer(h, parse_layout("tp=8,pp=4", None, h.hierarchy))
    assert answer.headline in words(page)
    rows = [row for section in answer.sections if hasattr(section, "rows") for row in section.rows]
    shown = [tuple(row) for frame in page.dataframe for row in frame.value.itertuples(index=False)]
    assert shown == rows
    assert charts(page)[0] == (
        "What each GPU gets at every level, in each direction: scale-up 450 GB/s, node 50 GB/s."
    )


def test_the_topology_page_shows_the_cluster_and_the_layout_of_the_question(open_page):
    """One question on every page: the plan's own layout, on its own GPUs."""
    plan = search(understand(Flags(**SMALL, tokens="1T", settings=("tp=4",))).request)
    page = open_page("topology", **SMALL, tp="4")
    assert f"Layout of the plan: {layout_words(plan.layout)}" in words(page)
    assert page.subheader[0].value.startswith("8 × h100")


def test_the_topology_page_opens_with_the_traffic_of_the_plan(open_page):
    """As busy as What if says of the same plan, of all axes together; the share stands with its level."""
    plan = search(understand(Flags(**SMALL, settings=("tp=4",))).request)
    h = build(plan.request.cluster).hierarchy
    loads = link_load(h, plan.layout, plan.estimate.time, plan.estimate.step_time_s)
    most = max(load.utilisation for load in loads)
    page = open_page("topology", **SMALL, tp="4")
    assert most > 0
    assert f"{format_percent(most)} busy" in charts(page)[0]
    what_if = open_page("what_if", **SMALL, tp="4", picture="Which link hurts?")
    readings = [reading for reading in charts(what_if) if "busy" in reading]
    assert f"is busy for {format_percent(most)} of the step" in " ".join(readings)


def test_the_topology_page_offers_the_groups_of_experts(open_page):
    """The axis of a model with experts is an axis as the others."""
    page = open_page("topology", gpus="32", topology_layout="tp=1,dp=32,ep=8", topology_axis="ep")
    assert not page.exception
    assert "busy (ep " in charts(page)[0]


def test_the_topology_page_shows_the_groups_of_an_axis(open_page):
    """On the graph, with the level that is full while the axis communicates."""
    page = open_page("topology", gpus="32", topology_layout="tp=8,dp=4", topology_axis="dp")
    assert not page.exception
    assert charts(page)[0].startswith("The busiest level is node 50 GB/s: 100 % busy")


def test_a_layout_that_does_not_fill_the_cluster_is_explained(open_page):
    """Three lines with the product."""
    page = open_page("topology", gpus="32", topology_layout="tp=8,pp=3,dp=2")
    assert "cause: dp 2 · cp 1 · tp 8 · pp 3 = 48" in words(page)


def test_an_axis_order_changes_what_axes_get(open_page):
    """Tensor parallelism across nodes gets the network's bandwidth."""
    inside = open_page("topology", gpus="32", topology_layout="tp=4,dp=8", axis_order="pp-dp-cp-tp")
    across = open_page("topology", gpus="32", topology_layout="tp=4,dp=8", axis_order="tp-pp-dp-cp")
    assert [page.dataframe[1].value.set_index("axis")["ring busbw"]["tp"] for page in (inside, across)] == [
        "450",
        "50",
    ]


def test_the_accuracy_page_gives_the_errors_of_the_command(open_page):
    """The row of all runs is that of `plan accuracy`; worst rows and constants stand below."""
    page = open_page("accuracy")
    everything = summarise(predict_rows(read_rows(PUBLISHED_RUNS), load_calibration()), by="source")[-1]
    first = page.dataframe[0].value.iloc[0]
    assert (first["group"], first["runs"]) == ("all", f"{everything.rows:,}")
    assert first["median error"] == format_percent(everything.median_error)
    worst = page.dataframe[1].value
    assert not worst["run"].str.contains(r"\\").any()
    assert len(page.dataframe[-1].value) > 10


def test_the_accuracy_page_says_how_far_off_it_is_for_someone_new(open_page):
    """Not only as shipped: the README's figures with the vendor left out; an uploaded table has none."""
    page = open_page("accuracy")
    found = left_out_errors()[ALL]
    nine = f"9 in 10 within {format_percent(found.p90_error)}"
    errors = f"±{format_percent(found.median_error)} in the median, {nine}"
    assert f"{errors} ({found.runs:,} runs) on all engines" in words(page)
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if line.startswith("| all |"))
    assert f"| {found.runs:,} | {100 * found.median_error:.1f} / {100 * found.mean_error:.1f} / " in row
    assert f" / {100 * found.p90_error:.1f} |" in row


def test_publishers_that_fitted_nothing_come_first(open_page):
    """On the page, in `plan accuracy` of the package's runs and in the README alike."""
    unseen = unseen_publishers()
    first = f"{unseen.publishers} publishers that no constant was fitted to"
    said = words(open_page("accuracy"))
    assert said.index(first) < said.index("on all engines")
    assert first in for_someone_new()
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    numbers = (unseen.median_error, unseen.mean_error, unseen.p90_error)
    errors = " / ".join(f"{100 * error:.1f}" for error in numbers)
    sentence = f"{unseen.runs} runs of {first}: {errors} % (median / mean / p90), {unseen.in_band:.0%}"
    assert readme.index(sentence.replace("%", " %").replace("  %", " %")) < readme.index("| all |")


def test_runs_behind_a_plan_are_counted_as_the_plan_counts_them(monkeypatch):
    """The label has the plan's own count; what the package does not carry is said."""
    plan = search(understand(Flags(**SMALL)).request)
    behind = next(one for one in plan.estimate.evidence if one.key == RUNS)
    shown: list[str] = []
    kept = {"stack": "megatron-core", "cluster": BY_GPU, "gpu": "h100-sxm"}
    monkeypatch.setattr(accuracy.st, "session_state", {KEPT: kept})
    monkeypatch.setattr(accuracy.st, "segmented_control", lambda _, options, **__: options[0])
    monkeypatch.setattr(accuracy.st, "caption", shown.append)
    assert f"({behind.runs:,})" in accuracy.run_words("megatron-core", "hopper")[True]
    near = accuracy.nearest_runs(predict_rows(read_rows(PUBLISHED_RUNS), load_calibration()))
    (said,) = shown
    assert (
        said == f"{behind.runs:,} measured runs; the {len(near):,} that come with the package are shown here."
    )


def test_filters_leave_only_what_was_chosen(open_page):
    """One GPU kind: fewer runs, all of that kind."""
    page = open_page("accuracy")
    page.multiselect(key="accuracy_gpu").set_value(["h100-sxm"])
    page.run()
    assert set(page.dataframe[1].value["gpu"]) == {"h100-sxm"}


def test_uploaded_runs_are_predicted(open_page):
    """The first rows of the published table under a hostile name, one of them without a known GPU."""
    lines = PUBLISHED_RUNS.read_text(encoding="utf-8").splitlines()[:6]
    broken = lines[1].replace("a100-sxm-80gb", HOSTILE).replace("megatron_sc21_table1-001", "odd-1")
    page = open_page("accuracy")
    page.file_uploader(key="runs_file").upload(f"{HOSTILE}.csv", "\n".join([*lines, broken]).encode())
    page.run()
    assert page.dataframe[0].value.iloc[0]["runs"] == "6"
    assert "1 runs could not be predicted" in [box.label for box in page.expander]
    assert not page.exception


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"a,b\n1,2\n", b"id\n", b" " * (2 * MIB + 1)], ids=range(5)
)
def test_a_bad_table_is_answered_in_three_lines(open_page, content):
    """Empty, binary, without the columns, or larger than a table of runs may be."""
    page = open_page("accuracy")
    page.file_uploader(key="runs_file").upload(f"{HOSTILE}.csv", content)
    page.run()
    assert [line.split(":")[0] for line in page.code[0].value.splitlines()] == ["error", "cause", "help"]
    assert "/tmp" not in page.code[0].value
    assert not page.exception


def test_the_serving_page_gives_the_plan_of_the_command(open_page):
    """Fleet size, latency and price are those of `plan serve`."""
    from planner.analysis.serving.fleets import find_fleet
    from planner.questions.flags import ServeFlags
    from planner.questions.serving.understand import understand_serving

    page = open_page("serving", model="llama-3.1-8b", serve_gpus="2", rate="1/s", weights="bf16")
    plan = find_fleet(
        understand_serving(
            ServeFlags(model="llama-3.1-8b", gpu="h100-sxm", gpus="2", input_tokens="2000", output_tokens="300",
                       ttft="1s", tpot="50ms", percentile="99", weights="bf16", rate="1/s")
        )
    )  # fmt: skip
    assert numbers(page)["First token, p99"] == format_seconds(plan.estimate.limits["ttft"].predicted_s)
    assert numbers(page)["GPUs"] == f"{plan.num_gpus}"
    assert "vllm serve" in words(page)


def test_the_percentile_of_a_latency_is_the_one_asked_for(open_page):
    """A median is not called p99, in the headline and on the curve."""
    page = open_page(
        "serving", model="llama-3.1-8b", serve_gpus="2", rate="1/s", percentile="50", curve="true"
    )
    assert "First token, p50" in numbers(page)
    assert "p50 first token" in charts(page)[0]


@pytest.mark.parametrize("query", [{"serve_gpus": "2"}, {"weights": "bf16", "ttft": "100ms"}], ids=str)
def test_the_curve_holds_the_planned_fleet_with_the_number_of_its_tile(open_page, query):
    """The tile's throughput is a mark of the curve, at the layout of the headline, and the sentence says it."""
    page = open_page("serving", model="llama-3.1-8b", rate="1/s", curve="true", **query)
    traces = json.loads(page.get("plotly_chart")[0].proto.spec)["data"]
    (trace,) = [one for one in traces if "planned" in one["text"]]
    planned = trace["y"][trace["text"].index("planned")]
    assert f"{planned:,.0f}" == numbers(page)["Tokens/s/GPU"]
    assert (
        f"The planned fleet gives {three_digits(planned)} tokens/s/GPU with 1 requests/s" in charts(page)[0]
    )
    assert f": {trace['name']}, " in words(page)


def test_a_load_that_breaks_the_first_token_is_not_within(open_page):
    """The curve counts both limits at the percentile: what breaks one is drawn hollow."""
    page = open_page(
        "serving", model="llama-3.1-8b", serve_gpus="1", rate="0.2/s", ttft="200ms", curve="true"
    )
    traces = json.loads(page.get("plotly_chart")[0].proto.spec)["data"]
    hollow = {
        text: symbol >= HOLLOW
        for trace in traces
        for text, symbol in zip(trace["text"], trace["marker"]["symbol"], strict=True)
    }
    assert (hollow["1"], hollow["256"]) == (False, True)


@pytest.mark.parametrize("query", [{"rate": "fast"}, {"input": "<b>"}, {"output": "0"}], ids=str)
def test_an_impossible_load_is_answered_in_three_lines(open_page, query):
    """The message of `plan serve`."""
    page = open_page("serving", model="llama-3.1-8b", serve_gpus="2", **query)
    assert "error: " in words(page)
    assert not page.exception


def log_line(number: int, **changes) -> str:
    """One line as the executor writes it."""
    values = {field.name: 1.0 for field in fields(RunStep)}
    return json.dumps({**values, "step": number, "loss": 5.0 / number, **changes})


def test_without_a_run_the_executor_page_says_how_to_follow_one(open_page, monkeypatch):
    """The command to start with."""
    monkeypatch.delenv("MESHPLAN_RUN", raising=False)
    assert "plan dash --run DIR" in words(open_page("executor"))


def test_a_run_is_followed_with_its_restarts(open_page, monkeypatch, tmp_path):
    """Steps, prediction, checkpoints, and what a restart did again; half-written lines are left out."""
    lines = [log_line(1), log_line(2), log_line(2), log_line(3, step_time_s=2.0), '{"step": 4, "lo']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    (tmp_path / "status.json").write_text(json.dumps({"state": "running", "history": ["lost rank 1"]}))
    (tmp_path / "checkpoints" / "step-00000002").mkdir(parents=True)
    monkeypatch.setenv("MESHPLAN_RUN", str(tmp_path))
    page = open_page("executor")
    assert (numbers(page)["Step"], numbers(page)["Loss"]) == ("3", "1.67")
    assert page.metric[2].delta == "+100 % to predicted"
    assert "running · 1 steps done again after restarts" in words(page)
    assert "lost rank 1" in words(page)
    assert list(page.dataframe[0].value["checkpoint"]) == ["step-00000002"]
    assert len(charts(page)) == 4


def test_a_profiled_step_is_drawn_rank_by_rank(open_page, monkeypatch, tmp_path):
    """Lanes by collective of the rank that the link names; a rank without a trace is refused."""
    (tmp_path / "metrics.jsonl").write_text(log_line(1))
    for rank, name in ((0, "ncclDevKernel_AllReduce"), (3, "ncclDevKernel_SendRecv")):
        events = [{"ph": "X", "cat": "kernel", "name": name, "ts": 0.0, "dur": 5.0}]
        (tmp_path / f"trace-rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    monkeypatch.setenv("MESHPLAN_RUN", str(tmp_path))
    assert "all-reduce 100 % (measured)" in words(open_page("executor"))
    assert "send, receive 100 % (measured)" in words(open_page("executor", trace_rank="3"))
    assert "error:" in words(open_page("executor", trace_rank="7"))
    (tmp_path / "trace-rank3.json").write_text('{"traceEvents": [')
    assert "trace-rank3.json is not valid JSON" in words(open_page("executor", trace_rank="3"))


def test_a_run_that_failed_says_why(open_page, monkeypatch, tmp_path):
    """The three parts of its error."""
    (tmp_path / "metrics.jsonl").write_text(log_line(1))
    status = {"state": "error", "what": "out of memory", "cause": "<b>4 GiB</b>", "fix": "recompute"}
    (tmp_path / "status.json").write_text(json.dumps(status))
    monkeypatch.setenv("MESHPLAN_RUN", str(tmp_path))
    assert "out of memory · <b>4 GiB</b> · recompute" in words(open_page("executor"))


def test_a_timed_rerun_of_the_run_shows_a_defect_as_a_message(monkeypatch, tmp_path):
    """It begins in the fragment, below the page's own guard."""
    testing = pytest.importorskip("streamlit.testing.v1")

    def broken(_folder):
        raise RuntimeError("the log cannot be drawn")

    def rerun(folder):
        from app.pages.executor import follow

        follow(folder)

    monkeypatch.setattr("app.pages.executor.read_steps", broken)
    page = testing.AppTest.from_function(rerun, args=(tmp_path,), default_timeout=120).run()
    assert "the log cannot be drawn" in words(page)
    assert not page.exception


def test_a_run_on_the_cpu_is_not_judged_by_a_plan_for_gpus(open_page, monkeypatch, tmp_path):
    """Neither its step nor its MFU: the page says on what it runs and for what the plan is."""
    plan = search(understand(Flags(**SMALL)).request)
    (tmp_path / "plan.json").write_text(to_json(plan))
    (tmp_path / "metrics.jsonl").write_text(log_line(1, step_time_s=30.0))
    settings = RunSettings(folder=str(tmp_path), plan_file=str(tmp_path / "plan.json"), steps=9, device="cpu")
    write_json(tmp_path / "run.json", settings)
    monkeypatch.setenv("MESHPLAN_RUN", str(tmp_path))
    page = open_page("executor")
    assert "It runs on cpu; the plan is for h100-sxm" in words(page)
    assert numbers(page)["MFU"] == "–"
    assert all(not metric.delta for metric in page.metric)
    assert "not predicted" in " ".join(charts(page))
    write_json(tmp_path / "run.json", replace(settings, device="cuda"))
    assert numbers(open_page("executor"))["MFU"] != "–"


def test_a_checkpoint_that_the_run_removes_meanwhile_breaks_nothing(monkeypatch, tmp_path):
    """It goes between the listing and the first look, or after it."""
    folders = [tmp_path / CHECKPOINT_FOLDER / f"step-0000000{step}" for step in (1, 2, 3)]
    for folder in folders:
        folder.mkdir(parents=True)
    look = Path.stat

    def removing(path, **options):
        if path == folders[0]:
            path.rmdir()
        facts = look(path, **options)
        if path == folders[1]:
            path.rmdir()
        return facts

    monkeypatch.setattr(Path, "stat", removing)
    names = {found["checkpoint"] for found in checkpoints_of(tmp_path)}
    assert "step-00000003" in names
    assert "step-00000001" not in names


def test_checkpoints_are_listed_newest_first(tmp_path):
    """By when they were written; files are none."""
    for age, name in enumerate(("newest", "older", "oldest")):
        (tmp_path / CHECKPOINT_FOLDER / name).mkdir(parents=True)
        os.utime(tmp_path / CHECKPOINT_FOLDER / name, (1000 - age, 1000 - age))
    (tmp_path / CHECKPOINT_FOLDER / "a-file").touch()
    assert [found["checkpoint"] for found in checkpoints_of(tmp_path)] == ["newest", "older", "oldest"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]\nnull\n3\n", "\x00\xff", log_line(1, step=math.inf), log_line(1, step=math.nan)],
)
def test_a_run_without_whole_steps_is_waited_for(open_page, monkeypatch, tmp_path, content):
    """Nothing, half a line, or something else in the log."""
    (tmp_path / "metrics.jsonl").write_text(content)
    (tmp_path / "status.json").write_text(content)
    monkeypatch.setenv("MESHPLAN_RUN", str(tmp_path))
    page = open_page("executor")
    assert "has no steps yet" in words(page)
    assert not page.exception


def test_an_executor_without_a_run_shows_what_is_predicted(open_page, monkeypatch):
    """The lanes of a rank of the usual question."""
    monkeypatch.delenv("MESHPLAN_RUN", raising=False)
    page = open_page("executor")
    page.toggle(key="executor_example").set_value(True)
    page.run()
    assert len(charts(page)) == 1


def test_a_fleet_is_asked_for_an_engine_and_adapters(open_page):
    """What `plan serve --engine sglang` plans; files that start it are there."""
    flags = {"model": "llama-3.1-8b", "serve_gpus": "1"}
    page = open_page("serving", serve_engine="sglang", **flags)
    asked = ServeFlags(
        model="llama-3.1-8b", gpu="h100-sxm", gpus="1", engine="sglang", rate="2/s", ttft="1s", tpot="50ms",
        input_tokens="2000", output_tokens="300", percentile="99",
    )  # fmt: skip
    plan = find_fleet(understand_serving(asked))
    assert page.subheader[0].value.replace("\\", "") == serving_answer(plan).headline
    assert [button.label for button in page.get("download_button")] == ["Files that start it", "Plan as JSON"]
