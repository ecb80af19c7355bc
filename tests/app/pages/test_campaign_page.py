"""The page of a run to its last token says what the command line says of it."""

import pytest

from app.quantities import format_percent, format_sum
from app.reports.campaign.sections import finish_text
from planner.campaign.finish import with_campaign
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from tests.app.page_reading import SMALL, numbers, words
from topology.base.units import format_seconds, three_digits


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The plan of these tests, with its campaign."""
    found = search(understand(Flags(**SMALL, tokens="1T")).request)
    assert isinstance(found, Plan)
    return with_campaign(found)


def test_the_numbers_are_those_of_the_campaign(open_page, plan):
    """Days, dollars and the useful share are medians of their bands."""
    page, found = open_page("campaign", **SMALL), plan.campaign
    assert numbers(page) == {
        "Days": three_digits(found.days.p50),
        "Dollars": format_sum(found.usd.p50),
        "Useful": format_percent(found.useful_share.p50),
        "Interruptions": f"{found.interruptions.p50:,.0f}",
        "Saved every": format_seconds(found.checkpoint_interval_s),
        "Spare nodes": f"{found.spare_nodes:,}",
    }
    assert finish_text(found) in words(page)
    assert "One run of many possible" in words(page)


def test_a_short_run_is_simulated_over_intervals_and_spares(open_page):
    """No apology: the map is drawn, and its reading says that runs were simulated."""
    page = open_page("campaign", **SMALL)
    assert not page.info
    assert "How often to save, how many spares?" in words(page)
    assert "simulated runs" in page.get("plotly_chart")[0].proto.alt


def test_the_limits_are_told_with_their_chances(open_page, plan):
    """A deadline of the median is kept as often as not, and the page says how often."""
    days = plan.campaign.days.p50
    page = open_page("campaign", **SMALL, deadline=f"{days:.1f}d")
    assert "kept with a chance of" in words(page)


def test_without_tokens_there_is_no_end(open_page):
    """The page says what to type, and draws nothing."""
    page = open_page("campaign", **SMALL, tokens="")
    assert "how many tokens" in page.info[0].value
    assert not page.metric


def test_the_chosen_run_and_the_open_frontier_are_in_the_address(open_page):
    """Another run is another picture; the frontier is planned when the link says so."""
    first, second = (open_page("campaign", **SMALL, campaign_run=run) for run in ("1", "2"))
    read = [next(text for text in words(page).splitlines() if "One run" in text) for page in (first, second)]
    assert read[0] != read[1]
    assert len(open_page("campaign", **SMALL, frontier="true").get("plotly_chart")) == 3
