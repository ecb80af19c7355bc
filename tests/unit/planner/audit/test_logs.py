"""Step time, rates and memory of logs, in the units that each log prints."""

from pathlib import Path

import pytest

from planner.audit.read import read_texts
from planner.formats.logs import _MARKS, measured_of
from topology.base.units import BILLION, GIB

FILES = Path(__file__).parent / "files"
MEGATRON = """\
using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 16
  num_layers ...................................... 64
 iteration        1/    1000 | consumed samples: 1024 | elapsed time per iteration (ms): 155483.8 | global batch size:  1024 |
 iteration        2/    1000 | consumed samples: 2048 | elapsed time per iteration (ms): 129000.0 | global batch size:  1024 | throughput per GPU (TFLOP/s/GPU): 46.7 |
 iteration        3/    1000 | consumed samples: 3072 | elapsed time per iteration (ms): 128000.0 | global batch size:  1024 | throughput per GPU (TFLOP/s/GPU): 48.7 |
after 1 iterations memory (MB) | allocated: 10857.5 | max allocated: 26118.0 | reserved: 28234.0
"""
SECONDS = "iteration 5/9 | elapsed time per iteration (s): 105.22 | global batch size:  2048 | samples per second: 19.463 | TFLOPs: 149.02 |\n"


def test_the_first_step_is_a_warm_up():
    found, settings, _ = measured_of(MEGATRON)
    assert found.step_time_s == pytest.approx(128.5)
    assert found.steps == 2
    assert found.peak_memory_bytes == pytest.approx(26118 * GIB / 1024)
    assert {name: value for name, value, _ in found.job} == {
        "cluster.num_gpus": 64, "layout.dp": 1, "layout.tp": 4, "layout.pp": 16, "job.global_batch_size": 1024,
    }  # fmt: skip
    assert [(setting.name, setting.value) for setting in settings] == [("num_layers", "64")]


def test_seconds_are_not_milliseconds():
    found, _, _ = measured_of(SECONDS)
    assert (found.step_time_s, found.tflops_per_gpu, found.samples_per_s) == (105.22, 149.02, 19.463)


def test_one_step_is_no_steady_state():
    assert any("warm-up" in doubt for doubt in measured_of(SECONDS)[0].doubts)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("step: 20  loss: 11.8  memory: 48.87GiB(51.44%)  tps: 4,376  tflops: 253.41  mfu: 25.62%", "tokens_per_s_per_gpu", 4376),
        ("step: 20  loss: 11.8  memory: 48.5GiB(51.44%)  tps: 4,376  tflops: 253.41", "peak_memory_bytes", 48.5 * GIB),
        ("[Rank 0] memory (GB) | mem-max-allocated-gigabytes: 194.41 | x", "peak_memory_bytes", 194.41 * BILLION),
        ("RunningAvgSamplesPerSec=172.5, CurrSamplesPerSec=171.0, MaxMemAllocated=22.5GB", "samples_per_s", 172.5),
        ("RunningAvgSamplesPerSec=172.5, CurrSamplesPerSec=171.0, MaxMemAllocated=22.5GB", "peak_memory_bytes", 22.5 * GIB),
        ("{'train_runtime': 9.0, 'train_samples_per_second': 12.5, 'train_steps_per_second': 0.5}", "step_time_s", 2.0),
        (" 5%|▌  | 10/200 [00:32<10:11,  3.25s/it]", "step_time_s", 3.25),
        ("Epoch 0: 3%| | 3/100 [00:10<05:00, v_num=0, train_step_timing in s=6.5]", "step_time_s", 6.5),
        ("steps: 10 loss: 2.3 iter time (ms): 5200.0 samples/sec: 12.3", "step_time_s", 5.2),
        ("iteration: 2 | elapsed_time_per_iteration_ms: 6.5K | tokens_per_sec_per_gpu: 1.26K", "step_time_s", 6.5),
        ("iteration: 2 | elapsed_time_per_iteration_ms: 6.5K | tokens_per_sec_per_gpu: 1.26K", "tokens_per_s_per_gpu", 1260),
        ("samples/sec: 44.1 | approx flops per GPU: 116.1TFLOPS |", "tflops_per_gpu", 116.1),
        ("Step Time : 9.02s GPU utilization: 712.9MODEL_TFLOP/s/GPU", "step_time_s", 9.02),
        ("Step Time : 9.02s GPU utilization: 712.9MODEL_TFLOP/s/GPU", "tflops_per_gpu", 712.9),
        ("MA 10.1 GB  Max_MA 12.5 GB  CA 13.0 GB  Max_CA 13 GB", "peak_memory_bytes", 12.5 * GIB),
        ("Batch 3 Loss: 15.0, Speed: 10.61 samples/sec, lr: 0.0001", "samples_per_s", 10.61),
        (':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 14.2}}', "step_time_s", 14.2),
        ('DLLL {"step": 1, "data": {"train_step_timing in s": 25.4}}', "step_time_s", 25.4),
    ],
)  # fmt: skip
def test_every_engine_prints_in_its_own_way(line, name, value):
    assert getattr(measured_of(line)[0], name) == pytest.approx(value)


