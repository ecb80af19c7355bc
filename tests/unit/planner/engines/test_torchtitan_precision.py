"""Eight bits in torchtitan: converters are written and read back, and refused where they would not run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.layer import memory_pieces
from costmodel.models.catalog import model
from costmodel.stack import stack
from planner.engines.contract import read
from planner.engines.formats import FORMATS
from planner.engines.torchtitan.contract import TORCHTITAN
from planner.launch.targets import export_plan
from planner.plan import Problem
from planner.rules.check import legal
from tests.unit.planner.engines.priced import priced
from topology.builders import default_cluster

FSDP = ParallelLayout(dp=8, zero_stage=3)


@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
@pytest.mark.parametrize(("name", "experts"), [("llama-3.1-8b", False), ("qwen3-30b-a3b", True)])
def test_an_export_is_the_plan(precision: str, name: str, experts: bool) -> None:
    """`export_plan` re-estimates what it reads back to 1e-9; the head stays in sixteen bits, as priced."""
    plan = priced(FSDP, name, stack="torchtitan", gpu="b200-sxm", precision=precision)
    text = export_plan(plan, "torchtitan").text
    prefix = {"fp8": "Float8", "mxfp8": "MXFP8"}[precision]
    assert f"{prefix}LinearConverter.Config(" in text
    assert (f"{prefix}GroupedExpertsConverter.Config(" in text) == experts
    assert "filter_fqns=['lm_head', 'router.gate']" in text or precision == "mxfp8"


@pytest.mark.parametrize(
    ("text", "precision", "recipe"),
    [
        ("config.model_spec = model_registry('8B', converters=[MXFP8LinearConverter.Config()])", "mxfp8", "mxfp8_rceil"),
        (
            "f(converters=[quantization.Float8LinearConverter.Config(recipe_name='rowwise_with_gw_hp')])",
            "fp8", "rowwise_with_gw_hp",
        ),
        ("config.training.mixed_precision_param = 'bfloat16'", "bf16", None),
    ],
)  # fmt: skip
def test_registries_are_read(text: str, precision: str, recipe: str | None) -> None:
    """As the configurations of torchtitan itself list their converters."""
    words = FORMATS["torchtitan"].parse({"torchtitan_plan.py": text}, TORCHTITAN)
    found = read(TORCHTITAN, {name: said for name, said in words.items() if name != "model_spec"})
    assert (found.fields["job.precision"], found.fields.get("recipe.fp8_recipe")) == (precision, recipe)
    assert (found.unknown, found.wrong) == ((), ())


def test_files_of_earlier_versions_are_read() -> None:
    """Converters by name, their recipe in a table of its own; tensorwise where none is named."""
    words = {"model.converters": ["quantize.linear.float8"]}
    assert read(TORCHTITAN, words).fields["recipe.fp8_recipe"] == "tensorwise"
    assert read(TORCHTITAN, words).fields["stack.scales_rows"] is False
    words |= {"quantize.linear.float8.recipe_name": "rowwise"}
    assert read(TORCHTITAN, words).fields["recipe.fp8_recipe"] == "rowwise"
    assert read(TORCHTITAN, words).fields["stack.scales_rows"] is True


@pytest.mark.parametrize(
    ("gpu", "precision", "rule"),
    [
        ("a100-sxm-80gb", "fp8", "precision-hardware"),
        ("h100-sxm", "fp8", None),
        ("h100-sxm", "mxfp8", "precision-hardware"),
        ("b200-sxm", "mxfp8", None),
        ("mi355x", "fp8", None),
        ("mi355x", "mxfp8", "torchtitan-block-scales"),
        ("b200-sxm", "nvfp4", "torchtitan-precision"),
        ("h100-sxm", "fp16", "torchtitan-precision"),
    ],
)
def test_the_gpu_has_the_units(gpu: str, precision: str, rule: str | None) -> None:
    """Eight bits from Ada and CDNA 3 on, scales of blocks on Blackwell only."""
    assert broken(gpu, precision, FSDP) == rule


def broken(gpu: str, precision: str, layout: ParallelLayout, name: str = "llama-3.1-8b") -> str | None:
    """The first rule that a layout breaks."""
    job = TrainingJob(sequence_length=4096, global_batch_size=64)
    problem = Problem(
        case=Case(
            model=model(name),
            cluster=default_cluster(gpu, 64),
            job=replace(job, precision=precision),
            stack=stack("torchtitan"),
            cal=load_calibration(),
        ),
        engine="torchtitan",
    )
    keep, counts = legal(problem, LayoutTable.from_rows([layout]))
    return None if keep.all() else next(name for name, count in counts.items() if count)


def test_columns_of_a_rank_divide_by_the_units() -> None:
    """10,944 columns of DeepSeek-V2-Lite's dense layer over eight ranks are 85.5 times sixteen."""
    split = ParallelLayout(tp=8, sequence_parallel=True)
    assert broken("b200-sxm", "fp8", split, "deepseek-v2-lite") == "torchtitan-columns-of-eight-bits"
    assert broken("b200-sxm", "bf16", split, "deepseek-v2-lite") is None
    assert broken("b200-sxm", "fp8", replace(split, tp=2), "deepseek-v2-lite") is None


def test_inputs_are_kept_in_sixteen_bits() -> None:
    """Of torchtitan eight bits save no activation; engines that keep what they multiply save half of inputs."""

    def kept(name: str, precision: str) -> float:
        job = TrainingJob(sequence_length=4096, global_batch_size=64)
        job = replace(job, precision=precision)  # type: ignore[arg-type]
        pieces = memory_pieces(Workload(model=model("llama-3.1-8b"), job=job, stack=stack(name)), FSDP)
        return float(np.ravel(pieces.layers[0].saved_bytes)[0])

    assert kept("torchtitan", "fp8") == kept("torchtitan", "bf16")
    spec = model("llama-3.1-8b")
    inputs = 4096 * (2 * spec.hidden_size + spec.num_attention_heads * spec.head_dim + spec.intermediate_size)
    assert kept("megatron-core", "bf16") - kept("megatron-core", "fp8") == inputs
