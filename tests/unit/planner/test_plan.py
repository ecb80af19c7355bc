"""A plan is data: it reads back from JSON exactly, and what is not a plan is refused."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from costmodel.estimate import Estimate, TimeBreakdown
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.fit import Fit, fit_of
from costmodel.memory.stage import MemoryBreakdown
from costmodel.models.catalog import model
from planner.plan import Alternative, Optimality, Plan, PlanRequest, from_json, to_json
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.fabric.mesh import mesh

MEMORY = MemoryBreakdown(
    weights_bytes=1.5e9,
    gradients_bytes=3.0e9,
    optimizer_bytes=1 / 3,
    activations_bytes=2.0**35 + 0.125,
    buffers_bytes=1e-3,
    overhead_bytes=1e9,
)
ROOT = Path(__file__).parents[3]
LAYOUT = ParallelLayout(tp=8, pp=4, virtual_stages=2, schedule="interleaved", sequence_parallel=True)


def example() -> Plan:
    """A plan with awkward floats, a pin of every kind, and one alternative."""
    estimate = Estimate(
        time=TimeBreakdown(compute_s=1 / 3, tp_s=0.1, hidden_s={"dp": 0.7}),
        step_time_s=0.1 + 0.2,
        lower_s=0.29,
        upper_s=0.31,
        memory_by_stage=(MEMORY, MEMORY),
        peak_memory_bytes=MEMORY.total_bytes,
        memory_lower_bytes=1.0,
        memory_upper_bytes=2.0,
        mfu=0.41,
        hfu=0.43,
        tokens_per_s_per_gpu=1e3 / 7,
        usd_per_step=None,
        usd_per_billion_tokens=12.5,
        wh_per_step=1e-9,
        wh_per_billion_tokens=3.3e7,
        bound_by="compute",
        assumptions=("weights in bf16",),
    )
    return Plan(
        request=PlanRequest(
            model=model("llama-3.1-70b"),
            cluster=default_cluster("h100-sxm", 32).spec,
            job=TrainingJob(sequence_length=8192, global_batch_size=512),
            pins={"tp": 8, "sequence_parallel": True, "recompute": "none"},
        ),
        layout=LAYOUT,
        layers_of_stage=(10,) * 8,
        recompute_of_stage=(3, 0, 0, 0),
        mesh=mesh([("pp", 4), ("dp", 1), ("cp", 1), ("tp", 8)]),
        estimate=estimate,
        alternatives=(
            Alternative(
                layout=ParallelLayout(tp=4, pp=8),
                layers_of_stage=(10,) * 8,
                recompute_of_stage=(0,) * 8,
                step_time_s=0.31,
                lower_s=0.3,
                upper_s=0.32,
                peak_memory_bytes=3e10,
                slower_by=0.0333,
                tied=True,
                difference="tp 4 instead of 8",
            ),
        ),
        optimality=Optimality(
            status="proven",
            bound_s=0.3,
            gap=1e-9,
            enumerated=1234,
            pruned={"gpus": 1000, "bound": 200},
            solved=34,
        ),
        search_time_s=0.25,
    )


def test_a_plan_reads_back_exactly() -> None:
    """Plan → JSON → plan → JSON changes nothing, to the last bit of every float."""
    plan = example()
    text = to_json(plan)
    assert from_json(text) == plan
    assert to_json(from_json(text)) == text


def test_the_document_has_the_keys_others_rely_on() -> None:
    """Tools read these keys; they carry their units."""
    data = json.loads(to_json(example()))
    assert {"schema_version", "request", "layout", "layers_of_stage", "estimate", "optimality"} <= set(data)
    assert {"search_time_s", "assumptions", "alternatives"} <= set(data)
    assert {"step_time_s", "lower_s", "upper_s", "mfu", "peak_memory_bytes"} <= set(data["estimate"])
    assert set(data["optimality"]) == {
        "status",
        "bound_s",
        "gap",
        "enumerated",
        "pruned",
        "solved",
        "bound_bytes",
        "within_s",
        "floors_s",
    }


def test_long_lists_of_numbers_take_one_line() -> None:
    """A mesh of thousands of ranks must not make thousands of lines."""
    assert '"layers_of_stage": [ 10, 10, 10, 10, 10, 10, 10, 10 ]' in to_json(example())


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "Expecting property name"),
        ("[]", "it has no schema_version"),
        (to_json(example()).replace('"schema_version": 5', '"schema_version": 99'), "schema_version is 99"),
        (
            to_json(example()).replace('"schema_version": 5', '"schema_version": 1'),
            "schema_version is 1, expected 5",
        ),
        (to_json(example()).replace('"idle_gpus": 0', '"idle_gpu": 0'), "unknown key idle_gpu"),
    ],
)
def test_what_is_not_a_plan_is_refused(text: str, cause: str) -> None:
    """Broken JSON, other documents, other versions and unknown keys are input errors with their cause."""
    with pytest.raises(InputError) as refused:
        from_json(text)
    assert cause in refused.value.cause


def test_a_plan_says_whether_it_fits_beside_the_chance_that_carries_it() -> None:
    """The document has the word and the allocator's peak; a file whose word is not that of its chance is refused."""
    plan = example()
    estimate = json.loads(to_json(plan))["estimate"]
    assert estimate["fit"] == fit_of(plan.estimate.out_of_memory_chance)
    allocated = [stage.allocated_bytes for stage in plan.estimate.memory_by_stage]
    assert estimate["allocator_peak_bytes"] == max(allocated) < plan.estimate.peak_memory_bytes
    other = next(word for word in get_args(Fit) if word != estimate["fit"])
    with pytest.raises(InputError) as refused:
        from_json(to_json(plan).replace(f'"fit": "{estimate["fit"]}"', f'"fit": "{other}"', 1))
    assert refused.value.cause == f"estimate.fit is {other!r}, and its own numbers say {estimate['fit']!r}"


