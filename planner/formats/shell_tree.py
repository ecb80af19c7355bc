"""The control flow of a shell script as a tree: commands, branches, loops and functions, nothing run."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.formats.shell_words import REDIRECTIONS, Word

MOST_NESTED = 40
"""Blocks within blocks; deeper ones are passed over."""
_ENDS = frozenset(("fi", "then", "else", "elif", "done", "do", "esac", "}", ";;", ")", "in"))


@dataclass(slots=True)
class Command:
    """Words of one simple command, or of a test between ``[[`` and ``]]``."""

    words: tuple[Word, ...]


@dataclass(slots=True)
class Branch:
    """``if`` and ``case``: conditions with bodies; a body without a condition is what runs otherwise."""

    line: int
    arms: list[tuple[list[Node] | Match | None, list[Node]]] = field(default_factory=list)


@dataclass(slots=True)
class Match:
    """A word of ``case`` and the patterns of one arm."""

    word: Word
    patterns: tuple[Word, ...]


@dataclass(slots=True)
class Loop:
    """``for``, ``while`` and ``until``; `words` are what ``for`` goes through."""

    kind: str
    name: str
    words: tuple[Word, ...]
    body: list[Node]


@dataclass(slots=True)
class Function:
    """A function: its body runs where it is called."""

    name: str
    body: list[Node]


@dataclass(slots=True)
class Group:
    """``{ …; }`` or ``( … )``."""

    body: list[Node]


@dataclass(slots=True)
class Chain:
    """Commands joined by ``&&``, ``||`` and ``|``: each with the operator before it."""

    parts: list[tuple[str, Node]]


Node = Command | Branch | Loop | Function | Group | Chain


def tree_of(words: tuple[Word, ...]) -> list[Node]:
    """The tree of a whole script; a stray end of a block is passed over."""
    parser, found = _Parser(words), list[Node]()
    while parser.at < len(words):
        before = parser.at
        found.extend(parser.body(0))
        parser.at = max(parser.at, before + 1) if parser.at < len(words) else parser.at
        if parser.at < len(words) and parser.at == before:
            parser.at += 1
    return found


class _Parser:
    """A place among the words of a script."""

    def __init__(self, words: tuple[Word, ...]) -> None:
        self.words, self.at = words, 0

    def text(self) -> str:
        """The word at this place, empty at the end."""
        return self.words[self.at].text if self.at < len(self.words) else ""

    def skip_breaks(self) -> None:
        """Pass separators."""
        while self.at < len(self.words) and self.words[self.at].operator and self.text() in ("\n", ";", "&"):
            self.at += 1

    def body(self, depth: int, *more_ends: str) -> list[Node]:
        """Commands up to a word that ends a block."""
        found: list[Node] = []
        while True:
            self.skip_breaks()
            if self.at >= len(self.words) or self.text() in _ENDS or self.text() in more_ends:
                return found
            before = self.at
            found.append(self.chain(depth))
            if self.at == before:
                self.at += 1

    def chain(self, depth: int) -> Node:
        """Commands joined by operators."""
        parts: list[tuple[str, Node]] = [("", self.one(depth))]
        while self.at < len(self.words) and self.words[self.at].operator and self.text() in ("&&", "||", "|"):
            operator = self.text()
            self.at += 1
            self.skip_breaks()
            parts.append((operator, self.one(depth)))
        return parts[0][1] if len(parts) == 1 else Chain(parts)

    def one(self, depth: int) -> Node:
        """One command or block."""
        word = self.text()
        if depth >= MOST_NESTED:
            return self.simple()
        if word == "if":
            return self.if_block(depth)
        if word == "case":
            return self.case_block(depth)
        if word in ("while", "until", "for", "select"):
            return self.loop(depth)
        if self.is_arithmetic():
            return self.arithmetic()
        if word in ("{", "("):
            return self.group(depth, "}" if word == "{" else ")")
        if word == "[[":
            return self.test()
        if word == "function" or self.is_function():
            return self.function(depth)
        return self.simple()

    def is_arithmetic(self) -> bool:
        """Whether ``((`` begins here."""
        following = self.words[self.at + 1 : self.at + 2]
        return self.text() == "(" and bool(following) and following[0].text == "("

    def arithmetic(self) -> Command:
        """``(( … ))`` up to its last parenthesis, or the end of the line."""
        found: list[Word] = []
        depth = 0
        while self.at < len(self.words) and self.text() != "\n":
            found.append(self.words[self.at])
            depth += {"(": 1, ")": -1}.get(self.text(), 0)
            self.at += 1
            if depth <= 0:
                break
        return Command(tuple(found))

    def is_function(self) -> bool:
        """Whether a name with parentheses begins here."""
        following = [word.text for word in self.words[self.at + 1 : self.at + 3]]
        return following == ["(", ")"] and not self.words[self.at].operator

    def simple(self) -> Command:
        """Words up to a separator."""
        found: list[Word] = []
        depth = 0
        while self.at < len(self.words):
            word = self.words[self.at]
            if word.operator and word.text not in REDIRECTIONS and word.here is None:
                depth += {"(": 1, ")": -1}.get(word.text, 0)
                if (
                    word.text not in ("(", ")")
                    or depth < 0
                    or (found and depth == 0 and found[0].text != "(")
                ):
                    break
                if word.text == ")" and depth == 0:
                    self.at += 1
                    break
            found.append(word)
            self.at += 1
        return Command(tuple(found))

    def test(self) -> Command:
        """Words of ``[[ … ]]`` with the operators in between."""
        found: list[Word] = []
        while self.at < len(self.words) and self.text() != "\n":
            found.append(self.words[self.at])
            self.at += 1
            if found[-1].text == "]]":
                break
        return Command(tuple(found))

    def expect(self, word: str) -> None:
        """Pass a word if it is here."""
        if self.text() == word:
            self.at += 1

    def if_block(self, depth: int) -> Branch:
        """``if … then … elif … else … fi``."""
        branch = Branch(self.words[self.at].line)
        while self.text() in ("if", "elif"):
            self.at += 1
            condition = self.body(depth + 1)
            self.expect("then")
            branch.arms.append((condition, self.body(depth + 1)))
        if self.text() == "else":
            self.at += 1
            branch.arms.append((None, self.body(depth + 1)))
        self.expect("fi")
        self.skip_redirections()
        return branch

    def case_block(self, depth: int) -> Branch:
        """``case … in pattern) … ;; esac``."""
        branch = Branch(self.words[self.at].line)
        self.at += 1
        word = self.words[self.at] if self.at < len(self.words) else Word("", 0)
        self.at += 1
        self.skip_breaks()
        self.expect("in")
        while self.at < len(self.words):
            self.skip_breaks()
            if self.text() in ("esac", ""):
                break
            patterns = self.patterns()
            branch.arms.append((Match(word, patterns), self.body(depth + 1, "esac")))
            self.expect(";;")
        self.expect("esac")
        self.skip_redirections()
        return branch

    def patterns(self) -> tuple[Word, ...]:
        """Patterns of one arm up to its parenthesis."""
        found: list[Word] = []
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.operator and word.text == ")":
                break
            if word.operator and word.text == "\n":
                break
            if not word.operator:
                found.append(word)
        return tuple(found)

    def loop(self, depth: int) -> Loop:
        """``for x in …; do … done`` and ``while …; do … done``."""
        kind = self.text()
        self.at += 1
        name, words = "", list[Word]()
        if kind in ("for", "select"):
            name = self.text()
            self.at += 1
            while self.at < len(self.words) and self.text() not in ("do", "\n", ";"):
                if self.text() != "in" and not self.words[self.at].operator:
                    words.append(self.words[self.at])
                self.at += 1
            self.skip_breaks()
        else:
            self.body(depth + 1)
        self.expect("do")
        body = self.body(depth + 1)
        self.expect("done")
        self.skip_redirections()
        return Loop(kind, name, tuple(words), body)

    def group(self, depth: int, end: str) -> Group:
        """Commands between braces or parentheses."""
        self.at += 1
        body = self.body(depth + 1)
        self.expect(end)
        self.skip_redirections()
        return Group(body)

    def function(self, depth: int) -> Node:
        """``name() { … }`` or ``function name { … }``."""
        if self.text() == "function":
            self.at += 1
        name = self.text()
        self.at += 1
        while self.text() in ("(", ")") and self.words[self.at].operator:
            self.at += 1
        self.skip_breaks()
        if self.text() != "{":
            return Command(())
        group = self.group(depth, "}")
        return Function(name, group.body)

    def skip_redirections(self) -> None:
        """Pass where a block's output goes, and here-documents."""
        while self.at < len(self.words) and self.words[self.at].operator:
            word = self.words[self.at]
            if word.text in REDIRECTIONS:
                self.at += 2
            elif word.here is not None:
                self.at += 1
            else:
                return
