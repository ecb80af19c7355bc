"""Workers of a rehearsal: the simulation's batches in real time, and programs that check their words."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from costmodel.serving.simulation.disaggregated import PoolRules
from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.replica import Replica
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.simulation.simulator import simulate
from costmodel.serving.step_table import AttentionGrid, StepTimes
from planner.rehearsal.batches import Batches, Request
from planner.rehearsal.http import asking, events
from planner.rehearsal.programs import program_work
from planner.rehearsal.router import workers_of
from planner.rehearsal.script import (
    ClientLoad,
    LocalPort,
    MeasuredRequests,
    RehearsalScript,
    read_script,
    write_script,
)
from planner.rehearsal.server import check_words, run_server
from tests.patience import Lateness
from topology.base.decode import read_json, structure
from topology.base.errors import InputError

MOST = 8
T = TypeVar("T")
RULES = Scheduler(token_budget=64, max_batch=MOST, kv_capacity_tokens=100_000, lagged=True)


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives, in a thread of its own: another test's browser may keep a loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def times(*, request_s: float = 0.0, response_s: float = 0.0, step_s: float = 0.02) -> StepTimes:
    """Steps of 20 ms with prompts, 10 ms without, whatever they hold."""
    return StepTimes(
        linear_s=(step_s,) * 200,
        graph_linear_s=(step_s / 2,) * (MOST + 1),
        decode_attention_s=(0.0,) * (MOST + 1),
        decode_attention_s_per_token=(0.0,) * (MOST + 1),
        prefill_attention=AttentionGrid(
            query_tokens=(0, 100), past_tokens=(0, 100), seconds=((0, 0), (0, 0))
        ),
        request_s=request_s,
        response_s=response_s,
    )


def load_of(*arrivals_s: float, outputs: int = 5) -> Load:
    """Prompts of 100 tokens, cut into two chunks."""
    count = len(arrivals_s)
    return Load(
        input_tokens=np.full(count, 100),
        output_tokens=np.full(count, outputs),
        cached_tokens=np.zeros(count, dtype=np.int64),
        arrival_s=np.array(arrivals_s),
    )


def script_of(load: Load, tmp_path: Path, *, port: int, rules: Scheduler = RULES) -> RehearsalScript:
    """One server behind its own door."""
    return RehearsalScript(
        doors={"127.0.0.1:8000": LocalPort(port=port), "localhost:8000": LocalPort(port=port)},
        pools={"": PoolRules(workers=1, times=times(response_s=0.005), rules=rules)},
        requests=ClientLoad(
            input_tokens=tuple(load.input_tokens.tolist()),
            output_tokens=tuple(load.output_tokens.tolist()),
            cached_tokens=tuple(load.cached_tokens.tolist()),
            arrival_s=tuple(load.arrival_s.tolist()),
        ),
        results=str(tmp_path / "measured.json"),
        life_s=20.0,
    )


@pytest.mark.parametrize("lagged", [True, False])
def test_requests_told_one_by_one_are_served_like_a_known_load(lagged: bool) -> None:
    """Taking single steps and receiving requests as they arrive changes no first and no last token."""
    rules = Scheduler(token_budget=64, max_batch=2, kv_capacity_tokens=100_000, lagged=lagged)
    load = load_of(0.0, 0.01, 0.05, 0.3)
    known = simulate(times(), rules, load)
    empty = Load(
        input_tokens=np.empty(0, dtype=np.int64), output_tokens=np.empty(0, dtype=np.int64),
        cached_tokens=np.empty(0, dtype=np.int64), arrival_s=np.empty(0),
    )  # fmt: skip
    replica, coming = Replica(times(), rules, empty), list(load.arrival_s)
    while coming or not replica.idle:
        while coming and coming[0] <= replica.clock:
            assert replica.receive(100, 5) == len(load) - len(coming)
            coming.pop(0)
        if replica.idle:
            replica.clock = coming[0]
        else:
            replica.advance(replica.clock, most_steps=1)
    assert replica.first_token_s == pytest.approx(known.first_token_s.tolist())
    assert replica.finish_s == pytest.approx(known.finish_s.tolist())
    assert [replica.steps_left(i) for i in range(len(load))] == [0] * len(load)


@pytest.mark.clock
def test_tokens_come_when_the_simulation_says_and_one_a_step() -> None:
    """First and last token of three requests within a few milliseconds, and what sleeps are late; every token once."""
    load = load_of(0.0, 0.03, 0.2, outputs=6)
    pool = PoolRules(workers=1, times=times(response_s=0.004), rules=RULES)
    expected = simulate(pool.times, pool.rules, load)

    async def measure() -> list[tuple[list[int], float, float]]:
        batches = Batches(pool)
        running = asyncio.create_task(batches.run())

        async def one(at_s: float) -> tuple[list[int], float, float]:
            await batches.until(at_s)
            seen, times_s = [], []
            async for tokens in batches.tokens(Request(input_tokens=100, output_tokens=6, cached_tokens=0)):
                seen.append(tokens)
                times_s.append(batches.now_s)
            return seen, times_s[0], times_s[-1]

        found = await asyncio.gather(*(one(at_s) for at_s in load.arrival_s))
        running.cancel()
        return list(found)

    with Lateness() as late:
        found = finished(asyncio.wait_for(measure(), 20))
    for i, (seen, first_s, last_s) in enumerate(found):
        assert seen[-1] == 6
        assert seen == sorted(set(seen))
        assert first_s == pytest.approx(expected.first_token_s[i], abs=0.03 + 2 * late.seconds)
        assert last_s == pytest.approx(expected.finish_s[i], abs=0.03 + 2 * late.seconds)


def test_a_server_speaks_the_protocol_of_openai_and_refuses_what_is_none(
    tmp_path: Path, unused_port: int
) -> None:
    """Streams and whole answers, models, health; a bad body is a 400, an unknown path a 404."""
    script = script_of(load_of(0.0), tmp_path, port=unused_port)

    async def talk() -> None:
        server = asyncio.create_task(run_server(script, "", unused_port))
        await asyncio.sleep(0.2)
        for path, status in (("/health", 200), ("/v1/models", 200), ("/nothing", 404)):
            async with asking(unused_port, path) as (found, _):
                assert found == status, path
        for body in ({"prompt": ""}, {"prompt": "a b", "max_tokens": 0}, {"prompt": 3}):
            async with asking(unused_port, "/v1/completions", body) as (found, _):
                assert found == 400, body
        words = {"prompt": "one two three", "max_tokens": 4}
        async with asking(unused_port, "/v1/completions", {**words, "stream": True}) as (found, reader):
            said = [structure_of(one) async for one in events(reader)]
        assert (found, len([one for one in said if one["choices"]])) == (200, 4)
        assert said[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        async with asking(unused_port, "/v1/completions", words) as (_, reader):
            assert structure_of(await reader.read())["choices"][0]["text"] == " a" * 4
        server.cancel()

    finished(asyncio.wait_for(talk(), 20))


def structure_of(text: bytes) -> dict:
    """A JSON object."""
    import json

    return json.loads(text)


@pytest.mark.clock
def test_programs_do_what_their_words_say(
    tmp_path: Path, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server, its health by curl, and the client: what it measures is what the simulation says.

    A time of a request may differ by what sleeps are late on this machine meanwhile.
    """
    load = load_of(0.0, 0.02, 0.1)
    script = script_of(load, tmp_path, port=unused_port)
    write_script(tmp_path / "script.json", script)
    monkeypatch.setenv("MESHPLAN_REHEARSAL", str(tmp_path / "script.json"))
    monkeypatch.setenv("MESHPLAN_REHEARSAL_NODE", "127.0.0.1")
    assert read_script() == script
    client = ["bench", "serve", "--base-url", "http://localhost:8000"]

    async def play() -> None:
        health = ["--silent", "http://localhost:8000/health"]
        with pytest.raises(SystemExit):
            await program_work("curl", health, script)
        words = ["serve", "m", "--port", "8000", "--max-num-seqs", str(MOST)]
        server = asyncio.create_task(program_work("vllm", words, script))
        await asyncio.sleep(0.2)
        await program_work("curl", health, script)
        await program_work("vllm", client, script)
        server.cancel()

    with Lateness() as late:
        finished(asyncio.wait_for(play(), 20))
    found = structure(read_json(script.results), MeasuredRequests, "results")
    expected = simulate(script.pools[""].times, RULES, load)
    assert found.ttft_s == pytest.approx(expected.ttft_s.tolist(), abs=0.04 + 2 * late.seconds)
    assert found.tpot_s == pytest.approx(expected.tpot_s.tolist(), abs=0.01 + late.seconds)


