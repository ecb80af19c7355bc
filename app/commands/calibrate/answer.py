"""From the flags of `plan calibrate` to its answer: benchmarks read, levels fitted, and kept under a name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.reports.answer import Answer, note
from app.reports.calibration import calibration_answer
from costmodel.accuracy.anchor import Anchor
from costmodel.accuracy.checkpoint_names import WEIGHTS_OF_NAME, checkpoint_model, checkpoint_weights
from costmodel.accuracy.kept_anchors import remember
from costmodel.accuracy.serving import fabric
from costmodel.accuracy.serving_runs import MeasuredPool, ServingRun
from costmodel.calibration.bench_files import Figures, read_bench
from costmodel.calibration.serving_levels import fit_serving_levels
from costmodel.kernels.tables import load_calibration
from costmodel.serving.deployment import KvDtype, ServingLayout, Weights
from costmodel.serving.engine import serving_stack
from planner.questions.serving.compared import one_of
from planner.questions.serving.understand import serving_pins
from topology.base.errors import InputError
from topology.catalog import gpu_name
from topology.hardware.datasheets import default_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateQuestion:
    """The flags of one call; see `app.commands.calibrate`."""

    files: tuple[Path, ...]
    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    weights: str | None = None
    kv_dtype: str | None = None
    settings: tuple[str, ...] = ()
    name: str | None = None


def calibrated_answer(question: CalibrateQuestion) -> Answer:
    """Read every benchmark, fit the levels, keep them where a name is given, and tell all of it."""
    if not question.files:
        raise InputError(
            what="there is nothing to calibrate with",
            cause="--serving is missing",
            fix="give what a benchmark client wrote: plan calibrate --serving BENCH.json",
        )
    figures = [(path, figures) for path in question.files for figures in read_bench(path)]
    runs = [_run(question, path, item) for path, item in figures]
    engines = sorted({run.engine for run in runs})
    if len(engines) > 1:
        raise InputError(
            what="these are benchmarks of several engines",
            cause=f"{' and '.join(engines)}",
            fix="calibrate one engine at a time, or name it with --engine",
        )
    fitted = fit_serving_levels(load_calibration(), runs, fabric(runs[0].gpu))
    if question.name is not None:
        anchor = Anchor(name=question.name, levels=(), serving=(fitted.level,))
        kept = remember(anchor, question.name)
        note(f"kept the levels in {kept}; use them with plan serve --anchor {question.name}")
    return calibration_answer([item for _, item in figures], runs, fitted)


def _run(question: CalibrateQuestion, path: Path, figures: Figures) -> ServingRun:
    """A benchmark as a measured run of the server that the flags describe."""
    model = question.model or figures.model
    if not model:
        raise InputError(
            what=f"{path} does not tell its model", cause=f"{figures.tool} wrote none", fix="add --model"
        )
    checkpoint_model(model)
    engine, _, version = (question.engine or figures.engine or "vllm").partition("@")
    degrees: dict[str, Any] = dict(serving_pins(question.settings))
    return ServingRun(
        name=str(path),
        model=model,
        gpu=gpu_name(question.gpu or default_gpu()),
        engine=serving_stack(engine).name,
        engine_version=version,
        benchmark="",
        lowest_length_share=figures.lowest_length_share,
        weights=_weights(question.weights, model),
        kv_dtype=one_of(question.kv_dtype, _KV, "--kv") if question.kv_dtype else None,
        input_tokens=figures.input_tokens,
        output_tokens=figures.output_tokens,
        concurrency=figures.concurrency,
        decode=MeasuredPool(layout=ServingLayout(**degrees)),
        prefill=None,
        ttft_s=figures.ttft_s,
        tpot_s=figures.tpot_s,
        requests=figures.requests,
    )


_KV: tuple[KvDtype, ...] = ("bf16", "fp8")


def _weights(text: str | None, model: str) -> Weights:
    """Precision as given, or as the checkpoint's name says."""
    if text is None:
        return checkpoint_weights(model)
    return WEIGHTS_OF_NAME[one_of(text, tuple(WEIGHTS_OF_NAME), "--weights")]
