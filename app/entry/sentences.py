"""A question typed in plain words (``plan 70b on 32 h100``): the exact command line that asks it.

A word is a name, a count with what it counts, a degree, a flag of any program, or means nothing here.
Where a model and GPUs are named, other words are left out, and named behind the command line. A number, a
second model and a word that turns the question are never left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from app.entry.handed_out import is_gpu, is_model
from app.entry.other_words import COUNTED_GPU, VALUE, command_for, flags_by_word, without_flag
from app.entry.run_words import deadline_of, fewest_gpus, with_tokens
from app.flags.program import known_flags
from costmodel.kernels.precisions import TRAINING

FILLER: Final = frozenset((
    "cp", "dp", "ep", "pp", "pretrain", "pretraining", "sft", "tp",
    "a", "an", "and", "are", "at", "best", "by", "can", "card",
    "cards", "cluster", "cost", "do", "does", "efficient", "expensive", "fast",
    "faster", "finetune", "fine-tune", "fine-tuning", "finetuning", "fit", "fits", "for", "from",
    "fsdp", "full", "gpu", "gpus", "how", "i", "in", "is", "it", "layout",
    "long", "me", "mfu", "model", "much", "my", "need", "needed", "of",
    "on", "optimal", "over", "parallel", "parallelism", "plan", "please",
    "price", "required", "run", "running", "should", "slow", "speed", "split", "splitting",
    "strategy", "take", "takes", "the", "throughput", "time", "to", "train", "training",
    "tune", "tuning", "using", "we", "what", "which", "will",
    "per", "second", "with", "would", "x", "×",
    "fastest", "gpu-hours", "hours", "like", "our", "quickly", "want", "way",
))  # fmt: skip
"""Words that say nothing which a flag would."""
COUNTED: Final = {"gpu": 1, "gpus": 1, "card": 1, "cards": 1, "node": 0, "nodes": 0}
"""What a number before them counts; 0 of nodes, whose GPUs their kind says."""
JOINS: Final = ("or", "vs", "versus", "against", "compare")
"""Words between two GPUs of which one is asked for; between anything else they make two questions."""
SINGLE: Final = ("a", "an", "one", "single")
LENGTH: Final = ("context", "seq", "sequence", "length", "ctx", "seqlen")
AXIS: Final = re.compile(r"(tp|pp|dp|cp|ep)[-= ]?(\d+)", re.IGNORECASE)
NUMBER: Final = re.compile(r"[1-9]\d*(?:\.\d+)?(?:[kmbt]|e\d{1,2})?", re.IGNORECASE)
MEMORY: Final = re.compile(r"\d{2,3}\s?gi?b?", re.IGNORECASE)
"""The memory of a GPU behind its name."""
SIZE: Final = re.compile(r".*\d[bm]", re.IGNORECASE)
"""A word with a size of a model, behind which a number is no version."""
_LONGEST_NAME: Final = 3
"""Words of a model's name: llama 3.1 70b."""
NO_NAME: Final = FILLER.union(TRAINING, LENGTH, COUNTED, ("lora", "qlora"))
"""Words that are no part of a model's name."""
RATES: Final = ("requests", "request", "reqs", "req", "rps", "qps", "req/s", "requests/s")
"""What a number before them counts of a server's load, a second."""
LOADS: Final = ("users", "clients", "sessions")
"""What a number before them counts of a server's load at once."""
EXAMPLES: Final = (
    "a question names a model and GPUs, such as plan 70b on 32 h100; of a job that runs, its files: "
    "plan audit train.sh train.log; plan --help has the rest"
)
"""What helps where words are no question that is understood."""
OF_SERVERS: Final = {"--precision": "--weights"}
"""Flags of a training job that servers call otherwise."""
FITS: Final = ("fit", "fits", "hold", "holds")


@dataclass(slots=True)
class _Question:
    """What has been understood so far."""

    model: str = ""
    gpus: str = ""
    nodes: str = ""
    kinds: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    command: str = ""
    joins: bool = False
    unread: list[str] = field(default_factory=list)


