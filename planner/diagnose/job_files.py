"""Scripts, logs and plans beside traces: what job they describe, and what it should take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from costmodel.kernels.precisions import TRAINING
from costmodel.kernels.tables import load_calibration
from costmodel.serving.step import step_times
from planner.audit.audit import calibration_of
from planner.audit.changes import running_of
from planner.audit.job import audited_job
from planner.audit.layout import value_of
from planner.audit.read import read_texts, text_of
from planner.audit.serving.audit import started_deployment
from planner.audit.serving.server import Unknown, server_of
from planner.diagnose.prediction import Prediction
from planner.diagnose.serving import Predicted
from planner.plan import from_json, stack_of
from planner.questions.flags import Flags
from planner.traces.server_steps import ServerStep
from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_PATH, read_text


def prediction_of(paths: Sequence[Path], flags: Flags) -> tuple[Prediction | None, tuple[str, ...]]:
    """What the files predict, and what is missing where they do not.

    Args:
        paths: One plan of `plan --json`, or the scripts, configurations and logs of one job.
        flags: What is said beside them.
    """
    if not paths:
        return None, ()
    name = shortened(str(paths[0]), LONGEST_PATH)
    if len(paths) == 1 and paths[0].suffix == ".json":
        plan = from_json(read_text(paths[0]), name)
        precision = plan.request.job.precision
        return Prediction(
            source=Path(name).name,
            estimate=plan.estimate,
            layout=plan.layout,
            precision=precision,
            gradient_overlap=bool(stack_of(plan.request).timing.gradient_overlap),
        ), ()
    reading = read_texts({str(path): text_of(str(path))[0] for path in paths}, {})
    if reading.family.serves:
        cause = "the traces have no step of a server: no annotation of vLLM, SGLang or ATOM"
        raise InputError(f"{name} starts a server", cause, "leave it out, or record the server")
    job = audited_job(reading, flags)
    now = running_of(reading, job, calibration_of(reading, flags))
    if now is None or job.layout is None:
        return None, tuple(f"not predicted: {each}" for each in job.missing[:3])
    stated = flags.precision or value_of(reading, None, "job.precision").value
    formats = [precision for precision in TRAINING if precision == stated]
    return Prediction(
        source=Path(name).name,
        estimate=now.estimate,
        layout=job.layout,
        precision=formats[0] if formats else None,
        gradient_overlap=bool(now.stack.timing.gradient_overlap),
    ), ()


def server_prediction(paths: Sequence[Path], flags: Flags) -> tuple[Predicted | None, tuple[str, ...]]:
    """What a step of the server that files start should take, and what is missing where they do not say it.

    Args:
        paths: Scripts and configurations of one server.
        flags: What is said beside them: its model and its GPU.
    """
    if not paths:
        return None, ()
    reading = read_texts({str(path): text_of(str(path))[0] for path in paths}, {})
    if not reading.family.serves:
        name = shortened(str(paths[0]), LONGEST_PATH)
        raise InputError(f"{name} starts no server", "the traces are of a server", "name what started it")
    server = server_of(reading, model=flags.model, gpu=flags.gpu)
    if isinstance(server, Unknown):
        return None, tuple(f"not predicted: {each}" for each in server.missing[:3])
    deployment, calibration = started_deployment(server), load_calibration()

    def seconds(step: ServerStep) -> float | None:
        if (step.requests and step.cached_tokens is None) or (step.prompts and step.prompt_tokens is None):
            return None
        context = max(1, (step.cached_tokens or 0) // max(1, step.requests))
        prompt = (step.prompt_tokens or 0) // max(1, step.prompts)
        times = step_times(
            calibration,
            deployment,
            max_batch=max(1, step.requests),
            token_budget=max(1, step.requests + (step.prompt_tokens or 0)),
            input_tokens=max(context, prompt),
            output_tokens=1,
        )
        if not step.prompts:
            return times.decode_s(step.requests, step.cached_tokens or 0)
        linear = times.linear_at(
            (step.prompt_tokens or 0) + step.requests, -(-(step.prompt_tokens or 0) // times.ranks)
        )
        prompts = step.prompts * times.prefill_attention.at(prompt, 0)
        cached = times.decode_attention_s_per_token[step.requests] * (step.cached_tokens or 0)
        decoding = times.decode_attention_s[step.requests] + cached if step.requests else 0.0
        return float(linear + prompts + decoding)

    return seconds, ()
