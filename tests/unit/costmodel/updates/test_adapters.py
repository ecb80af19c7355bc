"""Adapters: what is written, what is trained, what stays frozen and what that saves."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.accuracy.csv_table import RunTable
from costmodel.accuracy.lora_benchmark import read_benchmark
from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_run
from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.activations import layer_share
from costmodel.memory.layer import memory_pieces
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from costmodel.ops.cuts import ops_of_parts
from costmodel.ops.layer import model_flop_per_step
from costmodel.ops.op import LINEAR, Op, ShardShape
from costmodel.stack import SoftwareStack, stack
from costmodel.training.op_times import kernel_times
from costmodel.training.raw_times import features_of
from costmodel.updates.adapters import Adapter, parse_adapter
from costmodel.updates.offload import parse_offload
from planner.plan import PlanRequest
from planner.search.infeasible import Infeasible
from planner.search.search import search
from topology.base.errors import InputError
from topology.builders import default_cluster

CAL = load_calibration()


def job(adapter: str = "", **fields: object) -> TrainingJob:
    """One sequence of 4,096 tokens, with or without an adapter."""
    made = TrainingJob(sequence_length=4096, global_batch_size=8, **fields)  # type: ignore[arg-type]
    return replace(made, adapter=parse_adapter(adapter) if adapter else None)


def parts(spec: ModelSpec, asked: TrainingJob, profile: SoftwareStack) -> tuple[tuple[Op, ...], ...]:
    """Operations of every part on one GPU."""
    return ops_of_parts(
        Workload(model=spec, job=asked, stack=profile),
        ShardShape(sequence_length=float(asked.sequence_length)),
    )


def trained(spec: ModelSpec, adapter: str) -> float:
    """Parameters that are trained."""
    *layers, embedding, head = parts(spec, job(adapter), stack("megatron-core"))
    ends = sum(op.parameters for op in (*embedding, *head))
    return float(spec.num_layers * sum(op.parameters for op in layers[0]) + ends)


@pytest.mark.parametrize(
    ("adapter", "parameters"),
    [
        ("lora:r=16", 39_976_960),  # as PEFT prints for all seven matrices of Llama-2-7B
        ("lora:r=16,targets=attention", 16_777_216),
        ("lora:r=8,targets=attention", 8_388_608),
        ("qlora:r=16", 39_976_960),
        (
            "dora:r=16",
            39_976_960 + 32 * 42_496,
        ),  # a magnitude of every output: 4·4096 + 2·11008 + 4096 a layer
    ],
)
def test_trained_parameters_are_those_of_peft(adapter: str, parameters: int) -> None:
    """r·(inputs + outputs) of every matrix, and a magnitude of every output with DoRA."""
    assert trained(model("llama-2-7b"), adapter) == parameters


def test_frozen_products_have_no_weight_gradient() -> None:
    """What remains of weight gradients is that of the adapters: far less than a tenth."""
    spec, profile = model("llama-2-7b"), stack("megatron-core")
    gpu = default_cluster("h100-sxm", 8).gpu
    whole, beside = (
        kernel_times(CAL, gpu, parts(spec, job(text), profile), 1)[0] for text in ("", "lora:r=16")
    )
    assert beside.weight_gradient_s[0] < 0.2 * whole.weight_gradient_s[0]
    assert beside.input_gradient_s[0] > whole.input_gradient_s[0]
    assert beside.dense_parameters[0] < 0.01 * whole.dense_parameters[0]


def test_model_flops_of_frozen_products_count_twice() -> None:
    """4 FLOP per frozen parameter and token in place of 6, attention three times as ever."""
    spec = model("llama-2-7b")
    whole, beside = model_flop_per_step(spec, job()), model_flop_per_step(spec, job("lora:r=1"))
    frozen = 2 * 8 * 4096 * (6_738_415_616 - 32_000 * 4096 - 65 * 4096)
    assert whole - beside == pytest.approx(frozen, rel=2e-3)


def test_frozen_matrices_without_adapters_keep_no_input() -> None:
    """An adapter on attention alone frees the inputs of the feed-forward, and no more."""
    spec, profile = model("llama-2-7b"), stack("megatron-core")
    shard = ShardShape(sequence_length=4096.0)
    kept = [
        layer_share(parts(spec, job(text), profile)[0], shard, 4096).saved_bytes[0]
        for text in ("", "lora:r=16", "lora:r=16,targets=attention")
    ]
    inputs = 2 * 4096 * (4096 + 11008)
    ranks = 2 * 4096 * 16
    assert kept[1] - kept[0] == 7 * ranks
    assert kept[2] - kept[0] == 4 * ranks - inputs


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_a_quantised_base_is_a_quarter_of_its_weights(zero_stage: int) -> None:
    """4.127 bits of every matrix; embedding, norms and head in sixteen; sharded at ZeRO-3 alone."""
    spec, asked = model("llama-2-70b"), job("qlora:r=16")
    layout = ParallelLayout(dp=8, zero_stage=zero_stage)
    pieces = memory_pieces(Workload(model=spec, job=asked, stack=stack("pytorch")), layout)
    state = pieces.layers[0].state
    matrices, norms = 855_638_016, 2 * 8192
    adapters = trained(spec, "qlora:r=16") / 80
    shards = 8 if zero_stage else 1
    own = 0 if zero_stage else 2 * adapters  # this profile gathers trained weights from their master
    frozen = (matrices * (4 + 8 / 64 + 32 / (64 * 256)) / 8 + 2 * norms) / shards
    assert float(np.ravel(state.weights_bytes)[0]) == pytest.approx(frozen + own)
    assert float(np.ravel(state.gradients_bytes)[0]) == pytest.approx(4 * adapters / shards)
    assert float(np.ravel(state.optimizer_bytes)[0]) == pytest.approx(12 * adapters / shards)


def test_embedding_and_head_of_a_quantised_base_stay_in_sixteen_bits() -> None:
    """As bitsandbytes leaves them: two bytes of each, and no widening before the head's product."""
    spec = model("llama-2-70b")
    *_, embedding, head = parts(spec, job("qlora:r=16"), stack("pytorch"))
    assert sum(op.frozen_bytes for op in embedding) == 2 * 32_000 * 8192
    assert sum(op.frozen_bytes for op in head) == 2 * (32_000 + 1) * 8192
    assert not [op for op in head if "widen" in op.name]


