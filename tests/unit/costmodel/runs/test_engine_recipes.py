"""What a publisher's recipe says of a run fills the cells that its table leaves empty, and no others."""

import csv
from pathlib import Path

import pytest

from costmodel.accuracy.training_runs import read_rows, read_run
from costmodel.models.catalog import model_names
from costmodel.runs import bridge_recipes
from costmodel.runs.bridge_recipes import BRIDGE_RECIPES, SWITCH_COLUMNS, bridge_cells, release_of
from costmodel.runs.engine_recipes import RECIPES, with_recipes
from costmodel.runs.mtp import mtp_layers_of
from topology.base.decode import read_toml

SAID = {"cuda_graph_scope": "full_iteration", "dispatcher": "hybridep", "moe_a2a_overlap": "1"}
QWEN = {
    "framework": "Megatron-Bridge 26.06.01", "model": "Qwen3_30B_a3B", "gpu": "gb200", "precision": "mxfp8",
    "num_gpus": "8", "pp": "1", "ep": "8", "microbatch_size": "4",
}  # fmt: skip
DEEPSEEK = QWEN | {
    "framework": "Megatron-Bridge 26.08", "model": "DeepSeekV3", "num_gpus": "256", "pp": "4", "ep": "64",
    "virtual_stages": "4", "microbatch_size": "1",
}  # fmt: skip
NEMO = {
    "framework": "NeMo/Megatron-Core", "model": "DeepSeek-V3", "gpu": "h100-sxm", "precision": "bf16",
    "num_gpus": "512", "tp": "2", "pp": "8", "virtual_stages": "1", "ep": "64",
}  # fmt: skip


def test_a_recipe_fills_what_its_row_leaves_empty() -> None:
    """Graphs, dispatcher and overlap of Qwen3-30B on GB200, which containers 26.06 and 26.08 have."""
    for release in ("26.06", "26.06.01", "26.08"):
        row = QWEN | {"framework": f"Megatron-Bridge {release}"}
        assert with_recipes(row) == row | SAID


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"framework": "PaddleNLP (Paddle)", "model": "LLaMA-7B", "gpu": "a100-sxm-40gb"},
            {"sequence_parallel": "0", "module_kernels": "chained"},
        ),
        (
            {"framework": "PaddleNLP (Paddle)", "model": "LLaMA-7B", "gpu": "a100-sxm-80gb"},
            {"sequence_parallel": "0"},
        ),
        (
            {"framework": "pith-train (PyTorch FSDP2)", "gpu": "b200-sxm", "sequence_length": "8192"},
            {"grouped_experts": "grouped_mm", "attention_kernel": "fa4"},
        ),
        (
            {"framework": "Fast-LLM", "model": "SmolLM2-135M"},
            {"compile": "1", "chunked_loss": "fused_cross_entropy", "optimizer": "adamw fused"},
        ),
    ],
)
def test_an_engine_without_a_profile_has_its_repositorys_switches(
    row: dict[str, str], said: dict[str, str]
) -> None:
    """Kernels that its source has tell it from what other unknown engines may be like."""
    assert with_recipes(row) == row | said


IBM = {
    "framework": "Hugging Face Trainer (PyTorch FSDP, fms-acceleration)", "num_gpus": "1",
    "adapter": "qlora:r=16,targets=attention",
}  # fmt: skip


@pytest.mark.parametrize(
    ("note", "beside"),
    [("config accelerated-peft-bnb; 2025", ""), ("config baseline-peft-bnb; 2025", ",beside=fp32")],
)
def test_words_of_a_note_tell_recipes_apart(note: str, beside: str) -> None:
    """Both drop out adapters' inputs; the baseline prepares its model as peft does."""
    adapter = with_recipes(IBM | {"note": note})["adapter"]
    assert adapter == f"{IBM['adapter']},dropout=0.1{beside}"


def test_a_rows_own_word_comes_first() -> None:
    """A cell that is filled stays."""
    assert with_recipes(QWEN | {"dispatcher": "deepep"})["dispatcher"] == "deepep"


def test_words_that_a_call_of_the_recipe_overwrites_give_way() -> None:
    """The table lists the scope of graphs that stands above the call which captures whole steps."""
    listed = DEEPSEEK | {"cuda_graph_scope": "attn;moe_router;moe_preprocess"}
    assert with_recipes(listed)["cuda_graph_scope"] == "full_iteration"
    assert with_recipes(DEEPSEEK | {"cuda_graph_scope": "attn"})["cuda_graph_scope"] == "attn"


@pytest.mark.parametrize(
    "other",
    [{"microbatch_size": "2"}, {"model": "Qwen3-30B"}, {"model": "llama-3.1-8b"}, {"pp": "2"},
     {"framework": "Megatron-Bridge 25.09"}, {"framework": "Megatron-LM"}],
)  # fmt: skip
def test_another_layout_release_engine_or_model_is_not_the_recipes(other: dict[str, str]) -> None:
    """Its row stays as it is."""
    assert with_recipes(QWEN | other) == QWEN | other


@pytest.mark.parametrize(
    "other", [{"gpu": "b200-sxm"}, {"precision": "bf16"}, {"framework": "Megatron-Bridge 26.04"}]
)
def test_another_gpu_precision_or_release_has_a_recipe_of_its_own(other: dict[str, str]) -> None:
    """It captures some modules of a layer, not a whole step."""
    assert with_recipes(QWEN | other)["cuda_graph_scope"].endswith("moe_router;moe_preprocess")


