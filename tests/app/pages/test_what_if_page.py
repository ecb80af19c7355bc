"""The first page says what the command line says, in every state that a person can bring it into."""

import json
import shlex

import pytest

from app.figures.step_time import PART_LABELS
from app.pages.answer.headline import downloads_of
from app.pages.answer.pictures import why_lost
from app.pages.base.frame import hasten_spinners
from app.quantities import format_duration, format_percent, format_share, format_usd
from app.reports.answer import csv_text
from app.reports.campaign.sections import finish_text
from app.reports.plan_brief import plan_sentence
from app.reports.plan_headline import band_text
from app.requests.links import flags_of_words
from costmodel.accuracy.anchor import Anchor
from costmodel.accuracy.kept_anchors import remember
from costmodel.estimate import PART_NAMES, throughput_change
from costmodel.kernels.level import StackLevel
from planner.analysis.explain import explain
from planner.campaign.finish import with_campaign
from planner.plan import Plan, from_json, to_json
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from tests.app.page_reading import SMALL, numbers, packed, words
from topology.base.counts import parse_share
from topology.base.units import DAY, format_bytes, format_seconds

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 16,
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip
CLUSTER = b'[[nodes]]\ngpu = "h100-sxm"\ncount = 1\nmachine = "dgx-h100"\n'


def plan_of(**flags) -> Plan:
    """What the command line plans for the page's question; the page always names tokens and a stack."""
    found = search(understand(Flags(**{"tokens": "1T", **SMALL, **flags})).request)
    assert isinstance(found, Plan)
    return found


def test_a_switch_of_the_engine_is_said_like_any_field(open_page):
    """Its answer is that of the command line, and slower than with the kernel of the stack."""
    unfused = "switch.attention_kernel=unfused"
    page, plan = open_page("what_if", set=unfused, **SMALL), plan_of(settings=(unfused,))
    assert numbers(page)["Step time"] == format_seconds(plan.estimate.step_time_s)
    assert plan.estimate.step_time_s > plan_of().estimate.step_time_s


def test_the_headline_is_that_of_the_command_line(open_page):
    """Every number of the page is a number of the same plan, written by the same functions."""
    page, plan = open_page("what_if", **SMALL), plan_of()
    estimate = plan.estimate
    run = with_campaign(plan).campaign
    assert numbers(page) == {
        "Step time": format_seconds(estimate.step_time_s),
        "Tokens/s/GPU": f"{estimate.tokens_per_s_per_gpu:,.0f}",
        "MFU": format_percent(estimate.mfu),
        "Peak memory": format_bytes(estimate.peak_memory_bytes),
        "$ for all tokens": format_usd(run.usd.p50),
        "Time to train": format_duration(run.days.p50 * DAY),
    }
    assert plan_sentence(with_campaign(plan)) in words(page)
    assert page.metric[0].delta == band_text(estimate)
    assert f"best of {plan.optimality.enumerated:,} layouts" in words(page)
    assert len(page.get("plotly_chart")) == 2
    assert not page.exception


def test_the_shown_command_asks_exactly_this_question(open_page):
    """Flags in the popover, read as the command line reads them, give the page's own request."""
    page = open_page("what_if", **SMALL, tp="2", zero_stage="1", nic="200 Gbit/s")
    command = next(code.value for code in page.code if code.value.startswith("plan "))
    typed = understand(flags_of_words(shlex.split(command)[1:])).request
    asked = understand(
        Flags(**SMALL, tokens="1T", sequence_length="8192", global_batch_size="512",
              settings=("layout.tp=2", "layout.zero_stage=1", "cluster.nic_bandwidth_bytes_per_s=200 Gbit/s"))
    ).request  # fmt: skip
    assert typed == asked
    assert numbers(page)["Step time"] == format_seconds(search(typed).estimate.step_time_s)