def command_of_sentence(words: Sequence[str]) -> str:
    """The command line that asks what words say; "" where a word is not understood, or no model is named.

    >>> command_of_sentence("70b on 32 h100".split())
    'plan --model 70b --gpus 32 --gpu h100'
    >>> command_of_sentence("llama 3.1 70b 64xh200 fp8 tp 8".split())
    'plan --model llama-3.1-70b --gpus 64 --gpu h200 --precision fp8 --set layout.tp=8'
    >>> command_of_sentence("serve 70b on b200".split()), command_of_sentence("70b on mars".split())
    ('plan serve --model 70b --gpu b200', '')
    >>> command_of_sentence("qlora 8b --gpus 2 --gpu 3090".split())
    'plan --model 8b --gpus 2 --gpu 3090 --adapter qlora:r=16'
    >>> command_of_sentence("8b on 4x4090".split())
    'plan --model 8b --gpus 4 --gpu 4090'
    """
    question, at = _Question(), 0
    words = _spoken(words)
    texts = [word.strip(",;:?!()") for text in words for word in text.split()]
    texts = with_joined_counts(texts)
    asks_fewest = {"how", "many"} <= {text.lower() for text in texts}
    texts = [text for text in texts if text and not (asks_fewest and text.lower() == "many")]
    while at < len(texts):
        taken = _read_time(question, texts[at:]) or _read_limit(question, texts[at:])
        taken = taken or _read_nodes(question, texts[at:]) or _read_length(question, texts[at:])
        taken = taken or _read(question, texts[at:])
        taken = taken or _read_flag(question, texts[at:]) or _read_otherwise(question, texts[at:])
        if not taken and not _is_left_out(texts[at]):
            return ""
        question.unread += [] if taken else [texts[at]]
        at += taken or 1
    counts = question.gpus or question.nodes or question.kinds or "--deadline" in question.flags
    if question.unread and not (question.model and counts):
        return ""
    assumed = []
    if len(question.kinds) > 1 and not question.model:
        question.model = "70b"
        assumed.append("70b")
    if not question.model and question.command == "explain" and not (question.gpus or question.kinds):
        return "plan audit train.sh train.log, with the launch file and the log of the job"
    if not question.model or (question.joins and len(question.kinds) < 2) or _says_twice(question.flags):
        return ""
    line = _line(question, asks_fewest, assumed, fits=any(text.lower() in FITS for text in texts))
    if not line:
        return ""
    suffix = f", with {' and '.join(assumed)} for example" if assumed else ""
    return line + suffix + _unread(question)


_FLAGS: Final = {"--model": "{}", "-m": "{}", "--gpus": "{} gpus", "-n": "{} gpus", "--gpu": "{}"}
"""Flags among words, and how words say them."""


def _spoken(words: Sequence[str]) -> list[str]:
    """The words, with what flags of a model and its GPUs say among them as words say it.

    >>> _spoken(["qlora", "8b", "--gpus", "2", "--gpu", "3090"])
    ['qlora', '8b', '2 gpus', '3090']
    """
    spoken, after = list[str](), ""
    for word in words:
        if after:
            spoken.append(_FLAGS[after].format(word))
            after = ""
        elif word in _FLAGS:
            after = word
        else:
            spoken.append(word)
    return [*spoken, *([after] if after else [])]


def _unread(question: _Question) -> str:
    """What is told of words that no flag says; "" where every one was understood."""
    if not question.unread:
        return ""
    command = question.command if question.command == "serve" else "train"
    more = next(filter(None, (without_flag(word.replace(" ", "-"), command) for word in question.unread)), "")
    return f", without {' and '.join(question.unread)}" + (f": {more}" if more else "")


def _is_left_out(text: str) -> bool:
    """Whether a word that is not understood may be left out and named.

    None that has a number may, and none that turns the question or makes it two.
    """
    word = text.lower()
    plain = (
        text[:1].isalpha()
        and word.replace("-", "").isalpha()
        and word not in (*JOINS, *TURNS, *OF_WORDS, *FITS)
    )
    return plain and not is_gpu(text) and not is_model(text)


TURNS: Final = (
    "no",
    "not",
    "without",
    "except",
    "instead",
    "than",
    "never",
    "but",
    "don't",
    "if",
    "when",
    "until",
)
"""Words that turn what others say."""
UNITS: Final = {"trillion": "T", "billion": "B", "million": "M", "tn": "T", "bn": "B", "mio": "M"}
"""What counts are said in, and how a flag says it."""


