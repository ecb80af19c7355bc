"""Plans that keep state in host memory: the best share, what hosts hold, and what engines are told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.updates.offload import Offload
from planner.engines.contract import read
from planner.engines.contracts import CONTRACTS
from planner.engines.formats import FORMATS
from planner.engines.read_back import require_runnable
from planner.launch.targets import export_plan
from planner.plan import Plan, PlanRequest, from_json, to_json
from planner.questions.flags import Flags
from planner.questions.offload import SHARES
from planner.questions.training import understand
from planner.search.given_layout import plan_of_layout
from planner.search.infeasible import Infeasible
from planner.search.offloaded import host_bytes, offload_notes
from planner.search.search import search
from planner.search.verify import verify
from topology.base.errors import InputError, NoFeasiblePlanError
from topology.base.units import GIB
from topology.hardware.datasheets import machines


def asked(**words: str) -> PlanRequest:
    """A model of eight billion parameters on eight GPUs of 40 GiB, unless it is said otherwise."""
    settings = tuple(words.pop("settings", "").split())
    flags = {"model": "8b", "gpus": "8", "gpu": "a100-40gb", "global_batch_size": "64"} | words
    return understand(Flags(**flags, settings=settings)).request


def plan_of(request: PlanRequest) -> Plan:
    """The plan there must be."""
    answer = search(request)
    assert isinstance(answer, Plan)
    return answer


def test_the_best_share_is_that_of_every_share_alone() -> None:
    """What the search chooses is the fastest of the five shares, each asked for by itself."""
    open_ = asked(offload="optimizer", engine="any", settings="layout.tp=2 layout.pp=1")
    assert open_.offload_shares == SHARES
    steps = {}
    for share in SHARES:
        offload = Offload(optimizer=share) if share else None
        request = replace(open_, offload_shares=(), job=replace(open_.job, offload=offload))
        answer = search(request)
        if isinstance(answer, Plan):
            steps[share] = answer.estimate.step_time_s
    best = plan_of(open_)
    assert len(steps) > 1
    assert best.estimate.step_time_s == min(steps.values())
    said = best.request.job.offload
    assert steps[0.0 if said is None else said.optimizer] == min(steps.values())
    assert best.optimality.status == "proven"


def test_what_did_not_fit_fits_with_its_state_on_the_hosts() -> None:
    """70B on 16 H100: no layout without, one with all of the optimizer's state in host memory; it verifies."""
    base = {"model": "70b", "gpus": "16", "gpu": "h100-sxm", "global_batch_size": "512"}
    assert isinstance(search(asked(**base)), Infeasible)
    plan = plan_of(asked(**base, offload="optimizer"))
    assert plan.request.job.offload is not None
    assert plan.request.job.offload.optimizer == 1
    each = host_bytes(plan) / GIB
    assert any(f"{each * 8:,.0f} GiB of a node of 8 GPUs" in note for note in plan.assumptions)
    again = from_json(to_json(plan))
    assert again == plan


def test_the_proof_of_an_offloaded_plan_is_derived_anew() -> None:
    """`plan verify` finds the same bound by its own path."""
    assert verify(plan_of(asked(offload="optimizer:0.5", settings="layout.tp=2")), load_calibration()).holds


def test_a_given_layout_is_held_to_its_hosts_too() -> None:
    """As `plan estimate` asks: with what waits where, or refused, and nothing that cannot help is advised."""
    words = {"offload": "parameters", "stack": "torchtitan", "settings": "layout.dp=8"}
    plan = plan_of_layout(asked(**words), load_calibration())
    assert isinstance(plan, Plan)
    (note,) = [text for text in plan.assumptions if "waits in host memory" in text]
    total = 8.03e9 * (12 + 4)  # master weights, moments and gradients in fp32, of which it gathers
    assert host_bytes(plan) * 8 == pytest.approx(total, rel=0.01)
    assert f"{host_bytes(plan) * 8 / GIB:,.0f} GiB" in note
    words["settings"] += " cluster.host_memory_bytes=100GB"
    with pytest.raises(InputError, match="host memory does not hold") as told:
        plan_of_layout(asked(**words), load_calibration())
    assert "zero_stage" not in told.value.fix


def test_hosts_that_do_not_hold_it_are_refused() -> None:
    """Three lines with both sizes."""
    with pytest.raises(InputError, match="host memory does not hold") as told:
        search(asked(offload="optimizer:1", settings="cluster.host_memory_bytes=20GiB"))
    assert "there are 20 GiB" in told.value.cause


