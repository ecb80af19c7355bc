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

from app.entry.handed_out import NAMES, is_model
from app.flags.dashes import PROGRAMS, is_here

TABLE = Path(__file__).with_name("other_words.toml")
VALUE = "{}"
WITHOUT_VALUE = {"--model": "--model 70b", "--discover": "--here"}
"""What a flag that ends a command line becomes where nothing follows it."""
TRAINING = ("train", "estimate", "ladder", "sweep", "explain", "export", "run", "audit", "validate")
CATALOGS = ("models", "gpus", "engines")
COUNTED_GPU = re.compile(r"([1-9]\d*)\s*[x×]\s*(?:([1-9]\d*)|([a-z][\w-]*))", re.IGNORECASE)
"""Nodes of so many GPUs (``4x8``), or GPUs of a kind (``32xh100``)."""


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, Sequence[str]]]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def _flags_of(command: str) -> Mapping[str, str]:
    """What says the same, by the other word, of a command."""
    return _by_word("every") | _by_word(_kind(command)) | _by_word(command)


def flags_by_word(command: str) -> Mapping[str, str]:
    """What says the same here, by the words of other programs' flags.

    Args:
        command: The command whose flags are meant.
    """
    return _flags_of(command)


def without_flag(word: str, command: str) -> str:
    """What to do for a word of other programs that no flag says here; "" where nothing is known."""
    return _by_word(f"{_kind(command)}-instead").get(_plain(word), "")


def _kind(command: str) -> str:
    """What a command asks about: its table holds the words of all such commands."""
    return "train" if command in (*TRAINING, "memory") else "catalog" if command in CATALOGS else command


def _by_word(table: str) -> dict[str, str]:
    """What says the same here, by the word of another program."""
    return {word: here for here, words in _table().get(table, {}).items() for word in words}


def _plain(flag: str) -> str:
    """A flag as the table spells it: one letter as it is, since -n and -N are two."""
    word = flag.lstrip("-").replace("_", "-").rpartition(".")[2]  # parallelism.tensor_parallel_degree
    return word if len(word) == 1 else word.lower()


def command_for(words: Sequence[str]) -> str:
    """The command line that a word which is no command may mean; "" where none is known.

    >>> command_for(["compare", "a.json", "b.json"]), command_for(["vram", "70b"])
    ('plan diff a.json b.json', 'plan estimate --gpus 32 --model 70b')
    >>> command_for(["optimize", "--model", "70b", "--gpus", "32"]), command_for(["vllm", "serve", "-n", "1"])
    ('plan --model 70b --gpus 32', 'plan serve -n 1')
    """
    here = _by_word("commands").get(_plain(words[0])) if words else None
    if here is None:
        return ""
    given = [] if here.startswith("--") or here.endswith(LAST_FLAGS) else list(words[1:])
    given = given[given[:1] == [here] :]  # vllm serve
    if here == "bench" and given and _is_file(given[0]):
        here = "diagnose"  # profile trace.json
    if here == "models" and given and (catalog := _catalog(given[0])):
        here, given = catalog, given[1:]  # list gpus
    if here == "verify" and given and Path(given[0]).suffix != ".json":
        here = "models"
    if here == "diff" and given and given[0].startswith("--"):
        return shlex.join(["plan", "sweep", *_lists(given)])
    if here == "train" and given and _is_file(given[0]):
        here = "audit"
    if here == "diff" and len(given) > 1 and all("." not in name for name in given):
        return ""  # no files: kinds of GPUs, or models
    if (
        here.split()[0] in (*TRAINING, "serve")
        and len(given) > 1
        and here != "audit"
        and not any(word.startswith("-") for word in given)
    ):
        return ""  # a sentence
    if here == "train":
        return shlex.join(["plan", *given]) if given else "plan --model 70b --gpus 32"
    for flag, instead in WITHOUT_VALUE.items():
        here = here if given else here.replace(flag, instead)
    if {"--gpus", "-n", "--cluster"} & {*given}:
        here = here.replace("--gpus 32 ", "")
    return shlex.join(["plan", *here.split(), *given])


LAST_FLAGS = ("--help", "--here")
"""Flags behind which nothing is given."""


def _catalog(word: str) -> str:
    """The catalog that a word names; "" where it names none.

    >>> _catalog("gpus"), _catalog("hardware"), _catalog("70b")
    ('gpus', 'gpus', '')
    """
    here = word if word in CATALOGS else _by_word("commands").get(_plain(word), "")
    return here if here in CATALOGS else ""


