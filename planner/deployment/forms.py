"""The forms in which a folder can hold a serving plan, by the words of `--deploy`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from planner.deployment.autoscale import ADAPTER_FILE, HPA_FILE, KEDA_FILE, MONITOR_FILE
from planner.deployment.dynamo import FILE as DYNAMO_FILE
from planner.deployment.dynamo import dynamo_files
from planner.deployment.llm_d import SCHEDULER_FILE, SERVICE_FILE, llm_d_files
from planner.deployment.triton import IMAGE as TRITON_IMAGE
from planner.deployment.triton import triton_files
from planner.serving.plan import ServingPlan
from topology.base.errors import InputError

_WRITERS: Final[Mapping[str, Callable[[ServingPlan], dict[str, str]]]] = {
    "dynamo": dynamo_files,
    "llm-d": llm_d_files,
    "triton": triton_files,
}
FORMS: Final = ("scripts", "kubernetes", *_WRITERS)
_ALIASES: Final = {"lws": "kubernetes"}
_SUPERSEDED: Final = {
    "fastertransformer": "FasterTransformer has ended; its Triton backend names TensorRT-LLM in its place",
}


def forms_of(text: str) -> tuple[str, ...]:
    """The forms that a user names, with commas; a LeaderWorkerSet is part of the plain manifest.

    >>> forms_of("scripts,LWS, dynamo")
    ('scripts', 'kubernetes', 'dynamo')
    """
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word in _SUPERSEDED:
            fix = "use --deploy triton --engine trtllm"
            raise InputError(what=f"{word} is superseded", cause=_SUPERSEDED[word], fix=fix)
        if word not in (*FORMS, *_ALIASES):
            known = ", ".join((*FORMS, *_ALIASES))
            raise InputError(
                what=f"unknown --deploy {word!r}",
                cause=f"known are {known}",
                fix="use one or several of these",
            )
    return tuple(dict.fromkeys(_ALIASES.get(word, word) for word in words))


def form_files(plan: ServingPlan, form: str) -> dict[str, str]:
    """The files of a form that is neither scripts nor a plain manifest; of those, nothing.

    Raises:
        InputError: Stages have layers or GPUs of their own, which no pod is told.
    """
    if form in _WRITERS and any(pool.layout.is_uneven for _, pool in plan.pools):
        raise InputError(
            what=f"--deploy {form} cannot start this fleet",
            cause=f"its stages have layers or GPUs of their own: {plan.label}",
            fix="use --deploy scripts",
        )
    return _WRITERS[form](plan) if form in _WRITERS else {}


def form_steps(files: Collection[str]) -> list[str]:
    """What a README says of the forms that a folder has, one line each."""
    first = "triton-node0.sh"
    steps = {
        "kubernetes.yaml": "On Kubernetes: `kubectl apply -f kubernetes.yaml`.",
        HPA_FILE: f"Scaled by Prometheus: apply `{MONITOR_FILE}` and `{KEDA_FILE}`, "
        f"or without KEDA `{HPA_FILE}` and prometheus-adapter's chart with `{ADAPTER_FILE}`; never both.",
        DYNAMO_FILE: f"Where Dynamo's operator runs: `kubectl apply -f {DYNAMO_FILE}`.",
        SERVICE_FILE: f"With llm-d: install both charts with `{SERVICE_FILE}` and "
        f"`{SCHEDULER_FILE}`, as their heads say.",
        first: f"Triton: in the image {TRITON_IMAGE} run `bash {first}`, of several nodes each its own; "
        "a load balancer of yours goes in front.",
    }
    return [step for file, step in steps.items() if file in files]