def test_what_is_taken_home_is_the_plan(open_page):
    """plan.json reads back as the plan, plans.csv has its records, trace.json is in the Trace Event Format."""
    page, plan = open_page("what_if", **SMALL, tp="2", pp="2"), plan_of(settings=("tp=2", "pp=2"))
    files = {name: write() for name, write in downloads_of(plan).items()}
    assert [button.label for button in page.get("download_button")] == list(files)
    assert from_json(files["plan.json"], "plan.json") == with_campaign(plan)
    assert files["plans.csv"] == csv_text(plan.rows())
    events = json.loads(files["trace.json"])["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")


def test_a_baseline_gives_every_number_its_difference(open_page):
    """Pinned plans stay in the URL; the differences are relative."""
    page = open_page("what_if", **SMALL, tp="8", baseline=packed(**SMALL, tokens="1T"))
    now, then = plan_of(settings=("tp=8",)), plan_of()
    expected = format_percent(now.estimate.step_time_s / then.estimate.step_time_s - 1, signed=True)
    assert page.metric[0].delta.startswith(f"{expected}, a tie · ")  # within the ratio of misranked layouts
    assert all(metric.delta for metric in page.metric)
    assert "Differences are to the baseline" in words(page)
    assert "Unpin baseline" in [button.label for button in page.button]


def test_pinning_and_adding_put_the_question_into_the_url(open_page):
    """Both buttons write the packed request; the same page opened there has the same baseline."""
    page = open_page("what_if", **SMALL)
    for label in ("Pin as baseline", "Add to compare"):
        next(button for button in page.button if button.label == label).click()
        page.run()
    assert set(page.query_params) >= {"baseline", "with"}
    assert page.metric[0].delta.startswith("0 % · ")


def test_contradicting_pins_show_the_equation_and_a_repair(open_page):
    """The rule's own three lines; the first button gives a plan."""
    page = open_page("what_if", **SMALL, tp="8", pp="8")
    assert "error: no layout of llama-3.1-8b on 8 GPUs is possible" in words(page)
    assert "tp·pp" in words(page)
    assert not page.metric
    next(button for button in page.button if button.label.startswith("Apply")).click()
    page.run()
    assert numbers(page)["Step time"] != ""


def test_a_model_that_does_not_fit_offers_more_gpus(open_page):
    """405B on 8 GPUs: memory part by part, and a number of GPUs that is enough."""
    page = open_page("what_if", model="llama-3.1-405b", gpus="8")
    assert "cause: memory" in words(page)
    next(button for button in page.button if "GPUs" in button.label).click()
    page.run()
    assert page.selectbox(key="gpus").value != "8"
    assert page.metric


def test_memory_left_free_is_given_back_by_a_button(open_page):
    """What the planner proposes about memory is applied to its widget."""
    page = open_page("what_if", **SMALL, memory_headroom="85%")
    assert "cause: memory" in words(page)
    next(button for button in page.button if "of memory free" in button.label).click()
    page.run()
    assert 0 <= parse_share(page.text_input(key="memory_headroom").value, "") < 0.85
    assert page.metric


def test_releasing_all_axes_forgets_the_pins(open_page):
    """`All auto` brings the free plan back."""
    page = open_page("what_if", **SMALL, tp="8")
    next(button for button in page.button if button.label == "All auto").click()
    page.run()
    assert page.selectbox(key="tp").value == "auto"
    assert numbers(page)["Step time"] == format_seconds(plan_of().estimate.step_time_s)


@pytest.mark.parametrize(
    "picture",
    ["Why is there a bubble?", "Which link hurts?", "What if there were more?", "What matters most?",
     "What binds each op?", "Time or money?"],
)  # fmt: skip
def test_every_question_has_its_picture(open_page, monkeypatch, picture):
    """The open tab draws its charts, each with its reading under it."""
    monkeypatch.setattr("app.pages.answer.money.offered_gpus", lambda: ("h100-sxm",))
    page = open_page("what_if", **SMALL, tp="2", pp="2", picture=picture)
    charts = page.get("plotly_chart")
    counts = {"Why is there a bubble?": 5, "Which link hurts?": 4, "Time or money?": 2}
    assert len(charts) == counts.get(picture, 1)
    assert charts[-1].proto.alt.endswith(".")
    assert charts[-1].proto.alt in words(page)
    assert not page.error


