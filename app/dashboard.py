"""The dashboard's front door: its pages and how they look. `plan dash` starts it."""

from __future__ import annotations

from pathlib import Path

ICON, LOGO = Path(__file__).with_name("icon.svg"), Path(__file__).with_name("logo.svg")
STYLE = """<style>
.stMainBlockContainer { padding: 4rem 2rem 3rem; }
[data-testid="stMetricValue"] { font-size: 1.55rem; }
[data-testid="stSidebarUserContent"] { padding-top: 0.5rem; }
[data-stale="true"] { transition: opacity 0.2s linear 0.2s !important; }
[data-testid="stCaptionContainer"] { color: inherit; opacity: 0.75; }
[data-testid="stBaseButton-primary"] { background: #0072B2; border-color: #0072B2; color: #FFFFFF; }
[data-testid="stMarkdownContainer"] thead:not(:has(th:not(:empty))) { display: none; }
.stTabs [role="tab"] p { font-size: 0.875rem; }
.stPlotlyChart :is(.xtick, .ytick, .textpoint, .bartext-outside) :is(text, tspan),
.stPlotlyChart :is(.xtick, .ytick, .textpoint) text, .stPlotlyChart .bartext-outside,
.stPlotlyChart :is(.xtitle, .ytitle, .annotation-text) { fill: currentColor !important; }
@media (max-width: 1500px) {
  .stTabs [role="tab"] p { font-size: 0.8rem; }
  .stTabs [role="tablist"] { gap: 0.6rem; }
}
@media (max-width: 640px) {
  .st-key-scaling .textpoint { display: none; }
  .stMainBlockContainer { padding: 4rem 1rem 2rem; }
  .st-key-numbers [data-testid="stColumn"], .st-key-actions [data-testid="stColumn"] {
    min-width: calc(50% - 1rem); flex: 1 1 calc(50% - 1rem);
  }
}
</style>"""


def main() -> None:
    """Draw the chosen page."""
    import streamlit as st

    from app.pages import accuracy, compare, executor, serving, topology, what_if
    from app.pages.frame import hasten_spinners

    hasten_spinners()
    st.set_page_config(page_title="Meshplan", page_icon=str(ICON), layout="wide")
    st.html(STYLE)
    st.logo(str(LOGO), size="large", icon_image=str(ICON))
    pages = [
        st.Page(what_if.render, title="What if", icon=":material/tune:", url_path="what-if", default=True),
        st.Page(compare.render, title="Compare", icon=":material/compare_arrows:", url_path="compare"),
        st.Page(topology.render, title="Topology", icon=":material/lan:", url_path="topology"),
        st.Page(accuracy.render, title="Accuracy", icon=":material/target:", url_path="accuracy"),
        st.Page(serving.render, title="Serving", icon=":material/dns:", url_path="serving"),
        st.Page(executor.render, title="Executor", icon=":material/play_circle:", url_path="executor"),
    ]
    st.navigation(pages, position="top").run()


def start() -> None:
    """Run Streamlit in this process, and load what the first page needs while its server starts."""
    import sys
    from threading import Thread

    from streamlit.web.cli import main as streamlit

    Thread(target=warm, daemon=True).start()
    sys.argv[0] = "streamlit"
    streamlit()


def warm() -> None:
    """Import the slow packages and answer the first page's question before anybody asks it.

    What is loaded then stays for good: frozen, it is not looked through again by the garbage collection that
    Streamlit runs after every answer, which is half of the processor time of an answer that is known already.
    """
    import gc

    import plotly.graph_objects  # noqa: F401 - imported for its effect on the next import

    from app.pages.sidebar import DEFAULT_GPUS, DEFAULT_MODEL
    from planner.questions.flags import Flags
    from planner.questions.training import understand
    from planner.search.search import search

    search(understand(Flags(model=DEFAULT_MODEL, gpus=DEFAULT_GPUS)).request)
    gc.collect()
    gc.freeze()
