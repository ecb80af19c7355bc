"""A shell script, followed without running anything: the commands it would start, with their words known.

Variables, defaults, arithmetic, arrays, here-documents, branches and functions are followed; programs are not
started, files are not opened, ``$(…)`` is unknown. Where only a run can tell which branch is taken, all are
followed, and what they set differently is unknown. Of a loop the first round is followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from planner.formats.shell_numbers import whole_number
from planner.formats.shell_script import Script, Started, slurm_variables
from planner.formats.shell_tests import truth
from planner.formats.shell_tree import Branch, Chain, Command, Function, Group, Loop, Match, Node, tree_of
from planner.formats.shell_values import (
    LONGEST_TEXT,
    UNKNOWN,
    Text,
    Variables,
    expanded,
    here_text,
    joined,
    merged,
    put_part,
    texts_of,
)  # fmt: skip
from planner.formats.shell_words import REDIRECTIONS, Word, words_of

MOST_STEPS = 5_000
"""Commands followed; a published script has a few hundred."""
MOST_EXPANDED = 40_000
"""Words that all commands become together; a published script has some five thousand."""
MOST_COPIED = 80_000
"""Variables copied for branches that a run decides; a published script has a few thousand."""
MOST_WITHIN = 40_000
"""Characters of texts that a script runs as scripts; a published one has some thousand."""
MOST_CALLS = 8
"""Functions, `eval` and `bash -c` within each other."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=", re.DOTALL)
_POSITIONS = ("@", *map(str, range(1, 10)))
_DECLARE = frozenset(("export", "declare", "local", "readonly", "typeset"))
_SHELLS = frozenset(("bash", "sh", "zsh", "/bin/bash", "/bin/sh"))
_SILENT = frozenset(("unset", "set", "shopt", "trap", "cd", "echo", "mkdir", "rm", "printf"))
_COMPUTED = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)\s*(.+)", re.DOTALL)
_QUOTED = re.compile(
    r"(?:^|[\s;&/=])(?:torchrun|deepspeed|accelerate|python3?|srun|mpirun|bash)\s.*\s--?[a-z]", re.DOTALL
)
"""One word that is a command of its own, as remote shells and schedulers are given it."""
_DIRECTIVE = re.compile(r"^#SBATCH\s+(--?[\w-]+)(?:[=\s]+([^\s#]+))?", re.MULTILINE)


def followed(
    text: str, *, given: Mapping[str, str] | None = None, beside: Mapping[str, str] | None = None
) -> Script:
    r"""Follow a script.

    >>> script = followed('TP=${TP:-4}\nARGS=(--tp $TP)\ntorchrun train.py "${ARGS[@]}"')
    >>> [word.text for word in script.started[0].words]
    ['torchrun', 'train.py', '--tp', '4']

    Args:
        text: The script.
        given: Variables of the environment.
        beside: Texts of other files by name, for ``source``.
    """
    script = Script()
    for match in _DIRECTIVE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        script.directives[match.group(1)] = Text(match.group(2) or "", line)
    for name, value in {**slurm_variables(script.directives), **(given or {})}.items():
        script.names.values[name] = (Text(value, 0),)
    _Follower(script, beside or {}).run_text(text, script.names, line=1)
    return script


