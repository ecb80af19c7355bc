"""Files that differ in one word of a switch: what is read, where it stands, and which way time and memory move."""

from __future__ import annotations

import pytest

from costmodel.kernels.tables import load_calibration
from planner.audit.audit import Audit, audited, audited_texts
from planner.audit.file_switches import switch_facts
from planner.audit.job import audited_job
from planner.audit.read import read_texts
from planner.questions.flags import Flags
from tests.unit.planner.audit.shared_audits import whole_audit

SIZES = (
    "--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 --swiglu --vocab-size 128256 "
    "--seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --normalization RMSNorm "
    "--disable-bias-linear --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer "
    "--overlap-grad-reduce --overlap-param-gather --attention-dropout 0 --hidden-dropout 0"
)
UNCHECKED = "--no-check-for-nan-in-loss-and-grad"
HYBRID = "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep"
EXPERTS = (
    "--num-experts 32 --moe-router-topk 4 --moe-ffn-hidden-size 512 --moe-token-dispatcher-type alltoall "
    "--expert-model-parallel-size 8 --moe-grouped-gemm"
)


def megatron(words: str, gpu: str = "b200-sxm") -> Audit:
    """The audit of a script that has these words in a line of their own."""
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} \\\n  {words}\n"
    found = audited_texts({"run.sh": text}, Flags(gpu=gpu))
    assert found.predicted is not None, found.job.missing
    return found


def switch(audit: Audit, name: str) -> tuple[str, int] | None:
    """The value of a switch that is read, and its line."""
    fact = audit.reading.facts.by_field.get(f"switch.{name}")
    return None if fact is None else (fact.value, fact.line)


def step_s(audit: Audit) -> float:
    """Seconds of a step."""
    assert audit.predicted is not None
    return audit.predicted.step_time_s


def peak(audit: Audit) -> float:
    """Bytes of the fullest GPU."""
    assert audit.predicted is not None
    return audit.predicted.peak_memory_bytes


MEGATRON_WORDS = (
    ("--attention-backend unfused", "attention_kernel", "unfused"),
    ("--attention-backend local", "attention_kernel", "unfused"),
    ("--transformer-impl local", "attention_kernel", "unfused"),
    ("--attention-backend flash", "attention_kernel", "fa2"),
    ("--attention-backend flash --flash-attention-version 3", "attention_kernel", "fa3"),
    ("--attention-backend fused", "attention_kernel", "cudnn"),
    ("--enable-cuda-graph", "cuda_graph_scope", "attn;mlp"),
    ("--external-cuda-graph", "cuda_graph_scope", "attn;mlp"),
    ("--cuda-graph-impl local --cuda-graph-scope full", "cuda_graph_scope", "attn;mlp"),
    ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn", "cuda_graph_scope", "attn"),
    ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn,mlp", "cuda_graph_scope", "attn;mlp"),
    (f"--cuda-graph-impl local --cuda-graph-scope full_iteration {UNCHECKED}", "cuda_graph_scope", "full_iteration"),
    (f"--cuda-graph-impl full_iteration {UNCHECKED}", "cuda_graph_scope", "full_iteration"),
    ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "loss", "fused_cross_entropy"),
    ("--cross-entropy-loss-fusion", "loss", "whole"),
    (EXPERTS, "grouped_experts", "te_grouped"),
    (f"{EXPERTS} --cuda-graph-impl full_iteration {UNCHECKED} --moe-paged-stash {HYBRID}", "expert_counts", "device"),
    (f"{EXPERTS} --moe-use-legacy-grouped-gemm", "grouped_experts", "cutlass"),
    (f"{EXPERTS} --enable-cuda-graph", "cuda_graph_scope", "attn;mlp;moe"),
    (f"{EXPERTS} --cuda-graph-impl local --cuda-graph-scope attn moe_router", "cuda_graph_scope",
     "attn;moe_router;moe_preprocess"),
)  # fmt: skip
"""Words, the switch that they say, and its value: the one that they name, of several that are priced alike."""


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("words", "name", "value"), MEGATRON_WORDS)
def test_a_word_of_megatron_is_shown_with_its_line(words: str, name: str, value: str) -> None:
    """And no limit of what is written for it calls the job unpriced."""
    found = megatron(words)
    assert switch(found, name) == (value, 2)
    assert not [finding for finding in found.findings if finding.kind in ("illegal", "unpriced")]


