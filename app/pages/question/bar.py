"""The question in a bar: what most questions change stands in it, everything else in the panel below it.

Every choice is a widget bound to the URL, so the address bar of the browser holds the whole state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import streamlit as st

from app.pages.base.carried import carried, carry
from app.pages.base.choices import choose, recall_is_over, text_box
from app.pages.base.frame import AwaitedFileError
from app.pages.question.anchor import (
    MEASURED_FILE,
    NO_ANCHOR,
    choose_anchor,
    dropped_anchor,
    level_for,
)
from app.pages.question.axes import choose_axes, pin
from app.pages.question.history import show_history
from app.pages.question.more import more_of_the_job
from app.requests.links import apply_change
from app.requests.upload_sizes import MOST_UPLOAD_MIB
from app.requests.uploads import read_cluster_upload, read_model_upload
from costmodel.accuracy.anchor import Anchor
from costmodel.kernels.precisions import TRAINING
from costmodel.models.catalog import model_aliases, model_names
from costmodel.models.spec import ModelSpec
from costmodel.stack import stacks
from planner.analysis.capacity import Limits
from planner.plan import OBJECTIVES
from planner.questions.engine import DEFAULT_STACK
from planner.questions.flags import Flags
from planner.questions.training import Understood, read_budget, settings_of_nodes, understand
from topology.base.units import parse_seconds
from topology.catalog import cluster_names, gpus
from topology.hardware.datasheets import default_gpu, gpu_aliases
from topology.spec import ClusterSpec

USUAL_DEADLINE = "30d"
DEFAULT_MODEL, DEFAULT_GPUS, DEFAULT_TOKENS = "llama-3.1-70b", "32", "1T"
UPLOADED, MODEL_OR_CLUSTER = "uploaded file", "of a file"
MODEL_FILE, CLUSTER_FILE = "config.json", "cluster.toml"
BY_GPU = "GPUs by kind and number"
COUNTS = tuple(str(2**power) for power in range(3, 15))
LENGTHS = tuple(str(2**power) for power in range(11, 18))
_WIDTHS: Final = (2.4, 1.5, 1.0, 1.1, 1.1, 1.2, 1.1)
"""Of the boxes of the bar, to each other."""
BATCHES = tuple(str(2**power) for power in range(6, 13))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the widgets ask: flags, and the specs that have no name."""

    flags: Flags
    model: ModelSpec | None = None
    cluster: ClusterSpec | None = None
    budget_usd: float | None = None
    anchor: Anchor | None = None

    def understood(self) -> Understood:
        """The complete request."""
        result = understand(self.flags, model=self.model, cluster=self.cluster)
        if self.anchor is None:
            return result
        level = level_for(result.request, self.anchor)
        return replace(result, request=replace(result.request, anchor=replace(level, name=self.anchor.name)))

    def limits(self) -> Limits:
        """What has to be kept: the deadline is the planner's too, the budget is drawn."""
        deadline = self.flags.deadline
        return Limits(
            deadline_s=parse_seconds(deadline, "30d") if deadline else None, budget_usd=self.budget_usd
        )

    def typed(self) -> Flags:
        """The same question as one types it: what was uploaded is a file."""
        is_run = self.budget_usd is not None and self.flags.tokens
        return replace(
            self.flags,
            budget=f"{self.budget_usd:.12g}" if is_run else None,
            model=self.flags.model if self.model is None else MODEL_FILE,
            cluster=self.flags.cluster if self.cluster is None else CLUSTER_FILE,
            anchor=self.flags.anchor if self.anchor is None else self.anchor.name,
        )


