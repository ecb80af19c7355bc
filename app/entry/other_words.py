"""What people type who know another program: the exact command line that says it here.

Words and what they mean are data (`other_words.toml`). A command line is rewritten as a whole, so that what
is printed can be typed; it is never run in the place of what was typed.
"""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

TABLE = Path(__file__).with_name("other_words.toml")
VALUE = "{}"
WITHOUT_VALUE = {"--model": "--model 70b", "--discover": "--here"}
"""What a flag that ends a command line becomes where nothing follows it."""
TRAINING = ("train", "estimate", "sweep", "explain", "export", "run", "audit", "validate")
NODES = ("nodes", "nnodes", "num-nodes", "num-machines", "hosts")
"""Flags that count nodes, of as many GPUs as the GPU's own machine has."""
COUNTED_GPU = re.compile(r"([1-9]\d*)\s*[x×]\s*(?:([1-9]\d*)|([a-z][\w-]*))", re.IGNORECASE)
"""Nodes of so many GPUs (``4x8``), or GPUs of a kind (``32xh100``)."""


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, Sequence[str]]]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def _flags_of(command: str) -> Mapping[str, str]:
    """What says the same, by the other word, of a command."""
    table = command if command == "serve" else "train" * (command in TRAINING)
    return _by_word("every") | _by_word(table)


def _by_word(table: str) -> dict[str, str]:
    """What says the same here, by the word of another program."""
    return {word: here for here, words in _table().get(table, {}).items() for word in words}


def _plain(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-").lower()


def command_for(words: Sequence[str]) -> str:
    """The command line that a word which is no command may mean; "" where none is known.

    >>> command_for(["compare", "a.json", "b.json"]), command_for(["memory", "70b"])
    ('plan diff a.json b.json', 'plan estimate --gpus 32 --model 70b')
    """
    here = _by_word("commands").get(_plain(words[0])) if words else None
    if here is None:
        return ""
    given = list(words[1:]) if not here.endswith("--help") else []
    for flag, instead in WITHOUT_VALUE.items():
        here = here if given else here.replace(flag, instead)
    return shlex.join(["plan", *here.split(), *given])


def rewritten(words: Sequence[str], command: str, known: Sequence[str] = ()) -> str:
    """The command line in words of ours; "" where none of its flags is another program's.

    >>> rewritten(["--model", "70b", "--gpus", "32", "--tp", "8"], "train")
    'plan --model 70b --gpus 32 --set layout.tp=8'
    >>> rewritten(["serve", "--model", "70b", "--isl", "4000", "--osl=500"], "serve")
    'plan serve --model 70b --input 4000 --output-tokens 500'
    >>> rewritten(["--model", "70b", "--nodes", "4"], "train")
    'plan --model 70b --gpus 32'

    Args:
        words: As typed, without the program's name.
        command: The command that they chose.
        known: Flags that the command has: they stay as they are, and no other is offered.
    """
    table, result, changed, at = _flags_of(command), list[str](), False, 0
    while at < len(words):
        word = words[at]
        flag, equals, value = word.partition("=")
        at += 1
        name = _plain(flag)
        if not flag.startswith("--") or flag in known or (name not in table and name not in NODES):
            result.append(word)
            continue
        here = f"--gpus {VALUE}" if name in NODES else table[name]
        if known and here.split()[0] not in known:
            result.append(word)
            continue
        changed = True
        following = words[at] if at < len(words) and not words[at].startswith("-") else ""
        if VALUE in here and not equals:
            value, at = following, at + bool(following)
        elif VALUE not in here and not equals and following.lower() in ("true", "1", "yes", "on"):
            at += 1
        if name in NODES:
            value = _gpus_of_nodes(value, words)
        if not value and VALUE in here:
            return ""
        result += [part.replace(VALUE, value) for part in here.split()]
    shown = result[1:] if result[:1] == ["train"] else result
    return shlex.join(["plan", *shown]) if changed else ""


def _gpus_of_nodes(nodes: str, words: Sequence[str]) -> str:
    """GPUs of so many nodes of the GPU that is named; "" of no number, or of a cluster of its own nodes."""
    from topology.hardware.datasheets import default_gpu, reference_machine, sheet_named

    if not nodes.isdecimal():
        return ""
    if "--cluster" in words:
        return ""
    named = next((after for word, after in itertools.pairwise(words) if word == "--gpu"), "")
    return str(int(nodes) * reference_machine(sheet_named(named or default_gpu())).gpus_per_node)


def counted_gpus(words: Sequence[str], command: str) -> str:
    """The command line where ``--gpus`` says nodes or the kind, too, or ``--gpu`` says several; else "".

    >>> counted_gpus(["--model", "70b", "--gpus", "32xh100"], "train")
    'plan --model 70b --gpus 32 --gpu h100'
    >>> counted_gpus(["--model", "70b", "--gpus", "4x8"], "train")
    'plan --model 70b --gpus 32'
    >>> counted_gpus(["--model", "70b", "--gpu", "h100,a100"], "train")
    'plan sweep --model 70b --gpu h100,a100'
    """
    for at, (word, after) in enumerate(itertools.pairwise(words)):
        if word in ("--gpus", "-n") and (both := COUNTED_GPU.fullmatch(after)):
            count, kind = int(both[1]) * int(both[2] or 1), ["--gpu", both[3]] if both[3] else []
            return shlex.join(["plan", *words[:at], "--gpus", str(count), *kind, *words[at + 2 :]])
        if word == "--gpu" and command == "train" and "," in after:
            return shlex.join(["plan", "sweep", *(each for each in words if each != "train")])
    return ""