def with_joined_counts(words: Sequence[str]) -> list[str]:
    """The words with a count and its unit as one: behind a flag a letter is a unit, too.

    >>> with_joined_counts(["--tokens", "15", "trillion"]), with_joined_counts(["--tokens", "15", "T"])
    (['--tokens', '15T'], ['--tokens', '15T'])
    """
    joined = list[str]()
    for word in words:
        unit = UNITS.get(word.lower(), "")
        if not unit and len(joined) > 1 and joined[-2].startswith("--"):
            unit = word.upper() if word.upper() in UNITS.values() else ""
        if unit and joined and NUMBER.fullmatch(joined[-1]) and joined[-1][-1].isdecimal():
            joined[-1] += unit
        else:
            joined.append(word)
    return joined


def _says_twice(flags: Sequence[str]) -> bool:
    """Whether a flag or a field has two values."""
    names = [
        each.partition("=")[0] for each in flags if each.startswith(("--", "layout.")) and each != "--set"
    ]
    return len({*names}) < len(names)


OF_WORDS: Final = ("train", "estimate", "explain", "serve", "memory", "sweep", "recipes", "ladder")
"""Commands that a question in words may name."""


def _read(question: _Question, texts: Sequence[str]) -> int:
    """Take the next words into the question; gives how many, 0 where they are not understood."""
    text, word = texts[0], texts[0].lower()
    after = texts[1].lower() if len(texts) > 1 else ""
    if (pair := AXIS.fullmatch(f"{word} {after}")) or (pair := AXIS.fullmatch(word)):
        question.flags += ["--set", f"layout.{pair[1]}={pair[2]}"]
        return 2 if not AXIS.fullmatch(word) else 1
    if word in LENGTH and after in LENGTH:  # sequence length
        return 1
    if word in LENGTH and NUMBER.fullmatch(after):
        question.flags += ["--sequence-length", after]
        return 2
    if NUMBER.fullmatch(word) and not is_gpu(word) and (taken := _count(question, text, after)):
        return taken
    if (both := COUNTED_GPU.fullmatch(word)) and not question.gpus:
        if COUNTED.get(both[3] or "gpus", 1) == 0:
            question.nodes = both[1]
            return 1
        kind = both[3] or (both[2] if is_gpu(both[2]) else "")  # 4x4090: of a kind that is a number
        question.gpus = str(int(both[1]) * int("1" if kind else both[2] or 1))
        if not kind or kind in COUNTED:
            return 1
        question.kinds += [kind] if is_gpu(kind) else []
        return int(is_gpu(kind))
    if word in TRAINING:
        question.flags += ["--precision", word]
        return 1
    if word in ("lora", "qlora"):
        question.flags += ["--adapter", f"{word}:r=16"]
        return 1
    return _name(question, texts)


def _read_flag(question: _Question, texts: Sequence[str]) -> int:
    """Take what another program calls a flag, with the number that it needs; gives how many words, or 0.

    What only a server has makes the question one of a server.
    """
    for length in (2, 1):
        word = "-".join(texts[:length]).lower()
        value = texts[length] if len(texts) > length and texts[length][:1].isdecimal() else ""
        for command in (
            (question.command or "train", "serve") if not question.command else (question.command,)
        ):
            flag = f"--{word} {VALUE}" if f"--{word}" in known_flags(command) else ""
            here = (flags_by_word(command).get(word, "") or flag) if len(texts) >= length else ""
            if not here.startswith("--") or (VALUE in here and not value):
                continue
            question.flags += here.replace(VALUE, value).split()
            question.command = question.command or ("" if command == "train" else command)
            return length + (VALUE in here)
    return 0


def _read_otherwise(question: _Question, texts: Sequence[str]) -> int:
    """Take words that no flag says here, and for which something else is done; gives how many, or 0."""
    for length in (2, 1):
        if len(texts) >= length and without_flag("-".join(texts[:length]), question.command or "train"):
            question.unread.append(" ".join(texts[:length]))
            return length
    return 0


def _read_time(question: _Question, texts: Sequence[str]) -> int:
    """Take a run's end (3 days, 36h); gives how many words, or 0."""
    for length in (1, 2):
        if len(texts) >= length and (time := deadline_of(" ".join(texts[:length]))):
            question.flags += ["--deadline", time]
            return length
    return 0