def _lists(words: Sequence[str]) -> list[str]:
    """Flags with their values, those of one that is given several times as a list.

    >>> _lists(["--model", "70b", "--gpu", "h100", "--gpu", "b200"])
    ['--model', '70b', '--gpu', 'h100,b200']
    """
    values: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        flag = word if word.startswith("-") else flag
        values.setdefault(flag, []).extend([word] if word != flag else [])
    return [part for name, given in values.items() for part in (name, ",".join(given)) if part]


def audit_of_file(words: Sequence[str]) -> str:
    """The command line where a launch file stands for a command; "" where none does.

    >>> audit_of_file(["train.sh", "--gpus", "64"]), audit_of_file(["70b"])
    ('plan audit train.sh --gpus 64', '')
    """
    names = bool(words) and (Path(words[0]).suffix in LAUNCH_FILES or "/" in words[0].rstrip("/"))
    return shlex.join(["plan", "audit", *words]) if names and not is_model(words[0]) else ""


def _is_file(word: str) -> bool:
    """Whether a word is a launch file rather than a flag or a name."""
    return not word.startswith("-") and (Path(word).suffix in LAUNCH_FILES or is_here(word))


LAUNCH_FILES = (".sh", ".bash", ".slurm", ".sbatch", ".py", ".yaml", ".yml", ".toml", ".json", ".cfg", ".log")
"""Endings of what an audit reads."""
OF_FILES = frozenset(("audit", "export", "validate"))
"""Commands whose bare words are files."""


def with_flags(words: Sequence[str]) -> str:
    """The command line where a bare word names a model, and a bare number behind it counts GPUs; else "".

    >>> with_flags(["70b", "32"]), with_flags(["estimate", "llama-3.1-8b", "--gpus", "8"])
    ('plan --model 70b --gpus 32', 'plan estimate --model llama-3.1-8b --gpus 8')
    >>> with_flags(["doctor"]), with_flags(["estimate", "--gpus", "8"])
    ('', '')
    """
    bare = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    command = bare[:1] if bare and bare[0] in (*TRAINING, "serve") else []
    if {*command} & OF_FILES:
        return ""
    named, rest = bare[len(command) :], list(words[len(bare) :])
    counts = all(word.isdecimal() for word in named[1:])
    if not 1 <= len(named) <= 2 or not counts or named[0].isdecimal() or not is_model(named[0]):
        return ""
    flags = [part for pair in zip(("--model", "--gpus"), named, strict=False) for part in pair]
    return shlex.join(["plan", *(each for each in command if each != "train"), *flags, *rest])


def command_behind_dashes(words: Sequence[str]) -> str:
    """The command line of an audit where a program's own command stands without ``--``; else "".

    >>> command_behind_dashes(["audit", "torchrun", "--nproc_per_node", "8", "train.py"])
    'plan audit -- torchrun --nproc_per_node 8 train.py'
    >>> command_behind_dashes(["audit", "train.sh", "--tp", "8"])
    ''
    """
    if len(words) < LEAST_OF_COMMAND or words[0] != "audit":
        return ""
    if _plain(words[1].partition("=")[0]) in OF_TORCHRUN:
        return shlex.join(["plan", "audit", "--", "torchrun", *words[1:]])
    starts = not words[1].startswith("-") and not _is_file(words[1])
    return shlex.join(["plan", "audit", "--", *words[1:]]) if starts else ""


def audit_of_command(words: Sequence[str]) -> str:
    """The command line of an audit where another program's own command is typed; else "".

    >>> audit_of_command(["torchrun", "train.py", "--tp", "8"]), audit_of_command(["axolotl"])
    ('plan audit -- torchrun train.py --tp 8', '')
    """
    if words[:2] == ["accelerate", "estimate-memory"]:
        names = [word for word in words[2:3] if not word.startswith("-")]
        return shlex.join(["plan", "memory", *(names or ["70b"])])
    if words and Path(words[0]).name in SUBMITS:
        files = [word for word in words[1:] if Path(word).suffix in LAUNCH_FILES]
        return shlex.join(["plan", "audit", *files[:1]]) if files else ""
    starts = len(words) >= LEAST_OF_COMMAND and Path(words[0]).name in PROGRAMS
    return shlex.join(["plan", "audit", "--", *words]) if starts else ""


