"""Undo, redo and named questions in a real browser: by mouse and keyboard, after a reload, on another page."""

import pytest

from tests.browser.test_story import choose, metric, open_more, open_page, settle

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def steps(page, name: str) -> None:
    """Press a button of the history, and wait for the plan."""
    page.get_by_role("button", name=name, exact=True).click()
    page.wait_for_timeout(300)
    settle(page)


def test_a_step_back_and_forth_survives_a_reload(page, dashboard):
    """Undo and the browser's Back give the number that stood before, Redo and Forward the one after, reloads between."""
    open_page(page, f"{dashboard}/?model=llama-3.1-8b&gpus=8")
    before = metric(page, "Step time")
    open_more(page)
    assert page.get_by_role("button", name="Undo").is_disabled()
    choose(page, "Tensor (tp)", "8")
    choose(page, "Precision", "fp8")
    after = metric(page, "Step time")
    assert after != before
    page.reload()
    page.get_by_test_id("stMetric").first.wait_for()
    settle(page)
    assert metric(page, "Step time") == after
    page.go_back()
    page.wait_for_url(lambda url: "tp=8" in url and "precision" not in url)
    settle(page)
    page.go_forward()
    page.wait_for_url("**precision=fp8**")
    settle(page)
    assert metric(page, "Step time") == after
    open_more(page)
    steps(page, "Undo")
    page.wait_for_url(lambda url: "tp=8" in url and "precision" not in url)
    settle(page)
    steps(page, "Undo")
    page.wait_for_url(lambda url: "tp=8" not in url)
    settle(page)
    assert metric(page, "Step time") == before
    assert page.get_by_role("button", name="Undo").is_disabled()
    page.get_by_role("button", name="Redo").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**tp=8**")
    settle(page)
    page.get_by_role("heading").first.click()
    page.keyboard.press("ControlOrMeta+Shift+Z")
    page.wait_for_url("**precision=fp8**")
    settle(page)
    assert metric(page, "Step time") == after


def test_a_named_question_is_asked_again_from_another_tab_and_page(page, context, dashboard):
    """A name is kept in the browser: a new tab, on another page, asks its question."""
    open_page(page, f"{dashboard}/?model=llama-3.1-8b&gpus=8&tp=4")
    open_more(page)
    page.get_by_text("History and names").click()
    page.get_by_label("Name of this question").fill("four <b>ways</b>")
    page.keyboard.press("Enter")
    page.get_by_text("Kept as four <b>ways</b>, in this browser.").wait_for()
    other = context.new_page()
    other.goto(f"{dashboard}/topology?gpus=16")
    settle(other)
    open_more(other)
    other.get_by_text("History and names").click()
    other.get_by_label("Named", exact=True).select_option(label="four <b>ways</b>")
    other.wait_for_url("**tp=4**")
    settle(other)
    assert "model=llama-3.1-8b" in other.url
    assert "gpus=8" in other.url
    other.get_by_role("button", name="Forget all").click()
    assert other.get_by_label("Named", exact=True).is_disabled()
    other.close()


def test_a_kept_question_of_another_catalog_is_refused(page, dashboard):
    """A model that the catalog no longer has is refused in three lines, not answered as another."""
    open_page(page, f"{dashboard}/?model=llama-3.1-8b&gpus=8")
    choose(page, "Precision", "fp8")
    page.evaluate(
        """() => { const kept = JSON.parse(sessionStorage.getItem("meshplan.steps"));
        kept.steps[0].question.model = "llama-9-900b";
        sessionStorage.setItem("meshplan.steps", JSON.stringify(kept)); }"""
    )
    steps(page, "Undo")
    page.get_by_text("error: unknown model").first.wait_for()
    assert page.get_by_test_id("stMetric").count() == 0
