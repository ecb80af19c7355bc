"""The dashboard's pages and how they look, and the server that shows them. `plan dash` starts it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("entry") / "dashboard.py"
ICON, LOGO = Path(__file__).with_name("icon.svg"), Path(__file__).with_name("logo.svg")
STYLE = """<style>
.stMainBlockContainer { padding: 4rem 2rem 3rem; }
[data-testid="stMetricValue"] { font-size: 1.55rem; }
.st-key-answer h2 { font-size: 1.5rem; line-height: 1.3; padding: 0 0 0.6rem; }
.stMarkdownBadge { white-space: normal !important; overflow: visible !important; }
.st-key-question_bar { gap: 0.25rem; }
.st-key-reachable { position: absolute; }
#meshplan-skip { position: fixed; left: 1rem; top: -4rem; z-index: 1000000; padding: 0.5rem 1rem; }
#meshplan-skip { background: #0072B2; color: #FFFFFF; border-radius: 0.5rem; font-family: sans-serif; }
#meshplan-skip:focus { top: 0.5rem; }
[data-stale="true"] { transition: opacity 0.2s linear 0.2s !important; }
[data-testid="stCaptionContainer"] { color: inherit; opacity: 0.75; }
[data-testid="stBaseButton-primary"] { background: #0072B2; border-color: #0072B2; color: #FFFFFF; }
[data-testid="stMarkdownContainer"] thead:not(:has(th:not(:empty))) { display: none; }
[data-testid="stMetricDelta"] :is(div, p) { white-space: normal; overflow: visible; }
.st-key-history_place { min-height: 4.25rem; }
.st-key-numbers [data-testid="stMetric"] { padding: 0.6rem 0.8rem; }
.stTabs [role="tab"] p { font-size: 0.875rem; }
.stTabs [role="tablist"] { flex-wrap: wrap; height: auto; row-gap: 0; overflow: visible; }
.stPlotlyChart :is(.xtick, .ytick, .textpoint, .bartext-outside) :is(text, tspan),
.stPlotlyChart :is(.xtick, .ytick, .textpoint) text, .stPlotlyChart .bartext-outside,
.stPlotlyChart :is(.cbaxis, .cbtitle) text,
.stPlotlyChart :is(.xtitle, .ytitle, .annotation-text) { fill: currentColor !important; }
@media (max-width: 1500px) {
  .stTabs [role="tab"] p { font-size: 0.8rem; }
  .stTabs [role="tablist"] { column-gap: 0.8rem; }
}
@media (max-width: 640px) {
  :is(.st-key-scaling, .st-key-pareto) .textpoint { display: none; }
  .st-key-useful :is(.annotation, .xtick:nth-of-type(odd)) { display: none; }
  .stMainBlockContainer { padding: 4rem 1rem 2rem; }
  .st-key-numbers [data-testid="stColumn"], .st-key-actions [data-testid="stColumn"],
  .st-key-question_bar [data-testid="stColumn"] {
    min-width: calc(50% - 1rem); flex: 1 1 calc(50% - 1rem);
  }
}
</style>"""


def main() -> None:
    """Draw the chosen page."""
    import streamlit as st

    from app.pages import accuracy, audit, campaign, compare, diagnose, executor, serving, topology, what_if
    from app.pages.answer.headline import ACCURACY
    from app.pages.base.frame import hasten_spinners
    from app.pages.base.reachable import make_reachable
    from app.pages.base.take_pictures import offer_pictures

    hasten_spinners()
    st.set_page_config(page_title="Meshplan", page_icon=str(ICON), layout="wide")
    st.html(STYLE)
    st.logo(str(LOGO), size="large", icon_image=str(ICON))
    pages = [
        st.Page(what_if.render, title="What if", icon=":material/tune:", url_path="what-if", default=True),
        st.Page(compare.render, title="Compare", icon=":material/compare_arrows:", url_path="compare"),
        st.Page(campaign.render, title="Campaign", icon=":material/event_available:", url_path="campaign"),
        st.Page(audit.render, title="Audit", icon=":material/fact_check:", url_path="audit"),
        st.Page(diagnose.render, title="Diagnose", icon=":material/troubleshoot:", url_path="diagnose"),
        st.Page(topology.render, title="Topology", icon=":material/lan:", url_path="topology"),
        st.Page(accuracy.render, title="Accuracy", icon=":material/target:", url_path="accuracy"),
        st.Page(serving.render, title="Serving", icon=":material/dns:", url_path="serving"),
        st.Page(executor.render, title="Executor", icon=":material/play_circle:", url_path="executor"),
    ]
    chosen = st.navigation(pages, position="top")
    st.session_state[ACCURACY] = next(page for page in pages if page.url_path == "accuracy")
    make_reachable()
    chosen.run()
    offer_pictures()


def serve_here(launcher: int) -> None:
    """Serve in this process, for as long as the process that launched it lives."""
    from app.errors import ANSWERED, run_guarded
    from executor.training.lifeline import die_with_parent

    die_with_parent(launcher)

    def served() -> int:
        listen(sys.argv[1:])
        return ANSWERED

    sys.exit(run_guarded(served, debug=False))


def listen(typed: Sequence[str]) -> None:
    """Run Streamlit behind our door until it is stopped.

    Args:
        typed: Streamlit's options, as on its command line.
    """
    import os
    import webbrowser
    from threading import Thread
    from urllib.parse import quote

    from starlette.middleware import Middleware
    from streamlit import App, config
    from streamlit.web.server.server_util import get_display_address, get_url

    from app.actions.dash import DASH_TOKEN, require_free
    from app.actions.door import TOKEN, Door, House, house_names, token_for

    settings = settled_options(typed)
    address = config.get_option("server.address")
    require_free(address, config.get_option("server.port"))
    given = os.environ.pop(DASH_TOKEN, None)
    token = token_for(address, given)
    url = get_url(get_display_address(address))
    key = "" if token is None else f"/?{TOKEN}={quote(token)}"
    allowed = [*config.get_option("server.allowedHosts"), config.get_option("browser.serverAddress")]
    origins = (
        config.get_option("server.corsAllowedOrigins") if config.get_option("server.enableCORS") else ["*"]
    )
    house = House(
        hosts=house_names(address, allowed), origins=frozenset(origins), token=token, held_files=held_files
    )

    @asynccontextmanager
    async def opened(_app: object) -> AsyncIterator[dict[str, object]]:
        if not config.get_option("server.headless"):
            webbrowser.open(url + key)
        Thread(target=warm_up, daemon=True).start()
        yield {}

    sys.stderr.write(f"dashboard at {url}{key if given is None else ''} (Ctrl-C stops it)\n")
    App(SCRIPT, middleware=[Middleware(Door, house=house)], lifespan=opened).run(config=settings)


def settled_options(typed: Sequence[str]) -> dict[str, Any]:
    """What Streamlit is told, in force already: typed, `STREAMLIT_*`, ours where its files say nothing."""
    from streamlit import config
    from streamlit.web.cli import main_run

    from app.actions.dash import SETTINGS

    ours = {name: value for name, value in SETTINGS.items() if not config.is_manually_set(name)}
    params = main_run.make_context("run", [*typed, str(SCRIPT)]).params  # click reads the variables
    options = {name.replace("_", "."): value for name, value in params.items() if value not in (None, ())}
    settings = {**ours, **{name: value for name, value in options.items() if "." in name}}
    for name, value in settings.items():
        config.set_option(name, value)
    return settings


def held_files(session: str) -> list[int]:
    """Sizes of the files that a session has uploaded and that are kept, bytes."""
    from streamlit.runtime import get_instance

    files: Any = get_instance().uploaded_file_mgr
    return [len(file.data) for file in files.file_storage.get(session, {}).values()]


def warm_up() -> None:
    """Load the pages and the slow packages, and answer a first question in the pool, before anybody asks it.

    What is loaded then stays for good: frozen, it is not looked through again by the garbage collection that
    Streamlit runs after every answer. Pages that load something later pay for it after each answer.
    """
    import gc

    import jinja2  # noqa: F401 - tables load it, as they load pandas
    import pandas as pd  # noqa: F401 - tables and components load it
    import pyarrow as pa  # noqa: F401

    from app.actions.plan import finished_plan
    from app.actions.workers import workers
    from app.figures.step_time import waterfall
    from app.pages import accuracy, audit, campaign, compare, diagnose, executor, serving, topology, what_if  # noqa: F401
    from app.pages.question.bar import DEFAULT_GPUS, DEFAULT_MODEL, DEFAULT_TOKENS
    from planner.plan import Plan
    from planner.questions.flags import Flags
    from planner.questions.training import understand

    flags = Flags(model=DEFAULT_MODEL, gpus=DEFAULT_GPUS, tokens=DEFAULT_TOKENS)
    plan = workers().call("", finished_plan, understand(flags).request)
    if isinstance(plan, Plan):
        waterfall(plan.estimate)  # plotly loads its parts when they are first used
    gc.collect()
    gc.freeze()