@pytest.mark.usefixtures("searched_in_nightly")
def test_words_of_megatron_move_time_and_memory_as_their_switches_say() -> None:
    """Attention and loss of a dense job, launches of one that waits for its host."""
    plain, unfused, old = (
        megatron(words) for words in ("", *("--attention-backend " + x for x in ("unfused", "flash")))
    )
    assert step_s(plain) < step_s(old) < step_s(unfused)
    assert peak(plain) == peak(old) < peak(unfused)
    lossy = megatron("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te")
    assert step_s(lossy) < step_s(plain)
    moe, graphed, single = (
        megatron(f"{EXPERTS} {words}")
        for words in (
            "",
            "--cuda-graph-impl transformer_engine --cuda-graph-scope attn",
            "--moe-use-legacy-grouped-gemm",
        )
    )
    assert step_s(graphed) < step_s(moe)
    assert step_s(single) < step_s(moe)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--cross-entropy-loss-fusion",
            "--cross-entropy-loss-fusion of torch's own compiler is priced as without",
        ),
        ("--attention-backend flash", "priced as FlashAttention-2"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "megatron-core 0.19.2 stops at it"),
        ("--cuda-graph-scope attn", "captures nothing without --cuda-graph-impl"),
        ("--no-rope-fusion", "rotary positions in kernels of their own: not priced"),
    ],
)
def test_what_is_known_and_not_priced_is_told(words: str, said: str) -> None:
    """Under what is taken for granted; a script without the word says nothing of it."""
    assert [text for text in megatron(words).doubts if said in text]
    assert not [text for text in megatron("").doubts if said in text]


def test_a_better_plan_keeps_what_files_switch_on_and_offers_what_they_switch_off() -> None:
    """Graphs stay; unfused attention goes, with the word that asks for it."""
    graphed = megatron("--cuda-graph-impl transformer_engine --cuda-graph-scope attn mlp")
    assert graphed.job.request is not None
    assert graphed.job.request.switches == {"cuda_graph_scope": "attn;mlp"}
    assert not [change for change in graphed.changes if any("cuda-graph" in word for word in change.remove)]
    unfused = megatron("--attention-backend unfused")
    assert [change for change in unfused.changes if "--attention-backend" in change.remove]


BRIDGE = """\
def pretrain(cfg):
    cfg.train.global_batch_size = 64
    cfg.train.micro_batch_size = 1
    cfg.model.seq_length = 8192
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.pipeline_model_parallel_size = 1
    cfg.ddp.use_distributed_optimizer = True
    {words}
    return cfg
"""


def bridge(words: str, **flags: str) -> Audit:
    """The audit of overrides of a recipe."""
    given = {"model": "llama-3.1-8b", "gpus": "8", "gpu": "b200-sxm"} | flags
    found = audited_texts({"recipe.py": BRIDGE.format(words=words)}, Flags(gpu="b200-sxm"))
    if found.predicted is None:
        reading = found.reading
        found = audited(reading, Flags(**given), load_calibration())
    assert found.predicted is not None, found.job.missing
    return found


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ('cfg.model.attention_backend = "unfused"', "attention_kernel", "unfused"),
        ('cfg.model.cuda_graph_impl = "transformer_engine"; cfg.model.cuda_graph_scope = ["attn"]',
         "cuda_graph_scope", "attn"),
        ('cfg.model.cuda_graph_impl = "local"; cfg.model.cuda_graph_scope = "full_iteration"',
         "cuda_graph_scope", "full_iteration"),
        ("cfg.model.enable_cuda_graph = True", "cuda_graph_scope", "attn;mlp"),
        ('cfg.model.cross_entropy_fusion_impl = "te"', "loss", "fused_cross_entropy"),
    ],
)  # fmt: skip
def test_a_word_of_a_recipe_is_shown_with_its_line(words: str, name: str, value: str) -> None:
    """Dotted, as overrides of a configuration are."""
    assert switch(bridge(words), name) == (value, 8)


@pytest.mark.usefixtures("searched_in_nightly")
def test_words_of_a_recipe_move_time_and_memory() -> None:
    """Unfused attention keeps its scores."""
    plain, unfused = bridge("pass"), bridge('cfg.model.attention_backend = "unfused"')
    assert step_s(plain) < step_s(unfused)
    assert peak(plain) < peak(unfused)
    native = bridge('cfg.model.cross_entropy_fusion_impl = "native"')
    assert [text for text in native.doubts if "priced as with it" in text]
    assert not [text for text in plain.doubts if "priced as with it" in text]


TITAN = """\
def recipe():
    return Trainer.Config(
        training=TrainingConfig(local_batch_size=1, global_batch_size=8, seq_len=8192 {training}),
        parallelism=ParallelismConfig(tensor_parallel_degree=1, data_parallel_shard_degree=8),
        {words}
    )
"""
CHUNKS = "loss=ChunkedLossWrapper.Config({}loss_fn=CrossEntropyLoss.Config()),"


