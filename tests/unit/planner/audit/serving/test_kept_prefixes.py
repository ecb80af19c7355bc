"""Prompts of several turns on a given server: what its own prefix cache has of them, by the words of its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planner.audit.serving.audit import LoadAudit
from planner.audit.serving.texts import audited_server_texts
from planner.questions.flags import ServeFlags

BLOCK, SESSIONS, TURNS = 512, 4, 5
VLLM = "vllm serve Qwen/Qwen3-8B --max-model-len 32768"
SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"
PAIR = f"""{SGLANG} --disaggregation-mode prefill --port 30000 WORD &
{SGLANG} --disaggregation-mode decode --port 30001 &
"""


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """Sessions that ask in turns, each turn with all before it: of n turns (n − 1)/(n + 1) of the tokens are old."""
    rows = [
        {
            "timestamp": 2000 * (turn * SESSIONS + session),
            "input_length": 4 * BLOCK * (turn + 1),
            "output_length": 8,
            "hash_ids": [1000 * session + block for block in range(4 * (turn + 1))],
        }
        for turn in range(TURNS)
        for session in range(SESSIONS)
    ]
    path = tmp_path / "talk.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def under(script: str, trace: Path) -> LoadAudit:
    """A server, or two pools, under a trace."""
    audit = audited_server_texts({"s.sh": script}, ServeFlags(trace=trace), {}, gpu="h100-sxm")
    assert audit is not None
    return audit.loads[0]


@pytest.mark.parametrize(
    ("script", "keeps"),
    [
        (VLLM, True),
        (f"{VLLM} --no-enable-prefix-caching", False),
        (f"# vllm==0.6.3\n{VLLM}", False),
        (f"# vllm==0.6.3\n{VLLM} --enable-prefix-caching", True),
        (SGLANG, True),
        (f"{SGLANG} --disable-radix-cache", False),
        (PAIR.replace("WORD", ""), True),
        (PAIR.replace("WORD", "--disable-radix-cache"), False),
    ],
)
def test_turns_find_what_earlier_ones_left_unless_files_say_otherwise(
    script: str, *, keeps: bool, talk: Path
) -> None:
    """The share is that of a cache which forgets nothing; without it every prompt is computed in full."""
    load = under(script, talk)
    assert load.running is not None
    expected = (TURNS - 1) / (TURNS + 1) if keeps else 0.0
    assert load.running.cached_share == pytest.approx(expected, abs=1e-3)
    words = ("computed in full", "prefix caches have 67%")
    told = [[part in note for part in words] for note in load.assumed if any(part in note for part in words)]
    assert told == [[not keeps, keeps]], "one of both is said, once"


def test_a_kept_prefix_shortens_first_tokens_of_later_turns_alone(talk: Path) -> None:
    """First turns are as long as without a cache; a fifth turn computes a fifth of its prompt."""
    kept, full = (under(f"{VLLM}{word}", talk).running for word in ("", " --no-enable-prefix-caching"))
    assert kept is not None
    assert full is not None
    first, last = slice(0, SESSIONS), slice(-SESSIONS, None)
    assert kept.simulation.ttft_s[first] == pytest.approx(full.simulation.ttft_s[first], rel=1e-6)
    assert np.all(kept.simulation.ttft_s[last] < 0.5 * full.simulation.ttft_s[last])
