"""A command line that cannot be read, answered with the one that can: three lines, and exit code 2.

What may have been meant is asked of every reader of other words in turn; the first line that is read
(`app.entry.handed_out`) is handed out, and no other.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from app.entry.handed_out import NAMES, QUESTIONS, UnreadableError, handed_out
from app.entry.other_words import (
    WHOLE,
    audit_of_command,
    audit_of_file,
    command_behind_dashes,
    command_for,
    instead,
    left_out,
    of_catalog,
    rewritten,
    with_flags,
    without_model_flag,
    without_rest,
)
from app.entry.sentences import EXAMPLES, command_of_sentence, with_joined_counts
from app.flags.program import COMMANDS, chosen_command, known_flags, parameters_of
from topology.base.errors import InputError
from topology.base.names import suggest

LEAST_OF_SENTENCE: Final = 4
"""Words of a question, where no flag stands among them."""
ALIKE: Final = 0.7
"""How much of a command's or a flag's letters a word has in order, to be a slip of it."""


def usage_error(message: str, words: Sequence[str], chosen: str) -> InputError:
    """Say what of a command line could not be read, in three lines.

    Args:
        message: What the parser says.
        words: As typed, without the program's name.
        chosen: The command that they chose; "" where they name none.
    """
    what = re.split(r" \(Possible|\.? Did you mean", message)[0].rstrip(".")
    typed = " ".join(words)
    words = with_joined_counts(words)
    fix, refused = "", None
    for offer in _offers(what, words, chosen):
        try:
            fix = f"write {handed_out(offer)}" if offer else ""
        except UnreadableError:
            continue
        except InputError as error:
            refused = refused or error
        if fix:
            break
    if not fix and refused:
        fix = f"{refused.what}: {refused.fix}"
    return InputError(
        what=what or "unreadable command line",
        cause=f"the command line was: plan {typed}",
        fix=fix or (_fix_of(what, words, chosen) if chosen else _fix_without_command(words)),
    )


def _offers(what: str, words: Sequence[str], chosen: str) -> Iterator[str]:
    """What may have been meant, the likeliest first; "" where a reader knows nothing."""
    if not chosen:
        is_bare = [word.startswith("-") for word in words[2:4]] == [False, True]
        if words[:2] == ["vllm", "serve"] and is_bare:  # as vLLM takes it
            yield audit_of_command(words)
        line = command_for(words)
        yield "" if line else of_catalog(words)
        yield _in_our_flags(with_flags(shlex.split(line)[1:]) or line)
        yield with_flags(words)
        yield of_catalog(words)
        yield audit_of_command(words)
        yield command_of_sentence(words)
        yield audit_of_file(words)
        yield without_rest(words)
        return
    flags = known_flags(chosen)
    yield command_behind_dashes(words)
    named = with_flags(words)
    yield _without_others(_in_our_flags(named) if named else rewritten(words, chosen, flags), words, chosen)
    yield without_model_flag(words, chosen, flags)
    yield shlex.join(["plan", *words]) if "unexpected extra" in what else ""  # a count that was joined
    rest = words[words[:1] == [chosen] :]
    if chosen in QUESTIONS:
        yield audit_of_file(rest)
    if chosen in NAMES and chosen not in SIZED:
        yield shlex.join(["plan", chosen, "-".join(rest)]) if not any(x[:1] == "-" for x in rest) else ""
    yield command_of_sentence(words)
    if extra := _extra_words(what, words):
        yield from _with_extra(words, chosen, extra)


SIZED: Final = ("memory", "recipes")
"""Commands of a model whose further words are no part of its name."""
ANSWERED_ALONE: Final = ("bench", "dash", "mcp", "topology", "watch", "accuracy", *NAMES)
"""Commands that answer without a flag."""


def _with_extra(words: Sequence[str], chosen: str, extra: Sequence[str]) -> Iterator[str]:
    """The command line where words stand for which a command has no place: in a list, or left out."""
    at = len(words) - len(extra)
    if [*words[at:]] != [*extra]:
        return
    counts = len(extra) == 1 and extra[0].isdecimal() and not {"--gpus", "-n", "--cluster"} & {*words}
    if counts and "--gpus" in known_flags(chosen):
        yield shlex.join(["plan", *words[:at], "--gpus", *extra])
    if chosen == "sweep" and at > 1 and words[at - 2].startswith("--"):
        yield shlex.join(["plan", *words[: at - 1], ",".join(words[at - 1 :])])
    if chosen in ANSWERED_ALONE or {"--model", "-m"} & {*words}:
        yield f"{shlex.join(['plan', *words[:at]])}, without {' and '.join(extra)}"


def _extra_words(what: str, words: Sequence[str]) -> list[str]:
    """Words that a command takes no argument for, as its parser names them."""
    named = re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", what)
    return [word for word in words if word in named[1].split()] if named else []


def _without_others(line: str, words: Sequence[str], chosen: str) -> str:
    """A rewritten line, with the flags that it leaves out and what to do for them."""
    flags = known_flags(chosen)
    others = left_out(words, chosen, flags) if line and chosen not in WHOLE else ()
    more = instead(words, chosen, flags) if others else ""
    return line + (f", without {', '.join(others)}" if others else "") + (f": {more}" if more else "")


def _in_our_flags(line: str) -> str:
    """A command line that is offered, with its flags of other programs rewritten, too."""
    words = shlex.split(line)[1:]
    chosen = chosen_command(words)
    if not chosen:
        return line
    return _without_others(rewritten(words, chosen, known_flags(chosen)), words, chosen) or line


def _fix_without_command(words: Sequence[str]) -> str:
    """What helps where the first word is no command."""
    bare = sum(not word.startswith("-") for text in words for word in text.split())
    close = suggest(words[0], COMMANDS, count=2, least=ALIKE) if words else ()
    if close:
        return f"did you mean {' or '.join(close)}?"
    return EXAMPLES if bare >= LEAST_OF_SENTENCE else f"the commands are {', '.join(COMMANDS)}"


def _fix_of(what: str, words: Sequence[str], chosen: str) -> str:
    """What mends a command line whose flags no other program has."""
    parameters = parameters_of(chosen)
    if what.startswith("Missing argument"):
        names = [each.metavar or each.name for each in parameters if each.param_type_name == "argument"]
        names += [f"{each.opts[0]} {each.metavar}" for each in parameters if _is_lacking(each, words)]
        typed = [*words[words[:1] == [chosen] :]]
        bare = [*takewhile(lambda word: not word.startswith("-"), typed)]
        line = ("plan", chosen, *bare, *names[len(bare) :], *typed[len(bare) :])
        return f"write {' '.join(line)}; plan {chosen} --help says what it takes"
    if lacking := re.match(r"Missing option '([^']*)'", what):
        flag = next(each for each in parameters if lacking[1] in each.opts)
        return f"add {lacking[1]} {flag.metavar}: {flag.help}"
    if valueless := re.match(r"Option '(.*)' requires an argument", what):
        flag = next(each for each in parameters if valueless[1] in each.opts)
        return f"{valueless[1]} {flag.metavar or 'VALUE'}: {flag.help}"
    _, no_such, flag = what.partition("No such option: ")
    close = suggest(flag, known_flags(chosen), count=2, least=ALIKE) if no_such else ()
    if close:
        return f"did you mean {' or '.join(close)}?"
    return instead(words, chosen, known_flags(chosen)) or f"see `plan {chosen} --help`"


def _is_lacking(parameter: object, words: Sequence[str]) -> bool:
    """Whether a command needs a flag that was not given."""
    needed = getattr(parameter, "required", False) and getattr(parameter, "param_type_name", "") == "option"
    return needed and not {*getattr(parameter, "opts", ())} & {word.partition("=")[0] for word in words}
