"""Sixty questions for an agent with `plan mcp`, and the score of its answers.

`python tools/score_skill.py ANSWERS.jsonl` prints it; a line of it is
`{"id": "bytes-01", "answer": 327680}`.
What is right of *bytes*, *illegal*, *flag* and *log* (32 questions) is independent of the planner: arithmetic
of published figures, divisions, another project's flags, the text of a log. *Fit*, *faster* and *fewest* (28)
are questions of consistency: the planner's own estimate and search, called as a library.
Without a file the questions are written to `skills/meshplan/tasks.json`.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
TASKS: Final = ROOT / "skills" / "meshplan" / "tasks.json"
LOGS: Final = "tests/unit/planner/audit/files"
CLOSE: Final = 0.005
"""Relative error of a number that is right: answers may be rounded to three digits."""
PERCENT_CLOSE: Final = 0.1
"""Points of a percentage."""
Answer = str | float
Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question, how the tools answer it, and what is right.

    Attributes:
        id: Its kind and its number.
        question: As an agent is asked.
        calls: Of tools, that answer it.
        read: The answer in their documents.
        oracle: What is right, without the tools.
    """

    id: str
    question: str
    calls: tuple[Call, ...]
    read: Callable[[Sequence[Mapping[str, Any]]], Answer]
    oracle: Callable[[], Answer]

    @property
    def kind(self) -> str:
        """What it asks for."""
        return self.id.partition("-")[0]


def tasks() -> tuple[Task, ...]:
    """All sixty."""
    makers = {
        "bytes": _bytes, "fit": _fit, "fewest": _fewest, "faster": _faster, "illegal": _illegal,
        "flag": _flag, "log": _log,
    }  # fmt: skip
    return tuple(
        Task(id=f"{kind}-{number:02}", question=question, calls=tuple(calls), read=read, oracle=oracle)
        for kind, make in makers.items()
        for number, (question, calls, read, oracle) in enumerate(make(), 1)
    )


Made = tuple[str, Sequence[Call], Callable[[Sequence[Mapping[str, Any]]], Answer], Callable[[], Answer]]


def _bytes() -> Iterator[Made]:
    """Bytes of a model, by the arithmetic of its configuration."""
    for name in (
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "mixtral-8x7b",
        "qwen3-32b",
        "llama-2-7b",
    ):
        yield (
            f"How many bytes of KV cache does one token of {name} take in bf16, on all layers together?",
            [("memory", {"model": name})],
            lambda answers: float(answers[0]["cache"]["bytes_per_further_token"]),
            partial(_cached_bytes, name),
        )
    for name in (
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "mixtral-8x7b",
        "deepseek-v3",
        "qwen3-32b",
    ):
        yield (
            f"How many bytes of weights, fp32 gradients, master weights and Adam moments has {name} unsplit?",
            [("memory", {"model": name})],
            lambda answers: float(answers[0]["state_bytes"]),
            partial(_state_bytes, name),
        )


def _cached_bytes(name: str) -> float:
    """2 (keys, values) · groups · size of a head · layers · 2 bytes."""
    from costmodel.models.catalog import model

    spec = model(name)
    attention: Any = spec.attention
    return 2.0 * attention.num_key_value_heads * attention.head_dim * spec.num_layers * 2


PUBLISHED_PARAMETERS: Final[Mapping[str, int]] = {
    "llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704, "deepseek-v3": 671_026_419_200, "qwen3-32b": 32_762_123_264,
}  # fmt: skip
"""Totals of the safetensors indices on the models' pages; deepseek-v3 without its MTP module."""


def _state_bytes(name: str) -> float:
    """2 of weights, 4 of gradients, 12 of master weights and moments, a parameter."""
    return (2 + 4 + 12) * float(PUBLISHED_PARAMETERS[name])


def _given(name: str, gpus: int, settings: Mapping[str, int | str]) -> Call:
    """An estimate of one layout."""
    pins = [f"layout.{axis}={value}" for axis, value in settings.items()]
    return "estimate", {"model": name, "gpus": gpus, "set": pins}


