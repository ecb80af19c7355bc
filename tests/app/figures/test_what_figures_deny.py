"""A sentence that says "no …" stands under a picture only where the numbers drawn are none."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.figures.fabric_tree import fabric_tree, unfolds
from app.figures.link_heat import link_heat
from app.figures.network import network_map
from app.figures.style import alt_text, busy_colour
from costmodel.estimate import TimeBreakdown
from costmodel.layout import ParallelLayout
from costmodel.parallel.axes import PARTS, RANK_AXES
from planner.analysis.link_load import LevelLoad, axis_groups, axis_load, link_load, unloaded_levels
from tests.trees import nodes_of
from topology.builders import default_cluster
from topology.fabric.mesh import mesh

ROOT = Path(__file__).parents[3]
CLUSTERS = {count: default_cluster("h100-sxm", count) for count in (8, 64, 4096)}
LAYOUTS = {
    8: (ParallelLayout(dp=8), ParallelLayout(tp=4, pp=2)),
    64: (ParallelLayout(tp=8, dp=8), ParallelLayout(dp=64, ep=8, zero_stage=1), ParallelLayout(pp=8, tp=8)),
    4096: (ParallelLayout(tp=8, pp=8, dp=64), ParallelLayout(pp=8, dp=512, ep=16, zero_stage=1)),
}
CASES = [(count, layout) for count, layouts in LAYOUTS.items() for layout in layouts]
BUSY = TimeBreakdown(compute_s=8.0, tp_s=0.4, cp_s=0.2, ep_s=0.3, pp_s=0.1, dp_s=0.5, hidden_s={"dp": 0.5})
IDLE = TimeBreakdown(compute_s=10.0)
PICTURES: dict[str, Callable[[int, tuple[LevelLoad, ...]], object]] = {
    "tree": fabric_tree,
    "map": lambda count, loads: network_map(CLUSTERS[count], loads),
    "heat": lambda _, loads: link_heat(loads),
}


def drawn(name: str, count: int, loads: tuple[LevelLoad, ...]) -> object:
    """A picture of levels, None where it does not draw such a cluster."""
    if name == "tree" and not unfolds(CLUSTERS[count], loads):
        return None
    return PICTURES[name](count, loads)


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize(("count", "layout"), CASES)
def test_no_traffic_is_said_of_a_step_without_any(name: str, count: int, layout: ParallelLayout) -> None:
    """And of no other; with traffic the busiest level is named with its share of the step."""
    h = CLUSTERS[count].hierarchy
    for time in (BUSY, IDLE):
        loads = link_load(h, layout, time, 10.0)
        picture = drawn(name, count, loads)
        if picture is None:
            continue
        most = max(load.utilisation for load in loads)
        assert ("carries traffic" in alt_text(picture)) == (most == 0)
        if most:
            assert f"{100 * most:.3g} %" in alt_text(picture)


@pytest.mark.parametrize("name", ["tree", "map"])
@pytest.mark.parametrize("count", [64, 4096])
def test_where_no_load_is_known_none_is_denied(name: str, count: int) -> None:
    """Neither "no traffic" nor "0 % busy": what each GPU gets at every level is said."""
    picture = drawn(name, count, unloaded_levels(CLUSTERS[count].hierarchy))
    if picture is None:
        return
    told = [alt_text(picture), *(note.text for note in picture.layout.annotations)]
    told += [str(trace.hovertext) for trace in picture.data]
    assert not any("busy" in words or "traffic" in words for words in told)
    assert "What each GPU gets at every level" in alt_text(picture)


@pytest.mark.parametrize(("count", "layout"), CASES)
def test_groups_of_every_axis_are_those_of_the_mesh(count: int, layout: ParallelLayout) -> None:
    """Of axes of ranks, on GPUs in any order; those of experts hold each GPU of a stage once."""
    placed = list(reversed(range(count)))
    ranks = mesh([(axis, getattr(layout, axis)) for axis in layout.axis_order], placed)
    for axis in PARTS:
        groups = axis_groups(layout, axis, placed)
        if axis in RANK_AXES:
            assert sorted(groups) == sorted(ranks.groups(axis))
        assert sorted(gpu for group in groups for gpu in group) == list(range(count))
        assert {len(group) for group in groups} == {getattr(layout, axis)}


def test_one_axis_is_as_busy_as_the_axis_alone() -> None:
    """The level that binds an axis is full while it communicates; experts have links, too."""
    h = CLUSTERS[64].hierarchy
    loads = axis_load(h, ParallelLayout(dp=64, ep=16, zero_stage=1), "ep")
    assert max(load.utilisation for load in loads) > 0.5


def _luminance(red: float, green: float, blue: float) -> float:
    """Relative luminance (WCAG 2.2) of a colour in shares."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(share: float, paper: tuple[float, float, float]) -> float:
    """Contrast of a line that is busy for a share, on paper of a colour."""
    *rgb, opacity = (float(part) for part in re.findall(r"[\d.]+", busy_colour(share)))
    shown = [opacity * c / 255 + (1 - opacity) * p for c, p in zip(rgb, paper, strict=True)]
    one, other = sorted((_luminance(*shown), _luminance(*paper)))
    return (other + 0.05) / (one + 0.05)


@pytest.mark.parametrize("paper", [(1.0, 1.0, 1.0), (14 / 255, 17 / 255, 23 / 255)])
def test_the_busiest_line_is_the_most_visible_on_light_and_on_dark_paper(
    paper: tuple[float, float, float],
) -> None:
    """Contrast rises with the share, from faint to at least the three to one of graphical objects."""
    contrasts = [_contrast(share / 20, paper) for share in range(21)]
    assert contrasts == sorted(contrasts)
    assert contrasts[0] < 1.6
    assert contrasts[-1] >= 3


DENIALS = {
    "app/figures/link_heat.py": {"No level of the fabric carries traffic in this plan."},
    "app/figures/network.py": {"No level of the fabric carries traffic in this plan."},
    "app/figures/executor/runs.py": {"No run has a step to compare with its plan."},
    "app/figures/serving.py": {"No other load drawn here keeps the limits ("},
    "app/figures/campaign.py": {"No price is known for this GPU."},
    "app/figures/measured/accuracy.py": {"No run has both a measured and a predicted step time."},
    "app/figures/curves.py": {"No offer has a known price."},
    "app/pages/executor.py": {"No checkpoint yet."},
    "app/pages/campaign.py": {"No price is known for this GPU: set one under More."},
    "app/pages/answer/headline.py": {"No price is known for this GPU: set one under More."},
    "app/pages/answer/pictures.py": {
        "No other combination of degrees is possible.",
    },
    "app/pages/answer/timeline.py": {"No step was profiled: plan run --profile-step N records one."},
    "app/pages/topology.py": {"No plan is drawn: tensor parallelism fills a host"},
}
"""Every sentence of pictures and pages that begins with "No": a new one is argued for here and tested."""


def test_every_sentence_that_denies_is_known() -> None:
    """None is written beside a picture without being held to its numbers."""
    found: dict[str, set[str]] = {}
    for path in sorted(
        each for folder in ("figures", "pages") for each in (ROOT / "app" / folder).rglob("*.py")
    ):
        for node in nodes_of(path):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value.lstrip().startswith("No ")
            ):
                found.setdefault(str(path.relative_to(ROOT)), set()).add(node.value.lstrip())
    assert found == DENIALS
