"""Step lines of 29 engines as they come out of a cluster: behind ranks, coloured, interleaved, cut, several runs.

Lines are made up in the forms that each engine prints; step k of run r takes its seconds, the first ten times as long.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from planner.audit.read import read_texts
from planner.formats.kinds import kind_of
from planner.formats.logs import measured_of
from planner.formats.step_lines import Work
from topology.base.errors import InputError

TOKENS, GPUS, SAMPLES, FLOP = 4_194_304, 64, 512, 2.0e17
WORK = Work(gpus=GPUS, tokens=float(TOKENS), samples=float(SAMPLES), flop=FLOP)
STEPS = 12
LINES: dict[str, Callable[[int, float], str]] = {
    "Megatron-LM": lambda k, s: f" [2025-12-19 10:49:15] iteration {k:8}/    1000 | consumed samples: {k * 512:12} | elapsed time per iteration (ms): {s * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): {FLOP / s / GPUS / 1e12:.1f} | learning rate: 3.0E-05 | global batch size:   512 | lm loss: 1.2E+01 |",
    "Megatron-LM of BigScience": lambda k, s: f" iteration {k:8}/  115311 | consumed samples: {k * 512:12} | elapsed time per iteration (s): {s:.2f} | learning rate: 5.9E-05 | global batch size:   512 | lm loss: 2.4E+00 | samples per second: {512 / s:.3f} |",
    "Megatron-DeepSpeed": lambda k, s: f"steps: {k} loss: 2.3131 iter time (ms): {s * 1000:.3f} samples/sec: {512 / s:.3f}",
    "DeepSpeed pipelines": lambda k, s: f"steps: {k} loss: 2.3131 iter time (s): {s:.3f} samples/sec: {512 / s:.3f}",
    "DeepSpeed": lambda k, s: f"[2023-04-18 01:46:52,554] [INFO] [timer.py:199:stop] epoch=0/micro_step={k}/global_step={k}, RunningAvgSamplesPerSec={512 / s:.6f}, CurrSamplesPerSec={512 / s:.6f}, MemAllocated=4.34GB, MaxMemAllocated=22.5GB",
    "GPT-NeoX": lambda k, s: f" samples/sec: {512 / s:.3f} | iteration {k:8}/  320000 | elapsed time per iteration (ms): {s * 1000:.1f} | learning rate 1.2E-05 | approx flops per GPU: {FLOP / s / GPUS / 1e12:.1f}TFLOPS | lm_loss: 1.0E+01 |",
    "Megatron-Bridge": lambda _, s: f"Step Time : {s:.2f}s GPU utilization: {FLOP / s / GPUS / 1e12:.1f}MODEL_TFLOP/s/GPU",
    "NeMo": lambda k, s: f"Training epoch 0, iteration {k - 1}/99 | lr: 2.0e-05 | global_batch_size: 512 | global_step: {k - 1} | reduced_train_loss: 11.03 | train_step_timing in s: {s:.4g} | consumed_samples: {k * 512}",
    "nanotron": lambda k, s: f"07/01/2025 12:00:01 [INFO|DP=0|PP=0|TP=0|ip-1]: iteration: {k} / 500 | consumed_tokens: {k * 4.19:.3g}M | elapsed_time_per_iteration_ms: {s:.4g}K | tokens_per_sec: {TOKENS / s / 1e3:.4g}K | tokens_per_sec_per_gpu: {TOKENS / s / GPUS / 1e3:.4g}K | global_batch_size: 4.19M | lm_loss: 11.2",
    "torchtitan": lambda k, s: f"[titan] 2025-09-01 12:00:01,123 - root - INFO - step: {k:2}  loss:  9.4123  grad_norm:  1.2  memory: 48.87GiB(51.44%)  tps: {TOKENS / s / GPUS:,.0f}  tflops: {FLOP / s / GPUS / 1e12:.2f}  mfu: 25.62%",
    "torchtitan of 2024": lambda k, s: f"2024-09-01 12:00:01,123 - root - INFO - step: {k:2}  loss:  9.4123  memory: 48.87GiB(51.44%)  wps: {TOKENS / s / GPUS:,.0f}  mfu: 25.62%",
    "MaxText": lambda k, s: f"completed step: {k}, seconds: {s:.3f}, TFLOP/s/device: {FLOP / s / GPUS / 1e12:.3f}, Tokens/s/device: {TOKENS / s / GPUS:.3f}, total_weights: {TOKENS}, loss: 10.2",
    "levanter": lambda k, s: f"INFO:levanter.callbacks: Progress on:train {k}.00it/1.00kit rate:{1 / s:.4f}it/s remaining:1:00:00 elapsed:00:10 postfix:loss=10.2",
    "OLMo-core": lambda k, s: f"2025-03-01 10:00:00.123 host:0 olmo_core.train.callbacks.console_logger:123 INFO [step={k}/9000,epoch=1,eta=1 day] throughput/device/BPS={1 / s:.5f} throughput/device/TPS={TOKENS / s / GPUS:,.0f}",
    "LLM Foundry": lambda k, s: f"[batch={k}/4800]: Train throughput/device/tokens_per_sec: {TOKENS / s / GPUS:.4f} Train throughput/samples_per_sec: {512 / s:.4f}",
    "torchtune": lambda k, s: f"Step {k} | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:{TOKENS / s / GPUS:.3f} peak_memory_active:14.2",
    "NeMo AutoModel": lambda k, s: f"2025-10-01 12:00:00 | INFO | root | step {k} | epoch 0 | loss 1.2 | grad_norm 2.1 | lr 1.0e-05 | mem 20.5 GiB | tps {TOKENS / s:.2f}({TOKENS / s / GPUS:.2f}/gpu) | num_label_tokens 812",
    "ms-swift": lambda k, s: f"{{'loss': 2.01, 'grad_norm': 1.1, 'learning_rate': 1e-05, 'memory(GiB)': 36.5, 'train_speed(iter/s)': {1 / s:.6f}, 'epoch': 0.1, 'global_step/max_steps': '{k}/100', 'percentage': '5.00%'}}",
    "ms-swift of 2026": lambda k, s: f"{{'loss': '2.01', 'memory(GiB)': '36.5', 'train_speed(s/it)': '{s:.6f}', 'iteration': '{k}/100'}}",
    "LLaMA-Factory": lambda k, s: f'{{"current_steps": {k}, "total_steps": 300, "loss": 1.2, "lr": 1e-05, "epoch": 0.1, "throughput": {TOKENS / s:.2f}, "total_tokens": {k * TOKENS}}}',
    "HF Trainer's bar": lambda k, s: f"  {k}%|▌         | {k}/100 [00:{k:02}<1:00:00, {s:5.2f}s/it]",
    "Primus": lambda k, s: f"[rank-7/8][INFO ] iteration {k:8}/      50 | consumed samples: {k * 512:12} | elapsed time per iteration (ms): {s * 1000:.1f}/{s * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): {FLOP / s / GPUS / 1e12:.1f}/1.0 | tokens per GPU (tokens/s/GPU): {TOKENS / s / GPUS:.1f}/1.0 |",
    "PyTorch FSDP of AWS": lambda k, s: f"2024-05-01 12:00:00 I [train.py:123] Batch {k} Loss: 15.0, Speed: {512 / s:.4f} samples/sec, lr: 0.0001",
    "MLPerf of NeMo": lambda k, s: f':::MLLOG {{"namespace": "", "time_ms": 1728328520818, "event_type": "POINT_IN_TIME", "key": "tracked_stats", "value": {{"train_step_time": {s:.4f}}}, "metadata": {{"step": {k}}}}}',
    "DLLogger": lambda k, s: f'DLLL {{"timestamp": "1", "step": {k}, "type": "LOG", "data": {{"train_step_timing in s": {s:.4f}}}}}',
    "Colossal-AI": lambda k, s: f"[2024-01-01 12:00:00] num_samples: {k}, dp_world_size: 8, flop_per_sample: 1, avg_duration: {s:.4f}, avg_throughput: {512 / s:.4f}, TFLOPS_per_GPU: {FLOP / s / GPUS / 1e12:.4f}",
    "verl": lambda k, s: f"step:{k} - train/loss:1.2 - train/lr(1e-3):0.01 - perf/time_per_step:{s:.4f} - perf/max_memory_allocated_gb:40.1",
    "prime-rl": lambda k, s: f"12:00:01    INFO Step {k} | Time: {s:.2f}s | Loss: 1.2345 | Grad. Norm: 0.5 | LR: 1.0e-05 | Throughput: {TOKENS / s:.0f} tokens/s | MFU: 41.2% | Peak Mem.: 40.1/79.6 GiB (50.4%)",
    "Axolotl": lambda _, s: f"{{'loss': '1.1', 'grad_norm': '1.0', 'tokens_per_second_per_gpu': '{TOKENS / s / GPUS:.2f}', 'memory/max_active (GiB)': '12.5', 'epoch': '0.1'}}",
}  # fmt: skip
NOISE = ("/usr/lib/python3/warnings.py:12: FutureWarning: deprecated", "NCCL version 2.27.3+cuda12.9", "")


def seconds_of(k: int) -> float:
    """Of step k: a long first one, then much the same each."""
    return 50.0 if k == 1 else 5.0 + 0.01 * (k % 3)


def plain(engine: str) -> list[str]:
    return [LINES[engine](k, seconds_of(k)) for k in range(1, STEPS + 1)]


def behind_ranks(lines: list[str]) -> str:
    """As srun --label and torchrun print them, tee'd with the time before each."""
    return "".join(
        f"{k % 2}: [rank{k % 2}]:[2026-01-02 03:04:05,678] {line}\n" for k, line in enumerate(lines)
    )