def _split(settings: Mapping[str, int | str]) -> str:
    """A layout in words."""
    return ", ".join(f"{axis}={value}" for axis, value in settings.items())


def _estimate(name: str, gpus: int, settings: Mapping[str, int | str]) -> Any:
    """The estimate of the library."""
    from app.actions.plan import given_plan
    from planner.questions.flags import Flags
    from planner.questions.training import understand

    pins = tuple(f"layout.{axis}={value}" for axis, value in settings.items())
    return given_plan(understand(Flags(model=name, gpus=str(gpus), settings=pins)).request).estimate


def _fit() -> Iterator[Made]:
    """Whether a layout fits: a chance of OOM below 5 % fits, above 90 % does not, between it is tight."""
    for name, gpus, settings in (
        ("llama-3.1-8b", 8, {"dp": 8, "zero_stage": 1}),
        ("llama-3.1-8b", 8, {"tp": 8}),
        ("llama-3.1-8b", 8, {"tp": 2, "dp": 4, "zero_stage": 1}),
        ("llama-3.1-8b", 8, {"dp": 8, "zero_stage": 3}),
        ("llama-3.1-8b", 1, {"tp": 1}),
        ("llama-3.1-8b", 2, {"tp": 2}),
        ("llama-3.1-70b", 32, {"tp": 8, "pp": 4}),
        ("llama-3.1-70b", 32, {"tp": 4, "cp": 2, "pp": 4}),
        ("llama-3.1-70b", 16, {"tp": 8, "pp": 2}),
        ("llama-3.1-70b", 64, {"tp": 8, "pp": 4, "dp": 2, "zero_stage": 1}),
    ):
        yield (
            f"Does {name} on {gpus} × h100-sxm fit with {_split(settings)}: fits, tight or does not fit?",
            [_given(name, gpus, settings)],
            lambda answers: _fit_word(answers[0]["estimate"]["out_of_memory_chance"]),
            lambda name=name, gpus=gpus, settings=settings: _fit_word(  # type: ignore[misc]
                _estimate(name, gpus, settings).out_of_memory_chance
            ),
        )


def _fit_word(chance: float) -> str:
    """The word of a chance, by the thresholds that the question states."""
    return "fits" if chance < 0.05 else "does not fit" if chance > 0.9 else "tight"


COUNTS: Final = (1, 2, 4, 8, 16)


def _fewest() -> Iterator[Made]:
    """The fewest GPUs of a doubling series that train a model at all."""
    for name, sequence in (
        ("llama-3.1-8b", 8192), ("llama-2-7b", 4096), ("llama-2-13b", 4096), ("qwen3-8b", 8192),
        ("qwen3-14b", 8192), ("mistral-7b", 8192), ("qwen3-4b", 8192), ("llama-3.2-1b", 8192),
    ):  # fmt: skip
        yield (
            f"Of {', '.join(map(str, COUNTS))} h100-sxm, how few train {name} at length {sequence}?",
            [
                (
                    "sweep",
                    {"model": name, "gpus": ",".join(map(str, COUNTS)), "sequence_length": str(sequence)},
                )
            ],
            lambda answers: min(
                float(point["num_gpus"]) for point in answers[0]["points"] if "step_time_s" in point
            ),
            partial(_fewest_gpus, name, sequence),
        )


def _fewest_gpus(name: str, sequence: int) -> float:
    """Every count is searched by itself."""
    from planner.plan import Plan
    from planner.questions.flags import Flags
    from planner.questions.training import understand
    from planner.search.search import search

    for count in COUNTS:
        flags = Flags(model=name, gpus=str(count), sequence_length=str(sequence))
        if isinstance(search(understand(flags).request), Plan):
            return count
    return 0