def job_question(more_here: Callable[[], None] | None = None) -> Question:
    """Draw the bar and the panel of everything else, and read them.

    Args:
        more_here: Draws what only this page asks, at the top of the panel.

    Raises:
        AwaitedFileError: A file was chosen as a source and is not here yet; every box is drawn all the same.
    """
    bar = st.container(key="question_bar").columns(_WIDTHS, gap="small")
    dropped = st.container(key="question_files")
    with st.expander("More: cluster, layout, engine, limits, history", key="more"):
        history = st.container(key="history_place")
        if more_here is not None:
            more_here()
        limits, place, layout, engine = st.columns(4, gap="medium")
    model_name, model = _model(bar[0], dropped)
    cluster_flags, cluster = _cluster(bar[1:3], place, dropped)
    job = _job(bar[3:], limits, engine)
    budget = text_box(
        limits, "Budget, $", "", "budget", max_chars=12, placeholder="5M",
        help="Drawn where money is; plans are not chosen by it.",
    )  # fmt: skip
    job |= more_of_the_job(engine)
    settings = choose_axes(layout)
    settings += _fabric(cluster_flags, place) if cluster is None else ()
    recall_is_over()
    with history:
        show_history(_title(model_name, cluster_flags, cluster))
    _require_files(model_name or model, cluster_flags or cluster)
    anchor = None
    flags = Flags(model=model_name, settings=settings, **(cluster_flags | job))
    if st.session_state["anchor"] == MEASURED_FILE:
        with dropped:
            anchor = dropped_anchor(flags)
    usd = read_budget(budget) if budget else None
    return Question(flags=flags, model=model, cluster=cluster, budget_usd=usd, anchor=anchor)


def _title(model: str | None, flags: Mapping[str, str | None], cluster: ClusterSpec | None) -> str:
    """The question in a few words, for the history."""
    where = flags.get("gpu") or flags.get("cluster") or MODEL_OR_CLUSTER
    count = flags.get("gpus") or (cluster.num_gpus if cluster else None)
    return f"{model or MODEL_OR_CLUSTER}, {f'{count} × ' if count else ''}{where}"


def _require_files(model: object, cluster: object) -> None:
    """See that what is said to be in a file is there."""
    for value, what, file in ((model, "no model yet", MODEL_FILE), (cluster, "no cluster yet", CLUSTER_FILE)):
        if not value:
            fix = f"upload a {file} below the question, or pick a name in it"
            raise AwaitedFileError(what=what, cause=f"no {file} was uploaded", fix=fix)


def _model(where: Any, dropped: Any) -> tuple[str | None, ModelSpec | None]:
    """Choose a model by name, or bring its config.json."""
    known = carried("model_spec", ModelSpec)
    names = [*model_names(), UPLOADED]
    name = choose(where, "Model", names, "model", default=DEFAULT_MODEL, aliases=model_aliases())
    if name != UPLOADED:
        return name, None
    file = dropped.file_uploader(
        "config.json of the model", type="json", key="model_file", max_upload_size=MOST_UPLOAD_MIB
    )
    if file is not None:
        known = [read_model_upload(file.name, file.getvalue())]
        carry("model_spec", *known)
    if not known:
        return None, None
    dropped.caption(f"{known[0].num_layers} layers · hidden {known[0].hidden_size:,}")
    return None, known[0]


def _cluster(
    bar: Sequence[Any], place: Any, dropped: Any
) -> tuple[dict[str, str | None], ClusterSpec | None]:
    """Choose GPUs by kind and number, a machine by name, or bring a TOML file."""
    known = carried("cluster_spec", ClusterSpec)
    names = [BY_GPU, *cluster_names(), UPLOADED]
    name = choose(place, "Cluster", names, "cluster")
    if name == UPLOADED:
        file = dropped.file_uploader(
            "cluster.toml", type="toml", key="cluster_file", max_upload_size=MOST_UPLOAD_MIB
        )
        if file is not None:
            known = [read_cluster_upload(file.name, file.getvalue())]
            carry("cluster_spec", *known)
        bar[0].caption("GPUs of a file")
        return {}, known[0] if known else None
    left, right = bar
    if name != BY_GPU:
        left.caption(f"GPUs of {name}")
        number = choose(right, "GPUs", COUNTS, "gpus", default=DEFAULT_GPUS, free=True)
        return {"cluster": name, "gpus": number}, None
    kind = choose(left, "GPU", list(gpus()), "gpu", default=default_gpu(), aliases=gpu_aliases())
    number = choose(right, "GPUs", COUNTS, "gpus", default=DEFAULT_GPUS, free=True)
    return {"gpu": kind, "gpus": number}, None