def without_rest(words: Sequence[str]) -> str:
    """The command line of a word that is no command, without what follows it; "" of a question.

    >>> without_rest(["ui", "--model", "70b"]), without_rest(["cost", "--model", "70b"])
    ('plan dash, without --model 70b', '')
    """
    line = command_for(words[:1])
    asks = line.split()[1:2] in (["--model"], *([each] for each in (*TRAINING, "serve")))
    return f"{line}, without {' '.join(words[1:])}" if line and not asks and words[1:] else ""


def of_catalog(words: Sequence[str]) -> str:
    """The command line that describes an engine, a GPU or a rule whose name stands alone; else "".

    >>> of_catalog(["h100"]), of_catalog(["megatron"]), of_catalog(["kv-heads"]), of_catalog(["h100", "32"])
    ('plan gpus h100', 'plan engines megatron', 'plan rule kv-heads', '')
    """
    if len(words) == 2 and words[0] in SHOWS:  # show h100
        words = words[1:]
    if len(words) != 1 or words[0][:1].isdecimal():
        return ""
    return next((f"plan {catalog} {words[0]}" for catalog in ONE_NAME if NAMES[catalog](words[0])), "")


SHOWS = ("show", "info", "describe", "about")
"""Words before a name that asks what it is."""
ONE_NAME = ("engines", "gpus", "rule")
"""Commands that describe what one word names, where it names no model."""
LEAST_OF_COMMAND = 2
SUBMITS = ("kubectl", "sky", "sbatch", "qsub", "bsub", "docker", "dstack")
"""Programs that hand a file to a cluster: what the job is stands in the file."""


OF_TORCHRUN = (
    "nproc-per-node", "nnodes", "node-rank", "master-addr", "master-port", "standalone", "rdzv-backend",
)  # fmt: skip
"""Flags with which torchrun begins."""


def rewritten(words: Sequence[str], command: str, known: Sequence[str] = ()) -> str:
    """The command line in words of ours; "" where none of its flags is another program's.

    >>> rewritten(["--model", "70b", "--gpus", "32", "--tp", "8"], "train")
    'plan --model 70b --gpus 32 --set layout.tp=8'
    >>> rewritten(["serve", "--model", "70b", "--isl", "4000", "--osl=500"], "serve")
    'plan serve --model 70b --input 4000 --output-tokens 500'
    >>> rewritten(["--model", "70b", "--nodes", "4"], "train")
    'plan --model 70b --gpus 32'
    >>> rewritten(["--model", "70b", "--gpus", "32", "--explain", "--verbose"], "train")
    'plan explain --model 70b --gpus 32'

    Args:
        words: As typed, without the program's name.
        command: The command that they chose.
        known: Flags that the command has: they stay as they are, and no other is offered.
    """
    typed, words = words, [_without_table(word, known) for word in words]
    table, at, changed = _flags_of(command), 0, words != [*typed]
    result, nodes = list[str](), dict[str, str]()
    before, after = command, ""
    while at < len(words):
        word = words[at]
        flag, equals, value = word.partition("=")
        following = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else ""
        at += 1
        name, value = _plain(flag), value or following
        here = table.get(f"{name}={value.lower()}") if value else None
        takes = here is not None or VALUE in table.get(name, "")
        here = table.get(name) if here is None else here
        if flag.startswith("-") and here is None and known and flag not in known:
            at += not equals and bool(following) and not is_here(following)
            continue
        if not flag.startswith("-") or flag in known or here is None or _lacks(known, here):
            result.append(word)
            continue
        if VALUE in here and not value:
            return ""
        here = KINDS.get(here, here) if value[:1].isalpha() else here  # -g h100
        changed = True
        is_value = takes or command in BARE or value.lower() in ("true", "1", "yes", "on")
        at += not equals and bool(following) and is_value
        if here.startswith("nodes"):
            nodes[here.split()[0]] = value.rpartition(":")[2]  # gres: gpu:8
        elif here.startswith("pins"):
            result += [part for pin in value.split(",") for part in ("--set", f"layout.{pin.strip()}")]
        elif here.startswith("plan "):
            before = here.removeprefix("plan ")
        elif here.startswith("&& "):
            after = f" --output plan.json {here.replace(VALUE, value)}"
        else:
            value = str(_table()["values"].get(value.lower(), value))
            if value or VALUE not in here:
                spelled = _spelled(here, value, words, known)
                result = _without(result, "--adapter") if spelled[:1] == ["--adapter"] else result
                result += spelled
    shown = result[1:] if result[:1] == [command] else result
    shown = [*([] if before == "train" else [before]), *shown]
    counted = _gpus_of_nodes(nodes, words) if nodes else ()
    if not changed or counted is None:
        return ""
    if counted[:1] == ("--gpus",):
        shown = _without(shown, "--gpus", "-n")
    return shlex.join(["plan", *shown, *counted]) + after