def test_a_choice_inside_a_picture_stands_in_the_url(open_page):
    """What is varied is read from the address; the table below says each point of the curve."""
    page = open_page("what_if", **SMALL, picture="What if there were more?", vary="global batch size")
    shown = page.dataframe[0].value
    assert list(shown.columns) == ["global batch size", "layout", "step time", "80 % band", "tokens/s"]
    assert format_seconds(plan_of().estimate.step_time_s) in list(shown["step time"])


def test_every_alternative_says_what_it_loses_on(open_page):
    """The parts of the step that are longer than in the best plan, as `plan explain` tells the runner-up."""
    page, plan = open_page("what_if", **SMALL), plan_of()
    shown = page.dataframe[0].value
    best_s = plan.estimate.step_time_s
    lost = [throughput_change(best_s, other.step_time_s) for other in plan.alternatives]
    assert list(shown["tokens/s"]) == [format_share(change, signed=True) for change in lost]
    assert tuple(shown["loses most on"]) == why_lost(plan)
    first = explain(plan).runner_up.lost_on[0]
    field = next(field for field, name in PART_NAMES.items() if name == first.part)
    assert shown["loses most on"][0].startswith(f"{PART_LABELS[field.removesuffix('_s')]} +")


def test_nodes_of_another_size_are_planned(open_page):
    """The same GPUs in nodes of four, each with four network cards; the command says so."""
    page = open_page("what_if", model="llama-3.1-8b", gpus="16", per_node="4")
    sizes = ("cluster.gpus_per_node=4", "cluster.count=4", "cluster.nics_per_node=4")
    plan = plan_of(gpus="16", settings=sizes)
    assert plan.request.cluster.num_gpus == 16
    assert numbers(page)["Step time"] == format_seconds(plan.estimate.step_time_s)
    assert "--set cluster.gpus_per_node=4" in words(page)


def test_work_is_announced_within_a_third_of_a_second(monkeypatch):
    """Streamlit waits half a second before it shows a spinner."""
    spinner = pytest.importorskip("streamlit.elements.spinner")
    monkeypatch.setattr(spinner, "DELAY_SECS", 0.5)
    hasten_spinners()
    assert spinner.DELAY_SECS <= 0.3


def test_an_uploaded_model_is_planned_and_named_in_the_command(open_page):
    """A config.json gives a plan; the command reads the file; the URL holds the whole model."""
    page = open_page("what_if", model="uploaded file", gpus="8", sequence_length="4096")
    assert "upload a config.json below the question" in words(page)
    page.file_uploader(key="model_file").upload("config.json", json.dumps(CONFIG).encode())
    page.run()
    assert numbers(page)["Step time"]
    assert "plan --model config.json" in words(page)
    again = open_page(
        "what_if", model="uploaded file", gpus="8", sequence_length="4096",
        model_spec=page.query_params["model_spec"],
    )  # fmt: skip
    assert numbers(again) == numbers(page)


def test_an_uploaded_cluster_is_planned(open_page):
    """A TOML file replaces the choice of GPUs."""
    page = open_page("what_if", model="llama-3.1-8b", cluster="uploaded file")
    page.file_uploader(key="cluster_file").upload("<b>c</b>.toml", CLUSTER)
    page.run()
    assert numbers(page)["Step time"] == format_seconds(plan_of().estimate.step_time_s)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 50_000, b'{"num_hidden_layers": "<script>x()</script>"}',
     b'{"num_hidden_layers": -1}', b"PK\x03\x04" + bytes(2000)],
    ids=["empty", "cut", "list", "null", "binary", "deep", "markup", "negative", "zip"],
)  # fmt: skip
def test_a_bad_config_is_answered_in_three_lines(open_page, content):
    """The message of the command line with the uploaded name, shown as text, never as markup."""
    page = open_page("what_if", model="uploaded file", gpus="8")
    name = "<img src=x onerror=alert(1)>.json"
    page.file_uploader(key="model_file").upload(name, content)
    page.run()
    assert [line.split(":")[0] for line in page.code[0].value.splitlines()] == ["error", "cause", "help"]
    assert "/tmp" not in page.code[0].value
    assert not any("<img" in block.value for block in page.markdown)
    assert not page.exception


