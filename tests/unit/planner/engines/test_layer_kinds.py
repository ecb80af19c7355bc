"""Layers that alternate are planned for engines that train the model's own module, and refused by others."""

import re

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model, model_names
from planner.engines.contracts import CONTRACTS, way_out
from planner.plan import FREE, PlanRequest, problem_of
from planner.questions.engine import usual_engine
from topology.builders import default_cluster

ONE = ParallelLayout()


def request(name: str) -> PlanRequest:
    """A usual job of a model on eight GPUs."""
    job = TrainingJob(sequence_length=4096, global_batch_size=64)
    return PlanRequest(model=model(name), cluster=default_cluster("h100-sxm", 8).spec, job=job)


@pytest.mark.parametrize("name", ["nemotron-h-8b", "qwen3.5-9b", "kimi-linear-48b-a3b", "llama-4-maverick"])
def test_engines_say_that_they_are_not_told_which_layer_is_which(name: str) -> None:
    """Megatron-Core's, torchtitan and the executor refuse; DeepSpeed and Accelerate do not."""
    problem = problem_of(request(name), load_calibration())
    broken = {
        engine
        for engine, contract in CONTRACTS.items()
        for limit in contract.limits
        if limit.name == "layer-kinds" and limit.broken(problem, LayoutTable.from_rows([ONE]))
    }
    assert broken == {"megatron", "megatron-bridge", "torchtitan", "meshplan"}
    (limit,) = (limit for limit in CONTRACTS["torchtitan"].limits if limit.name == "layer-kinds")
    cause, fix = limit.says(problem, ONE)[0], way_out(limit, problem, ONE, ())
    assert ("torchtitan is not told here which layer is which" in cause, "deepspeed" in fix) == (True, True)


def test_a_hybrid_is_planned_for_no_engine_where_the_usual_one_cannot_run_it() -> None:
    """And it is said why."""
    engine, notes = usual_engine(request("qwen3-next-80b-a3b"))
    assert (engine, len(notes), "layer_pattern" in notes[0]) == (FREE, 1, True)


def test_a_refused_model_is_described_by_sizes_and_never_by_a_class_of_ours() -> None:
    """Of every model of the catalogue that Megatron-LM would compute otherwise; compressed attention is one."""
    (limit,) = (limit for limit in CONTRACTS["megatron"].limits if limit.name == "model")
    causes = {}
    for name in model_names():
        problem = problem_of(request(name), load_calibration())
        if limit.broken(problem, LayoutTable.from_rows([ONE])):
            causes[name] = limit.says(problem, ONE)[0]
    assert [name for name, cause in causes.items() if re.search(r"[A-Z]\w*\(", cause)] == []
    assert "model.compression = output_groups 16 output_rank 1024" in causes["deepseek-v4-pro"]