def _job(bar: Sequence[Any], limits: Any, engine: Any) -> dict[str, str | None]:
    """The job, the software and the objective."""
    batch = choose(bar[0], "Global batch", BATCHES, "global_batch_size", default="512", free=True)
    length = choose(bar[1], "Sequence length", LENGTHS, "sequence_length", default="8192", free=True)
    precision = choose(bar[2], "Precision", list(TRAINING), "precision")
    tokens = text_box(bar[3], "Tokens to train", DEFAULT_TOKENS, "tokens", max_chars=12)
    labels: dict[str, str] = {objective: _objective_label(objective) for objective in OBJECTIVES}
    text = choose(limits, "Objective", list(labels.values()), "objective", aliases=labels)
    objective = next(name for name in OBJECTIVES if labels[name] == text)
    deadline = text_box(
        limits, "Deadline", "", "deadline", max_chars=12, placeholder="30d",
        help="Such as 30d or 12h. Decides the plan where the fewest GPUs for it are asked.",
    )  # fmt: skip
    headroom = text_box(
        limits, "Memory left free", "", "memory_headroom", max_chars=8, help="Share of each GPU, such as 5%.",
        placeholder="as much as the error band asks",
    )  # fmt: skip
    anchor = choose_anchor(limits)
    stack = choose(engine, "Software stack", list(stacks()), "stack", default=DEFAULT_STACK)
    return {
        "sequence_length": length,
        "global_batch_size": batch,
        "precision": precision,
        "stack": stack,
        "objective": objective,
        "tokens": tokens or None,
        "deadline": deadline or (USUAL_DEADLINE if objective == "gpus" else None),
        "memory_headroom": headroom or None,
        "anchor": None if anchor in (NO_ANCHOR, MEASURED_FILE) else anchor,
    }


def _objective_label(objective: str) -> str:
    """An objective in words."""
    words = {
        "step-time": "shortest step",
        "cost": "least money per token",
        "gpus": "fewest GPUs for a deadline",
        "memory": "most memory headroom",
    }
    return words[objective]


def _fabric(flags: Mapping[str, str | None], where: Any) -> tuple[str, ...]:
    """What of the fabric to change."""
    usual = "as built"
    sizes = [usual, "1", "2", "4", "8", "16", "72"]
    per_node = choose(where, "GPUs per node", sizes, "per_node") if flags.get("gpu") else usual
    cards = [usual, "100 Gbit/s", "200 Gbit/s", "400 Gbit/s", "800 Gbit/s"]
    nic = choose(where, "Network card", cards, "nic")
    price = text_box(where, "$ per GPU-hour", "", "price", max_chars=10, placeholder="list price")
    thinner = choose(where, "Oversubscription", [usual, "2", "4", "8"], "oversubscription")
    settings = (
        []
        if per_node == usual
        else list(settings_of_nodes(Flags(gpu=flags["gpu"], gpus=flags["gpus"]), int(per_node)))
    )
    if nic != usual:
        settings.append(f"cluster.nic_bandwidth_bytes_per_s={nic}")
    if thinner != usual:
        settings.append(f"cluster.oversubscription={thinner}")
    if price:
        settings.append(f"cluster.usd_per_gpu_hour={price}")
    return tuple(settings)


def load_gpus(gpu: str, count: int) -> None:
    """Choose a kind and number of GPUs."""
    st.session_state["cluster"] = BY_GPU
    st.session_state["gpu"] = gpu
    st.session_state["gpus"] = str(count)


def load_change(flags: Flags, change: str) -> None:
    """Apply a change that the planner proposed."""
    changed = apply_change(flags, change)
    if changed.gpu and changed.gpu != flags.gpu:
        st.session_state["cluster"] = BY_GPU
        st.session_state["gpu"] = changed.gpu
    for name in ("gpus", "sequence_length", "global_batch_size", "precision", "memory_headroom"):
        if getattr(changed, name) != getattr(flags, name):
            st.session_state[name] = getattr(changed, name)
    pin(changed.settings)