@pytest.mark.parametrize(
    "query",
    [{"gpus": "many"}, {"gpus": "-1"}, {"sequence_length": "0"}, {"tokens": "<b>"}, {"price": "free"},
     {"baseline": "not-a-plan"}, {"model": "uploaded file", "model_spec": "AAAA"}, {"per_node": "16"}],
    ids=str,
)  # fmt: skip
def test_a_damaged_url_is_answered_in_three_lines(open_page, query):
    """Whatever stands in the address bar, the page answers as the command line does."""
    page = open_page("what_if", **{**SMALL, **query})
    assert "error: " in words(page)
    assert "help: " in words(page)
    assert not page.exception


def test_a_defect_is_named_and_the_page_lives_on(open_page, monkeypatch):
    """No exception reaches the page."""

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("app.pages.what_if.planned_answer", broken)
    page = open_page("what_if", **SMALL)
    assert "Something broke here, not in your input." in words(page)
    assert "ZeroDivisionError" in words(page)
    assert not page.exception


def test_a_plan_file_opens_on_its_own_question(open_page, monkeypatch, tmp_path):
    """`plan dash PLAN.json` starts the widgets at the question that the plan answers."""
    plan = plan_of(
        settings=("tp=4", "sequence_parallel=true", "axis_order=pp-dp-cp-tp"), memory_headroom="5%"
    )
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan))
    monkeypatch.setenv("MESHPLAN_PLAN", str(path))
    page = open_page("what_if")
    assert page.selectbox(key="tp").value == "4"
    assert page.text_input(key="set").value == "layout.sequence_parallel=True layout.axis_order=pp-dp-cp-tp"
    assert page.text_input(key="memory_headroom").value == "0.05"
    assert numbers(page)["Step time"] == format_seconds(plan.estimate.step_time_s)


@pytest.mark.parametrize(
    "said",
    [
        {"engine": "torchtitan", "stack": "torchtitan"},
        {"engine": "any"},
        {"adapter": "qlora:r=8,targets=attention"},
        {"offload": "optimizer:0.5", "engine": "any"},
        {"recompute_modules": "core_attn,mlp", "settings": ("recompute=selective",)},
        {"settings": ("job.optimizer=muon", "tp=2"), "engine": "any"},
        {"deadline": "9000d"},
    ],
)
def test_a_plan_file_with_more_of_a_job_opens_on_all_of_it(open_page, monkeypatch, tmp_path, said):
    """Engine, adapter, what waits on hosts, modules, optimizer: none was dropped, and the same plan stands."""
    plan = plan_of(**said)
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan))
    monkeypatch.setenv("MESHPLAN_PLAN", str(path))
    page = open_page("what_if")
    assert not page.exception
    assert numbers(page)["Step time"] == format_seconds(plan.estimate.step_time_s)
    job = plan.request.job
    for key, value in {"adapter": job.adapter, "offload": job.offload}.items():
        assert page.text_input(key=key).value == ("" if value is None else value.words)


def test_more_of_a_job_is_asked_by_its_boxes_and_by_a_link(open_page):
    """As on the command line; what there is not is refused with its three lines."""
    page = open_page("what_if", **SMALL, adapter="lora:r=16")
    assert numbers(page)["Step time"] == format_seconds(plan_of(adapter="lora:r=16").estimate.step_time_s)
    assert "is no kind" in words(open_page("what_if", **SMALL, adapter="nora:r=16"))
    assert "deepspeed" in words(open_page("what_if", **SMALL, engine="deepspeeed"))


