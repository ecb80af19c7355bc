"""An engine that nobody knows is a mixture of those that it may be like, and never borrows another's evidence."""

import math

import pytest

from costmodel.accuracy.training import predict_rows
from costmodel.kernels.tables import load_calibration
from costmodel.stack import is_known, plausible_stacks, stacks
from costmodel.training.bands import QUANTILE_80

ROW = {
    "id": "a", "model": "llama-3.1-8b", "num_layers": "32", "hidden_size": "4096", "intermediate_size": "14336",
    "num_attention_heads": "32", "num_key_value_heads": "8", "vocab_size": "128256", "gated_mlp": "1",
    "sequence_length": "8192", "gpu": "h100-sxm", "num_gpus": "8", "global_batch_size": "128",
    "framework": "Axon 2.1", "precision": "bf16", "tp": "1", "pp": "1", "dp": "8", "zero_stage": "3",
    "microbatch_size": "1", "recompute": "full", "step_time_s": "20",
}  # fmt: skip


def predicted(**cells: str):
    """The row with these cells, predicted."""
    (result,) = predict_rows([{**ROW, **cells}], load_calibration())
    return result


def test_an_unknown_engine_is_priced_as_several_and_says_so() -> None:
    """Between the fastest and the slowest of them; its band is wider than that of an engine with many runs."""
    unknown = predicted()
    known = [predicted(framework=name) for name in ("Megatron-Core", "torchtitan", "PyTorch FSDP")]
    steps = [result.predicted_step_time_s for result in known]
    assert min(steps) < unknown.predicted_step_time_s < max(steps)
    assert unknown.upper_s / unknown.predicted_step_time_s > known[0].upper_s / known[0].predicted_step_time_s
    (said,) = unknown.not_priced
    assert said.startswith("engine 'Axon 2.1' is not known: priced as a mixture of megatron-core, ")
    assert f"band +{unknown.upper_s / unknown.predicted_step_time_s - 1:.0%}" in said
    assert predicted(framework="").not_priced[0].startswith("engine that is not stated is not known")


def test_an_unknown_engine_has_nobodys_evidence() -> None:
    """Neither runs of an engine nor of a profile stand behind it."""
    unknown = predicted()
    assert unknown.footing.engine == "unknown"
    assert unknown.doubts.unmeasured >= len(unknown.footing.keys)
    assert not any(key.name.startswith("profile ") for key in unknown.footing.keys)


def test_a_switch_that_the_row_states_is_the_same_in_all_of_them() -> None:
    """What is said is no part of the mixture: unfused attention takes longer, compiled layers less."""
    plain, unfused = predicted(), predicted(attention_kernel="eager")
    assert unfused.predicted_step_time_s > plain.predicted_step_time_s
    both = predicted(compile="1", attention_kernel="cudnn")
    assert both.predicted_step_time_s < plain.predicted_step_time_s
    assert both.upper_s / both.predicted_step_time_s < plain.upper_s / plain.predicted_step_time_s


def test_plausible_engines_are_of_today_and_of_several_families() -> None:
    """None of 2022 stands for a model of 2024; an engine's own copies count once."""
    names = [stack.name for stack in plausible_stacks()]
    assert names[0] == "megatron-core"
    assert {"torchtitan", "pytorch"} <= {*names}
    assert min(stacks()[name].origin.as_of for name in names) > "2023"
    assert (is_known("NeMo 2.0"), is_known("Axon")) == (True, False)


def test_the_quantile_is_that_of_the_bands() -> None:
    """The band of a mixture is an 80 % interval as all are."""
    unknown = predicted()
    spread = math.log(unknown.upper_s / unknown.predicted_step_time_s) / QUANTILE_80
    assert 0.1 < spread < 0.5


def test_a_network_that_is_not_stated_is_those_of_machines() -> None:
    """Two nodes of a GPU that clouds rent with 100, 200 and 400 Gbit/s a GPU; one node sends nothing."""
    two = {"num_gpus": "16", "dp": "16", "framework": "torchtitan"}
    open_, stated = predicted(**two), predicted(**two, nic_gbit_per_s_per_gpu="400")
    (said,) = open_.not_priced
    assert said.startswith(
        "the network is not stated: priced as a mixture of 100 and 200 and 400 Gbit/s a GPU"
    )
    assert stated.not_priced == ()
    assert predicted(framework="torchtitan").not_priced == ()
    assert open_.upper_s / open_.lower_s > stated.upper_s / stated.lower_s
    assert open_.predicted_step_time_s >= stated.predicted_step_time_s
    assert open_.footing == stated.footing


def test_both_may_be_unknown() -> None:
    """The band holds every engine on every network."""
    two = {"num_gpus": "16", "dp": "16"}
    both = predicted(**two)
    assert [said.split()[0] for said in both.not_priced] == ["engine", "the"]
    assert both.upper_s / both.lower_s > predicted(**two, nic_gbit_per_s_per_gpu="400").upper_s / both.lower_s


EXPERTS = {
    "model": "Qwen3-30B-A3B", "num_layers": "48", "hidden_size": "2048", "intermediate_size": "768",
    "num_attention_heads": "32", "num_key_value_heads": "4", "vocab_size": "151936", "num_experts": "128",
    "num_experts_per_token": "8", "ep": "4", "gpu": "b200-sxm", "recompute": "none", "head_dim": "128",
}  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "known"),
    [({"framework": "PyTorch FSDP"}, True), ({"framework": "Ours (PyTorch FSDP2)", "pp": "2", "dp": "4"}, False),
     (EXPERTS | {"framework": "Ours (PyTorch FSDP2)"}, False), (EXPERTS | {"framework": "torchtitan"}, True)],
)  # fmt: skip
def test_an_engine_that_splits_as_the_named_one_cannot_is_another(cells: dict[str, str], known: bool) -> None:
    """A name that mentions the library below an engine does not make it that library: FSDP splits no experts."""
    result = predicted(**cells)
    assert any("is not known" in said for said in result.not_priced) is not known
    if not known:
        assert "pytorch" not in result.stack.split(" or ")


def test_an_unknown_engine_of_experts_may_take_pains() -> None:
    """Its band reaches down to where exchanges are hidden and the host waits for no counts."""
    unknown = predicted(**EXPERTS)
    best = [
        predicted(**EXPERTS, framework=name, expert_counts="device", moe_a2a_overlap="1")
        for name in ("megatron-core", "torchtitan")
    ]
    assert unknown.lower_s < max(each.predicted_step_time_s for each in best)
