"""Engines that train modules which predict further tokens are told them, others refuse them."""

from __future__ import annotations

import dataclasses
import shlex

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from costmodel.stack import stack as find_stack
from planner.engines.contract import read
from planner.engines.contracts import CONTRACTS
from planner.engines.megatron_lm.stage_string import layout_string, modules_of_string, stages_of_string
from planner.engines.read_back import require_runnable
from planner.launch.targets import export_plan
from planner.plan import Plan, Problem
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.rules.check import legal
from tests.unit.planner.engines.priced import priced
from topology.base.errors import InputError
from topology.builders import default_cluster

LAYOUT = ParallelLayout(pp=4, dp=2, ep=2, zero_stage=1)
SMALL = dataclasses.replace(model("deepseek-v3"), num_layers=7, num_dense_layers=1, num_experts=8)
LEARNED = dataclasses.replace(model("gpt-3-1.3b"), max_sequence_length=4096, learned_positions=4096)
TRAINERS = ("megatron", "megatron-bridge")


def with_modules(modules: int, layout: ParallelLayout = LAYOUT, spec: ModelSpec = SMALL) -> Plan:
    """A plan whose job trains so many modules, its split even beside them."""
    return priced(layout, spec, mtp_layers=modules)


@pytest.mark.parametrize("modules", [0, 1, 2])
@pytest.mark.parametrize("engine", TRAINERS)
def test_the_export_is_the_plan(engine: str, modules: int) -> None:
    """What is written is read back and estimated anew, or the export is refused."""
    named = "mtp" in export_plan(with_modules(modules), engine).text
    assert named == (modules > 0 or engine == "megatron-bridge")


def test_megatron_is_told_how_many_and_where() -> None:
    """``--mtp-num-layers``, and one letter m for each in the last stage of a layout string."""
    text = export_plan(with_modules(2), "megatron").text
    words = shlex.split(text[text.index("MEGATRON_ARGS=(") + 15 : text.rindex(")")])
    assert words[words.index("--mtp-num-layers") + 1] == "2"
    string = words[words.index("--pipeline-model-parallel-layout") + 1]
    assert modules_of_string(string) == (0, 0, 0, 2)
    assert sum(stages_of_string(string)) == SMALL.num_layers
    assert "--mtp-num-layers" not in export_plan(with_modules(0), "megatron").text


def test_bridge_is_told_none_where_its_recipe_would_train_one() -> None:
    """Recipes take the modules of the model's configuration unless they are told otherwise."""
    assert "cfg.model.mtp_num_layers = None" in export_plan(with_modules(0), "megatron-bridge").text
    assert "cfg.model.mtp_num_layers = 1" in export_plan(with_modules(1), "megatron-bridge").text


@pytest.mark.parametrize(
    ("words", "modules"), [({}, 0), ({"--mtp-num-layers": 1}, 1), ({"--mtp-num-layers": 3}, 3)]
)
def test_arguments_of_megatron_say_how_many_are_trained(words: dict[str, int], modules: int) -> None:
    """None without a word."""
    assert read(CONTRACTS["megatron"], words, 8).fields["job.mtp_layers"] == modules


def test_a_string_without_the_modules_is_refused() -> None:
    """Megatron asserts that they are as many."""
    refusal = next(one for one in CONTRACTS["megatron"].refusals if one.name == "prediction-modules")
    words = {"--pipeline-model-parallel-layout": layout_string((3, 4)), "--mtp-num-layers": 1}
    reading = read(CONTRACTS["megatron"], words, 8)
    assert [one.violation.rule for one in reading.refused if one.violation.rule == refusal.name] == [
        "prediction-modules"
    ]


@pytest.mark.parametrize("engine", sorted(set(CONTRACTS) - set(TRAINERS)))
def test_other_engines_refuse_what_they_are_not_told(engine: str) -> None:
    """No engine drops them silently."""
    with pytest.raises(InputError, match="further tokens"):
        require_runnable(with_modules(1, ParallelLayout(dp=8), model("llama-3.1-8b")), CONTRACTS[engine])


@pytest.mark.parametrize(
    ("stack", "able"), [("megatron-core", True), ("torchtitan", False), ("meshplan", False)]
)
def test_stacks_without_such_modules_have_no_layout(stack: str, able: bool) -> None:
    """The rule of the search, which the executor's own profile breaks too."""
    job = TrainingJob(sequence_length=4096, global_batch_size=64, mtp_layers=1)
    cluster, spec = default_cluster("h100-sxm", 8), model("llama-3.1-8b")
    problem = Problem(
        case=Case(model=spec, cluster=cluster, job=job, stack=find_stack(stack), cal=load_calibration())
    )
    table = LayoutTable.from_rows([ParallelLayout(dp=8)])
    _, counts = legal(problem, table)
    broken = [name for name, count in counts.items() if count]
    assert ("further-tokens" in broken) != able


def test_positions_that_are_learned_have_no_modules_in_megatron() -> None:
    """It takes rotary positions alone, as it does not stretch them by YaRN."""
    with pytest.raises(InputError, match="plain rotary positions"):
        require_runnable(with_modules(1, ParallelLayout(dp=8), LEARNED), CONTRACTS["megatron"])


def test_a_plan_with_modules_is_not_run_without_them() -> None:
    """``plan run`` trains a plan for another engine itself, and has no such modules."""
    from app.actions.runs.training_run import require_trained_as_planned

    require_trained_as_planned(with_modules(0, ParallelLayout(dp=8), model("llama-3.1-8b")))
    with pytest.raises(InputError, match="further tokens"):
        require_trained_as_planned(with_modules(1, ParallelLayout(dp=8), model("llama-3.1-8b")))


def test_a_model_says_that_its_module_is_not_trained() -> None:
    """Where its configuration has one and the job trains none."""
    asked = Flags(model="deepseek-v3", gpus="512")
    note = "deepseek-v3 has 1 module to predict further tokens, not trained: --set job.mtp_layers=1 trains as many"
    assert note in understand(asked).notes
    trained = dataclasses.replace(asked, settings=("job.mtp_layers=1",))
    assert note not in understand(trained).notes
    assert understand(trained).request.job.mtp_layers == 1