MOST: Final = ("max", "maximum", "longest", "largest", "biggest", "highest")
"""Words before a knob of which the last value that fits is asked for."""
KNOBS: Final = {
    **dict.fromkeys(LENGTH, "length"), "microbatch": "microbatch", "batch": "microbatch", "rank": "rank",
}  # fmt: skip
DOLLARS: Final = re.compile(r"\$(\d+(?:\.\d+)?)(?:/h(?:r|our)?)?")
OF_SERVERS_ALONE: Final = ("ttft", "tpot", "itl", "qps", "rps", "e2e")
"""What only servers have; without a number it says that one is meant."""


def _read_limit(question: _Question, texts: Sequence[str]) -> int:
    """Take what is asked for at most, or a GPU's price an hour; a server's limit says that one is meant."""
    word, after = texts[0].lower(), [text.lower() for text in texts[1:3]]
    knob = (word, *after)[word in MOST :][:1]
    asks = word in MOST or (question.command == "ladder" and not (after and NUMBER.fullmatch(after[0])))
    if asks and knob and knob[0] in KNOBS:
        question.command = "ladder"
        question.flags += [] if "--knob" in question.flags else ["--knob", KNOBS[knob[0]]]
        return 1 + (word in MOST)
    if price := DOLLARS.fullmatch(word):
        question.flags += ["--set", f"cluster.usd_per_gpu_hour={price[1]}"]
        return 1
    if word in OF_SERVERS_ALONE and not (after and after[0][:1].isdecimal()):
        question.command = question.command or "serve"
    return 0


def _counts_nothing_here(after: str) -> bool:
    """Whether a number's word is a noun in the plural that no flag counts: 3 racks."""
    plural = after.endswith("s") and after.isalpha() and len(after) > 2
    return (
        plural and after not in FILLER and after not in COUNTED and not is_gpu(after) and not is_model(after)
    )


def _count(question: _Question, text: str, after: str) -> int:
    """Take a number: what it counts stands behind it, or it counts GPUs."""
    if after in LENGTH:
        question.flags += ["--sequence-length", text]
        return 2
    if after in RATES:
        question.flags += ["--rate", f"{text}/s"]
        question.command = question.command or "serve"
        return 2
    if after in LOADS:
        question.flags += ["--concurrency", text]
        question.command = question.command or "serve"
        return 2
    if after == "tokens":
        question.flags += ["--tokens", text]
        return 2
    if _counts_nothing_here(after):
        return 0
    if not text.lower().removesuffix("k").isdecimal() or question.gpus or question.nodes:
        return 0
    if COUNTED.get(after, 1):
        question.gpus = text
    else:
        question.nodes = text
    return 2 if after in COUNTED else 1


def _read_nodes(question: _Question, texts: Sequence[str]) -> int:
    """Take nodes of so many GPUs (8 nodes of 8); gives how many words, or 0."""
    words = [text.lower() for text in texts[:5]]
    counts = len(words) > 3 and words[1] in ("node", "nodes") and words[2] in ("of", "with", "×", "x")
    if not counts or not (words[0].isdecimal() and words[3].isdecimal()) or question.gpus or question.nodes:
        return 0
    question.gpus = str(int(words[0]) * int(words[3]))
    return 5 if len(words) > 4 and words[4] in ("gpu", "gpus") else 4


def _read_length(question: _Question, texts: Sequence[str]) -> int:
    """Take a number of whole thousands (1,024) beside one of GPUs as a length; gives how many words, or 0."""
    after = texts[1].lower() if len(texts) > 1 else ""
    if (
        not NUMBER.fullmatch(texts[0])
        or after in COUNTED
        or is_gpu(after)
        or "--sequence-length" in question.flags
    ):
        return 0
    counts = question.gpus or question.nodes or (after.isdecimal() and not _is_length(after))
    if not counts or not _is_length(texts[0]):
        return 0
    question.flags += ["--sequence-length", texts[0]]
    return 1


def _is_length(text: str) -> bool:
    """Whether a number is whole thousands of 1,024, as sequences are long."""
    whole = text.lower().removesuffix("k")
    return whole.isdecimal() and int(whole) > 0 and (whole != text.lower() or int(whole) % 1024 == 0)


