"""Columns of the published recipes: read as typed fields, priced where a mechanism is, told where none is."""

import pytest

from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import TrainingRun, read_run
from costmodel.kernels.tables import load_calibration
from costmodel.runs.cells import UnsupportedRunError
from costmodel.runs.recipe import RunRecipe

ROW = {
    "id": "a", "model": "Qwen3_30B_a3B", "num_layers": "48", "hidden_size": "2048", "intermediate_size": "768",
    "num_attention_heads": "32", "num_key_value_heads": "4", "vocab_size": "151936", "gated_mlp": "1",
    "num_experts": "128", "num_experts_per_token": "8", "sequence_length": "4096", "gpu": "h100-sxm",
    "num_gpus": "16", "nic_gbit_per_s_per_gpu": "400", "global_batch_size": "256", "framework": "NeMo", "precision": "bf16", "tp": "1",
    "pp": "1", "dp": "16", "ep": "8", "zero_stage": "1", "step_time_s": "20", "recompute": "",
}  # fmt: skip


def read(**cells: str) -> TrainingRun:
    """The run of the row with these cells."""
    return read_run({**ROW, **cells})


def test_the_recipe_is_read_as_the_columns_are_documented() -> None:
    """Lists are separated by semicolons; what is empty is not stated."""
    run = read(
        recompute_modules="mla_up_proj;mlp", cuda_graph_scope="attn;moe_router;moe_preprocess",
        dispatcher="hybridep", moe_a2a_overlap="1", offload_layers="40",
    )  # fmt: skip
    assert run.recipe == RunRecipe(
        switches={
            "dispatcher": "hybridep",
            "exchange_overlap": "on",
            "cuda_graph_scope": "attn;moe_router;moe_preprocess",
        },
        recompute_modules=("mla_up_proj", "mlp"),
        offload_layers=40,
    )
    assert read().recipe == RunRecipe()
    assert read(moe_a2a_overlap="0").recipe.switches == {"exchange_overlap": "off"}


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ({}, ()),
        ({"recompute_modules": "mlp;moe_act"}, ()),
        ({"recompute_modules": "mhc;mlp"}, ("recompute_modules mhc",)),
        ({"recompute_modules": "core_attn"}, ()),
        ({"cuda_graph_scope": "attn;moe_router"}, ()),
        ({"cuda_graph_scope": "attn;optimizer"}, ("cuda_graph_scope attn;optimizer",)),
        ({"attention_kernel": "FA3", "chunked_loss": "512 tokens", "compile": "loss only"}, ()),
        ({"allocator": "expandable_segments"}, ("allocator expandable_segments",)),
        ({"optimizer_dtype": "bf16", "weight_dtype": "bf16", "gradient_dtype": "bf16"}, ()),
        ({"weight_dtype": "4-bit base", "adapter": "qlora:r=16,targets=attention"}, ()),
        ({"cuda_graph_scope": "full_iteration"}, ()),
        ({"dispatcher": "deepep"}, ()),
        ({"attention_kernel": "aiter"}, ("attention_kernel aiter",)),
        ({"moe_a2a_overlap": "1"}, ()),
        ({"moe_a2a_overlap": "0", "offload_layers": "0"}, ()),
        ({"offload_layers": "40"}, ("offload_layers 40",)),
    ],
)
def test_what_has_no_mechanism_is_told_as_not_priced(cells: dict[str, str], told: tuple[str, ...]) -> None:
    """The run carries it, and so does its result; nothing that is stated is passed over."""
    assert read(**cells).not_priced == told
    (result,) = predict_rows([{**ROW, **cells}], load_calibration())
    assert result.not_priced == told


def test_a_dispatcher_decides_how_often_a_token_crosses_to_a_node() -> None:
    """DeepEP and HybridEP send it once per node; a plain all-to-all once per expert, whatever the engine's way."""
    named = {
        (engine, dispatcher): read(
            framework=engine, dispatcher=dispatcher
        ).stack.timing.dispatches_once_per_node
        for engine in ("NeMo", "Megatron-Bridge 26.04")
        for dispatcher in ("", "alltoall", "hybridep", "deepep")
    }
    assert {key for key, once in named.items() if once} == {
        ("NeMo", "hybridep"),
        ("NeMo", "deepep"),
        ("Megatron-Bridge 26.04", ""),
        ("Megatron-Bridge 26.04", "hybridep"),
        ("Megatron-Bridge 26.04", "deepep"),
    }


@pytest.mark.parametrize(
    ("cells", "switches"),
    [
        ({"attention_kernel": "TE fused (cuDNN)"}, {"attention_kernel": "cudnn"}),
        ({"attention_kernel": "FA4 varlen", "compile": "1"}, {"attention_kernel": "fa4", "compile": "on"}),
        ({"chunked_loss": "fused_linear_ce (Liger)"}, {"module_kernels": "fused", "loss": "fused_linear"}),
        ({"chunked_loss": "cce"}, {"loss": "fused_linear"}),
        ({"chunked_loss": "512 tokens", "microbatch_size": "2"}, {"loss": "chunked:16"}),
        ({"weight_dtype": "fp32 shards"}, {"weight_dtype": "fp32_shards"}),
        ({"optimizer_dtype": "bf16"}, {"master_dtype": "none", "moment_dtype": "bf16"}),
    ],
)
def test_columns_of_switches_are_read_as_their_values(
    cells: dict[str, str], switches: dict[str, str]
) -> None:
    """The words of the published tables; 8,192 rows of logits in chunks of 512 are sixteen."""
    assert read(**cells).recipe.switches == switches


def test_graphs_of_the_whole_step_leave_no_launch_to_the_host() -> None:
    """As the engine's own setting would."""
    assert read(cuda_graph_scope="full_iteration").stack.timing.cuda_graphs
    assert not read(cuda_graph_scope="attn").stack.timing.cuda_graphs


@pytest.mark.parametrize("modules", ["core_attn", "mla_up_proj;mlp", "moe;mhc"])
def test_recomputing_modules_is_the_selective_policy_where_none_is_named(modules: str) -> None:
    """Of those that the cost model has; a policy that the row names itself stays."""
    run = read(recompute_modules=modules)
    assert run.layout.recompute == "selective"
    assert run.stack.timing.recomputed_modules == tuple(m for m in modules.split(";") if m != "mhc")
    assert read(recompute_modules=modules, recompute="full").layout.recompute == "full"
    assert read(recompute_modules="mhc").layout.recompute == "none"


def test_modules_that_are_computed_again_take_their_time() -> None:
    """Experts once more are longer than their activation, and shorter than the whole layer."""
    cells: list[dict[str, str]] = [
        {}, {"recompute_modules": "moe_act"}, {"recompute_modules": "moe"}, {"recompute": "full"}
    ]  # fmt: skip
    results = predict_rows([ROW | one for one in cells], load_calibration())
    none, act, experts, layer = (one.predicted_step_time_s or 0.0 for one in results)
    assert none < act < experts < layer


@pytest.mark.parametrize(("column", "cell"), [("moe_a2a_overlap", "perhaps"), ("offload_layers", "many")])
def test_a_cell_that_is_no_value_of_its_column_refuses_the_row(column: str, cell: str) -> None:
    """With the column and the text."""
    with pytest.raises(UnsupportedRunError, match=f"{column} = '{cell}'"):
        read(**{column: cell})