def titan(words: str = "", training: str = "") -> Audit:
    """The audit of a configuration of torchtitan."""
    text = TITAN.format(words=words, training=training)
    flags = Flags(model="llama-3.1-8b", gpus="8", gpu="b200-sxm")
    found = audited(read_texts({"config.py": text}), flags, load_calibration())
    assert found.predicted is not None, found.job.missing
    return found


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("words", "training", "name", "value"),
    [
        (CHUNKS.format("num_chunks=4, "), "", "loss", ("chunked:4", 5)),
        (CHUNKS.format(""), "", "loss", ("chunked:8", 5)),
        ("compile=CompileConfig(enable=True),", "", "compile", ("on", 5)),
        ('compile=CompileConfig(enable=True, components=["loss"]),', "", "compile", ("off", 5)),
        ("", ", disable_cuda_graphs=False", "cuda_graph_scope", ("full_iteration", 3)),
        ("", ", disable_cuda_graphs=True", "cuda_graph_scope", ("none", 3)),
        ("", "", "cuda_graph_scope", None),
    ],
)
def test_a_word_of_torchtitan_is_shown_with_its_line(
    words: str, training: str, name: str, value: tuple[str, int] | None
) -> None:
    """Of the wrapper of a loss its own number of chunks."""
    assert switch(titan(words, training), name) == value


@pytest.mark.usefixtures("searched_in_nightly")
def test_words_of_torchtitan_move_time_and_memory() -> None:
    """Chunks hold fewer logits, graphs and compiled layers are faster; flexible attention is told."""
    plain, chunked = titan(), titan(CHUNKS.format("num_chunks=8, "))
    assert peak(chunked) < peak(plain)
    assert step_s(titan("compile=CompileConfig(enable=True),")) < step_s(plain)
    assert step_s(titan("", ", disable_cuda_graphs=False")) <= step_s(plain)
    flexible = titan('model_spec=model_registry("8B", attn_backend="flex"),')
    assert [text for text in flexible.doubts if "attn_backend flex is priced as torch's own choice" in text]


FACTORY = "cutoff_len: 8192\nfinetuning_type: full\nper_device_train_batch_size: 1\nbf16: true\n{}\n"
AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 8192\nmicro_batch_size: 1\nbf16: true\n{}\n"
TRAINER = "model_name_or_path: meta-llama/Llama-3.1-8B\nmax_length: 8192\nper_device_train_batch_size: 1\nbf16: true\n{}\n"
ACCELERATED = "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n{}\n"
OTHERS = {"LLaMA-Factory": FACTORY, "Axolotl": AXOLOTL, "HF Trainer": TRAINER, "Accelerate": ACCELERATED}
OTHER_WORDS = (
    ("LLaMA-Factory", "flash_attn: fa2", "attention_kernel", "fa2"),
    ("LLaMA-Factory", "flash_attn: disabled", "attention_kernel", "unfused"),
    ("LLaMA-Factory", "flash_attn: auto", "attention_kernel", None),
    ("LLaMA-Factory", "enable_liger_kernel: true", "loss", "fused_linear"),
    ("LLaMA-Factory", "torch_compile: true", "compile", "on"),
    ("Axolotl", "flash_attention: true", "attention_kernel", "fa2"),
    ("Axolotl", "sdp_attention: true", "attention_kernel", "sdpa"),
    ("Axolotl", "eager_attention: true", "attention_kernel", "unfused"),
    ("Axolotl", "liger_fused_linear_cross_entropy: true", "loss", "fused_linear"),
    ("Axolotl", "cut_cross_entropy: true", "loss", "fused_linear"),
    ("Axolotl", "liger_cross_entropy: true", "loss", "fused_cross_entropy"),
    ("Axolotl", "torch_compile: false", "compile", None),
    ("HF Trainer", "attn_implementation: eager", "attention_kernel", "unfused"),
    ("HF Trainer", "attn_implementation: flash_attention_2", "attention_kernel", "fa2"),
    ("HF Trainer", "attn_implementation: flash_attention_3", "attention_kernel", "fa3"),
    ("HF Trainer", "attn_implementation: sdpa", "attention_kernel", "sdpa"),
    ("HF Trainer", "use_liger_kernel: true", "loss", "fused_linear"),
    ("HF Trainer", "torch_compile_backend: inductor", "compile", "on"),
    ("Accelerate", "dynamo_config:\n  dynamo_backend: INDUCTOR", "compile", "on"),
    ("Accelerate", "dynamo_config:\n  dynamo_backend: 'NO'", "compile", "off"),
)  # fmt: skip


