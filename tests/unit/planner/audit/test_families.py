"""Files of many tools, in their own words: the job that each means, by the defaults of its engine.

Files are made up in the forms of public examples; what is right of each follows from its own words and from the
engine's source, which `planner/audit/data/words.toml` names.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.layout import layout_words
from planner.audit.audit import Audit, audited, calibration_of, measured_step_s
from planner.audit.job import audited_job
from planner.audit.read import read_texts
from planner.audit.spelling import spelled_change
from planner.questions.flags import Flags

FILES = Path(__file__).parent / "families"
EXPECTED: dict[str, tuple[str, str, int, str, int, int, str]] = {
    # family, model, GPUs, layout, batch, tokens of a sequence, adapter and offload
    "lf.sh": (
        "LLaMA-Factory",
        "qwen2.5-7b",
        16,
        "dp 16 · microbatch 2 · ZeRO-3 · recompute layers",
        128,
        4096,
        "",
    ),
    "Makefile": ("Megatron-LM", "unnamed", 32, "tp 8 · pp 2 · dp 2 · ZeRO-1", 256, 4096, ""),
    "sizes.mk": ("Megatron-LM", "unnamed", 32, "tp 8 · pp 2 · dp 2 · ZeRO-1", 256, 4096, ""),
    "usage.sh": ("Megatron-LM", "unnamed", 32, "tp 8 · pp 2 · dp 2 · ZeRO-1", 256, 4096, ""),
    "hetjob.sbatch": ("Megatron-LM", "unnamed", 128, "tp 8 · pp 4 · dp 4 · ZeRO-1", 512, 8192, ""),
    "lightning.py": (
        "Lightning",
        "qwen2.5-7b",
        16,
        "dp 16 · microbatch 4 · ZeRO-3 · recompute layers",
        256,
        2048,
        "",
    ),
    "ray_trainer.py": (
        "HF Trainer",
        "llama-3.1-8b",
        16,
        "dp 16 · microbatch 2 · ZeRO-3 · recompute layers",
        128,
        4096,
        "",
    ),
    "dschat.sh": (
        "HF Trainer",
        "llama-2-7b",
        8,
        "dp 8 · microbatch 4 · ZeRO-3",
        32,
        512,
        "lora:r=128,targets=attention+mlp",
    ),
    "foundry_lion.yaml": (
        "LLM Foundry",
        "mistral-7b",
        16,
        "dp 16 · microbatch 2 · ZeRO-3 · recompute layers",
        64,
        4096,
        "",
    ),
    "levanter.yaml": (
        "levanter",
        "unnamed",
        64,
        "dp 64 · microbatch 16 · ZeRO-3 · recompute layers",
        1024,
        4096,
        "",
    ),
    "automodel.yaml": (
        "NeMo AutoModel",
        "llama-3.2-1b",
        8,
        "tp 2 · dp 4 · microbatch 8 · ZeRO-3",
        64,
        4096,
        "",
    ),
    "axolotl.yaml": (
        "Axolotl",
        "llama-3.1-70b",
        8,
        "dp 8 · ZeRO-3 · recompute layers",
        32,
        2048,
        "qlora:r=16,targets=attention+mlp,base=nf4,alpha=32 parameters",
    ),
    "foundry.yaml": (
        "LLM Foundry",
        "llama-2-7b",
        8,
        "dp 8 · microbatch 4 · ZeRO-3 · recompute layers",
        256,
        4096,
        "",
    ),
    "litgpt.yaml": (
        "LitGPT",
        "llama-3.1-8b",
        4,
        "dp 4 · microbatch 2 · ZeRO-3 · recompute layers",
        64,
        2048,
        "",
    ),
    "litgpt_lora.sh": (
        "LitGPT",
        "llama-3.2-3b",
        1,
        "microbatch 2",
        8,
        512,
        "qlora:r=16,targets=attention,base=nf4",
    ),
    "nemo_class.py": ("NeMo", "llama-3.1-8b", 32, "tp 4 · cp 2 · dp 4 · ZeRO-1", 64, 16384, ""),
    "nemo_rl_dtensor.yaml": (
        "NeMo-RL",
        "llama-3.1-8b",
        16,
        "tp 2 · dp 8 · microbatch 2 · ZeRO-3 · recompute layers",
        128,
        4096,
        "",
    ),
    "openrlhf.sh": (
        "OpenRLHF",
        "llama-3-8b",
        4,
        "dp 4 · microbatch 4 · ZeRO-3 · recompute layers",
        128,
        4096,
        "lora:r=32,targets=attention+mlp,alpha=64",
    ),
    "qlora.sh": (
        "HF Trainer",
        "llama-65b",
        8,
        "dp 8 · recompute layers",
        128,
        528,
        "qlora:r=64,targets=attention+mlp,base=nf4,alpha=16",
    ),
    "rayjob.yaml": (
        "verl",
        "qwen3-8b",
        16,
        "dp 16 · microbatch 2 · ZeRO-3 · recompute layers",
        256,
        4096,
        "",
    ),
    "sky_variables.yaml": ("HF Trainer", "llama-3.1-8b", 16, "dp 16 · recompute layers", 64, 8192, ""),
    "tokenized.py": ("HF Trainer", "qwen2.5-3b", 8, "dp 8 · microbatch 8 · recompute layers", 256, 1024, ""),
    "verl_sft.sh": (
        "verl",
        "qwen2.5-7b",
        8,
        "dp 8 · microbatch 2 · ZeRO-3 · recompute layers",
        128,
        2048,
        "",
    ),
    "determined.yaml": (
        "HF Trainer",
        "llama-2-13b",
        16,
        "dp 16 · microbatch 4 · ZeRO-3 · recompute layers",
        64,
        2048,
        "",
    ),
    "dstack_variables.yml": (
        "HF Trainer",
        "llama-3.1-8b",
        16,
        "dp 16 · microbatch 2 · ZeRO-3 · recompute layers",
        32,
        4096,
        "",
    ),
    "estimator.py": (
        "HF Trainer",
        "llama-3-8b",
        16,
        "dp 16 · microbatch 2 · ZeRO-3 · recompute layers",
        128,
        2048,
        "",
    ),
    "fms.sh": ("PyTorch FSDP", "llama-2-7b", 128, "dp 128 · microbatch 2 · ZeRO-3", 256, 4096, ""),
    "mpirun.sh": ("Megatron-LM", "unnamed", 64, "tp 4 · pp 2 · dp 8 · ZeRO-1", 256, 4096, ""),
    "nanogpt.py": ("nanoGPT", "unnamed", 8, "dp 8 · microbatch 12", 480, 1024, ""),
    "nemo_cli.sh": ("NeMo", "llama-3-70b", 64, "tp 4 · cp 2 · pp 4 × 5 · dp 2 · ZeRO-1", 256, 8192, ""),
    "swift_ulysses.sh": ("ms-swift", "qwen2.5-7b", 8, "cp 8 · ZeRO-3 · recompute layers", 8, 65536, ""),
    "dstack.yml": ("HF Trainer", "qwen2.5-14b", 16, "dp 16 · ZeRO-3 · recompute layers", 128, 4096, ""),
    "helm_values.yaml": ("Megatron-LM", "unnamed", 64, "tp 4 · pp 4 · dp 4 · ZeRO-1", 256, 8192, ""),
    "jobset.yaml": (
        "torchtitan",
        "llama-3-8b",
        32,
        "dp 32 · microbatch 2 · ZeRO-3 · recompute layers",
        64,
        8192,
        "",
    ),
    "kuberay.yaml": ("Megatron-LM", "unnamed", 16, "tp 2 · dp 8 · ZeRO-1", 64, 4096, ""),
    "maxtext.sh": (
        "MaxText",
        "llama-3.1-70b",
        128,
        "dp 128 · microbatch 2 · ZeRO-3 · recompute layers",
        256,
        8192,
        "",
    ),
    "mds.sh": (
        "Megatron-DeepSpeed",
        "unnamed",
        32,
        "tp 2 · dp 16 · microbatch 2 · ZeRO-1 · recompute layers",
        256,
        2048,
        "",
    ),
    "nanotron.yaml": ("nanotron", "unnamed", 32, "tp 4 · pp 2 · dp 4 · microbatch 2 · ZeRO-1", 128, 8192, ""),
    "nemo_rl_sft.yaml": (
        "NeMo-RL",
        "llama-3.1-70b",
        64,
        "tp 4 · pp 4 · dp 4 · ZeRO-1 · recompute layers",
        512,
        4096,
        "",
    ),
    "old_megatron.sh": (
        "Megatron-LM",
        "unnamed",
        512,
        "tp 8 · dp 64 · microbatch 8 · recompute layers",
        512,
        1024,
        "",
    ),
    "olmo.py": (
        "OLMo-core",
        "olmo-2-7b",
        8,
        "dp 8 · microbatch 2 · ZeRO-3 · recompute layers",
        512,
        8192,
        "",
    ),
    "open_r1.sh": (
        "HF Trainer",
        "qwen2.5-1.5b",
        8,
        "dp 8 · microbatch 16 · ZeRO-3 · recompute layers",
        256,
        16384,
        "",
    ),
    "pai.sh": ("Megatron-LM", "unnamed", 8, "tp 4 · dp 2 · ZeRO-1 · recompute layers", 128, 4096, ""),
    "prime_rl.toml": ("prime-rl", "qwen3-8b", 8, "dp 8 · ZeRO-3 · recompute layers", 64, 8192, ""),
    "primus.yaml": (
        "Primus",
        "llama-3.1-8b",
        8,
        "dp 8 · microbatch 4 · ZeRO-1 · recompute layers",
        512,
        8192,
        "",
    ),
    "pytorchjob.yaml": (
        "HF Trainer",
        "llama-2-7b",
        32,
        "dp 32 · microbatch 2 · ZeRO-3 · recompute layers",
        256,
        4096,
        "",
    ),
    "run_clm.sh": (
        "HF Trainer",
        "mistral-7b-v0.1",
        8,
        "dp 8 · microbatch 4 · ZeRO-3 · recompute layers",
        64,
        2048,
        "",
    ),
    "sky.yaml": (
        "Axolotl",
        "qwen2.5-7b",
        32,
        "dp 32 · microbatch 2 · ZeRO-2 · recompute layers",
        256,
        4096,
        "",
    ),
    "swift_megatron.sh": (
        "ms-swift",
        "qwen3-30b-a3b",
        16,
        "tp 2 · dp 8 · ep 8 · ZeRO-1 · recompute layers",
        64,
        8192,
        "",
    ),
    "titan2026.py": (
        "torchtitan",
        "llama-3.1-70b",
        64,
        "tp 8 · dp 8 · microbatch 8 · ZeRO-3 · recompute layers",
        64,
        8192,
        "",
    ),
    "titan_new.toml": (
        "torchtitan",
        "qwen3-30b-a3b",
        16,
        "dp 16 · ep 8 · microbatch 4 · ZeRO-3",
        64,
        4096,
        "",
    ),
    "trainjob.yaml": ("Megatron-LM", "unnamed", 32, "tp 2 · dp 16 · ZeRO-1", 128, 4096, ""),
    "trl.sh": (
        "HF Trainer",
        "llama-3.1-8b",
        4,
        "dp 4 · microbatch 4 · recompute layers",
        64,
        2048,
        "lora:r=32,targets=attention,alpha=16",  # PEFT has query and value where none are named
    ),
    "tune.sh": (
        "torchtune",
        "llama-3.1-70b",
        8,
        "dp 8 · microbatch 2 · ZeRO-3 · recompute layers",
        64,
        4096,
        "parameters",  # fsdp_cpu_offload of recipes/configs/llama3_1/70B_full.yaml, torchtune 0.6.1
    ),
    "unsloth.py": (
        "Unsloth",
        "llama-3.1-8b",
        1,
        "microbatch 2 · recompute layers",
        8,
        2048,
        "qlora:r=16,targets=attention+mlp,base=nf4,alpha=16 activations",
        # use_gradient_checkpointing="unsloth" takes inputs of layers to the host (unsloth_zoo/gradient_checkpointing.py)
    ),
}


def audit(name: str) -> Audit:
    """The audit of one file, without a flag."""
    reading = read_texts({name: (FILES / f"{name}.txt").read_text(encoding="utf-8")})
    return audited(reading, Flags(), calibration_of(reading, Flags()))


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_means_the_job_that_its_tool_would_start(name: str) -> None:
    """Family, model, GPUs, layout, batch, length, adapter, offload."""
    found = audit(name)
    request, layout = found.job.request, found.job.layout
    assert request is not None, found.job.missing
    assert layout is not None
    parts = (request.job.adapter, request.job.offload)
    assert EXPECTED[name] == (
        found.reading.family.name,
        request.model.name,
        request.cluster.num_gpus,
        layout_words(layout),
        request.job.global_batch_size,
        request.job.sequence_length,
        " ".join(part.words for part in parts if part),
    )
    assert found.predicted is not None
    assert not [finding for finding in found.findings if finding.kind == "illegal"]


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_tool_s_own_name_of_an_optimizer_is_that_optimizer() -> None:
    """Composer's `DecoupledLionW` keeps one moment, as Lion does."""
    request = audit("foundry_lion.yaml").job.request
    assert request is not None
    assert request.job.optimizer == "lion"


