"""The axes of a layout: each is left to the planner, or pinned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from app.pages.base.choices import choose, text_box
from costmodel.layout import AXIS_FIELDS, PLAIN_SCHEDULE, RECOMPUTES, SCHEDULES, ParallelLayout
from costmodel.parallel.axes import AXES

AUTO = "auto"
USUAL = ("1", "0", "none", PLAIN_SCHEDULE)
"""Of an axis that a chip would say nothing of."""
PINS = "pins"
"""Key of the chips."""

_POWERS = [str(2**power) for power in range(8)]
_DEGREES = {
    "pp": [*map(str, (*range(1, 11), 12, 14, 16, 20, 24, 32, 40, 64))],
    "dp": [str(2**power) for power in range(14)],
    "ep": [*_POWERS, "256"],
}
CHOICES: dict[str, list[str]] = {
    **{axis: [AUTO, *_DEGREES.get(axis, _POWERS)] for axis in AXIS_FIELDS},
    "virtual_stages": [AUTO, *map(str, range(1, 11))],
    "microbatch_size": [AUTO, *_POWERS[:6]],
    "zero_stage": [AUTO, "0", "1", "2", "3"],
    "recompute": [AUTO, *RECOMPUTES],
    "schedule": [AUTO, *SCHEDULES],
}
LABELS = {
    **{name: f"{axis.label} ({name})" for name, axis in AXES.items()},
    "virtual_stages": "Virtual stages",
    "microbatch_size": "Microbatch",
    "zero_stage": "ZeRO stage",
    "recompute": "Recompute",
    "schedule": "Schedule",
}


def choose_axes(where: Any) -> tuple[str, ...]:
    """Draw a box for every axis, and read the settings of those that are pinned."""
    pinned = []
    for number, (axis, options) in enumerate(CHOICES.items()):
        if number % 2 == 0:  # a row each: a label of two lines moves its neighbour too
            columns = where.columns(2, vertical_alignment="bottom")
        value = choose(
            columns[number % 2], LABELS[axis], options, axis, free=options[-1].isdecimal(),
            help=f"Splits {AXES[axis].splits}." if axis in AXES else None,
        )  # fmt: skip
        if value != AUTO:
            pinned.append(f"layout.{axis}={value}")
    more = text_box(
        where, "Other settings", "", "set", max_chars=200, placeholder="switch.attention_kernel=fa3",
        help="Fields and switches of the engine, as after --set, with spaces between: shard_degree=8 "
        "switch.loss=chunked:8. The command `plan engines NAME` lists the switches.",
    )  # fmt: skip
    where.button("All auto", on_click=release, width="stretch", disabled=not (pinned or more))
    return (*pinned, *more.split())


def show_pins(layout: ParallelLayout, label: Callable[[str], str] = LABELS.__getitem__) -> None:
    """Draw what the layout has as chips: a chosen chip is pinned, another is left to the planner.

    Args:
        layout: The layout of the plan.
        label: What an axis is called.
    """
    shown = {axis: str(getattr(layout, axis)) for axis in CHOICES}
    pinned = [axis for axis in CHOICES if st.session_state.get(axis, AUTO) != AUTO]
    axes = [axis for axis, value in shown.items() if axis in pinned or value not in USUAL]
    st.session_state[PINS] = pinned
    st.pills(
        "Layout: choose a chip to pin it", axes, selection_mode="multi", key=PINS, on_change=_pin_chips,
        args=(shown, axes), format_func=lambda axis: f"{label(axis)} {shown[axis]}",
    )  # fmt: skip


def _pin_chips(shown: Mapping[str, str], axes: Sequence[str]) -> None:
    """Pin the chips that are chosen at what they say, and leave the others to the planner."""
    chosen = st.session_state[PINS]
    for axis in axes:
        if axis not in chosen:
            st.session_state[axis] = AUTO
        elif st.session_state.get(axis, AUTO) == AUTO:
            st.session_state[axis] = shown[axis]


def release() -> None:
    """Leave every axis to the planner."""
    for axis in CHOICES:
        st.session_state[axis] = AUTO
    st.session_state["set"] = ""


def load_layout(layout: ParallelLayout) -> None:
    """Pin the axes of a layout."""
    for axis, options in CHOICES.items():
        value = str(getattr(layout, axis))
        st.session_state[axis] = value if value in options or options[-1].isdecimal() else AUTO


def pin(settings: Sequence[str]) -> None:
    """Pin exactly what settings say about the layout and the job."""
    axes, others = pins_of(settings)
    for axis in CHOICES:
        st.session_state[axis] = axes.get(axis, AUTO)
    st.session_state["set"] = others


def pins_of(settings: Sequence[str]) -> tuple[dict[str, str], str]:
    """Settings as the axes that have a widget, and the others of the layout and the job as one text.

    >>> pins_of(["layout.tp=8", "layout.shard_degree=4", "cluster.oversubscription=2"])
    ({'tp': '8'}, 'layout.shard_degree=4')
    """
    axes, others = {}, []
    for setting in settings:
        field, _, value = setting.partition("=")
        name = field if "." in field else f"layout.{field}"
        axis = name.removeprefix("layout.")
        if axis in CHOICES and (value in CHOICES[axis] or value.isdecimal()):
            axes[axis] = value
        elif not name.startswith("cluster."):
            others.append(f"{name}={value}")
    return axes, " ".join(others)