class _Follower:
    """Follows the tree of a script."""

    def __init__(self, script: Script, beside: Mapping[str, str]) -> None:
        self.script, self.beside = script, beside
        self.functions: dict[str, list[Node]] = {}
        self.steps = 0
        self.copied = 0
        self.expanded = 0
        self.sure = True
        self.calls = 0
        self.run_within = 0
        self.left = False
        """Whether ``exit`` or ``return`` was reached."""

    def run_text(self, text: str, names: Variables, line: int) -> None:
        """Follow a text."""
        self.run(tree_of(words_of(text, line)), names)

    def run(self, nodes: list[Node], names: Variables) -> bool | None:
        """Follow commands; the truth of the last."""
        found: bool | None = True
        for node in nodes:
            if self.left or self.steps >= MOST_STEPS:
                break
            self.steps += 1
            found = self.one(node, names)
        return found

    def one(self, node: Node, names: Variables) -> bool | None:
        """Follow one node of the tree."""
        if isinstance(node, Command):
            return self.command(node, names)
        if isinstance(node, Branch):
            self.branch(node, names)
        elif isinstance(node, Chain):
            return self.chain(node, names)
        elif isinstance(node, Loop):
            self.loop(node, names)
        elif isinstance(node, Function):
            self.functions[node.name] = node.body
        elif isinstance(node, Group):
            return self.run(node.body, names)
        return True

    def loop(self, loop: Loop, names: Variables) -> None:
        """The first round of ``for``; ``while`` mostly reads arguments that nobody gave."""
        if loop.kind != "for":
            return
        words = [text for word in loop.words for text in expanded(word, names)]
        if words:
            names.values[loop.name] = (words[0],)
            if len(words) > 1:
                self.script.branches.append((words[0].line, frozenset((loop.name,))))
        self.run(loop.body, names)

    def chain(self, chain: Chain, names: Variables) -> bool | None:
        """``&&`` and ``||``."""
        found: bool | None = True
        for operator, node in chain.parts:
            if (operator == "&&" and found is False) or (operator == "||" and found is True):
                continue
            if operator in ("&&", "||") and found is None:
                self.parallel([[node], []], names)
            else:
                found = self.one(node, names)
        return found

    def branch(self, branch: Branch, names: Variables) -> None:
        """The arm that is taken, or all that may be."""
        may: list[list[Node]] = []
        kept, names.causes = names.causes, set()
        for condition, body in branch.arms:
            held = self.holds(condition, names)
            if held is False:
                continue
            may.append(body)
            if held is True:
                break
        else:
            may.append([])
        causes, names.causes = frozenset(names.causes), kept
        if len(may) == 1:
            self.run(may[0], names)
            return
        self.script.branches.append((branch.line, causes))
        self.parallel(may, names)

    def holds(self, condition: list[Node] | Match | None, names: Variables) -> bool | None:
        """Whether an arm is taken."""
        if condition is None:
            return True
        if isinstance(condition, list):
            return self.run(condition, names) if condition else None
        value = joined(condition.word.text, names)
        if any(word.text == "*" for word in condition.patterns):
            return True
        if UNKNOWN in value:
            return None
        return any(joined(word.text, names) == value for word in condition.patterns)

    def parallel(self, bodies: list[list[Node]], names: Variables) -> None:
        """Follow bodies of which one runs: what they set alike is known, the rest is not."""
        self.copied += len(bodies) * len(names.values)
        if self.copied > MOST_COPIED:
            return
        surely, self.sure = self.sure, False
        ends: list[Variables] = []
        for body in bodies:
            copy = names.copy()
            self.run(body, copy)
            if not self.left:
                ends.append(copy)
            self.left = False
        self.sure = surely
        if not ends:
            return
        names.arrays |= set().union(*(end.arrays for end in ends))
        for name in sorted(set().union(*(end.values for end in ends))):
            values = [end.values.get(name) for end in ends]
            first = values[0]
            alike = all(texts_of(value) == texts_of(first) for value in values)
            common = first if alike else merged(values)
            if common is not None:
                names.values[name] = common

    def command(self, command: Command, names: Variables) -> bool | None:
        """Follow a simple command."""
        if command.words and command.words[0].text in ("[[", "["):
            return truth(command.words, names)
        if len(command.words) > 1 and all(word.text == "(" for word in command.words[:2]):
            return self.computed(" ".join(word.text for word in command.words[2:-2]), names)
        words = self.without_redirections(command.words, names)
        assigned: dict[str, Text] = {}
        declared = bool(words) and words[0].text in _DECLARE
        if declared:
            words = [word for word in words[1:] if not word.text.startswith("-")]
        while words and (match := _ASSIGNMENT.match(words[0].text)):
            self.assign(words[0], match, names)
            value = names.text(match.group(1))
            assigned[match.group(1)] = Text(value or "", words[0].line)
            words.pop(0)
        if not words or declared:
            return True
        texts = self.texts(words, names)
        return self.start(texts, assigned, names) if texts else True

    def computed(self, text: str, names: Variables) -> bool | None:
        """``(( … ))`` and ``let``: an assignment, or a number that is true above or below zero."""
        match = _COMPUTED.fullmatch(joined(text, names))
        if match is None:
            found = whole_number(joined(text, names), names.number)
            return None if found is None else found != 0
        name, operator, value = match.groups()
        whole = whole_number(f"{name} {operator} ({value})" if operator else value, names.number)
        names.values[name] = (Text(UNKNOWN if whole is None else str(whole), 0),)
        return None if whole is None else whole != 0

    def texts(self, words: Iterable[Word], names: Variables) -> list[Text]:
        """What words become, as long as all together are no more than any script has."""
        found: list[Text] = []
        for word in words:
            if self.expanded > MOST_EXPANDED:
                break
            texts = expanded(word, names)
            self.expanded += len(texts) + sum(len(text.text) for text in texts) // 100
            found.extend(texts)
        return found

    def assign(self, word: Word, match: re.Match[str], names: Variables) -> None:
        """``NAME=value``, ``NAME+=value``, ``NAME=( … )``, ``NAME[index]=value``."""
        name, index, more = match.groups()
        before = names.values.get(name, ()) if more else ()
        if word.array is not None:
            texts = tuple(self.texts(word.array, names))
            names.values[name] = (*before, *texts)[:MOST_STEPS]
            names.arrays.add(name)
        elif index is not None:
            text = joined(word.text[match.end() :], names, word.line)
            put_part(names, name, index, Text(UNKNOWN if more else text, word.line))
        else:
            text = joined(word.text[match.end() :], names, word.line)
            whole = "".join(part.text for part in before) + text
            names.values[name] = (Text(whole[:LONGEST_TEXT], word.line),)
            names.arrays.discard(name)

    def without_redirections(self, words: tuple[Word, ...], names: Variables) -> list[Word]:
        """Words of a command; its here-documents are kept aside."""
        found: list[Word] = []
        skip = False
        for word in words:
            if skip:
                skip = False
            elif word.operator and word.here is not None:
                text = word.here if word.quoted else here_text(word.here, names)
                self.script.documents.append(Text(text, word.line))
            elif word.operator:
                skip = word.text in REDIRECTIONS
                if found and found[-1].text.isdigit() and skip:
                    found.pop()
            else:
                found.append(word)
        return found

    def start(self, texts: list[Text], assigned: Mapping[str, Text], names: Variables) -> bool | None:
        """Follow a command whose words are known."""
        first, rest = texts[0].text, texts[1:]
        if first in self.functions and self.calls < MOST_CALLS:
            self.call(texts, names)
            return True
        if first == "let":
            return self.computed(" ".join(text.text for text in rest), names)
        if first in ("true", "false", "test"):
            return {"true": True, "false": False}.get(first)
        if self.built_in(first, rest, names):
            return True
        self.script.started.append(Started(tuple(texts), assigned, self.sure, texts[0].line))
        self.within(texts, names)
        return None if first in ("grep", "command", "which", "nvidia-smi", "type") else True

    def built_in(self, first: str, rest: list[Text], names: Variables) -> bool:
        """Follow what the shell does itself; whether it was that."""
        if first in ("exit", "return"):
            self.left = True
        elif first in ("source", "."):
            self.source(rest, names)
        elif first == "shift":
            self.shift(names)
        elif first == "set" and rest and rest[0].text == "--":
            self.place(rest[1:], names)
        elif first == "eval" and rest:
            return self.inner(" ".join(text.text for text in rest), rest[0].line, names)
        else:
            return first in _SILENT
        return True

    def within(self, texts: list[Text], names: Variables) -> None:
        """Commands in the words of another: of ``bash -c``, of a remote shell, of a scheduler."""
        words = [text.text for text in texts]
        remote = words[0] not in _SHELLS and not {"-c", "-lc"}.intersection(words)
        for place, text in enumerate(texts):
            if words[place] in _SHELLS and words[place + 1 : place + 2] in (["-c"], ["-lc"]):
                self.inner(" ".join(words[place + 2 : place + 3]), text.line, names)
            elif remote and _QUOTED.search(text.text):
                self.inner(text.text.removeprefix("--wrap="), text.line, names)

    def inner(self, text: str, line: int, names: Variables) -> bool:
        """Follow a text that a script runs as a script."""
        self.run_within += len(text)
        if self.calls >= MOST_CALLS or self.run_within > MOST_WITHIN:
            return False
        self.calls += 1
        self.run_text(text, names, line)
        self.calls -= 1
        self.left = False
        return True

    def call(self, texts: list[Text], names: Variables) -> None:
        """Run a function of the script."""
        kept = {name: names.values[name] for name in _POSITIONS if name in names.values}
        self.place(texts[1:], names)
        self.calls += 1
        self.run(self.functions[texts[0].text], names)
        self.calls -= 1
        self.left = False
        for name in _POSITIONS:
            names.values.pop(name, None)
        names.values |= kept

    def place(self, texts: list[Text], names: Variables) -> None:
        """Give positional arguments."""
        names.values |= {str(place): (text,) for place, text in enumerate(texts[:9], 1)}
        names.values["@"] = tuple(texts)

    def shift(self, names: Variables) -> None:
        """Positional arguments move down by one; those that nobody gave stay unknown."""
        for place in range(1, 10):
            following = names.values.get(str(place + 1))
            if following is not None:
                names.values[str(place)] = following
            else:
                names.values.pop(str(place), None)
        if "@" in names.values:
            names.values["@"] = names.values["@"][1:]

    def source(self, texts: list[Text], names: Variables) -> None:
        """A file that a script reads: followed if it was given, else named."""
        name = "".join(text.text for text in texts[:1]).rpartition("/")[2].replace(UNKNOWN, "")
        if name in self.beside and self.calls < MOST_CALLS:
            self.inner(self.beside[name], texts[0].line, names)
        elif name:
            self.script.sourced.append(name)