def test_every_file_is_expected() -> None:
    """None lies there unread."""
    assert {path.name.removesuffix(".txt") for path in FILES.iterdir()} == EXPECTED.keys()


BAR = "Train step of epoch 0:  25%|██▌   | {step}/400 [05:20<16:00,  3.20s/it, loss_mean=1.2, lr=5e-6]\n"
ITERATIONS = (
    "Epoch 1 | iter {iterations} step {step} | loss train: 1.2, val: n/a | iter time: 500.00 ms (step)\n"
)


@pytest.mark.parametrize(
    ("name", "lines", "step_s"),
    [
        # 128 sequences over dp 4 and microbatches of 4: eight of 3.2 s
        ("openrlhf.sh", "".join(BAR.format(step=98 + each) for each in range(5)), 25.6),
        # the counts of a line that ends a step tell how many it accumulates
        (
            "litgpt.yaml",
            "".join(ITERATIONS.format(step=each, iterations=8 * each) for each in range(4, 9)),
            4.0,
        ),
    ],
)
def test_a_log_that_times_microbatches_measures_steps(name: str, lines: str, step_s: float) -> None:
    """A step is as many of them as a replica accumulates."""
    texts = {name: (FILES / f"{name}.txt").read_text(encoding="utf-8"), "run.log": lines}
    reading = read_texts(texts)
    assert measured_step_s(reading, audited_job(reading, Flags())) == pytest.approx(step_s)


def test_a_flag_without_a_value_is_left_out() -> None:
    """OpenRLHF's parser takes no value behind ``--gradient_checkpointing``."""
    reading = read_texts({"o.sh": (FILES / "openrlhf.sh.txt").read_text(encoding="utf-8")})
    assert spelled_change(reading, (("recompute", "none"),)) == ("without --gradient_checkpointing",)