@pytest.mark.parametrize(
    ("lines", "stated"),
    [
        ("global_step=1.0, consumed_samples=64.0\nglobal_step=3.0, consumed_samples=192.0", {"job.global_batch_size": 64}),
        ("global_batch_size: 128 | x", {"job.global_batch_size": 128}),
        ("global_batch_size: 2.1M | x", {}),
        ("  Total train batch size (w. parallel, distributed & accumulation) = 1,024", {"job.global_batch_size": 1024}),
        ("Building 2-D device mesh with ['dp_shard', 'tp'], [8, 2]", {"said.dp_shard": 8, "layout.tp": 2}),
        ("local batch size 1, global batch size 8, sequence length 8192", {
            "layout.microbatch_size": 1, "job.global_batch_size": 8, "job.sequence_length": 8192,
        }),
    ],
)  # fmt: skip
def test_what_a_log_says_of_its_job_in_sentences_is_read(lines, stated):
    """A batch of tokens, as nanotron prints it, is no batch of samples."""
    assert {name: value for name, value, _ in measured_of(lines)[0].job} == stated


@pytest.mark.parametrize(
    "prefix", ["0: ", "[rank3]:", "[1,0]<stdout>:", "[2024-03-01 08:11:02] [INFO] [a.py:9:print] "]
)
def test_what_launchers_put_before_a_line_is_passed_over(prefix):
    _, settings, command = measured_of(
        f"{prefix}  hidden_size ..... 64\n{prefix}+ torchrun x.py --num-layers 8\n"
    )
    assert [(setting.name, setting.value) for setting in settings] == [("hidden_size", "64")]
    assert command == "torchrun x.py --num-layers 8"


def test_a_throughput_with_evaluation_is_doubted():
    line = ':::MLLOG {"key": "tracked_stats", "value": {"throughput": 208833.7}}'
    assert any("includes evaluation" in doubt for doubt in measured_of(line)[0].doubts)


def test_what_a_logger_records_of_its_configuration_is_read():
    line = 'DLLL {"step": "PARAMETER", "data": {"cfg/tensor_model_parallel_size": 4, "cfg/fp8": true}}'
    assert [(s.name, s.value) for s in measured_of(line)[1]] == [
        ("cfg.tensor_model_parallel_size", 4),
        ("cfg.fp8", True),
    ]


@pytest.mark.parametrize("path", sorted(FILES.glob("*.log")), ids=lambda path: path.name)
def test_a_line_that_a_pattern_matches_has_one_of_its_words(path):
    """Or the pattern would be passed over in a log that has it."""
    for line in path.read_text(encoding="utf-8").splitlines():
        for pattern, words in _MARKS.items():
            assert not pattern.search(line) or any(word in line.lower() for word in words)


def test_a_step_of_four_hundred_digits_is_no_step():
    """An integer that no float holds ended the audit."""
    line = ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": ' + "9" * 400 + "}}\n"
    assert measured_of(line * 3)[0].step_time_s is None


