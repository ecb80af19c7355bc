"""Policies of recomputation of MaxText: what each keeps of a layer, in bytes that can be counted by hand."""

import pytest

from costmodel.kernels.tables import load_calibration
from planner.audit.audit import audited
from planner.audit.job import audited_job
from planner.audit.maxtext import POLICIES, kept_by
from planner.audit.read import read_texts
from planner.questions.flags import Flags

LAYERS, HIDDEN, KEY_VALUES, INNER, TOKENS, HALF = 80, 8192, 1024, 28672, 2 * 4096, 2
"""Of Llama 2 70B, and of a device's two sequences."""
FILE = (
    "model_name: llama2-70b\nici_fsdp_parallelism: 8\ndcn_fsdp_parallelism: 32\nper_device_batch_size: 2\n"
    "max_target_length: 4096\nremat_policy: {}\n"
)
FLAGS = Flags(gpu="h200-sxm", gpus="256")


def _peak(policy):
    found = audited(read_texts({"m.yml": FILE.format(policy)}), FLAGS, load_calibration())
    return found.predicted.peak_memory_bytes


NUMBERS = {
    "save_dot_with_context_except_mlp": 3 * HIDDEN + 2 * KEY_VALUES,
    "minimal_with_context": 3 * HIDDEN + 2 * KEY_VALUES + 2 * INNER,
}
"""Kept of a token and layer beside the layer's input: q, k, v, what attention gives, its projection, both inner."""


@pytest.mark.parametrize("policy", NUMBERS)
def test_a_policy_keeps_what_its_names_say(policy):
    """Beside full recomputation, which keeps the input of a layer alone; temporaries differ by a few percent."""
    kept = (NUMBERS[policy]) * LAYERS * TOKENS * HALF
    assert _peak(policy) - _peak("full") == pytest.approx(kept, rel=0.06)


def test_what_keeps_more_takes_more_memory_and_less_time():
    """The order in which configs/base.yml lists its policies, from the fastest and largest on."""
    listed = (
        "minimal_with_context",
        "minimal",
        "save_dot_with_context_except_mlp",
        "save_dot_except_mlp",
        "full",
    )
    audits = [audited(read_texts({"m.yml": FILE.format(name)}), FLAGS, load_calibration()) for name in listed]
    peaks = [audit.predicted.peak_memory_bytes for audit in audits]
    steps = [audit.predicted.step_time_s for audit in audits]
    assert peaks == sorted(peaks, reverse=True)
    assert steps == sorted(steps)


def test_a_custom_policy_is_its_tensors():
    """Whatever keeps the same tensors is the same price; a place is read, however it is quoted."""
    for policy, names in POLICIES.items():
        custom = dict.fromkeys(names, "device") | {"mlp_of_others": "remat"}
        if "offloaded" not in policy:
            assert kept_by("custom", custom) == kept_by(policy, {})
    tensors = "".join(f"{name}: 'device'\n" for name in POLICIES["minimal"])
    job = audited_job(read_texts({"m.yml": FILE.format("custom") + tensors}), FLAGS)
    assert job.request.recompute_modules == kept_by("minimal", {}).modules


def test_what_is_offloaded_is_said_and_an_unknown_policy_is_not_priced():
    job = audited_job(read_texts({"m.yml": FILE.format("minimal_offloaded")}), FLAGS)
    assert job.layout.recompute == "full"
    notes = read_texts({"m.yml": FILE.format("minimal_offloaded")}).doubts
    assert any("moved there and back, which has no price" in note for note in notes)
    assert "layout.recompute" in {
        gap.field for gap in audited_job(read_texts({"m.yml": FILE.format("x")}), FLAGS).unsettled
    }


@pytest.mark.parametrize(
    ("mesh", "tp", "replicas"),
    [
        ("ici_tensor_parallelism: 4\ndcn_tensor_parallelism: 2\nici_fsdp_parallelism: 4\n", 8, 8),
        ("ici_tensor_parallelism: 2\nici_tensor_sequence_parallelism: 4\nici_fsdp_parallelism: 2\n", 8, 8),
        ("ici_data_parallelism: 2\ndcn_data_parallelism: 4\nici_fsdp_parallelism: 8\n", 1, 64),
    ],
)
def test_every_axis_of_a_mesh_counts(mesh, tp, replicas):
    """Over slices, of sequences too, and of data within a slice."""
    text = f"model_name: llama2-70b\nper_device_batch_size: 1\nmax_target_length: 4096\n{mesh}"
    layout = audited_job(read_texts({"m.yml": text}), Flags(gpu="h100-sxm", gpus="64")).layout
    assert (layout.tp, layout.dp) == (tp, replicas)