def _name(question: _Question, texts: Sequence[str]) -> int:
    """Take a command, a GPU, a model's name of up to three words, or a word that says nothing."""
    text, word = texts[0], texts[0].lower()
    meant = command_for([word]).split()
    named = next((each for each in (word, *meant[1:2]) if each in OF_WORDS), "")
    if named and not question.command and word not in FILLER:
        question.command = named
        return 1
    memory = [f"{text}-{texts[1]}"] if len(texts) > 1 and MEMORY.fullmatch(texts[1]) else []
    kind = next((each for each in (*memory, text, text.removesuffix("s")) if is_gpu(each)), "")
    if kind:
        question.kinds.append(kind)
        return 2 if kind in memory else 1
    if word in JOINS:
        question.joins = True
        return 1
    if word in SINGLE and len(texts) > 1 and not (question.gpus or question.nodes):
        after = texts[1].lower()
        if is_gpu(texts[1]) or after in COUNTED:
            question.gpus, question.nodes = ("1", "") if COUNTED.get(after, 1) else ("", "1")
            return 2 if after in COUNTED else 1
    if word in FILLER:
        return 1
    if question.model:
        return 0
    for length in range(min(_LONGEST_NAME, len(texts)), 0, -1):
        name = "-".join(texts[:length])
        if any(part.lower() in NO_NAME for part in texts[:length]) or not is_model(name):
            continue
        if any(SIZE.fullmatch(size) and count.isdecimal() for size, count in pairwise(texts[:length])):
            continue  # 70b 2: a count
        question.model = name
        return length
    return 0


def _line(question: _Question, asks_fewest: bool, assumed: list[str], *, fits: bool) -> str:
    """The command line of what was understood; what it assumes is added to `assumed`."""
    command = question.command.replace("train", "")
    question.flags = with_tokens(question.flags, assumed)
    if command == "memory":
        adapters = [each for each in question.flags if each.startswith("--")] == ["--adapter"]
        if not (question.gpus or question.nodes or question.kinds or (question.flags and not adapters)):
            return shlex.join(["plan", "memory", question.model, *question.flags])
        command = "estimate"  # the bytes of a model alone have no GPUs, precision or length
    if command == "serve":
        return _server(question)
    if command == "recipes":
        return shlex.join(
            ["plan", "recipes", question.model, *(("--gpu", *question.kinds) if question.kinds else ())]
        )
    if len(question.kinds) > 1:
        command = "sweep"
    gpus, fewest = question.gpus, list[str]()
    if question.nodes:
        gpus = str(int(question.nodes) * _per_node(question.kinds))
    elif not gpus and asks_fewest and fits:
        gpus = "8"  # where it does not fit, the answer names the number of GPUs that holds it
    elif not gpus and (asks_fewest or "--deadline" in question.flags):
        if "--adapter" in question.flags:
            return ""
        gpus, fewest = fewest_gpus(question.model, question.kinds, question.flags, assumed)
    elif not gpus:
        assumed.append("32 GPUs")
    counted = ["--gpus", gpus or "32"]
    gpu = ["--gpu", ",".join(question.kinds)] if question.kinds else []
    start = ["plan", *([command] if command else []), "--model", question.model]
    return shlex.join([*start, *counted, *gpu, *question.flags, *fewest])


def _server(question: _Question) -> str:
    """The command line of a fleet; "" where something was said of a training job."""
    flags = [OF_SERVERS.get(each, each) for each in question.flags]
    if len(question.kinds) > 1 or {"--tokens", "--sequence-length", "--adapter"} & {*flags}:
        return ""
    gpus = question.gpus or (str(int(question.nodes) * _per_node(question.kinds)) if question.nodes else "")
    counted = ["--gpus", gpus] if gpus else []
    gpu = ["--gpu", *question.kinds] if question.kinds else []
    return shlex.join(["plan", "serve", "--model", question.model, *counted, *gpu, *flags])


def _per_node(kinds: Sequence[str]) -> int:
    """GPUs of a node of the kind that is named."""
    from topology.hardware.datasheets import default_gpu, reference_machine, sheet_named

    return reference_machine(sheet_named(kinds[0] if kinds else default_gpu())).gpus_per_node