def test_recipes_of_a_release_hold_until_the_next() -> None:
    """DeepSeek-V3 on GB300: graphs of modules until 26.04, of whole steps since 26.06; patches of a release too."""
    row = DEEPSEEK | {"gpu": "gb300", "pp": "2", "virtual_stages": "8", "ep": "32"}
    graphs = {
        release: with_recipes(row | {"framework": f"Megatron-Bridge {release}"}).get("cuda_graph_scope")
        for release in ("25.09", "26.06", "26.06.01")
    }
    assert graphs == {"25.09": None, "26.06": "full_iteration", "26.06.01": "full_iteration"}


def test_recipes_that_differ_say_what_they_agree_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of one layout and release, of which one overlaps the exchange."""
    same = dict.fromkeys(SWITCH_COLUMNS, "") | {"dispatcher": "hybridep"}
    key = ("qwen3-30b-a3b", "gb200", "mxfp8", "8", "1", "1", "1", "1", "8", "4")
    table = {key: {(26, 6): [same | {"moe_a2a_overlap": "1"}, same | {"moe_a2a_overlap": "0"}]}}
    monkeypatch.setattr(bridge_recipes, "_recipes", lambda: table)
    assert bridge_cells(QWEN) == {"dispatcher": "hybridep"}


def test_the_table_of_recipes_names_models_and_switches_that_are_known() -> None:
    """Every row; its cells are values that rows of runs may have."""
    with BRIDGE_RECIPES.open(encoding="utf-8", newline="") as stream:
        recipes = list(csv.DictReader(stream))
    assert len(recipes) > 900
    assert {recipe["model"] for recipe in recipes} <= set(model_names())
    assert {recipe["dispatcher"] for recipe in recipes} == {"", "deepep", "hybridep"}
    assert {release_of(recipe["release"]) for recipe in recipes} >= {(25, 11), (26, 4, 1), (26, 8)}


def test_numbers_are_the_same_with_a_point() -> None:
    """As spreadsheets write them."""
    assert with_recipes(QWEN | {"num_gpus": "8.0"})["dispatcher"] == "hybridep"


def test_modules_are_read_with_the_note_and_not_filled_in() -> None:
    """``w/o MTP`` of a note is a word of the row."""
    assert "mtp_layers" not in with_recipes(DEEPSEEK)
    assert (mtp_layers_of(DEEPSEEK), mtp_layers_of(DEEPSEEK | {"note": "w/o MTP"})) == (1, 0)
    assert (mtp_layers_of(NEMO), mtp_layers_of(NEMO | {"num_gpus": "256"})) == (1, 0)


def test_an_optimisation_that_a_page_lists_is_the_rows() -> None:
    """FlagPerf's pages of H100 runs list FlashAttention-2; those of A100 have no other kernel to choose."""
    row = {"framework": "Megatron-LM (Megatron-Core, NGC PyTorch container)", "gpu": "h100-sxm"}
    assert with_recipes(row | {"sequence_length": "8192"})["attention_kernel"] == "fa2"
    assert "attention_kernel" not in with_recipes(row | {"gpu": "a100-sxm-80gb", "sequence_length": "8192"})


def test_every_recipe_names_its_source_and_columns_that_are_read() -> None:
    """With the date on which it was looked up."""
    columns = {
        "mtp_layers", "recompute_modules", "cuda_graph_scope", "dispatcher", "moe_a2a_overlap", "stage_layers",
        "fp8_output_proj", "attention_kernel", "sequence_parallel", "module_kernels", "compile", "chunked_loss",
        "optimizer", "grouped_experts", "adapter", "weight_dtype", "gradient_dtype", "optimizer_dtype", "framework",
        "zero_stage", "peak_memory_gib", "peak_memory_unit", "logits_dtype", "bucket_bytes",
    }  # fmt: skip
    for entry in read_toml(RECIPES)["recipes"]:
        assert entry["source"]
        assert entry["as_of"]
        assert set(entry["said"]) <= columns
        assert set(entry.get("copied", {})) <= set(entry["said"])


def test_rows_of_the_data_set_whose_recipe_is_known_run_as_it_says(shared_dir: Path) -> None:
    """Six of GB200 whose table lists another scope, or none; NeMo's splits; the model zoo's dispatcher."""
    rows = {row["id"]: row for row in read_rows(shared_dir / "training_runs_v2.csv")}
    for number in ("002", "008", "010", "020", "024", "026"):
        timing = read_run(rows[f"megatron_bridge_perf-{number}"]).stack.timing
        assert timing.cuda_graphs
        assert timing.pairs_expert_passes
        assert timing.narrow_head == (number in ("002", "020"))
    run = read_run(rows["dgxc_benchmarking-295"])
    assert (run.chunk_layers, run.job.mtp_layers) == ((7, 8, 8, 8, 8, 8, 8, 6), 1)
    for number, modules in (
        ("001", ("layernorm", "moe_act")),
        ("005", ("core_attn",)),
        ("013", ("layernorm", "moe")),
    ):
        timing = read_run(rows[f"megatron_moe_modelzoo-{number}"]).stack.timing
        assert timing.dispatches_once_per_node
        assert timing.recomputed_modules == modules
