"""A person's whole story with the dashboard, in a real browser; screenshots stay in `test-artifacts/`."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from costmodel.models.catalog import model

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "test-artifacts"
pytestmark = [pytest.mark.browser, pytest.mark.slow]

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 16,
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip


FOCUSED = """() => {
    const e = document.activeElement;
    const box = e.closest("[data-testid=stSelectbox]");
    return `${e.getAttribute("aria-label") ?? ""} ${box?.innerText ?? ""} ${e.innerText ?? ""}`;
}"""


def plan_command(*words: str) -> str:
    """What `plan` prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "app", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def timeless(text: str) -> dict:
    """A plan's document without the seconds its search took."""
    document = json.loads(text)
    document.pop("search_time_s")
    return document


def open_page(page, url: str) -> None:
    """Go to an address and wait for its plan."""
    page.goto(url)
    page.get_by_test_id("stMetric").first.wait_for()
    settle(page)


def settle(page) -> None:
    """Wait until the page has run, its charts are drawn, and it has rested for a moment: between two runs a page rests too."""
    page.wait_for_timeout(150)
    page.wait_for_function(
        """() => {
            const rests = document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "notRunning"
                && !document.querySelector("[data-testid=stSpinner], [data-testid=stSkeleton]")
                && [...document.querySelectorAll("[data-testid=stPlotlyChart]")].every(c => c.querySelector(".main-svg"));
            window.restsSince = rests ? window.restsSince ?? performance.now() : undefined;
            return rests && performance.now() - window.restsSince >= 300;
        }"""
    )
    page.evaluate("window.restsSince = undefined")


def says(page, text: str) -> None:
    """Wait until the page says it: a run of the page that is asked for may begin later than any pause."""
    page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)


def open_more(page) -> None:
    """Open the panel of what few questions change."""
    if not page.get_by_role("button", name="Undo").is_visible():
        page.get_by_text("More: cluster, layout").click()
        page.get_by_role("button", name="Undo").wait_for()
        settle(page)  # a list that is opened while the panel still opens is closed again


def choose(page, label: str, option: str) -> None:
    """Choose an option of a select box, in the bar or in the panel."""
    open_more(page)
    box = page.get_by_test_id("stSelectbox").filter(has_text=label).locator("input").first
    box.evaluate("box => box.scrollIntoView({block: 'center'})")
    box.click()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type(option)  # a list that opens moves, and is made anew while it is clicked
    page.get_by_role("option", name=option, exact=True).wait_for()
    page.keyboard.press("Enter")
    settle(page)


def take_home(page, name: str) -> None:
    """Download one of the files of the plan."""
    if not page.get_by_role("button", name=name).is_visible():
        page.get_by_role("button", name="Take home").click()
    page.get_by_role("button", name=name).click()


def metric(page, label: str) -> str:
    """Text of a headline number, its difference included."""
    return page.get_by_test_id("stMetric").filter(has_text=label).inner_text()


def shot(page, name: str) -> None:
    """Keep a picture of the whole page."""
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    size = page.viewport_size
    page.set_viewport_size({"width": size["width"], "height": max(900, min(int(height) + 40, 3000))})
    page.wait_for_timeout(300)
    page.screenshot(path=str(ARTIFACTS / f"{name}.png"))
    page.set_viewport_size(size)


def test_pin_compare_share_upload_repair_and_take_home(page, profile, dashboard, tmp_path):
    """Load; pin a baseline; pin tp; see the difference; share the URL; upload; repair; download; compare."""
    open_page(page, dashboard)
    assert "llama-3.1-70b on 32 × h100-sxm" in page.get_by_role("heading").first.inner_text()
    says(page, "proven best of")
    free = metric(page, "Step time")
    shot(page, "what-if")

    page.get_by_role("button", name="Pin as baseline").click()
    settle(page)
    page.get_by_role("button", name="Add to compare").click()
    settle(page)
    choose(page, "Tensor (tp)", "8")
    page.wait_for_url("**tp=8**")
    pinned = metric(page, "Step time")
    assert pinned != free
    assert re.search(r"[+-]?\d.*%", pinned)
    page.get_by_role("button", name="Add to compare").click()
    settle(page)

    other = profile(viewport={"width": 1280, "height": 900})
    shared = other.new_page()
    open_page(shared, page.url)
    assert metric(shared, "Step time") == metric(page, "Step time")
    says(shared, "tp 8")
    other.close()

    with page.expect_download() as caught:
        take_home(page, "plan.json")
    plan_file = tmp_path / "plan.json"
    caught.value.save_as(plan_file)
    assert json.loads(plan_file.read_text())["layout"]["tp"] == 8
    explained = json.loads(plan_command("explain", str(plan_file), "--json"))
    assert explained["shares"][0]["part"] == "compute"

    with page.expect_download() as caught:
        take_home(page, "trace.json")
    caught.value.save_as(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}

    page.get_by_role("button", name="Command").click()
    command = page.get_by_test_id("stCode").filter(has_text="plan --model").inner_text()
    words = shlex.split(command)
    assert words[0] == "plan"
    assert timeless(plan_command(*words[1:], "--json")) == timeless(plan_file.read_text())
    page.keyboard.press("Escape")

    page.get_by_role("link", name="Compare").click()
    page.get_by_text("Chosen differently").first.wait_for()
    settle(page)
    shot(page, "compare")
    says(page, "Estimated")
    assert page.strangers == []


