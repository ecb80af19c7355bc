"""What a link says is answered or refused; nothing of it is dropped for a default."""

import ast
import shlex
from pathlib import Path

import pytest

from app import pages
from app.pages.base import choices
from app.requests.links import flags_of_words
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from tests.app.page_reading import SMALL, numbers, words
from tests.trees import nodes_of
from topology.base.units import format_seconds

PAGES = Path(pages.__file__).parent


@pytest.mark.parametrize("page", ["what_if", "topology", "serving"])
@pytest.mark.parametrize(
    ("query", "said"),
    [({"model": "llama-9-900b"}, "llama-9-900b"), ({"gpu": "h900"}, "h900"), ({"modle": "llama-3.1-8b"}, "modle")],
    ids=str,
)  # fmt: skip
def test_an_unknown_value_is_refused_on_every_page_that_reads_it(open_page, page, query, said):
    """Three lines with the nearest that there is, no plan of something else, and a way on."""
    drawn = open_page(page, **{"gpus": "32", "serve_gpus": "8", **query})
    lines = drawn.code[0].value.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "help"]
    assert said in lines[0]
    assert not drawn.metric
    assert not drawn.get("plotly_chart")
    next(button for button in drawn.button if button.label == "Answer what the boxes show").click()
    drawn.run()
    assert "error:" not in words(drawn)
    assert drawn.get("plotly_chart") or drawn.metric


@pytest.mark.parametrize(
    "query", [{"model": "8b"}, {"gpu": "H200"}, {"stack": "Megatron Core"}, {"objective": "cost"}], ids=str
)
def test_a_short_name_means_what_it_means_on_the_command_line(open_page, query):
    """`405b` in a link is what `--model 405b` is."""
    page = open_page("what_if", **{**SMALL, **query})
    flags = Flags(**{**SMALL, "sequence_length": "8192", "global_batch_size": "512", "tokens": "1T", **query})
    assert "error:" not in words(page)
    command = next(code.value for code in page.code if code.value.startswith("plan "))
    assert understand(flags_of_words(shlex.split(command)[1:])).request == understand(flags).request


def test_a_refusal_ends_when_somebody_chooses(open_page):
    """The box that could not show the link's word is chosen anew."""
    page = open_page("what_if", gpus="8", model="llama-9-900b")
    page.selectbox(key="model").set_value("llama-3.1-8b")
    page.run()
    assert numbers(page)["Step time"] == format_seconds(
        search(understand(Flags(**SMALL, tokens="1T")).request).estimate.step_time_s
    )


def test_a_pin_that_no_box_lists_is_pinned(open_page):
    """`tp=6` is asked and refused by the rules, not answered as if it had not been asked."""
    page = open_page("what_if", **SMALL, tp="6")
    assert "tp" in page.code[0].value
    assert "error: no layout" in words(page)
    assert not page.metric


def test_every_parameter_that_a_page_binds_is_known():
    """The list of names that links may use is that of the widgets."""
    bound = set()
    for path in PAGES.rglob("*.py"):
        for node in nodes_of(path):
            if not isinstance(node, ast.Call):
                continue
            named = {word.arg: word.value for word in node.keywords}
            if "bind" in named and isinstance(named.get("key"), ast.Constant):
                bound.add(named["key"].value)
            if isinstance(node.func, ast.Name) and node.func.id in ("choose", "text_box"):
                key = node.args[3]
                bound.add(key.value if isinstance(key, ast.Constant) else None)
    from app.pages.question.axes import CHOICES

    assert bound - {None} | set(CHOICES) == set(choices.PARAMETERS)


def test_the_question_goes_along_from_page_to_page():
    """What one page was asked, another page of the session starts at; its own words stay."""
    testing = pytest.importorskip("streamlit.testing.v1")
    session = testing.AppTest.from_function(_several_pages, default_timeout=120)
    session.session_state["page"] = "what_if"
    session.query_params.update({"model": ["llama-3.1-8b"], "gpus": ["16"], "tp": ["2"]})
    session.run()
    for name in ("topology", "serving", "what_if"):
        session.query_params.clear()
        session.session_state["page"] = name
        session.run()
        assert session.selectbox(key="model").value == "llama-3.1-8b"
        assert "error:" not in words(session)
    assert (session.selectbox(key="gpus").value, session.selectbox(key="tp").value) == ("16", "2")


def test_a_recalled_question_is_the_whole_question(open_page):
    """What it says is asked, what it does not say is as usual; what no box lists is refused, not dropped."""
    page = open_page("what_if", **SMALL, tp="2", precision="fp8")
    page.session_state[choices.RECALLED] = {
        "model": "llama-3.1-8b",
        "gpus": "16",
        "tp": "4",
        "precision": "bf16",
    }
    page.run()
    boxes = {key: page.selectbox(key=key).value for key in ("model", "gpus", "tp", "precision")}
    assert boxes == {"model": "llama-3.1-8b", "gpus": "16", "tp": "4", "precision": "bf16"}
    assert numbers(page)["Step time"] == format_seconds(
        search(
            understand(Flags(**SMALL | {"gpus": "16"}, tokens="1T", settings=("tp=4",))).request
        ).estimate.step_time_s
    )
    page.session_state[choices.RECALLED] = {"model": "llama-9-900b"}
    page.run()
    assert "llama-9-900b" in page.code[0].value
    assert not page.metric


def _several_pages() -> None:
    """Draw the page that the session is on."""
    import importlib

    import streamlit as st

    importlib.import_module(f"app.pages.{st.session_state['page']}").render()
