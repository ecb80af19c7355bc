"""A running server by its log: what binds it, what it is sent, and what is predicted beside what comes out."""

import json
from pathlib import Path

import pytest

from app.cli import run
from planner.audit.read import read_texts
from planner.audit.serving.printed_load import printed_load
from planner.audit.serving.watched import WatchedServer, watched_server
from planner.diagnose.server_log import server_findings
from planner.formats.server_lines import ServerLog, server_log_of

HEAD = """INFO vLLM API server version 0.11.0
INFO non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192, 'max_num_seqs': 64}
INFO Model loading took 15.3 GiB and 9.0 seconds
INFO Available KV cache memory: 4.5 GiB
INFO GPU KV cache size: 32,768 tokens
"""
SCRIPT = "# one H100\nvllm serve Qwen/Qwen3-8B --max-model-len 8192 --max-num-seqs 64"


def moments(
    running: int, waiting: int, used: float, *, into: float = 0.0, out: float = 500.0, more: str = ""
) -> str:
    """The log of a server with three moments alike."""
    line = (
        f"INFO Engine 000: Avg prompt throughput: {into} tokens/s, Avg generation throughput: {out} tokens/s, "
        f"Running: {running} reqs, Waiting: {waiting} reqs, {more}GPU KV cache usage: {used}%\n"
    )
    return HEAD + 3 * line


def log_of(text: str) -> ServerLog:
    """A server's log."""
    log = server_log_of(text)
    assert log is not None
    return log


RETRACTED = """[TP0] Decode batch. #running-req: 9, #token: 9, token usage: 0.99, gen throughput (token/s): 70.0, #queue-req: 2,
[TP0] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 8
[TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 8
"""


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        (moments(30, 90, 99.0), ["full cache"]),
        (moments(64, 90, 40.0), ["batch limit"]),
        (moments(9, 90, 40.0, into=24000.0), ["prefill"]),
        (moments(9, 90, 40.0), ["queueing"]),
        (moments(9, 0, 99.0), []),
        (moments(30, 0, 99.0, more="Preemptions: 4, "), ["preempted requests"]),
        (moments(9, 0, 9.0).replace("'max_num_seqs'", "'enforce_eager': True, 'max_num_seqs'"), ["host-bound"]),
        (moments(9, 0, 9.0).replace("9.0 seconds", "300.0 seconds"), ["slow start"]),
        (HEAD + "ERROR RuntimeError: NCCL error: unhandled system error\n", ["no start"]),
        (moments(9, 0, 9.0) + "ERROR torch.OutOfMemoryError: CUDA out of memory.\n", ["hang"]),
        (RETRACTED, ["full cache", "preempted requests"]),
    ],
)  # fmt: skip
def test_a_log_says_what_binds(text: str, causes: list[str]) -> None:
    """A full cache, a limit, prompts, evictions, launches, a slow or no start."""
    assert [finding.cause for finding in server_findings(log_of(text))] == causes


def test_the_page_shows_what_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of docs/diagnose.md."""
    page = (Path(__file__).parents[5] / "docs" / "diagnose.md").read_text(encoding="utf-8")
    path = tmp_path / "vllm.log"
    path.write_text(moments(30, 90, 99.0), encoding="utf-8")
    assert run(["diagnose", str(path)]) == 0
    headline = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
    assert f"$ plan diagnose vllm.log\n{headline}\n" in page


def test_requests_that_lose_their_cache_are_added() -> None:
    """Each line counts its own."""
    assert log_of(RETRACTED).preemptions == 5
    assert log_of(moments(30, 0, 99.0, more="Preemptions: 4, ")).preemptions == 12


def test_a_load_follows_from_rates_and_cache() -> None:
    """16,384 tokens in use of 10 requests: 4 tokens in for each out are prompts of 1,456 and answers of 364."""
    load = printed_load(log_of(moments(10, 5, 50.0, into=2000.0)))
    assert load is not None
    assert (load.running, load.waiting, load.input_tokens, load.output_tokens) == (10, 5, 1456, 364)
    assert printed_load(log_of(HEAD)) is None


def watched(text: str, script: str = SCRIPT) -> WatchedServer:
    """How a server stands."""
    texts = {"o.log": text, "s.sh": script}
    found = watched_server(read_texts(texts), texts)
    assert found is not None
    return found


def test_what_comes_out_stands_beside_the_prediction() -> None:
    """A tenth of what is predicted is slow; what is predicted is not."""
    first = watched(moments(10, 0, 50.0, into=2000.0))
    assert first.predicted_per_s is not None
    assert first.band_per_s is not None
    assert first.band_per_s[0] <= first.predicted_per_s <= first.band_per_s[1]
    rate = round(first.predicted_per_s, 1)
    assert not watched(moments(10, 0, 50.0, into=4 * rate, out=rate)).is_slow
    slow = watched(moments(10, 0, 50.0, into=0.4 * rate, out=rate / 10))
    assert slow.is_slow
    assert slow.slower_by == pytest.approx(0.9, abs=0.01)


def test_without_a_gpu_nothing_is_predicted() -> None:
    """What it printed is said all the same."""
    found = watched(moments(10, 0, 50.0, into=2000.0), SCRIPT.replace("H100", "host"))
    assert (found.predicted_per_s, found.slower_by, found.is_slow) == (None, None, False)
    assert found.missing.startswith("the GPU")


def test_watch_and_diagnose_take_the_log_of_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both by the same causes; a start that failed leaves diagnose with 4."""
    path = tmp_path / "out.log"
    path.write_text(moments(30, 90, 99.0, into=600.0), encoding="utf-8")
    for command in ("watch", "diagnose"):
        assert run([command, str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["findings"][0]["cause"] == "full cache"
        assert run([command, str(path)]) == 0
        assert "full cache" in capsys.readouterr().out.partition("\n\n")[0]
    path.write_text(HEAD + "ERROR ValueError: No available memory for the cache blocks.\n", encoding="utf-8")
    assert run(["diagnose", str(path)]) == 4
    assert "no start" in capsys.readouterr().out