KINDS = {"--gpus {}": "--gpu {}"}
"""What a count of GPUs means where its value is a name."""


def _without_table(word: str, known: Sequence[str]) -> str:
    """A flag of ours without the table of a configuration before it: ``--train.global_batch_size``."""
    flag, equals, value = word.partition("=")
    last = f"--{_plain(flag)}"
    return f"{last}{equals}{value}" if flag.startswith("--") and "." in flag and last in known else word


def _memory(words: Sequence[str]) -> str:
    """The command line of what a model holds, whose name stands alone; beside degrees, of an estimate."""
    bare = len(words) > 1 and not words[1].startswith("-")
    at = 0 if bare else next(at for at, word in enumerate(words) if word in ("--model", "-m"))
    name, rest = [*words[at + 1 : at + 2]], [*words[1:at], *words[at + 2 :]]
    if not rest or not name:
        return shlex.join(["plan", "memory", *(name or ["70b"])])
    counted = [] if {"--gpus", "-n", "--cluster"} & {*rest} else ["--gpus", "32"]
    line = ["estimate", "--model", *name, *counted, *rest]
    return rewritten(line, "estimate") or shlex.join(["plan", *line])


def _searched_export(words: Sequence[str]) -> str:
    """The two commands that plan a job and write its files: an export is of a plan."""
    words = words[1:]
    flags = {"--to", "--for", "--engine", "--framework"}
    at = next((at for at, word in enumerate(words) if word in flags), len(words))
    engine, rest = words[at + 1 : at + 2] or ["megatron"], [*words[:at], *words[at + 2 :]]
    line = rewritten(rest, "train") or shlex.join(["plan", *rest])
    return f"{line} --output plan.json && plan export plan.json --to {shlex.join(engine)}"


def without_model_flag(words: Sequence[str], command: str, known: Sequence[str] = ()) -> str:
    """The command line where a command is asked what another answers of a model; "" where it is not.

    >>> without_model_flag(["memory", "--model", "70b"], "memory")
    'plan memory 70b'
    >>> without_model_flag(["export", "--model", "70b", "--gpus", "8", "--to", "deepspeed"], "export")
    'plan --model 70b --gpus 8 --output plan.json && plan export plan.json --to deepspeed'
    """
    named = bool({"--model", "-m"} & {*words})
    if command == "memory" and known and not named:
        flags = [word for word in words if word.startswith("-")]
        named = words[1:2] != flags[:1] and any(flag.partition("=")[0] not in known for flag in flags)
    return WHOLE[command](words) if command in WHOLE and named else ""


WHOLE = {"memory": _memory, "export": _searched_export}
"""Commands that name no model by a flag, and what a line means that does."""
BARE = ("train", "estimate", "sweep", "ladder", "serve")
"""Commands that take no bare words: one behind a flag is its value."""


def _without(words: Sequence[str], *flags: str) -> list[str]:
    """A command line without some flags and their values."""
    return [
        word
        for at, word in enumerate(words)
        if word.partition("=")[0] not in flags and (not at or words[at - 1] not in flags)
    ]


def left_out(words: Sequence[str], command: str, known: Sequence[str]) -> tuple[str, ...]:
    """Flags that no word here says, which a rewritten line leaves out.

    >>> left_out(["serve", "--tp", "8", "--max-num-seqs", "256"], "serve", ("--rate", "--set"))
    ('--max-num-seqs',)
    """
    others = {word.partition("=")[0] for word in _flags_of(command)}
    flags = [_without_table(word, known).partition("=")[0] for word in words if word.startswith("-")]
    return tuple(flag for flag in flags if flag not in known and _plain(flag) not in others)


