"""The command line: `plan [OPTIONS]` plans a training job, `plan COMMAND` does everything else.

Only the command that was asked for is imported, and every command imports its heavy parts when it runs, so
that `plan --help` answers at once; `app.flags.program` lists them. A command prints through
`app.reports.answer.emit`, returns an exit code (None means 0), and raises `InputError` for anything the user
can fix.
"""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final

import typer

from app.errors import ANSWERED, INTERRUPTED, interrupted, run_guarded
from app.flags.completion import ASKED, completed_command
from app.flags.plain import PlainCommand, PlainGroup
from app.flags.program import COMMANDS, DEFAULT_COMMAND, GROUPS, loaded, parameters_of
from app.terminal.progress import never_silent
from app.terminal.streams import prepare, tell
from topology.base.errors import DamagedFileWarning, InputError
from topology.base.names import suggest
from topology.base.version import VERSION

OBJECTS_BETWEEN_COLLECTIONS: Final = 100_000
"""Imports and searches make hardly a cycle; to look for one every 700 objects is a tenth of a command."""
_ABOUT: Final = "Plan how to split a model across GPUs: the best layout under a cost model, proven."
_FIRST_QUESTIONS: Final = (
    "  plan --model 70b --gpus 32                                 a training job",
    "  plan serve --model 70b --rate 20/s --ttft 1s --tpot 40ms   a serving fleet",
    "  plan audit train.sh train.log                              a job that runs",
)
_MANNERS: Final = """`plan COMMAND --help` has a command's flags and examples.

Data goes to stdout, everything else to stderr. Exit codes: 0 answered, 1 no feasible plan, 2 bad input,
3 internal error (--debug shows the traceback), 4 an audit or a diagnosis that fails, 130 interrupted.
Completion for bash, zsh and fish: `plan --install-completion`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    gc.freeze()  # the process ends: to look for cycles once more takes a twentieth of a short command
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code and never raises."""
    prepare()
    debug = "--debug" in arguments
    words = [word for word in arguments if word != "--debug"]
    with warnings.catch_warnings():
        warnings.showwarning = _noting(warnings.showwarning)
        return run_guarded(
            lambda: _dispatch(words), debug=debug, refused=_as_document if asks_for_json(words) else None
        )


def _as_document(error: InputError, exit_code: int) -> None:
    """Write what is wrong as a document, for the program that asked for one."""
    from app.reports.answer import json_text, print_text
    from app.reports.refusal import refusal_document

    print_text(f"{json_text(refusal_document(error, exit_code))}\n", is_json=True)


def asks_for_json(words: list[str]) -> bool:
    """Whether a command line asks for a document, even where nothing else of it can be read.

    >>> asks_for_json(["--model", "70b", "--json"]), asks_for_json(["audit", "--", "train.py", "--json"])
    (True, False)
    >>> asks_for_json(["sweep", "--format", "json"]), asks_for_json(["sweep", "--format=csv"])
    (True, False)
    """
    flags, _ = _before_command(words)
    return "--json" in flags or "--format=json" in flags or ("--format", "json") in pairwise(flags)


def helped(words: list[str]) -> list[str]:
    """The command line with every way of asking for help as ``--help``; without a word it is asked for.

    >>> helped([]), helped(["help", "serve"]), helped(["serve", "-h"])
    (['--help'], ['serve', '--help'], ['serve', '--help'])
    """
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    flags, rest = _before_command(words)
    return [*("--help" if word in ("-h", "-help", "-?") else word for word in flags), *rest] or ["--help"]


