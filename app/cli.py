"""The command line: `plan [OPTIONS]` plans a training job, `plan COMMAND` does everything else.

Only the command that was asked for is imported, and every command imports its heavy parts when it runs, so
that `plan --help` answers at once; `app.flags.program` lists them. A command prints through
`app.reports.answer.emit`, returns an exit code (None means 0), and raises `InputError` for anything the user
can fix.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Final

import typer

from app.errors import ANSWERED, INTERRUPTED, interrupted, run_guarded
from app.flags.completion import ASKED, completed_command
from app.flags.dashes import before_dashes, with_whole_command
from app.flags.plain import PlainCommand, PlainGroup
from app.flags.program import COMMANDS, COMPLETION, DEFAULT_COMMAND, GROUPS, chosen_command, loaded
from app.terminal.progress import never_silent
from app.terminal.streams import prepare, tell
from topology.base.errors import DamagedFileWarning, InputError
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
        return run_guarded(lambda: _dispatch(words), debug=debug, refused=partial(_as_document, words))


def _as_document(words: list[str], error: InputError, exit_code: int) -> None:
    """Write what is wrong where an answer was asked for: to its file, or a document to stdout."""
    asked = asks_for_json(words)
    if not asked and "-o" not in words and not any(word.startswith("--output") for word in words):
        return
    from app.entry.refused_file import refusal_text, refused_file
    from app.reports.answer import json_text, print_text, write_file
    from app.reports.refusal import refusal_document

    path = refused_file(words, asks_for_json=asked)
    try:
        if path is not None:
            write_file(path, refusal_text(error, exit_code, path, asks_for_json=asked))
    except InputError:
        path = None  # what is wrong may be the file itself
    if asked and path is None:
        print_text(f"{json_text(refusal_document(error, exit_code))}\n", is_json=True)


def asks_for_json(words: list[str]) -> bool:
    """Whether a command line asks for a document, even where nothing else of it can be read.

    >>> asks_for_json(["--model", "70b", "--json"]), asks_for_json(["audit", "--", "train.py", "--json"])
    (True, False)
    >>> asks_for_json(["sweep", "--format", "json"]), asks_for_json(["sweep", "--format=csv"])
    (True, False)
    """
    flags, _ = before_dashes(words)
    return "--json" in flags or "--format=json" in flags or ("--format", "json") in pairwise(flags)


def helped(words: list[str]) -> list[str]:
    """The command line with every way of asking for help as ``--help``; without a word it is asked for.

    >>> helped([]), helped(["help", "serve"]), helped(["serve", "-h"])
    (['--help'], ['serve', '--help'], ['serve', '--help'])
    """
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    flags, rest = before_dashes(words)
    return [*("--help" if word in ("-h", "-help", "-?") else word for word in flags), *rest] or ["--help"]


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
    chosen = completed_command() if ASKED in os.environ else chosen_command(words)
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
        from app.entry.usage import usage_error

        raise usage_error(error.format_message(), words, chosen) from error
    if result == INTERRUPTED:  # typer turns Ctrl-C into this result
        return interrupted()
    return result if isinstance(result, int) else ANSWERED


def _split_flag(words: list[str], chosen: str) -> str:
    """The command line with what one flag says of two things said by two; "" where none does."""
    flags = ("--gpus", "-n", "--gpu")
    if not any(flag in flags and {*value} & {*"xX×,"} for flag, value in pairwise(words)):
        return ""
    from app.entry.handed_out import handed_out
    from app.entry.other_words import counted_gpus

    meant = counted_gpus(words, chosen)
    return handed_out(meant) if meant else ""


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


def _program_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Answer the flags of the program itself."""
    if version:
        sys.stdout.write(f"meshplan {VERSION}\n")
        raise typer.Exit(ANSWERED)


def _listed_only() -> None:
    """Stand in for a command that was not asked for: listed by its summary, not imported."""
