"""A command line that a message hands out: whole, and read by the command that it names.

The command's own flags parse it, its names are looked up, and its question is understood as when it is asked.
Nothing is searched or run. A line that would be refused is not handed out.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from app.flags.dashes import is_command, is_here, with_whole_command
from app.flags.program import COMMANDS, COMPLETION, DEFAULT_COMMAND, given_to, parameters_of
from topology.base.errors import AmbiguousNameError, InputError

LINE: Final = re.compile(r"(plan\b.*?)(, with(?:out)? .*)?", re.DOTALL)
"""A command line, and what is told behind it of what it takes for granted or leaves out."""
OF_EXAMPLE: Final = " for example"
QUESTIONS: Final = ("train", "estimate", "sweep", "ladder", "explain")
"""Commands that plan what their flags ask, where no file says it."""
FILES: Final = frozenset((
    "accuracy", "audit", "convert", "dash", "diagnose", "diff", "explain", "export", "run", "tokenize",
    "validate", "verify", "watch",
))  # fmt: skip
"""Commands whose bare words are files and folders."""


class UnreadableError(InputError):
    """A line that its command does not parse, or whose bare words are not what it reads."""


EXAMPLE_MODEL: Final = "70b"
EXAMPLE_GPUS: Final = "32"


def handed_out(text: str) -> str:
    """A line that is offered, made whole; what it takes for granted is told behind it.

    >>> handed_out("plan --model 70b")
    'plan --model 70b --gpus 32, with 32 GPUs for example'
    >>> handed_out("plan serve --model 13b --rate 5/s")
    'plan serve --model llama-2-13b --rate 5/s, with llama-2-13b for example'

    Raises:
        InputError: the line would be refused.
    """
    matched = LINE.fullmatch(text)
    line, suffix = (matched[1], matched[2] or "") if matched else (text, "")
    assumed = list[str]()
    whole = " && ".join(_whole(part, assumed) for part in line.split(" && "))
    if not assumed:
        return whole + suffix
    before, joined, after = suffix.removeprefix(", with ").partition(OF_EXAMPLE)
    if suffix.startswith(", with ") and joined:  # both stand in one list
        return f"{whole}, with {' and '.join((*assumed, before))}{OF_EXAMPLE}{after}"
    return f"{whole}, with {' and '.join(assumed)}{OF_EXAMPLE}{suffix}"


def _whole(line: str, assumed: list[str]) -> str:
    """One command line with a name for each that means several, and with what a question cannot lack."""
    words = shlex.split(line)[1:]
    command = words[0] if words and words[0] in COMMANDS else DEFAULT_COMMAND
    if not words or words[0] in ("--help", "--version", *COMPLETION):
        return line
    rest = words[words[:1] == [command] :]
    rest = with_whole_command([command, *rest])[1:] if command == "audit" else rest
    given = _given(command, rest)
    named = one_name(given.get("model") or "", lists=command == "sweep")
    if named != (given.get("model") or ""):
        assumed.append(named)
        words = [named if word == given["model"] else word for word in words]
        words = [
            word.replace(f"={given['model']}", f"={named}") if word[:2] == "--" else word for word in words
        ]
    if command in QUESTIONS and not _bare(command, given):
        asks = given.get("module") is None
        if not given.get("model") and asks:
            words += ["--model", EXAMPLE_MODEL]
            assumed.append(EXAMPLE_MODEL)
        if not (given.get("gpus") or given.get("cluster")):
            words += ["--gpus", EXAMPLE_GPUS]
            assumed.append(f"{EXAMPLE_GPUS} GPUs")
    rest = words[words[:1] == [command] :]
    rest = with_whole_command([command, *rest])[1:] if command == "audit" else rest
    _require_read(command, _given(command, rest), rest)
    return line if words == shlex.split(line)[1:] else shlex.join(["plan", *words])


def _given(command: str, rest: Sequence[str]) -> Mapping[str, Any]:
    """What a command would be called with."""
    once = [
        each.opts for each in parameters_of(command) if not each.multiple and each.param_type_name == "option"
    ]
    flags = [word.partition("=")[0] for word in rest]
    if any(sum(flag in names for flag in flags) > 1 for names in once):
        raise UnreadableError("a flag is given twice", f"of plan {command}", "leave one of them out")
    try:
        return given_to(command, rest)
    except typer.TyperException as error:
        what = error.format_message().rstrip(".")
        raise UnreadableError(what, f"of plan {command}", f"see `plan {command} --help`") from error


def _bare(command: str, given: Mapping[str, Any]) -> Sequence[str]:
    """The bare words of a command line."""
    arguments = [each.name for each in parameters_of(command) if each.param_type_name == "argument"]
    values = [given.get(name) for name in arguments]
    listed = [value if isinstance(value, list | tuple) else (value,) for value in values if value is not None]
    return [str(word) for words in listed for word in words]


def one_name(names: str, *, lists: bool = False) -> str:
    """The same names of models, each that means several as the one of the usual family.

    Args:
        names: Of a model, or of several with commas between.
        lists: Whether commas part names.
    """
    from costmodel.models.catalog import model
    from topology.base.names import words

    def full_name(name: str) -> str:
        try:
            model(name)
        except AmbiguousNameError as error:
            usual = model(EXAMPLE_MODEL).name
            family = words(usual)[0]
            if usual in error.suggestions:
                return usual
            return next(
                (each for each in error.suggestions if words(each)[0] == family), error.suggestions[0]
            )
        return name

    if not names or names.endswith(".json") or {*":/"} & {*names}:
        return names
    return ",".join(full_name(name) for name in (names.split(",") if lists else (names,)))


def _require_read(command: str, given: Mapping[str, Any], words: Sequence[str]) -> None:
    """Refuse what the command refuses before it does anything.

    Args:
        command: The command.
        given: What it would be called with.
        words: Its flags and arguments as they stand, since a path has no slash at its end.

    Raises:
        InputError: a name, a number or a setting is not read.
    """
    bare = [
        each
        for each in words
        if each in {*_bare(command, given)} or each.rstrip("/") in {*_bare(command, given)}
    ]
    if command == "serve":
        _require_served(given)
    elif command in QUESTIONS and not bare:
        _require_planned(command, given)
    elif command in FILES:
        missing = [
            word for word in bare if not _is_path(word) and not (command == "audit" and is_command(word))
        ]
        if missing:
            raise UnreadableError(f"{missing[0]} is no file", f"plan {command} reads files", "give a path")
        if command == "export":
            from planner.launch.targets import target_named

            target_named(given["target"])
    elif command in NAMES and bare and not NAMES[command](bare[0]):
        raise UnreadableError(f"{bare[0]} is not listed", f"of plan {command}", f"plan {command} lists them")


def is_model(name: str) -> bool:
    """Whether a word names a model of the catalog, or several."""
    from costmodel.models.catalog import exact_model, listed_model
    from topology.base.errors import AmbiguousNameError

    if name.endswith(".json"):
        return is_here(name)
    if "/" in name:  # a repository; the hub is not asked
        return exact_model(name) is not None
    try:
        return bool(listed_model(name).name)
    except AmbiguousNameError:
        return True
    except InputError:
        return False


def is_gpu(name: str) -> bool:
    """Whether a word names a GPU, or several."""
    from topology.base.errors import AmbiguousNameError
    from topology.hardware.datasheets import sheet_named

    try:
        return len(name) > 1 and bool(sheet_named(name).name)
    except AmbiguousNameError:
        return True
    except InputError:
        return False


def is_engine(name: str) -> bool:
    """Whether a word names an engine that trains, or one of the presets that price them."""
    from planner.engines.contracts import engine_or_preset

    try:
        return bool(engine_or_preset(name))
    except InputError:
        return False


def is_rule(name: str) -> bool:
    """Whether a word names what dismisses layouts."""
    from planner.rules.meanings import meanings
    from topology.base.names import resolve

    try:
        return bool(resolve(name, tuple(meanings()), "rule"))
    except InputError:
        return False


NAMES: Final[Mapping[str, Callable[[str], bool]]] = {
    "models": is_model,
    "memory": is_model,
    "recipes": is_model,
    "gpus": is_gpu,
    "engines": is_engine,
    "rule": is_rule,
}
"""Commands whose bare word is a name, and what tells one."""


def _is_path(word: str) -> bool:
    """Whether a word may be the path of a file or a folder: it need not be on this machine."""
    return word == "-" or "/" in word or bool(re.fullmatch(r"\.\w+|:.*", Path(word).suffix)) or is_here(word)


def _require_planned(command: str, given: Mapping[str, Any]) -> None:
    """Understand a training job, or each point of a sweep."""
    from app.actions.module import is_traced
    from app.flags.job import flags_of
    from planner.analysis.sweep import points_of
    from planner.questions.training import understand

    flags = flags_of(given)
    if any(
        name and name.count(".") and not is_here(name) and _is_path(name)
        for name in (flags.model, flags.cluster)
    ):
        return  # a file that is not on this machine
    if flags.model and "/" in flags.model and not is_model(flags.model):
        return  # what the hub alone knows
    points = points_of(flags) if command == "sweep" else (flags,)
    for point in itertools.islice(points, MOST_POINTS):
        if not is_traced(point, given.get("module"), given.get("inputs")):
            understand(_without_ranges(point))


MOST_POINTS: Final = 16
"""Points of a sweep that are understood: its lists are of names, which all stand among the first."""


def _without_ranges(flags: Any) -> Any:
    """The same flags with the end of each range, which a search would begin with."""
    from dataclasses import replace

    ends = {
        name: value.rpartition("..")[2]
        for name in ("gpus", "global_batch_size")
        if (value := getattr(flags, name)) and ".." in value
    }
    return replace(flags, **ends)


def _require_served(given: Mapping[str, Any]) -> None:
    """Understand a fleet."""
    from app.flags.serve import serve_flags_of
    from planner.questions.serving.understand import understand_serving

    named = given.get("model") or ""
    if not given.get("services") and ("/" not in named or is_model(named)):
        understand_serving(serve_flags_of(given))