def test_a_plan_of_version_2_is_read_without_its_budget() -> None:
    """A limit that nothing read is gone; files that carry it are read, and an unknown key beside it is not."""
    old = to_json(example()).replace('"schema_version": 5', '"schema_version": 2')
    old = re.sub(r',\n *"(fit|allocator_peak_bytes)": [^,}\n]*', "", old.replace('"origin": null,\n', ""))
    old = old.replace('"deadline_s":', '"budget_usd": null,\n"deadline_s":')
    assert from_json(old) == example()
    with pytest.raises(InputError, match="plan does not describe"):
        from_json(old.replace('"deadline_s":', '"deadlines_s":'))


def test_reading_a_plan_loads_no_solver() -> None:
    """The executor and the dashboard read plans without importing OR-Tools or torch."""
    heavy = ("ortools", "torch", "pandas")
    script = f"import sys, planner.plan; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"axis_order": [\n', '"axis_order": [\n"xx",', "axis_order = "),
        ('"tp": 8', '"tp": ' + "9" * 5000, "an integer of 5000 digits"),
        ('"tp": 8', '"tp": ' + "9" * 400, "an integer of 400 digits"),
        ('"tp": 8', '"tp": 1e999', "larger than any number"),
        ('"num_layers": 80', '"num_layers": 100000000', "num_layers"),
        ('"name": "llama-3.1-70b"', '"name": "\\ud800"', "surrogates"),
        ('"sequence_length": 8192', '"sequence_length": 1e18', "sequence_length"),
    ],
)
def test_a_plan_with_a_value_nothing_can_hold_is_refused(old: str, new: str, said: str) -> None:
    """Each is a message of the reader, not a traceback of who computes with it."""
    text = to_json(example())
    assert old in text
    with pytest.raises(InputError) as error:
        from_json(text.replace(old, new, 1))
    assert said in str(error.value)
