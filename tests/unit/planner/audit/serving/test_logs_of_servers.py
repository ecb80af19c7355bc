"""The log of a server is a server's: what it prints beats the estimate, and it is never a training job."""

import pytest

from app.commands.audit.answer import AuditQuestion, audit_answer_of
from app.errors import BAD_INPUT
from app.reports.audit.server import server_answer
from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import ServingAudit, audited_server
from planner.audit.serving.load import ServedLoad
from planner.audit.serving.server import server_of
from planner.formats.kinds import kind_of
from planner.formats.server_lines import (
    ServerError,
    ServerForm,
    is_server_log,
    server_errors,
    server_forms,
    server_log_of,
)
from planner.questions.flags import Flags, ServeFlags
from topology.base.units import GIB

CAL = load_calibration()
STARTED = """(APIServer pid=1) INFO vLLM API server version 0.11.0
(APIServer pid=1) INFO non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192, 'max_num_seqs': 256}
(Worker pid=2) INFO Model loading took 15.3 GiB and 9.0 seconds
(Worker pid=2) INFO Available KV cache memory: 4.5 GiB
(EngineCore pid=2) INFO GPU KV cache size: 32,768 tokens
(EngineCore pid=2) INFO Maximum concurrency for 8,192 tokens per request: 4.00x
"""
BUSY = STARTED + (
    "(APIServer pid=1) INFO Engine 000: Avg generation throughput: 600.0 tokens/s, Running: 30 reqs, "
    "Waiting: 90 reqs, GPU KV cache usage: 99.2%, Prefix cache hit rate: 0.0%\n"
)
STOPPED = """INFO Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-8B', max_seq_len=40960, dtype=x
INFO Model loading took 15.3 GiB and 9.0 seconds
INFO Available KV cache memory: 4.5 GiB
ERROR ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is needed, \
which is larger than the available KV cache memory (4.50 GiB). The estimated maximum model length is 32768.
ERROR RuntimeError: Engine core initialization failed. See root cause above.
"""
SGLANG = """[2026 TP0] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=2, mem_fraction_static=0.5, quantization=None)
[2026 TP0] Load weight end. elapsed=9.1 s, type=Qwen3, avail mem=12.00 GB, mem usage=7.70 GB.
[2026 TP0] KV Cache is allocated. #tokens: 60000, K size: 2.06 GB, V size: 2.06 GB
[2026 TP0] Decode batch. #running-req: 9, #token: 20000, token usage: 0.33, gen throughput (token/s): 700.0, #queue-req: 0,
"""


def audit(text: str, *loads: ServedLoad, gpu: str | None = None) -> ServingAudit:
    """What is said of a log."""
    reading = read_texts({"out.log": text})
    return audited_server(CAL, reading, server_of(reading, model=None, gpu=gpu), loads)


@pytest.mark.parametrize("form", server_forms(), ids=lambda form: f"{form.of}-{form.means}")
def test_every_form_says_what_its_example_says(form: ServerForm) -> None:
    """In SI units, on lines that have its mark."""
    assert form.number(form.example) == form.value
    assert form.mark in form.example.lower()
    assert is_server_log(form.example)
    assert not is_server_log(f"# {form.example}")


@pytest.mark.parametrize("error", server_errors(), ids=lambda error: error.example[:40])
def test_every_error_has_what_helps(error: ServerError) -> None:
    """The kind of the example is the first that it has."""
    log = server_log_of(f"{STARTED}ERROR {error.example}\n")
    assert log is not None
    assert (log.stopped, log.remedy) == (True, error.remedy)


@pytest.mark.parametrize("text", [STARTED, BUSY, STOPPED, SGLANG])
def test_a_log_of_a_server_is_no_training_job(text: str) -> None:
    """Whatever it is called, and whatever is asked beside it."""
    assert kind_of(text, "out.txt") == "log"
    answer = audit_answer_of(AuditQuestion(files=("o.log",), texts={"o.log": text}), Flags(gpu="rtx-4090"))
    assert answer.headline.startswith("o.log: a server of ")


def test_a_log_of_training_that_generates_is_none_of_a_server() -> None:
    """Steps of a trainer decide, whatever an engine inside it prints."""
    steps = "".join(
        f"step: {i} loss: 2.0 memory: 40.0GiB(50%) tps: 9,000 tflops: 400.0 mfu: 40%\n" for i in (1, 2, 3)
    )
    assert read_texts({"o.log": STARTED + steps}).family.serves is False


def test_what_a_log_prints_beats_the_estimate() -> None:
    """Weights, cache and concurrency are those of the log, whatever GPU it ran on; the estimate stands below."""
    start = audit(STARTED).start
    assert start is not None
    assert (start.starts, start.cache_tokens, start.longest) == (True, 32_768, 8192)
    assert start.weights_bytes == pytest.approx(15.3 * GIB)
    assert start.cache_bytes == pytest.approx(4.5 * GIB)
    assert start.words.startswith("by its log weights 15.3 GiB a GPU")
    assert start.estimate.startswith("on a guessed h100-sxm")