def _faster() -> Iterator[Made]:
    """How much faster one layout is than another, in percent of tokens per second."""
    eight: Mapping[str, Mapping[str, int | str]] = {
        "A": {"tp": 8}, "B": {"tp": 4, "dp": 2, "zero_stage": 1}, "C": {"dp": 8, "zero_stage": 3},
        "D": {"tp": 2, "pp": 2, "dp": 2, "zero_stage": 1}, "E": {"tp": 2, "dp": 4, "zero_stage": 1},
    }  # fmt: skip
    names = list(eight)
    for at, first in enumerate(names):
        for second in names[at + 1 :]:
            pair = eight[first], eight[second]
            words = [_split(settings) for settings in pair]
            question = (
                f"How many percent more tokens/s gives {words[0]} than {words[1]}, "
                "of llama-3.1-8b on 8 h100-sxm?"
            )
            yield (
                question,
                [_given("llama-3.1-8b", 8, settings) for settings in pair],
                lambda answers: _percent(*(answer["estimate"]["step_time_s"] for answer in answers)),
                lambda pair=pair: _percent(  # type: ignore[misc]
                    *(_estimate("llama-3.1-8b", 8, settings).step_time_s for settings in pair)
                ),
            )


def _percent(first_s: float, second_s: float) -> float:
    """Throughput of the first over the second, less one."""
    return 100 * (second_s / first_s - 1)


def _illegal() -> Iterator[Made]:
    """Whether a split is legal: degrees fill the GPUs, heads divide over tensor ranks, experts too."""
    for name, gpus, degrees in (
        ("llama-3.1-8b", 8, {"tp": 3}),
        ("llama-3.1-8b", 8, {"tp": 8, "pp": 2}),
        ("llama-3.1-8b", 64, {"tp": 64}),
        ("llama-3.1-8b", 16, {"tp": 8, "dp": 2}),
        ("llama-3.1-8b", 8, {"tp": 4, "pp": 2}),
        ("llama-3.1-70b", 48, {"tp": 6, "pp": 8}),
        ("llama-3.1-70b", 32, {"tp": 8, "pp": 4}),
        ("mixtral-8x7b", 16, {"ep": 16, "dp": 16}),
        ("mixtral-8x7b", 16, {"ep": 8, "dp": 16}),
        ("llama-3.1-8b", 8, {"ep": 8, "dp": 8}),
    ):
        yield (
            f"Is {name} on {gpus} × h100-sxm with {_split(degrees)} legal or illegal, memory aside?",
            [_given(name, gpus, degrees)],
            lambda answers: "legal" if "layout" in answers[0] else "illegal",
            partial(_legal_word, name, gpus, degrees),
        )


def _legal_word(name: str, gpus: int, degrees: Mapping[str, int]) -> str:
    """By divisions alone."""
    from costmodel.models.catalog import model

    spec: Any = model(name)
    tp, pp, dp, ep = (degrees.get(axis, 1) for axis in ("tp", "pp", "dp", "ep"))
    fills = gpus % (tp * pp) == 0 and ("dp" not in degrees or tp * pp * dp == gpus)
    heads = spec.attention.num_attention_heads % tp == 0
    experts = ep == 1 or (spec.num_experts > 0 and spec.num_experts % ep == 0)
    return "legal" if fills and heads and experts else "illegal"


PUBLISHED_FLAGS: Final[Mapping[str, tuple[str, str]]] = {
    "tp_overlap": ("overlaps tensor-parallel communication with its products", "--tp-comm-overlap"),
    "grouped_experts": ("computes the experts of a rank in one grouped product", "--moe-grouped-gemm"),
    "sequence_parallel": ("cuts activations along the sequence beside tp", "--sequence-parallel"),
    "bucket_bytes": ("sets how large a bucket of gradients is", "--ddp-bucket-size"),
}  # fmt: skip
"""Switches, what each does, and the flag in `megatron/training/arguments.py` of Megatron-LM that says it."""