def instead(words: Sequence[str], command: str, known: Sequence[str] = ()) -> str:
    """What to do for a flag of another program that none here says; "" where none is.

    >>> instead(["--model", "70b", "--steps", "1000"], "train")
    'tokens to train on are steps × sequences of a step × their length: --tokens 1T'
    """
    table = _by_word(f"{_kind(command)}-instead")
    flags = (word.partition("=")[0] for word in words if word.startswith("-"))
    return next((table[_plain(flag)] for flag in flags if flag not in known and _plain(flag) in table), "")


def _spelled(here: str, value: str, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Our words with their value, whose unit stands once; without a profile beside one that is named."""
    parts = here.split()
    named = any(word in ("--stack", "--for") for word in words) or (known and "--stack" not in known)
    if parts[:1] == ["--stack"] and len(parts) > 2 and named:
        parts = parts[2:]
    return [part.replace(VALUE, value.removesuffix(part.partition(VALUE)[2])) for part in parts]


def _lacks(known: Sequence[str], here: str) -> bool:
    """Whether a command has not the flag that says it here, or asks no question that another answers."""
    flag = here.partition(" ")[0]
    needed = NEEDED.get(flag, (flag,) if flag.startswith("--") else ())
    return bool(known) and not {*needed} <= {*known, "--version", "--help"}


NEEDED = {
    "plan": ("--model",),
    "&&": ("--model", "--output"),
    "nodes": ("--gpus",),
    "nodes-of": ("--gpus",),
    "pins": ("--set",),
}
"""Flags that a command has which can be asked so."""


def _gpus_of_nodes(nodes: Mapping[str, str], words: Sequence[str]) -> tuple[str, ...] | None:
    """GPUs of so many nodes of the GPU that is named, in nodes of so many; None of what is no number.

    A cluster that is named has nodes of its own.
    """
    from planner.questions.flags import Flags
    from planner.questions.training import settings_of_nodes
    from topology.hardware.datasheets import default_gpu, reference_machine, sheet_named

    flags = dict(itertools.pairwise(words))
    count, of_each = nodes.get("nodes"), nodes.get("nodes-of")
    if "--cluster" in words or not all(number.isdecimal() for number in nodes.values()):
        return None
    gpu = flags.get("--gpu") or default_gpu()
    usual = reference_machine(sheet_named(gpu)).gpus_per_node
    per_node = int(of_each) if of_each else usual
    gpus = str(int(count) * per_node) if count else flags.get("--gpus") or flags.get("-n") or ""
    if not gpus.isdecimal() or not per_node:
        return None
    settings = () if per_node == usual else settings_of_nodes(Flags(gpu=gpu, gpus=gpus), per_node)
    pins = [part for setting in settings for part in ("--set", setting)]
    return (*(("--gpus", gpus) if count else ()), *pins)


def is_kind(text: str) -> bool:
    """Whether a number is the name of a GPU: 4090."""
    from topology.base.errors import InputError
    from topology.catalog import gpu_name

    try:
        return len(text) > 1 and bool(gpu_name(text))
    except InputError:
        return False


def counted_gpus(words: Sequence[str], command: str) -> str:
    """The command line where ``--gpus`` says nodes or the kind, too, or ``--gpu`` says several; else "".

    >>> counted_gpus(["--model", "70b", "--gpus", "32xh100"], "train")
    'plan --model 70b --gpus 32 --gpu h100'
    >>> counted_gpus(["--model", "70b", "--gpus", "4x8"], "train")
    'plan --model 70b --gpus 32'
    >>> counted_gpus(["--model", "8b", "--gpus", "4x4090"], "train")
    'plan --model 8b --gpus 4 --gpu 4090'
    >>> counted_gpus(["--model", "70b", "--gpu", "h100,a100"], "train")
    'plan sweep --model 70b --gpu h100,a100'
    """
    for at, (word, after) in enumerate(itertools.pairwise(words)):
        if word in ("--gpus", "-n") and (both := COUNTED_GPU.fullmatch(after)):
            named = both[3] or (both[2] if is_kind(both[2] or "") else "")
            count = int(both[1]) * int("1" if named else both[2] or 1)
            kind = ["--gpu", named] if named else []
            return shlex.join(["plan", *words[:at], "--gpus", str(count), *kind, *words[at + 2 :]])
        if word == "--gpu" and command == "train" and "," in after:
            return shlex.join(["plan", "sweep", *(each for each in words if each != "train")])
    return ""
