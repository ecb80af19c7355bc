"""The question: every choice is a widget bound to the URL, so the address bar holds the whole state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import streamlit as st

from app.anchors import kept_anchors
from app.job_flags import Flags
from app.links import apply_change
from app.pages.carried import carried, carry
from app.pages.frame import MOST_UPLOAD_MIB
from app.request import DEFAULT_GPU, DEFAULT_STACK, Understood, understand, understand_cluster
from app.uploads import read_cluster_upload, read_model_upload
from costmodel.layout import RECOMPUTES, SCHEDULES, ParallelLayout
from costmodel.model import ModelSpec
from costmodel.model_catalog import model_names
from costmodel.stack import stacks
from planner.plan import OBJECTIVES
from topology.catalog import cluster_names, gpus
from topology.errors import InputError
from topology.spec import ClusterSpec

AUTO = "auto"
NO_ANCHOR = "none"
DEFAULT_MODEL, DEFAULT_GPUS = "llama-3.1-70b", "32"
UPLOADED = "uploaded file"
MODEL_FILE, CLUSTER_FILE = "config.json", "cluster.toml"
BY_GPU = "GPUs by kind and number"

_POWERS = [str(2**power) for power in range(8)]
AXES: dict[str, list[str]] = {
    "tp": [AUTO, *_POWERS],
    "pp": [
        AUTO,
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "8",
        "9",
        "10",
        "12",
        "14",
        "16",
        "20",
        "24",
        "32",
        "40",
        "64",
    ],
    "dp": [AUTO, *(str(2**power) for power in range(14))],
    "cp": [AUTO, *_POWERS],
    "ep": [AUTO, *_POWERS, "256"],
    "virtual_stages": [AUTO, *map(str, range(1, 11))],
    "microbatch_size": [AUTO, *_POWERS[:6]],
    "zero_stage": [AUTO, "0", "1", "2", "3"],
    "recompute": [AUTO, *RECOMPUTES],
    "schedule": [AUTO, *SCHEDULES],
}
_AXIS_LABELS = {
    "tp": "Tensor (tp)",
    "pp": "Pipeline (pp)",
    "dp": "Data (dp)",
    "cp": "Context (cp)",
    "ep": "Expert (ep)",
    "virtual_stages": "Virtual stages",
    "microbatch_size": "Microbatch",
    "zero_stage": "ZeRO stage",
    "recompute": "Recompute",
    "schedule": "Schedule",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the widgets ask: flags, and the specs that have no name."""

    flags: Flags
    model: ModelSpec | None = None
    cluster: ClusterSpec | None = None

    def understood(self) -> Understood:
        """The complete request."""
        return understand(self.flags, model=self.model, cluster=self.cluster)

    def typed(self) -> Flags:
        """The same question as one types it: what was uploaded is a file."""
        return replace(
            self.flags,
            model=self.flags.model if self.model is None else MODEL_FILE,
            cluster=self.flags.cluster if self.cluster is None else CLUSTER_FILE,
        )


def ask() -> Question:
    """Draw the sidebar and read it."""
    with st.sidebar:
        model_name, model = _model()
        cluster_flags, cluster = _cluster()
        job = _job()
        settings = _pins()
        settings += _fabric() if cluster is None else ()
    flags = Flags(model=model_name, settings=settings, **(cluster_flags | job))
    return Question(flags=flags, model=model, cluster=cluster)


def ask_cluster() -> ClusterSpec:
    """Draw only the choice of a cluster, and read it."""
    flags, spec = _cluster()
    settings = _fabric() if spec is None else ()
    return understand_cluster(Flags(settings=settings, **flags), cluster=spec)


def _model() -> tuple[str | None, ModelSpec | None]:
    """Choose a model by name, or bring its config.json."""
    known = carried("model_spec", ModelSpec)
    names = [*model_names(), UPLOADED]
    name = st.selectbox("Model", names, index=names.index(DEFAULT_MODEL), key="model", bind="query-params")
    if name != UPLOADED:
        return str(name), None
    file = st.file_uploader(
        "config.json of the model", type="json", key="model_file", max_upload_size=MOST_UPLOAD_MIB
    )
    if file is not None:
        known = [read_model_upload(file.name, file.getvalue())]
        carry("model_spec", *known)
    if not known:
        raise InputError(
            what="no model yet", cause="no config.json was uploaded", fix="upload one, or pick a name"
        )
    st.caption(f"{known[0].num_layers} layers · hidden {known[0].hidden_size:,}")
    return None, known[0]


def _cluster() -> tuple[dict[str, str | None], ClusterSpec | None]:
    """Choose GPUs by kind and number, a machine by name, or bring a TOML file."""
    known = carried("cluster_spec", ClusterSpec)
    names = [BY_GPU, *cluster_names(), UPLOADED]
    name = st.selectbox("Cluster", names, key="cluster", bind="query-params")
    if name == UPLOADED:
        file = st.file_uploader(
            "cluster.toml", type="toml", key="cluster_file", max_upload_size=MOST_UPLOAD_MIB
        )
        if file is not None:
            known = [read_cluster_upload(file.name, file.getvalue())]
            carry("cluster_spec", *known)
        if not known:
            raise InputError(
                what="no cluster yet", cause="no TOML file was uploaded", fix="upload one, or pick a name"
            )
        return {}, known[0]
    left, right = st.columns(2)
    counts = ["8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384"]
    number = right.selectbox(
        "GPUs",
        counts,
        index=counts.index(DEFAULT_GPUS),
        key="gpus",
        bind="query-params",
        accept_new_options=True,
    )
    if name != BY_GPU:
        left.caption("GPUs of this machine")
        return {"cluster": str(name), "gpus": str(number)}, None
    kinds = list(gpus())
    kind = left.selectbox("GPU", kinds, index=kinds.index(DEFAULT_GPU), key="gpu", bind="query-params")
    return {"gpu": str(kind), "gpus": str(number)}, None