def test_a_command_that_starts_another_server_than_the_simulated_one_is_refused(tmp_path: Path) -> None:
    """The limit on running requests of a command is that of the simulation, or nothing is started."""
    script = script_of(load_of(0.0), tmp_path, port=1)
    check_words(["vllm", "serve", "--max-num-seqs", str(MOST)], script, "")
    with pytest.raises(InputError, match="does not start what was simulated"):
        check_words(["vllm", "serve", "--max-num-seqs", "1"], script, "")


def test_routers_are_told_of_their_servers_in_every_engines_words(tmp_path: Path) -> None:
    """Of vLLM and SGLang by words, of nginx and TensorRT-LLM by a file; strangers are refused."""
    script = script_of(load_of(0.0), tmp_path, port=7)
    mine = [LocalPort(port=7)]
    assert workers_of("vllm-router", ["--worker-urls", "http://127.0.0.1:8000"], script) == mine
    files = {
        "nginx": "upstream workers {\n    server 127.0.0.1:8000;\n}",
        "trtllm-serve": 'context_servers:\n  urls:\n  - "127.0.0.1:8000"\n',
    }
    for program, text in files.items():
        (tmp_path / program).write_text(text, encoding="utf-8")
        assert workers_of(program, ["-c", str(tmp_path / program)], script) == mine
    with pytest.raises(InputError, match=r"nobody at 127\.0\.0\.1:9"):
        workers_of("vllm-router", ["http://127.0.0.1:9"], script)