def other(family: str, words: str = "") -> Audit:
    """The audit of a YAML file of a tool over the Trainer."""
    flags = Flags(model="llama-3.1-8b", gpus="8", gpu="b200-sxm", sequence_length="65536")
    found = audited(read_texts({"run.yaml": OTHERS[family].format(words)}), flags, load_calibration())
    assert found.reading.family.name == family
    assert found.predicted is not None, (found.job.missing, found.findings)
    return found


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("family", "words", "name", "value"), OTHER_WORDS)
def test_a_word_of_a_trainer_is_shown_with_its_line(
    family: str, words: str, name: str, value: str | None
) -> None:
    """Of a tool without a contract as well as of one with."""
    found = other(family, words)
    line = OTHERS[family].count("\n") + words.count("\n")
    assert switch(found, name) == (None if value is None else (value, line))
    assert not [finding for finding in found.findings if finding.kind in ("illegal", "unpriced")]


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("family", "eager", "fused", "compiled"),
    [
        ("LLaMA-Factory", "flash_attn: disabled", "enable_liger_kernel: true", "torch_compile: true"),
        ("Axolotl", "eager_attention: true", "cut_cross_entropy: true", "torch_compile: true"),
        ("HF Trainer", "attn_implementation: eager", "use_liger_kernel: true", "torch_compile: true"),
        ("Accelerate", "attn_implementation: eager", "use_liger_kernel: true",
         "dynamo_config:\n  dynamo_backend: inductor"),
    ],
)  # fmt: skip
def test_words_of_a_trainer_move_time_and_memory(family: str, eager: str, fused: str, compiled: str) -> None:
    """Eager attention is slower and larger, a fused head smaller, compiled layers faster."""
    plain = other(family)
    assert step_s(plain) < step_s(other(family, eager))
    assert peak(plain) < peak(other(family, eager))
    assert peak(other(family, fused)) < peak(plain)
    assert step_s(other(family, compiled)) < step_s(plain)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("family", "words", "said"),
    [
        ("HF Trainer", "attn_implementation: kernels-community/flash-mla", "priced as without it"),
        ("HF Trainer", "attn_implementation: flex_attention", "attn_implementation flex_attention: priced as without it"),
        ("HF Trainer", "use_liger_kernel: true", "norms, rotary positions and activations of Liger too"),
        ("Axolotl", "xformers_attention: true", "xformers_attention True: priced as without it"),
        ("Axolotl", "liger_rope: true\nliger_rms_norm: true", "liger_rms_norm True: priced as without it"),
    ],
)  # fmt: skip
def test_what_a_trainer_is_told_beside_is_told_too(family: str, words: str, said: str) -> None:
    """Never silent; a file without the word says nothing of it."""
    assert [text for text in other(family, words).doubts if said in text]
    assert not [text for text in other(family).doubts if said in text]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", ("allgather", "default")),
        ("--moe-token-dispatcher-type alltoall", ("alltoall", "stated")),
        ("--num-experts 0", None),
    ],
)
def test_how_tokens_reach_experts_is_shown_whether_stated_or_not(more, said):
    """Megatron-LM gathers tokens without a word (arguments.py), which moves every step of a model with experts."""
    text = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --expert-model-parallel-size 8 --num-layers 16 "
        "--hidden-size 2048 --ffn-hidden-size 1024 --num-attention-heads 16 --swiglu --num-experts 64 --moe-router-topk 8 "
        f"--seq-length 4096 --micro-batch-size 1 --global-batch-size 256 --bf16 --vocab-size 50304 {more}"
    )
    if said is None:
        text = text.replace("--num-experts 64 --moe-router-topk 8 ", "").replace("--num-experts 0", "")
        text = text.replace("--expert-model-parallel-size 8 ", "")
    reading = read_texts({"m.sh": text})
    request = audited_job(reading, Flags(gpu="h100-sxm")).request
    assert request is not None
    facts = {fact.name: fact for fact in switch_facts(reading, request)}
    fact = facts.get("switch.dispatcher")
    assert (None if fact is None else (fact.value, fact.how)) == said


@pytest.mark.parametrize("word", ["--torch_compile", ""])
def test_no_proven_best_is_slower_than_the_job_or_than_what_a_change_reaches(word):
    """A priced switch of the files is one of the best plan too, where it gains time."""
    text = (
        "torchrun --nproc_per_node 2 run_clm.py --model_name_or_path meta-llama/Llama-3.2-1B --block_size 2048 "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --bf16 --fsdp 'full_shard auto_wrap' "
    )
    found = whole_audit({"run.sh": f"{text} {word}"}, Flags(gpu="h100-sxm"))
    assert found.best is not None
    assert found.predicted is not None
    assert found.changes
    reached = min(found.predicted.step_time_s, *(change.step_time_s for change in found.changes))
    assert found.best.estimate.step_time_s <= reached
    assert ("compile" in found.best.request.switches) is bool(word)