def _job() -> dict[str, str | None]:
    """The job, the software and the objective."""
    left, right = st.columns(2)
    lengths = ["2048", "4096", "8192", "16384", "32768", "65536", "131072"]
    batches = ["64", "128", "256", "512", "1024", "2048", "4096"]
    length = left.selectbox(
        "Sequence length",
        lengths,
        index=2,
        key="sequence_length",
        bind="query-params",
        accept_new_options=True,
    )
    batch = right.selectbox(
        "Global batch",
        batches,
        index=3,
        key="global_batch_size",
        bind="query-params",
        accept_new_options=True,
        help="Sequences in one optimizer step.",
    )
    precision = left.selectbox(
        "Precision", ["bf16", "fp16", "fp8", "mxfp8", "nvfp4"], key="precision", bind="query-params"
    )
    tokens = right.text_input("Tokens to train", "1T", key="tokens", bind="query-params", max_chars=12)
    names = list(stacks())
    stack = st.selectbox(
        "Software stack", names, index=names.index(DEFAULT_STACK), key="stack", bind="query-params"
    )
    headroom = st.text_input(
        "Memory left free",
        "",
        key="memory_headroom",
        bind="query-params",
        max_chars=8,
        placeholder="as much as the error band asks",
        help="Share of each GPU, such as 5%.",
    )
    anchors = [NO_ANCHOR, *kept_anchors()]
    anchor = (
        st.selectbox("Steps you measured", anchors, key="anchor", bind="query-params")
        if len(anchors) > 1
        else NO_ANCHOR
    )
    objective = st.selectbox(
        "Best means", OBJECTIVES, key="objective", bind="query-params", format_func=_objective_label
    )
    deadline = (
        st.text_input("Deadline", "30d", key="deadline", bind="query-params", max_chars=12)
        if objective == "gpus"
        else None
    )
    return {
        "sequence_length": str(length),
        "global_batch_size": str(batch),
        "precision": str(precision),
        "stack": str(stack),
        "objective": str(objective),
        "tokens": tokens or None,
        "deadline": deadline,
        "memory_headroom": headroom or None,
        "anchor": None if anchor == NO_ANCHOR else str(anchor),
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


def _pins() -> tuple[str, ...]:
    """Axes: left to the planner, or pinned."""
    with st.expander("Layout", expanded=True):
        columns = st.columns(2)
        pinned = []
        for number, (axis, options) in enumerate(AXES.items()):
            value = columns[number % 2].selectbox(_AXIS_LABELS[axis], options, key=axis, bind="query-params")
            if value != AUTO:
                pinned.append(f"layout.{axis}={value}")
        more = st.text_input(
            "Other settings",
            "",
            key="set",
            bind="query-params",
            max_chars=200,
            placeholder="shard_degree=8 job.optimizer=adamw",
            help="Any field, as after --set, with spaces between.",
        )
        st.button("All auto", on_click=release_all, width="stretch", disabled=not (pinned or more))
    return (*pinned, *more.split())


def _fabric() -> tuple[str, ...]:
    """What of the fabric to change."""
    with st.expander("Fabric"):
        usual = "as built"
        nic = st.selectbox(
            "Network card",
            [usual, "100 Gbit/s", "200 Gbit/s", "400 Gbit/s", "800 Gbit/s"],
            key="nic",
            bind="query-params",
        )
        price = st.text_input(
            "$ per GPU-hour", "", key="price", bind="query-params", max_chars=10, placeholder="list price"
        )
        memory = st.selectbox(
            "Oversubscription", [usual, "2", "4", "8"], key="oversubscription", bind="query-params"
        )
    settings = []
    if nic != usual:
        settings.append(f"cluster.nic_bandwidth_bytes_per_s={nic}")
    if memory != usual:
        settings.append(f"cluster.oversubscription={memory}")
    if price:
        settings.append(f"cluster.usd_per_gpu_hour={price}")
    return tuple(settings)


def release_all() -> None:
    """Leave every axis to the planner."""
    for axis in AXES:
        st.session_state[axis] = AUTO
    st.session_state["set"] = ""


def load_layout(layout: ParallelLayout) -> None:
    """Pin the axes of a layout."""
    for axis, options in AXES.items():
        value = str(getattr(layout, axis))
        st.session_state[axis] = value if value in options else AUTO


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
    axes, others = pins_of(changed.settings)
    for axis in AXES:
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
        if axis in AXES and value in AXES[axis]:
            axes[axis] = value
        elif not name.startswith("cluster."):
            others.append(f"{name}={value}")
    return axes, " ".join(others)
