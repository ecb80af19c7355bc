"""A small LLM under tensor × pipeline × data parallelism, checked against one process.

    python -m examples.hybrid_llm

Predicted are the losses (those of one process) and the parameters on each rank (those of the cost model).
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.models.parameters import embedding_parameters, head_parameters, layer_parameters
from costmodel.models.spec import LayerKind
from examples.llm_ranks import SETTINGS, SMALL, layout, losses_of, train_rank
from examples.support import report, start
from executor.validation.reference import ReferenceJob, run_reference

SPEC = replace(SMALL, num_layers=4)
CASE = ReferenceJob(
    spec=SPEC,
    layout=layout(tp=2, pp=2, dp=2, zero_stage=1),
    sequence_length=64,
    num_microbatches=4,
    steps=4,
    layers_of_stage=(3, 1),
)


def parameters_of_rank(stage: int) -> float:
    """Parameters that a rank of a pipeline stage stores: all are cut by dp, all but norms by tp."""
    layers = (CASE.layers_of_stage or ())[stage]
    inner = layers * layer_parameters(SPEC, LayerKind(attention="full", mlp="dense"))
    outer = embedding_parameters(SPEC) if stage == 0 else head_parameters(SPEC)
    norms = SPEC.hidden_size * (2 * layers + (stage > 0))
    return ((inner + outer - norms) / CASE.layout.tp + norms) / CASE.layout.dp


def main() -> None:
    """Train four steps on eight ranks and print predicted against measured."""
    runs = start(train_rank, CASE.layout.num_gpus, CASE)
    truth = run_reference(CASE, SETTINGS).losses
    found = losses_of(CASE, runs)
    rows: list[tuple[str, float | str, float | str]] = [
        (f"loss of step {step + 1}", true, mine)
        for step, (true, mine) in enumerate(zip(truth, found, strict=True))
    ]
    for stage in range(CASE.layout.pp):
        held = [run.parameters for run in runs if run.pp_rank == stage]
        rows.append((f"stage {stage} parameters per rank", parameters_of_rank(stage), sum(held) / len(held)))
    report(f"hybrid TP2 × PP2 × DP2, step {runs[0].step_s[-1]:.2f} s", rows)
    gap = max(abs(true - mine) / true for true, mine in zip(truth, found, strict=True))
    if gap > 1e-5:
        raise SystemExit(f"losses differ from one process by {gap:.1e}")


if __name__ == "__main__":
    main()
