"""The first page of `plan dash PLAN.json`: the widgets start at the question that the plan answers."""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from app.actions.dash import PLAN_VARIABLE
from app.pages.base.carried import carry
from app.pages.question.axes import pins_of
from app.pages.question.bar import BY_GPU, UPLOADED
from app.pages.question.more import USUAL_ENGINE
from app.requests.plan_file import read_claims
from costmodel.accuracy.kept_anchors import kept_anchors
from costmodel.job import TrainingJob
from costmodel.models.catalog import models
from planner.plan import PlanRequest
from planner.questions.engine import usual_engine
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.spec import ClusterSpec

_STARTED = "started_from_file"
_OF_SETTINGS = (
    "optimizer", "gradient_compression", "local_steps", "bucket_bytes", "images", "image_tokens",
    "frozen_tower", "mtp_layers", "document_tokens",
)  # fmt: skip
"""Fields of a job that are said as settings."""


def start_from_file() -> None:
    """Set the widgets once per session, unless the URL already asks something."""
    path = os.environ.get(PLAN_VARIABLE)
    if path is None or st.session_state.get(_STARTED) or st.query_params:
        return
    st.session_state[_STARTED] = True
    asked = read_claims(Path(path)).request  # only the question: its answer is searched here
    for name, value in widget_values(asked).items():
        st.session_state[name] = value


def widget_values(request: PlanRequest) -> dict[str, str]:
    """Value of every widget for a request; a model or cluster without a name is carried as an upload is."""
    job = request.job
    if job.expert_load:
        raise InputError(
            what="the dashboard asks nothing of measured tokens by expert",
            cause="the plan was made with --expert-load, a file that no link can carry",
            fix="plan explain, diff and verify take it; plan it anew without the file for the dashboard",
        )
    values = {
        "sequence_length": str(job.sequence_length),
        "global_batch_size": str(job.global_batch_size),
        "precision": job.precision,
        "stack": request.stack,
        "objective": request.objective,
        "tokens": "" if job.total_tokens is None else str(job.total_tokens),
        "deadline": "" if job.deadline_s is None else f"{job.deadline_s:g}s",
        "budget": "" if job.budget_usd is None else f"{job.budget_usd:.12g}",
        "adapter": "" if job.adapter is None else job.adapter.words,
        "offload": "" if job.offload is None else job.offload.words,
        "recompute_modules": ",".join(request.recompute_modules),
        "engine": USUAL_ENGINE if request.engine == usual_engine(request)[0] else request.engine,
        "memory_headroom": "" if request.memory_headroom is None else str(request.memory_headroom),
    }
    if request.anchor is not None and request.anchor.name in kept_anchors():
        values["anchor"] = request.anchor.name
    if models().get(request.model.name) == request.model:
        values["model"] = request.model.name
    else:
        carry("model_spec", request.model)
        values["model"] = UPLOADED
    pinned = [f"layout.{name}={_typed(value)}" for name, value in request.pins.items()]
    usual = TrainingJob(sequence_length=job.sequence_length, global_batch_size=job.global_batch_size)
    changed = {
        name: getattr(job, name) for name in _OF_SETTINGS if getattr(job, name) != getattr(usual, name)
    }
    entry = [f"job.{name}={value}" for name, value in changed.items()]
    axes, others = pins_of([*pinned, *entry])
    return values | cluster_values(request.cluster) | axes | {"set": others}


def _typed(value: object) -> str:
    """A pinned value as it is typed after --set."""
    return "-".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def cluster_values(spec: ClusterSpec) -> dict[str, str]:
    """Widgets of a cluster: a kind and number of GPUs when that is all it is."""
    gpu = spec.nodes[0].gpu
    if not spec.gpus and default_cluster(gpu, spec.num_gpus).spec == spec:
        return {"cluster": BY_GPU, "gpu": gpu, "gpus": str(spec.num_gpus)}
    carry("cluster_spec", spec)
    return {"cluster": UPLOADED}