def test_an_illegal_layout_is_explained_and_repaired_by_a_click(page, dashboard):
    """Contradicting pins show the rule's equation and a button that applies the nearest change."""
    page.goto(f"{dashboard}/?tp=8&pp=8&dp=8")
    page.get_by_text("8·1·8·8 = 512 GPUs").first.wait_for()
    settle(page)
    shot(page, "illegal")
    page.get_by_role("button", name=re.compile("^Apply")).first.click()
    page.get_by_test_id("stMetric").first.wait_for()
    assert "dp=8&tp=8&pp=8" not in page.url


def test_an_uploaded_model_is_planned_and_travels_in_the_url(page, profile, dashboard, tmp_path):
    """A config.json becomes a plan; the URL alone gives the same plan elsewhere."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    page.goto(f"{dashboard}/?model=uploaded+file&gpus=8&sequence_length=4096")
    page.locator("input[type=file]").first.set_input_files(str(path))
    page.get_by_test_id("stMetric").first.wait_for()
    settle(page)
    other = profile()
    shared = other.new_page()
    open_page(shared, page.url)
    assert metric(shared, "Step time") == metric(page, "Step time")
    other.close()


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff\xfe\x00\x01", b'{"num_hidden_layers": "<script>alert(1)</script>"}'],
    ids=["cut", "binary", "markup"],
)
def test_a_bad_upload_is_answered_in_three_lines(page, dashboard, tmp_path, content):
    """The same message as the command line's; nothing is executed, no traceback is shown."""
    path = tmp_path / "<b>config<b>.json"
    path.write_bytes(content)
    dialogs = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    page.goto(f"{dashboard}/?model=uploaded+file&gpus=8")
    page.locator("input[type=file]").first.set_input_files(str(path))
    page.get_by_text("error: <b>config<b>.json").first.wait_for()
    text = page.inner_text("body")
    assert "cause:" in text
    assert "help:" in text
    assert "Traceback" not in text
    assert dialogs == []


@pytest.mark.parametrize(
    "name", ["", "compare", "campaign", "audit", "diagnose", "topology", "accuracy", "serving", "executor"]
)
def test_every_page_is_whole_readable_and_stays_at_home(page, dashboard, name):
    """No traceback, no defect, no request to anywhere else, no serious violation of the axe rules."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.goto(f"{dashboard}/{name}")
    page.get_by_role("heading").first.wait_for()
    settle(page)
    text = page.inner_text("body")
    assert "Something broke here" not in text
    assert "Traceback" not in text
    assert page.strangers == []
    papers = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        settle(page)
        papers.add(
            page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
        )
        found = axe.Axe().run(page).response["violations"]
        assert {
            rule["id"]: [node["html"][:200] for node in rule["nodes"]]
            for rule in found
            if rule["impact"] in ("critical", "serious")
        } == {}, scheme
    assert len(papers) == 2
    page.emulate_media(color_scheme="light")
    shot(page, f"page-{name or 'what-if'}")


def test_every_picture_has_words_for_those_who_cannot_see_it(page, dashboard):
    """Charts carry their reading as alt text, on every tab."""
    open_page(page, dashboard)
    for tab, picture, charts in (
        ("Plan", "Why is there a bubble?", 5),
        ("Plan", "Which link hurts?", 4),
        ("Evidence", "What binds each op?", 1),
    ):
        page.get_by_role("tab", name=re.compile(f"^{tab} · ")).click()
        page.get_by_text(picture, exact=True).click()
        page.get_by_role("tabpanel").locator("[data-testid=stPlotlyChart]").first.wait_for()
        settle(page)
        assert page.locator("[data-testid=stPlotlyChart]").count() == charts
        named = page.locator(
            "[data-testid=stPlotlyChart] [aria-label], [data-testid=stPlotlyChart][aria-label]"
        )
        assert named.count() >= charts


def test_everything_can_be_done_from_the_keyboard(page, dashboard):
    """The answer is two keys away; Tab reaches pages, choices, actions and tabs; typing into a choice pins it."""
    open_page(page, dashboard)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('.st-key-answer') !== null")
    assert page.locator("[data-testid=stIconMaterial]:not([aria-hidden=true])").count() == 0
    page.reload()
    page.get_by_test_id("stMetric").first.wait_for()
    settle(page)
    reached = set()
    for _ in range(50):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(FOCUSED))
    for wanted in (
        "Compare",
        "Model",
        "More:",
        "Pin as baseline",
        "Take home",
        "Plan · ",
        "What else was close?",
    ):
        assert any(wanted in name for name in reached), (wanted, sorted(reached))
    open_more(page)
    box = page.get_by_test_id("stSelectbox").filter(has_text="Tensor (tp)").locator("input").first
    settle(page)
    box.focus()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("8")
    page.get_by_role("option", name="8", exact=True).wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("tp=8"))
    settle(page)
    says(page, "tp 8")


@pytest.mark.parametrize(("width", "scheme"), [(420, "light"), (1280, "dark"), (1920, "light")])
def test_the_page_fits_phones_and_wide_screens_in_light_and_dark(profile, dashboard, width, scheme):
    """No horizontal scrolling at any width."""
    context = profile(viewport={"width": width, "height": 1000}, color_scheme=scheme)
    page = context.new_page()
    open_page(page, dashboard)
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0
    shot(page, f"what-if-{width}-{scheme}")
    context.close()


def test_the_model_of_the_first_page_is_in_the_catalog():
    """The default question is one the catalog can answer."""
    assert model("llama-3.1-70b").num_layers == 80