def test_every_adapter_of_its_own_drops_its_own_input() -> None:
    """Where passes are not fused, q, k and v keep three dropped inputs and three masks; fused, one of each.

    Attention keeps its output, and the output's product what is left of it beside a mask.
    """
    spec, shard = model("llama-2-7b"), ShardShape(sequence_length=4096.0)
    for profile, copies in (("pytorch", 3), ("megatron-core", 1)):
        whole, dropped = (
            layer_share(parts(spec, job(text), stack(profile))[0], shard, 4096).saved_bytes[0]
            for text in ("lora:targets=attention", "lora:targets=attention,dropout=0.1")
        )
        inputs = 4096 * 4096
        masks = (copies + 1) * inputs
        assert dropped - whole == masks + 2 * copies * inputs


def test_only_gradients_of_adapters_are_reduced_and_the_base_is_gathered() -> None:
    """ZeRO-3 gathers frozen weights before every use; the reduction is that of the adapters."""
    spec, cluster = model("llama-2-7b"), default_cluster("h100-sxm", 8)
    table = LayoutTable.from_rows([ParallelLayout(dp=8, zero_stage=3)])

    def traffic(adapter: str) -> tuple[float, float]:
        found = features_of(
            Case(model=spec, cluster=cluster, job=job(adapter), stack=stack("pytorch"), cal=CAL), table
        ).traffic
        return float(found.microbatch_reduce_s[0, 0]), float(found.microbatch_gather_s[0, 0])

    whole, beside, narrow = traffic(""), traffic("lora:r=16"), traffic("qlora:r=16")
    assert beside[0] < 0.2 * whole[0]
    assert beside[1] >= whole[1]
    assert narrow[1] < beside[1]


def test_seventy_billion_fit_four_gpus_of_24_gib_quantised_and_not_two() -> None:
    """The answer people look for."""
    asked = TrainingJob(sequence_length=2048, global_batch_size=16, adapter=parse_adapter("qlora:r=16"))
    found = [
        search(
            PlanRequest(
                model=model("70b"), cluster=default_cluster("rtx-4090", gpus).spec, job=asked, stack="pytorch"
            )
        )
        for gpus in (2, 4)
    ]
    assert isinstance(found[0], Infeasible)
    assert not isinstance(found[1], Infeasible)


@pytest.mark.parametrize("engine", ["megatron", "megatron-bridge", "torchtitan", "horovod"])
def test_engines_that_train_whole_models_refuse(engine: str) -> None:
    """A limit of the engine, in its own name, and the help names engines that do."""
    asked = replace(job("lora:r=16"), global_batch_size=64)
    cluster = default_cluster("h100-sxm", 8).spec
    names = {"torchtitan": "torchtitan", "horovod": "pytorch"}
    request = PlanRequest(
        model=model("8b"), cluster=cluster, job=asked, stack=names.get(engine, "megatron-core"), engine=engine
    )
    answer = search(request)
    assert isinstance(answer, Infeasible)
    assert f"{engine}-adapter" in str(answer)


