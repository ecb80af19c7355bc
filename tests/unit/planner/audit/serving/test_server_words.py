"""A server's command: where its model stands, and which of its flags nothing reads."""

import pytest

from app.reports.audit.server import server_answer
from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import ServingAudit, audited_server
from planner.audit.serving.server import Server, server_of
from topology.base.units import GIB

CAL = load_calibration()

ARRAY = 'args: ["--trust-remote-code", "org/Model-8B", "-tp", "2"]'
COMPOSE = """services:
  server:
    image: vllm/vllm-openai:v0.11.0
    command: >
      org/Model-8B --trust-remote-code --tensor-parallel-size 2
"""
POD = f"""spec:
  containers:
    - image: registry.example.com:5000/vllm/vllm-openai:v0.11.0
      {ARRAY}
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.sh", "vllm serve org/Model-8B --trust-remote-code -tp 2"),
        ("s.sh", "vllm serve --trust-remote-code -tp 2 org/Model-8B"),
        ("s.sh", "vllm serve -tp 2 --no-enable-prefix-caching org/Model-8B --enforce-eager"),
        ("s.sh", "vllm serve --tensor-parallel-size=2 -O3 org/Model-8B"),
        ("s.sh", "docker run --gpus all -p 8000:8000 --ipc host vllm/vllm-openai:v0.11.0 org/Model-8B -tp 2"),
        ("s.sh", "docker run --gpus all vllm/vllm-openai:v0.11.0 --enforce-eager org/Model-8B -tp 2"),
        ("s.sh", "trtllm-serve --trust_remote_code --tp_size 2 org/Model-8B"),
        ("compose.yaml", COMPOSE),
        ("pod.yaml", POD),
    ],
)
def test_the_model_is_found_wherever_it_stands(name: str, text: str) -> None:
    """Between flags that take a value and flags that take none, and behind an image that serves."""
    facts = read_texts({name: text}).facts
    assert (facts.value("said.model"), facts.count("layout.tp")) == ("org/Model-8B", 2)


@pytest.mark.parametrize(
    "text",
    [
        "docker run --entrypoint bash vllm/vllm-openai:v0.11.0 org/Model-8B",
        "vllm serve --served-model-name first second --max-model-len 4096 --tensor-parallel-size 2",
    ],
)
def test_a_value_of_a_flag_is_no_model(text: str) -> None:
    """Nor is a word of an image whose entry point is another program."""
    assert read_texts({"s.sh": f"{text}\nTP=1 # s.py"}).facts.value("said.model") is None


CARD = "# one RTX 4090; vllm==0.11.0\nvllm serve Qwen/Qwen3-14B --max-model-len 8192"


def audit(text: str) -> ServingAudit:
    """What is said of a script, under no load."""
    reading = read_texts({"s.sh": text})
    server = server_of(reading, model=None, gpu=None)
    assert isinstance(server, Server)
    return audited_server(CAL, reading, server, ())


def test_every_flag_that_nothing_reads_is_named_by_what_it_does() -> None:
    """Of the door and of logs, of speed, of memory; `--no-` and `--disable-` are forms of a flag."""
    flags = "--port 8000 --no-enable-log-requests --max-num-partial-prefills 2 --swap-space 4 --mamba-block-size 8"
    said = audit(f"{CARD} {flags}").doubts
    assert "not read: --port, --no-enable-log-requests (moves neither memory nor speed)" in said
    assert "not read: --max-num-partial-prefills, --swap-space (may move speed, not priced)" in said
    assert "not read: --mamba-block-size (moves memory, of which there is no verdict)" in said


@pytest.mark.parametrize(
    "flag", ["--mamba-block-size 8", "--hf-overrides '{\"num_hidden_layers\": 2}'", "--zebra 1"]
)
def test_no_verdict_of_memory_stands_beside_a_flag_that_moves_it_unread(flag: str) -> None:
    """Neither may a flag be of a release that is not known here."""
    found = audit(f"{CARD} {flag}")
    assert found.start is not None
    assert (found.start.starts, found.fits) == (None, None)
    assert f"no verdict of memory beside {flag.partition(' ')[0]}" in server_answer(found).headline
    assert found.start.words.endswith("left out, which nothing reads")


@pytest.mark.parametrize("flag", ["--tensor-paralel-size 2", "--max-modellen 4096", "--enforce-eagr"])
def test_a_misspelt_flag_stops_the_engine(flag: str) -> None:
    """Two letters from one that a release has, and of none itself."""
    found = audit(f"# one H100\nvllm serve Qwen/Qwen3-8B {flag}")
    assert found.start is not None
    assert found.start.starts is False
    assert f"has the flag {flag.partition(' ')[0]}" in found.start.why
    older = f"# one H100, vllm==99.0\nvllm serve Qwen/Qwen3-8B {flag}"
    newer = audit(older).start
    assert newer is not None
    assert newer.starts is None


def test_weights_that_stay_on_the_host_leave_the_card_to_the_cache() -> None:
    """GiB for GiB, up to what layers have; times are not priced then."""
    alone, some, most = (
        audit(f"{CARD} {flag}").start for flag in ("", "--cpu-offload-gb 12", "--cpu-offload-gb 99")
    )
    assert alone is not None
    assert some is not None
    assert most is not None
    assert (alone.starts, some.starts) == (False, True)
    assert alone.weights_bytes - some.weights_bytes == pytest.approx(12 * GIB)
    assert some.cache_bytes - alone.cache_bytes == pytest.approx(12 * GIB)
    assert 0 < most.weights_bytes < 4 * GIB


@pytest.mark.parametrize(("length", "starts"), [("8192", True), ("32768", False)])
def test_a_stated_cache_is_no_estimate(length: str, starts: bool) -> None:
    """Two GiB hold 819 blocks of 16 tokens of 160 KiB, whatever the memory setting."""
    words = (
        f"# one H100\nvllm serve Qwen/Qwen3-14B --kv-cache-memory-bytes 2147483648 --max-model-len {length}"
    )
    start = audit(words).start
    assert start is not None
    assert (start.cache_tokens, start.starts) == (16 * 819, starts)


def test_prompts_that_are_computed_whole_need_steps_as_long() -> None:
    """Without chunks a step is shorter than a request only where the engine refuses it."""
    words = "# one H100\nvllm serve Qwen/Qwen3-8B --no-enable-chunked-prefill --max-model-len 16384"
    whole, short = audit(words).start, audit(f"{words} --max-num-batched-tokens 8192").start
    assert whole is not None
    assert short is not None
    assert (whole.starts, short.starts) == (True, False)
    assert "computed whole" in short.why