def test_a_printed_concurrency_beats_tokens_that_count_groups_of_layers() -> None:
    """Figures of a Qwen3.5-35B-A3B of vLLM 0.18: 10.85 requests of 262,144 tokens are not 729,696 tokens."""
    printed = STARTED.replace("4.5 GiB", "55.72 GiB").replace("32,768", "729,696").replace("8,192", "262,144")
    start = audit(printed.replace("4.00x", "10.85x"), gpu="gb10").start
    assert start is not None
    assert start.concurrency == pytest.approx(10.85, abs=0.01)
    assert start.cache_bytes == pytest.approx(55.72 * GIB)


def test_an_error_is_what_is_said_first() -> None:
    """Not the one that points at it; the longest request that fits is the engine's own."""
    found = audit(STOPPED, gpu="rtx-4090")
    assert found.start is not None
    assert (found.start.starts, found.fits) == (False, False)
    assert "its log ends in (line 4) ValueError: To serve" in found.start.why
    assert found.start.finding is not None
    assert found.start.finding[1].startswith("allow requests of at most 32,768 tokens")
    assert server_answer(found).headline == "out.log: a server of vLLM, which does not start"


def test_a_full_cache_is_named_with_what_helps() -> None:
    """Requests wait for it; a server that is not full is only described."""
    assert server_answer(audit(BUSY)).headline.startswith("out.log: a server of vLLM, whose cache is full")
    log = server_log_of(SGLANG)
    assert log is not None
    assert (log.running, log.waiting, log.cache_used, log.is_full) == (9, 0, 0.33, False)
    assert audit(SGLANG).start.cache_tokens == 60_000  # type: ignore[union-attr]  # its model is known


def test_a_log_of_an_unknown_model_says_what_it_says() -> None:
    """Neither its error nor its state needs the model."""
    found = audit(STOPPED.replace("Qwen/Qwen3-8B", "nobody/Knows-1B"))
    assert found.server is None
    assert found.fits is False
    assert "does not start" in server_answer(found).headline


def test_times_are_predicted_with_the_cache_that_was_printed() -> None:
    """So many requests run as its tokens hold, and not as many as an estimate would."""
    flags = ServeFlags(
        concurrency="16", input_tokens="4000", output_tokens="96", input_p99="4000", output_p99="96"
    )
    (load,) = audit(STARTED, ServedLoad(flags=flags, source="as asked", compares=False), gpu="h100-sxm").loads
    assert load.running is not None
    assert load.running.plan.decode.kv_capacity_tokens == pytest.approx(32_768, rel=0.02)


def test_a_log_that_prints_its_cache_answers_without_a_known_model() -> None:
    """It says what it holds; a script that says nothing of a known model answers nothing."""
    log = STARTED.replace("Qwen/Qwen3-8B", "none/Nobody-8B")
    answer = audit_answer_of(AuditQuestion(files=("out.log",), texts={"out.log": log}), Flags())
    pairs = dict(answer.sections[0].pairs)  # type: ignore[union-attr]
    assert pairs["memory"] == (
        "by its log weights 15.3 GiB a GPU, cache 4.5 GiB a GPU, 32,768 tokens; maximum concurrency for "
        "8,192 tokens a request: 4.00x"
    )
    assert answer.exit_code == 0
    script = AuditQuestion(files=("serve.sh",), texts={"serve.sh": "vllm serve --max-model-len 8192"})
    assert audit_answer_of(script, Flags()).exit_code == BAD_INPUT


TOO_FEW_GPUS = """INFO vLLM API server version 0.12.0
pydantic_core.ValidationError: 1 validation error for ParallelConfig
  Value error, Tensor parallel size (8) cannot be larger than the number of available GPUs (4). [type=value_error, \
input_value=ArgsKwargs(())]
"""
NO_REQUESTS = """File "/opt/vllm/config.py"
ValidationError: 1 validation error for SchedulerConfig
  Value error, max_num_seqs must be above 0 [type=value_error, input_value=0]
"""


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (
            TOO_FEW_GPUS,
            "Value error, Tensor parallel size (8) cannot be larger than the number of available GPUs (4).",
        ),
        (NO_REQUESTS, "Value error, max_num_seqs must be above 0"),
    ],
)
def test_an_error_of_a_checked_configuration_is_a_servers(said: str, error: str) -> None:
    """Though the server stops before it says anything else of itself."""
    assert (log := server_log_of(said)) is not None
    assert log.error == error
    assert audit_answer_of(AuditQuestion(files=("o.log",), texts={"o.log": said}), Flags()).exit_code == 4


def test_states_of_a_default_are_no_verdict_on_a_log_of_unknown_gpus() -> None:
    """The release's default hangs on the GPU, and a server that ran has passed the check."""
    log = STARTED.replace("Qwen/Qwen3-8B", "Qwen/Qwen3.6-27B-FP8").replace(", 'max_num_seqs': 256", "")
    log = log.replace("0.11.0", "0.22.0")
    assert audit(log).fits is not False
    known = audit(log, gpu="h100-sxm")
    assert known.start is not None
    assert known.start.states == 1024
    ran = audit(log + BUSY.splitlines()[-1], gpu="h100-sxm")
    assert ran.start is not None
    assert ran.start.states == 0