def test_a_plan_with_measured_experts_is_refused_not_opened_as_another(open_page, monkeypatch, tmp_path):
    """A link carries no file."""
    load = tmp_path / "load.txt"
    load.write_text("4 1 1 1 1 1 1 2")
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan_of(model="mixtral-8x7b", gpus="16", expert_load=str(load))))
    monkeypatch.setenv("MESHPLAN_PLAN", str(path))
    assert "measured tokens by expert" in words(open_page("what_if"))


def test_a_kept_anchor_sets_the_level_of_the_page_and_of_a_plan_file(open_page, monkeypatch, tmp_path):
    """Steps kept by `plan accuracy --anchor --name` lengthen the step here as on the command line."""
    monkeypatch.setenv("MESHPLAN_DATA", str(tmp_path))
    level = StackLevel(stack="megatron-core", level=1.25, deviation=0.02, runs=3)
    remember(Anchor(name="mine", levels=(level,)), "mine")
    plan = plan_of(anchor="mine")
    slower = format_seconds(plan.estimate.step_time_s)
    assert slower != format_seconds(plan_of().estimate.step_time_s)
    assert numbers(open_page("what_if", **SMALL, anchor="mine"))["Step time"] == slower
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan))
    monkeypatch.setenv("MESHPLAN_PLAN", str(path))
    page = open_page("what_if")
    assert page.selectbox(key="anchor").value == "mine"
    assert numbers(page)["Step time"] == slower


def test_sizes_without_a_plan_are_named(open_page):
    """70B on 32 GPUs: half of them do not hold it, and the curve says so instead of beginning later."""
    page = open_page("what_if", model="llama-3.1-70b", gpus="32", picture="What if there were more?")
    assert "There is no plan at 8, 16 GPUs." in words(page)


def test_the_map_of_kinds_and_numbers_has_this_plan(open_page):
    """Its cell is the headline's time and money; what cannot run it says so."""
    page = open_page("what_if", **SMALL, picture="Time or money?", price="3")
    (found,) = [frame.value for frame in page.dataframe if "8 GPUs" in frame.value.columns]
    cells = dict(zip(found[found.columns[0]], found["8 GPUs"], strict=True))
    told = numbers(page)
    assert cells["h100-sxm"] == f"{told['Time to train']} · {told['$ for all tokens']}"


def test_the_run_to_its_end_stands_on_the_page(open_page):
    """What `plan --tokens` says of days, dollars and what is lost."""
    page = open_page("what_if", **SMALL, picture="When is it finished?")
    assert finish_text(with_campaign(plan_of()).campaign) in words(page)
    assert "how many tokens" in words(
        open_page("what_if", **SMALL, tokens="", picture="When is it finished?")
    )


def test_limits_are_in_the_address_and_the_deadline_in_the_command(open_page):
    """The deadline is the flag of the command line; both are judged by the run, failures included."""
    page = open_page("what_if", **SMALL, deadline="10d", budget="1k")
    said = words(page)
    assert "Deadline of 10 days: missed (kept with a chance of < 0.1 %)" in said
    assert "Budget of $1,000: missed (kept with a chance of < 0.1 %)" in said
    assert any("--deadline 10d" in code.value for code in page.code)


def test_an_unreadable_budget_is_refused(open_page):
    """Three lines, and no plan."""
    page = open_page("what_if", **SMALL, budget="much")
    assert "budget" in page.code[0].value
    assert not page.metric


def test_what_does_not_fit_is_drawn_with_what_would(open_page):
    """The bars of the leanest layout, and the changes that the planner found."""
    page = open_page("what_if", model="llama-3.1-405b", gpus="16")
    (chart,) = page.get("plotly_chart")
    assert "more than the" in chart.proto.alt
    helps = [button.label.removeprefix("Apply: ") for button in page.button if "Apply" in button.label]
    assert helps == list(page.dataframe[0].value["change"]) != []