def _before_command(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before ``--``, and the rest."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at:]


def with_whole_command(words: list[str]) -> list[str]:
    """The command line with the other program's command behind ``--`` as one word, as a shell would write it.

    >>> with_whole_command(["audit", "train.log", "--", "torchrun", "train.py", "--lr", "1e-4"])
    ['audit', 'train.log', '--', 'torchrun train.py --lr 1e-4']
    """
    flags, rest = _before_command(words)
    return [*flags, "--", shlex.join(rest[1:])] if any(word[:1] == "-" for word in rest[1:]) else words


def _noting(otherwise: Callable[..., None]) -> Callable[..., None]:
    """How a warning is shown: what is meant for the user as a note, others as Python does."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if issubclass(category, DamagedFileWarning):
            tell(f"note: {message}\n")
        else:
            otherwise(message, category, *place, **options)

    return show


def _dispatch(words: list[str]) -> int:
    """Build the program around the chosen command and run it."""
    words = helped(words)
    chosen = completed_command() if ASKED in os.environ else _chosen_command(words)
    if chosen == "audit":
        words = with_whole_command(words)
    if meant := _split_flag(words, chosen):
        raise InputError(
            what="one flag says two things",
            cause=f"the command line was: plan {' '.join(words)}",
            fix=f"write {meant}",
        )
    if chosen == DEFAULT_COMMAND and words[:1] != [DEFAULT_COMMAND]:
        words = [DEFAULT_COMMAND, *words]
    try:
        with never_silent(f"plan {chosen}"):
            result = build_app(chosen)(words, prog_name="plan", standalone_mode=False)
    except typer.Abort:
        return interrupted()
    except SystemExit as left:  # a shell's completion leaves so
        return left.code if isinstance(left.code, int) else ANSWERED
    except typer.TyperException as error:
        raise _usage_error(error, words, chosen) from error
    if result == INTERRUPTED:  # typer turns Ctrl-C into this result
        return interrupted()
    return result if isinstance(result, int) else ANSWERED


def _split_flag(words: list[str], chosen: str) -> str:
    """The command line with what one flag says of two things said by two; "" where none does."""
    flags = ("--gpus", "-n", "--gpu")
    if not any(flag in flags and {*value} & {*"xX×,"} for flag, value in pairwise(words)):
        return ""
    from app.entry.other_words import counted_gpus

    return counted_gpus(words, chosen)


def _in_our_flags(line: str) -> str:
    """A command line that is offered, with its flags of other programs rewritten, too."""
    from app.entry.other_words import rewritten

    words = shlex.split(line)[1:]
    chosen = _chosen_command(words)
    return rewritten(words, chosen, known_flags(chosen)) or line if chosen else line


def _usage_error(error: typer.TyperException, words: list[str], chosen: str) -> InputError:
    """Say what of a command line could not be read, in three lines."""
    from app.entry.other_words import (
        WHOLE,
        audit_of_file,
        command_behind_dashes,
        command_for,
        instead,
        left_out,
        rewritten,
        with_flags,
        without_model_flag,
    )
    from app.entry.sentences import EXAMPLES, command_of_sentence

    what = re.split(r" \(Possible|\.? Did you mean", error.format_message())[0].rstrip(".")
    if chosen:
        flags = known_flags(chosen)
        behind = command_behind_dashes(words)
        named = with_flags(words)
        meant = (
            behind
            or without_model_flag(words, chosen)
            or (_in_our_flags(named) if named else rewritten(words, chosen, flags))
        )
        meant = meant or command_of_sentence(words)
        fix = _fix_of(what, words, chosen)
        others = left_out(words, chosen, flags) if meant and not behind and chosen not in WHOLE else ()
        more = instead(words, chosen, flags) if others else ""
        if others:
            meant += f", without {', '.join(others)}" + (f": {more}" if more else "")
    else:
        line = command_for(words)
        meant = (
            _in_our_flags(with_flags(shlex.split(line)[1:]) or line)
            or with_flags(words)
            or command_of_sentence(words)
            or audit_of_file(words)
        )
        close = suggest(words[0], COMMANDS, count=2) if words else ()
        fix = f"did you mean {' or '.join(close)}?" if close else f"the commands are {', '.join(COMMANDS)}"
        bare = sum(not word.startswith("-") for text in words for word in text.split())
        fix = EXAMPLES if bare >= LEAST_OF_SENTENCE else fix
    return InputError(
        what=what or "unreadable command line",
        cause=f"the command line was: plan {' '.join(words)}",
        fix=f"write {meant}" if meant else fix,
    )


LEAST_OF_SENTENCE: Final = 4
"""Words of a question, where no flag stands among them."""


def _fix_of(what: str, words: list[str], chosen: str) -> str:
    """What mends a command line whose flags no other program has."""
    from app.entry.other_words import instead

    parameters = parameters_of(chosen)
    if what.startswith("Missing argument"):
        names = [each.metavar or each.name for each in parameters if each.param_type_name == "argument"]
        return f"write plan {chosen} {' '.join(names)}; plan {chosen} --help says what it takes"
    if bare := re.match(r"Option '(.*)' requires an argument", what):
        flag = next(each for each in parameters if bare[1] in each.opts)
        return f"{bare[1]} {flag.metavar or 'VALUE'}: {flag.help}"
    _, no_such, flag = what.partition("No such option: ")
    close = suggest(flag, known_flags(chosen), count=2, least=0.7) if no_such else ()
    if close:
        return f"did you mean {' or '.join(close)}?"
    return instead(words, chosen, known_flags(chosen)) or f"see `plan {chosen} --help`"


def known_flags(chosen: str) -> tuple[str, ...]:
    """Every flag of a command."""
    return tuple(flag for parameter in parameters_of(chosen) for flag in parameter.opts)


def _chosen_command(words: list[str]) -> str:
    """Which command to import: none for the program's own help, version, or a word that is no command."""
    if not words or words[0] in ("--help", "--version", *COMPLETION):
        return ""
    if words[0].startswith("-"):
        return DEFAULT_COMMAND
    return words[0] if words[0] in COMMANDS else ""


def build_app(chosen: str = "") -> typer.Typer:
    """Build the program: every command by name and summary, only the chosen one with its options."""
    program = typer.Typer(
        name="plan", help=_ABOUT if chosen else _help_of_program(), rich_markup_mode=None,
        add_completion=_completes(), no_args_is_help=True, pretty_exceptions_enable=False, cls=PlainGroup,
    )  # fmt: skip
    program.callback(invoke_without_command=True, help=program.info.help)(_program_options)
    for name in [chosen] if chosen else COMMANDS:
        command = loaded(name) if name == chosen else _listed_only
        program.command(name, help=command.__doc__ if name == chosen else COMMANDS[name], cls=PlainCommand)(
            command
        )
    return program


def _help_of_program() -> str:
    """What `plan --help` prints."""
    from app.flags.help import program_help

    return program_help(_ABOUT, _FIRST_QUESTIONS, GROUPS, _MANNERS)


def _completes() -> bool:
    """Whether a shell's completion is asked for; the options that install it cost every other start."""
    return ASKED in os.environ or bool(COMPLETION & {*sys.argv[1:2]})


COMPLETION: Final = frozenset({"--install-completion", "--show-completion"})


def _program_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Answer the flags of the program itself."""
    if version:
        sys.stdout.write(f"meshplan {VERSION}\n")
        raise typer.Exit(ANSWERED)


def _listed_only() -> None:
    """Stand in for a command that was not asked for: listed by its summary, not imported."""