RUN = "load: /x/pretrain_llama3_8b_bf16_gpus8_tp2_pp1_cp1_vpNone_ep1_mbs4_gbs128/checkpoints/iter_0000050\n"


def test_the_name_of_a_run_tells_its_layout():
    """scripts/performance of Megatron-Bridge call a run so; what is None is not told, and a few pairs are no name.

    Its recipe is told before them, by which the length is known that is published with it.
    """
    stated = {name: value for name, value, _ in measured_of(RUN + SECONDS)[0].job}
    assert stated == {
        "cluster.num_gpus": 8, "layout.tp": 2, "layout.pp": 1, "layout.cp": 1, "layout.ep": 1,
        "layout.microbatch_size": 4, "job.global_batch_size": 2048, "said.run_recipe": "llama3_8b_pretrain",
    }  # fmt: skip
    short, plain = (measured_of(head + MEGATRON)[0].job for head in ("model_tp2_pp1/iter_50\n", "\n"))
    assert short == plain


def test_a_length_follows_from_what_two_lines_have_consumed():
    """The first line counts shorter sequences of a curriculum, too: what is between two lines is of one length."""
    line = (
        "iteration 5/9 | consumed samples: {} | consumed tokens: {} | elapsed time per iteration (s): 9.0 |\n"
    )
    text = line.format(1000, 1_500_000) + line.format(1010, 1_500_000 + 10 * 2048)
    assert ("job.sequence_length", 2048, 2) in measured_of(text)[0].job
    assert not measured_of(line.format(1000, 2_048_000))[0].job


CLOCK = (
    "[2023-04-18 01:4{minute}:{second:02d},171] [INFO] [timer.py:199:stop] epoch=0/micro_step={step}/global_step={step}, "
    "RunningAvgSamplesPerSec=173.4, CurrSamplesPerSec=172.0, MemAllocated=3.96GB, MaxMemAllocated=22.95GB\n"
)


def test_a_logger_that_prints_no_step_has_a_clock():
    """Ten steps in seven seconds and a half: 172 samples/s are 128 a step, 8 of each of 16 GPUs."""
    times = ((0, 0, 10), (0, 8, 20), (0, 15, 30), (0, 23, 40), (0, 30, 50))
    text = "".join(CLOCK.format(minute=minute, second=second, step=step) for minute, second, step in times)
    log = measured_of(text)[0]
    assert log.step_time_s is None
    assert log.interval_s == pytest.approx(0.75)
    command = "cmd = deepspeed main.py --per_device_train_batch_size 8 --gradient_accumulation_steps 1 --zero_stage 2\n"
    facts = read_texts({"t.log": command + text}).facts
    assert (facts.count("job.global_batch_size"), facts.count("cluster.num_gpus")) == (128, 16)
    unsplit = read_texts({"t.log": command.replace("--gradient_accumulation_steps 1 ", "") + text}).facts
    assert unsplit.count("cluster.num_gpus") is None


def test_arguments_that_switch_deepspeed_on_are_of_megatron_deepspeed():
    """Megatron prints both names of arguments; one that is False switches nothing on."""
    text = "  tensor_model_parallel_size ........ 4\n  num_attention_heads ........ 32\n  deepspeed ........ {}\n"
    for value, family in (("True", "Megatron-DeepSpeed"), ("False", "Megatron-LM")):
        assert read_texts({"t.log": text.format(value) + SECONDS}).family.name == family


def test_a_clock_counts_no_batch_of_gpus_that_are_known():
    """Seconds of a logger are no measure of samples: dp 4 with 3 samples each stays as it is stated."""
    text = "".join(CLOCK.format(minute=0, second=8 * at, step=10 * at) for at in range(1, 6))
    command = "cmd = deepspeed --num_gpus 4 main.py --per_device_train_batch_size 3 --zero_stage 2 --max_seq_len 512\n"
    assert read_texts({"t.log": command + text}).facts.count("job.global_batch_size") is None