def _flag() -> Iterator[Made]:
    """Which flag of Megatron-LM says something, as its own arguments have it."""
    for switch, (what, flag) in PUBLISHED_FLAGS.items():
        yield (
            f"Which flag of Megatron-LM {what}?",
            [("engines", {"name": "megatron-core"})],
            partial(_first_flag, switch),
            lambda flag=flag: flag,  # type: ignore[misc]
        )


def _first_flag(switch: str, answers: Sequence[Mapping[str, Any]]) -> str:
    """The flag that a catalog names first for a switch."""
    return next(str(each["said_by"][0]) for each in answers[0]["switches"] if each["switch"] == switch)


def _log() -> Iterator[Made]:
    """What a log of a run says."""
    path = f"{LOGS}/megatron.log"
    audit: Call = ("audit", {"files": [path]})
    for axis, words in (("tp", "tensor-model-parallel size"), ("pp", "pipeline-model-parallel size"),
                        ("cp", "context-parallel size"), ("dp", "data-parallel size")):  # fmt: skip
        yield (
            f"Of which {words.removesuffix(' size')} degree is the run of {path}?",
            [audit],
            partial(_degree, axis),
            partial(_logged, path, rf"(?<![\w-]){words}: (\d+)"),
        )
    yield (
        f"How many seconds does a step of {path} take, the first left out?",
        [audit],
        lambda answers: float(answers[0]["measured"]["step_time_s"]),
        partial(_logged_step_s, path),
    )
    yield (
        f"On how many GPUs does the run of {path} stand?",
        [audit],
        lambda answers: float(
            int(answers[0]["layout"]["tp"])
            * int(answers[0]["layout"]["pp"])
            * int(answers[0]["layout"]["cp"])
            * int(answers[0]["layout"]["dp"])
        ),
        partial(_logged, path, r"world size: (\d+)"),
    )


def _degree(axis: str, answers: Sequence[Mapping[str, Any]]) -> float:
    """A degree of the layout that was read."""
    return float(answers[0]["layout"][axis])


def _logged(path: str, pattern: str) -> float:
    """A number of the log's own words."""
    found = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"))
    return float(found[1]) if found else 0.0


def _logged_step_s(path: str) -> float:
    """The median of the steps that follow the first, s."""
    text = (ROOT / path).read_text(encoding="utf-8")
    steps_ms = [float(ms) for ms in re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", text)]
    return statistics.median(steps_ms[1:]) / 1000


def is_right(task: Task, answer: object) -> bool:
    """Whether an answer is the oracle's: words are equal, numbers close.

    >>> is_right(next(t for t in tasks() if t.id == "flag-01"), "`--TP-comm-overlap`")
    True
    """
    right = task.oracle()
    if isinstance(right, str):
        return str(answer).strip(" `.'\"").lower() == right.lower()
    try:
        number = float(str(answer).replace(",", "").rstrip(" %"))
    except ValueError:
        return False
    slack = PERCENT_CLOSE if task.kind == "faster" else 0.0
    return abs(number - right) <= max(CLOSE * abs(right), slack)


def scores(answers: Mapping[str, object]) -> dict[str, tuple[int, int]]:
    """Right answers and questions of every kind; a question without an answer is wrong."""
    result: dict[str, tuple[int, int]] = {}
    for task in tasks():
        right, count = result.get(task.kind, (0, 0))
        gained = task.id in answers and is_right(task, answers[task.id])
        result[task.kind] = right + gained, count + 1
    return result


def main() -> int:
    """Score the answers of a file, or write the questions."""
    if not sys.argv[1:]:
        rows = [{"id": task.id, "question": task.question} for task in tasks()]
        TASKS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    answers = {row["id"]: row["answer"] for row in map(json.loads, filter(str.strip, lines))}
    result = scores(answers)
    for kind, (right, count) in result.items():
        print(f"{kind:8} {right:>3} of {count}")
    right, count = (sum(pair[at] for pair in result.values()) for at in (0, 1))
    print(f"{'all':8} {right:>3} of {count}")
    return 0 if right == count else 1


if __name__ == "__main__":
    sys.exit(main())
