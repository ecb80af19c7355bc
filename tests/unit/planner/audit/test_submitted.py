"""Jobs behind a submitting script, batches that are counted in tokens, and logs of more than training."""

import pytest

from costmodel.kernels.tables import load_calibration
from planner.audit.audit import audited
from planner.audit.job import audited_job
from planner.audit.read import read_texts
from planner.questions.flags import Flags

FLAGS = Flags(gpu="h100-sxm")
MASON = (
    "python mason.py --cluster ai2/jupiter --num_nodes 4 --gpus 8 -- accelerate launch --num_processes 8 "
    "--use_deepspeed --deepspeed_config_file configs/ds_configs/{} open_instruct/finetune.py "
    "--model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 4096 --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 2 --gradient_checkpointing\n"
)


def test_nodes_of_a_submitting_script_are_those_of_the_job() -> None:
    """AI2's mason.py counts nodes and GPUs of each; what stands behind ``--`` is started on every one."""
    job = audited_job(read_texts({"run.sh": MASON.format("stage3_no_offloading_accelerate.conf")}), FLAGS)
    assert job.request is not None
    assert job.layout is not None
    assert (job.request.cluster.num_gpus, job.layout.dp, job.request.job.global_batch_size) == (32, 32, 64)


@pytest.mark.parametrize(
    ("name", "offloads"),
    [
        ("stage3_no_offloading_accelerate.conf", False),
        ("zero3_no_cpu_offload.json", False),
        ("stage3_offloading_accelerate.conf", True),
    ],
)
def test_a_name_that_denies_an_offload_has_none(name: str, *, offloads: bool) -> None:
    facts = read_texts({"run.sh": MASON.format(name)}).facts
    assert ("said.offload_optimizer" in facts.by_field) == offloads


VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_prompt_length=512 "
    "data.max_response_length=1536 actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct "
    "actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.rollout.n=4 "
    "actor_rollout_ref.actor.use_dynamic_bsz={} actor_rollout_ref.actor.ppo_max_token_len_per_gpu={} "
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size={} trainer.n_gpus_per_node=8 trainer.nnodes=1\n"
)


@pytest.mark.parametrize(
    ("dynamic", "tokens", "ranks", "size"),
    [
        ("True", 16384, 1, 8),  # 8 answers of 2,048, which divide the 128 of a rank
        ("True", 20000, 1, 8),  # 9 would fit, and do not divide
        ("True", 1024, 1, 1),  # the longest answer is computed all the same
        ("True", 8192, 2, 8),  # two ranks share a sequence, and its tokens
        ("False", 16384, 1, 1),
    ],
)
def test_a_batch_of_tokens_is_one_of_answers_at_their_longest(
    dynamic: str, tokens: int, ranks: int, size: int
) -> None:
    job = audited_job(read_texts({"run.sh": VERL.format(dynamic, tokens, ranks)}), FLAGS)
    assert job.layout is not None
    assert job.layout.microbatch_size == size


STEP = "step:{0} - timing_s/gen:45.2 - timing_s/update_actor:31.5 - timing_s/step:98.0 - perf/time_per_step:98.0\n"


def test_a_log_of_whole_steps_leaves_the_price_of_the_update() -> None:
    """What was measured is told as what it is, and compared with nothing."""
    texts = {"run.sh": VERL.format("True", 16384, 1)}
    alone = audited(read_texts(texts), FLAGS, load_calibration())
    texts["run.log"] = "".join(STEP.format(step) for step in range(1, 5))
    both = audited(read_texts(texts), FLAGS, load_calibration())
    assert alone.predicted is not None
    assert both.predicted is not None
    assert both.predicted.step_time_s == alone.predicted.step_time_s
    assert both.measured_step_s is None
    assert any("steps of 98 s are of generating, scoring and updating" in doubt for doubt in both.doubts)