def test_a_rate_of_host_memory_that_nobody_gives_is_that_of_the_slowest_machine() -> None:
    """It decides seconds and no memory; a given one holds over it."""
    rates = {
        words: {
            node.host_memory_bandwidth_bytes_per_s
            for node in asked(offload="optimizer:1", gpu="l40s", settings=words).cluster.nodes
        }
        for words in ("", "cluster.host_memory_bandwidth_bytes_per_s=99GB/s")
    }
    slowest = min(filter(None, (each.host_memory_bandwidth_bytes_per_s for each in machines().values())))
    assert [*rates.values()] == [{slowest}, {99e9}]


@pytest.mark.parametrize(
    ("words", "settings", "said"),
    [
        ("activations", "layout.recompute=none", "--offload activations and layout.recompute contradict"),
        ("parameters", "layout.zero_stage=1", "--offload parameters and layout.zero_stage contradict"),
        ("optimizer:0.5", "job.optimizer=muon", "muon cannot be offloaded"),
        ("optimizer:0.5", "layout.offload=optimizer:0.25", "--offload and layout.offload contradict"),
    ],
)
def test_what_contradicts_an_offload_is_refused(words: str, settings: str, said: str) -> None:
    """An offload asks for the layout that can do it."""
    with pytest.raises(InputError, match=said):
        asked(offload=words, settings=settings)


def test_a_setting_says_the_same() -> None:
    """``--set layout.offload`` is ``--offload``, and pins what it needs."""
    request = asked(settings="layout.offload=parameters", stack="torchtitan")
    assert request.job.offload == Offload(parameters=True)
    assert request.pins["zero_stage"] == 3


@pytest.mark.parametrize(
    ("engine", "words", "told"),
    [
        ("megatron", "optimizer:1", ("--optimizer-cpu-offload", "--optimizer-offload-fraction 1")),
        ("megatron-bridge", "optimizer:1", ("optimizer.optimizer_cpu_offload = True",)),
        ("torchtitan", "parameters", ("config.training.enable_cpu_offload = True",)),
        ("deepspeed", "parameters", ('"offload_param"', '"offload_optimizer"')),
        ("accelerate", "parameters", ("fsdp_offload_params: true",)),
        ("accelerate", "activations", ("fsdp_activation_checkpointing_offload: true",)),
        (
            "accelerate",
            "parameters+activations",
            ("fsdp_offload_params: true", "checkpointing_offload: true"),
        ),
    ],
)
def test_engines_are_told_and_say_it_back(engine: str, words: str, told: tuple[str, ...]) -> None:
    """What is written reads back as the same job, and others are refused by the engine's limit."""
    plan = plan_of(asked(engine=engine, offload=words, memory_headroom="0"))
    written = export_plan(plan, engine)
    files = {written.file_name: written.text, **written.others}
    text = "\n".join(files.values())
    assert all(word in text for word in told)
    contract = CONTRACTS[engine]
    assert read(contract, FORMATS[engine].parse(files, contract)).fields["job.offload"] == words
    other = replace(
        plan, request=replace(plan.request, job=replace(plan.request.job, offload=Offload(optimizer=0.25)))
    )
    with pytest.raises(NoFeasiblePlanError, match=f"{engine}-offload"):
        require_runnable(other, contract)


def test_an_engine_that_has_no_word_for_it_refuses() -> None:
    """The executor keeps all state where it computes; of DeepSpeed the sentence is of its plans alone."""
    answer = search(asked(engine="meshplan", stack="meshplan", offload="optimizer:1"))
    assert isinstance(answer, Infeasible)
    assert "plans written for the executor keep all" in json.dumps(
        [rule.message for rule in answer.violations]
    )


def test_the_node_named_is_the_one_with_least_memory_a_gpu() -> None:
    """Half the GPUs and a quarter of the memory: what the smaller node is to hold is said."""
    plan = plan_of(asked(offload="optimizer:1", engine="any"))
    cluster = plan.request.cluster
    large = cluster.nodes[0]
    small = replace(large, gpus_per_node=4, host_memory_bytes=large.host_memory_bytes / 4)
    unlike = replace(plan.request, cluster=replace(cluster, nodes=(large, small)))
    each = host_bytes(plan) / GIB
    assert f"{each * 4:,.0f} GiB of a node of 4 GPUs" in offload_notes(replace(plan, request=unlike))[0]