def coloured(lines: list[str]) -> str:
    """Every other word in a colour."""
    return "".join(
        " ".join(
            f"\x1b[3{n % 8}m{word}\x1b[0m" if n % 2 and word else word
            for n, word in enumerate(line.split(" "))
        )
        + "\n"
        for line in lines
    )


def interleaved(lines: list[str]) -> str:
    """Eight ranks that print the same, one later than the other, and warnings between them."""
    rng, result = random.Random(1), []
    for line in lines:
        result += [line] * 8 + [rng.choice(NOISE)]
    return "\n".join(result) + "\n"


def cut(lines: list[str]) -> str:
    """What `tail -c` and a killed job leave: half a line at both ends, one of them within its number."""
    text = "\n".join(lines) + "\n"
    last = lines[-1]
    return text[len(lines[0]) // 2 : len(text) - len(last) + len(last) * 2 // 3]


TORN = {"behind ranks": behind_ranks, "coloured": coloured, "interleaved": interleaved, "cut": cut}


@pytest.mark.parametrize("how", TORN)
@pytest.mark.parametrize("engine", LINES)
def test_a_step_is_read_however_its_line_comes(engine: str, how: str) -> None:
    """Within a hundredth of the step that every line but the first says."""
    text = TORN[how](plain(engine))
    log = read_texts({"job.log": text}).measured
    assert log is not None
    pace = log.pace(WORK)
    assert pace is not None
    assert pace.step_s == pytest.approx(5.01, rel=0.01)


@pytest.mark.parametrize("engine", LINES)
def test_a_log_is_known_by_what_it_says(engine: str) -> None:
    """Whatever its file is called."""
    assert kind_of("\n".join(plain(engine)), "saved.txt") == "log"


NUMBERED = [engine for engine in LINES if engine not in ("Megatron-Bridge", "Axolotl", "Colossal-AI")]


@pytest.mark.parametrize("engine", NUMBERED)
def test_of_several_runs_the_last_counts(engine: str) -> None:
    """A file that a second run was appended to: twice as slow, other settings."""
    second = [LINES[engine](k, 2 * seconds_of(k)) for k in range(1, STEPS + 1)]
    found = measured_of("\n".join((*plain(engine), *second)) + "\n")[0]
    pace = found.pace(WORK)
    assert pace is not None
    assert pace.step_s == pytest.approx(10.02, rel=0.01)
    assert any("2 runs" in doubt for doubt in found.doubts)


def test_a_number_that_the_end_of_a_file_cuts_is_no_step() -> None:
    """Of 5000.0 ms the first digit is left."""
    text = "\n".join(plain("Megatron-LM")[:3])
    text = text[: text.rindex("(ms): ") + len("(ms): 5")]
    assert measured_of(text)[0].step_time_s == pytest.approx(5.02, rel=0.01)


def test_a_bar_of_an_evaluation_is_no_other_run() -> None:
    """It begins anew with each evaluation; the training's goes on."""
    bar = "  5%|x | {k}/{of} [00:32<10:11,  {s:.2f}s/it]\n"
    text = "".join(bar.format(k=k, of=200, s=5.0) for k in range(1, 20))
    text += "".join(bar.format(k=k, of=20, s=0.5) for k in range(1, 20)) * 2
    text += "".join(bar.format(k=k, of=200, s=5.0) for k in range(20, 40))
    found = measured_of(text)[0]
    assert found.step_time_s == pytest.approx(5.0)
    assert not [doubt for doubt in found.doubts if "runs" in doubt]


def test_settings_of_an_earlier_run_are_not_those_of_the_last() -> None:
    """Each prints its arguments before its steps."""
    runs = ("  micro_batch_size .............. 1\n", "  micro_batch_size .............. 4\n")
    text = "".join(head + "\n".join(plain("Megatron-LM")) + "\n" for head in runs)
    settings = measured_of(text)[1]
    assert [(setting.name, setting.value) for setting in settings] == [("micro_batch_size", "4")]


def test_a_log_of_no_known_form_shows_what_looks_like_a_step() -> None:
    """With its line, and how many more there are."""
    text = "INFO start\n" + "".join(f"INFO update {k} took {k + 0.5} s\n" for k in range(1, 8))
    with pytest.raises(InputError) as refused:
        read_texts({"mine.log": text})
    assert "line 5 and 6 more look like one: INFO update 4 took 4.5 s" in refused.value.cause
    with pytest.raises(InputError) as blank:
        read_texts({"mine.log": "INFO start\nINFO end\n"})
    assert blank.value.cause.startswith("none looks like one")