def test_what_is_written_reads_back() -> None:
    """The words of an adapter are the adapter."""
    for text in ("lora:r=16,targets=attention", "qlora:r=8,base=int8", "dora:dropout=0.1", "lora:base=fp8"):
        adapter = parse_adapter(text)
        assert parse_adapter(adapter.words) == adapter
    assert parse_adapter("qlora") == Adapter(kind="qlora", base="nf4")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("prefix", "'prefix' is no kind: there are lora, qlora, dora"),
        ("lora:r=0", "rank = 0, of which there are 1 to 4096"),
        ("lora:r=٣", "rank = '٣' is no whole number up to 4096"),
        ("lora:targets=head", "'head' is no target: there are attention, mlp"),
        ("lora:targets=mlp+mlp", "targets name each block once, and at least one"),
        ("lora:base=nf4", "lora over a base in nf4: only qlora has one in nf4 or int8"),
        ("qlora:base=half", "qlora over a base in half: only qlora has one in nf4 or int8"),
        ("lora:r=4,r=8", "'r=8' is no rank, targets, base, dropout, alpha or beside not said before"),
        ("lora:dropout=1", "dropout = 1 is no share of 0 up to 1"),
        ("lora:dropout=nan", "dropout = nan is no share of 0 up to 1"),
        ("lora:dropout=x", "dropout = 'x' is no number"),
    ],
)
def test_an_adapter_that_there_is_not_is_refused(text: str, cause: str) -> None:
    """With the word that is wrong."""
    with pytest.raises(InputError) as refused:
        parse_adapter(text)
    assert refused.value.cause.replace("1.0", "1") == cause


LORA_COLUMNS = (
    "id", "round", "org", "accelerator", "num_gpus", "gpus_per_node", "host_networking", "precision",
    "dp", "tp", "pp", "cp", "microbatch_size", "global_batch_size", "sequence_length", "step_time_s",
)  # fmt: skip
LORA_ROWS = (
    "a,v5.1,Dell,NVIDIA H200-SXM5-141GB,8,8,,fp8,4,1,1,2,1,8,8192,3.1337",
    "b,v5.1,Krai,NVIDIA H200-SXM5-141GB,64,8,,fp8,16,4,1,1,1,16,8192,0.88456",
    "c,v5.1,Nebius,NVIDIA Blackwell GPU (B200-SXM-180GB),16,8,,nvfp4,8,1,1,2,1,8,8192,0.59857",
    "d,v5.1,MiTAC,AMD Instinct MI325X 256GB HBM3E,8,8,,fp8,8,1,1,1,1,8,8192,2.821",
    "e,v4.1,Lambda,NVIDIA H100-SXM5-80GB,32,8,,fp8,8,4,1,1,1,8,8192,0.96106",
    "f,v4.1,Quanta,NVIDIA H100-SXM5-80GB,8,8,,,,,,,,8,8192,3.7226",
)
"""Published results of MLPerf Training, Llama-2-70B LoRA (mlcommons/training_results_v4.1 and v5.1)."""


def lora_table(rows: tuple[str, ...] = LORA_ROWS) -> RunTable:
    """Rows as the file of the benchmark has them."""
    return RunTable(
        columns=LORA_COLUMNS,
        rows=tuple(dict(zip(LORA_COLUMNS, row.split(","), strict=True)) for row in rows),
    )


def test_published_results_of_the_lora_benchmark_are_predicted() -> None:
    """Each within 15 %, by nothing fitted to any of them; a row without a layout takes the fastest that fits."""
    table = read_benchmark(lora_table(), CAL)
    found = predict_rows(table.rows, CAL)
    assert [result.status for result in found] == ["ok"] * len(LORA_ROWS)
    assert max(abs(result.error or 1) for result in found) < 0.15
    assert read_run(table.rows[-1]).layout.num_gpus == 8


def test_other_tables_are_left_as_they_are() -> None:
    """A table of training runs is none of the benchmark."""
    table = RunTable(columns=("gpu", "step_time_s"), rows=({"gpu": "h100", "step_time_s": "1"},))
    assert read_benchmark(table, CAL) is table


def test_a_row_of_an_unknown_accelerator_is_left_without_a_prediction() -> None:
    """It is unsupported; the others do not notice."""
    table = read_benchmark(lora_table(("x,v1,Org,Abacus,8,8,,fp8,8,1,1,1,1,8,8192,1", *LORA_ROWS[:1])), CAL)
    assert [result.status for result in predict_rows(table.rows, CAL)] == ["unsupported", "ok"]


def test_a_training_row_may_name_its_adapter() -> None:
    """In the column `adapter`, as on the command line."""
    row = read_benchmark(lora_table(), CAL).rows[0]
    assert read_run({**row, "adapter": "dora:r=4"}).job.adapter == parse_adapter("dora:r=4")


def test_a_training_row_may_say_what_it_offloads() -> None:
    """In the column `offload`, as on the command line, or in the words of its note."""
    row = read_benchmark(lora_table(), CAL).rows[0]
    said = [{"offload": "parameters"}, {"note": "checkpoint activations offloaded to CPU"}, {}]
    found = [read_run({**row, **more}).job.offload for more in said]
    assert found == [parse_offload("parameters")[0], parse_offload("activations")[0], None]


def test_every_linear_of_an_adapted_layer_is_frozen() -> None:
    """Routers and latent projections too; what is trained is the adapters' own."""
    for name in ("deepseek-v3", "qwen3-30b-a3b", "llama-2-7b"):
        for part in parts(model(name), job("lora:r=16"), stack("megatron-core")):
            assert all(op.frozen or "_adapter_" in op.name for op in part if op.kind in LINEAR)
