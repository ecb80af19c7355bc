"""The layout of a 10B model on two nodes of four GPUs (ZeRO-3 inside a node, a pipeline between), made small.

    python -m examples.fsdp_pipeline

Predicted are the losses (those of one process) and the parameters that a rank stores (a stage's, over dp).
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.models.parameters import embedding_parameters, head_parameters, layer_parameters
from costmodel.models.spec import LayerKind
from examples.llm_ranks import SETTINGS, SMALL, layout, losses_of, train_rank
from examples.support import report, start
from executor.validation.reference import ReferenceJob, run_reference

SPEC = replace(SMALL, num_layers=6)
CASE = ReferenceJob(
    spec=SPEC,
    layout=layout(pp=2, dp=4, zero_stage=3),
    sequence_length=64,
    num_microbatches=4,
    steps=4,
)


def parameters_of_rank(stage: int) -> float:
    """Parameters that a rank of a pipeline stage stores: half of the layers and one end, over dp."""
    layers = (
        SPEC.num_layers // CASE.layout.pp * layer_parameters(SPEC, LayerKind(attention="full", mlp="dense"))
    )
    return (layers + (embedding_parameters(SPEC) if stage == 0 else head_parameters(SPEC))) / CASE.layout.dp


def main() -> None:
    """Train four steps on eight ranks and print predicted against measured."""
    runs = start(train_rank, CASE.layout.num_gpus, CASE)
    truth = run_reference(CASE, SETTINGS).losses
    rows: list[tuple[str, float | str, float | str]] = [
        (f"loss of step {step}", true, mine)
        for step, (true, mine) in enumerate(zip(truth, losses_of(CASE, runs), strict=True), start=1)
    ]
    for stage in range(CASE.layout.pp):
        held = [run.parameters for run in runs if run.pp_rank == stage]
        rows.append((f"stage {stage} parameters per rank", parameters_of_rank(stage), sum(held) / len(held)))
    report(f"ZeRO-3 over 4 ranks × PP2, step {runs[0].step_s[-1]:.2f} s", rows)


if __name__ == "__main__":
    main()
