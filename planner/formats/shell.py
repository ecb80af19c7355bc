"""A shell script, followed without running anything: the commands it would start, with their words known.

Variables, defaults, arithmetic, arrays, here-documents, branches and functions are followed; programs are not
started, files are not opened. Where only a run can tell which branch is taken, all are followed, and what
they set differently is unknown. Of a loop the first round is followed.

Words keep their quotes until they become text. Operators (``;``, ``&&``, ``|``, newline, parentheses) are
words of their own. What only a run knows (``$(…)``, variables of the environment, positional arguments) is
`UNKNOWN`, a mark that stays in the text, so that a value made of it is seen to be unknown too. A variable
that nothing in the files sets is empty where a script asks whether it is set (``-n``, ``-z``), and unknown
where its value is compared.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

# ── words: commands, quotes, continuations, arrays and here-documents, nothing expanded ────────────────────

MOST_WORDS = 20_000
"""Of one script; the longest launch script published has some three thousand."""
MOST_DEPTH = 24
"""Nested substitutions of one word."""

_OPERATORS = (
    "&>>",
    "<<<",
    "<<-",
    "&&",
    "||",
    ";;",
    ">>",
    "<<",
    ">&",
    "<&",
    "&>",
    ">|",
    ";",
    "|",
    "&",
    "(",
    ")",
    "<",
    ">",
    "\n",
)
REDIRECTIONS = frozenset(("&>>", "<<<", ">>", ">&", "<&", "&>", ">|", "<", ">"))
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_HERE = frozenset(("<<", "<<-"))
_OF_BOTH = frozenset(("&>", "&>>"))
"""Redirections of output and errors, which take no descriptor."""


@dataclass(frozen=True, slots=True)
class ShellWord:
    """One word as written, or an operator; an array assignment carries the words between its parentheses."""

    text: str
    line: int
    operator: bool = False
    array: tuple[ShellWord, ...] | None = None
    here: str | None = None
    quoted: bool = False
    """Of a here-document: its delimiter is quoted, so nothing in it is expanded."""
    touches: bool = False
    """Of a redirection: it follows the word before it without a blank, so a number there is a descriptor."""


class _Reader:
    """A place in a script."""

    def __init__(self, text: str, line: int) -> None:
        self.text, self.at, self.line = text, 0, line
        self.waiting: list[tuple[int, str, bool]] = []
        """Here-documents announced on this line: index of the word, delimiter, tabs stripped."""

    def blank(self) -> None:
        """Pass blanks, continued lines and comments."""
        text = self.text
        while self.at < len(text):
            if text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif text.startswith("\\\r\n", self.at):
                self.at, self.line = self.at + 3, self.line + 1
            elif text[self.at] in " \t\r":
                self.at += 1
            elif text[self.at] == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            else:
                return

    def word(self) -> str:
        """The text of one word, quotes kept."""
        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|()<>":
                break
            self.at = skipped(self.text, self.at)
        text = self.text[start : self.at]
        self.line += text.count("\n")
        return text

    def operator(self) -> str | None:
        """The operator that begins here."""
        return next((op for op in _OPERATORS if self.text.startswith(op, self.at)), None)


def skipped(text: str, at: int, depth: int = 0) -> int:
    """Where the quoted, substituted or plain piece that begins at a place ends.

    >>> skipped("'a b'c", 0), skipped("$(x)y", 0), skipped("ab", 0)
    (5, 4, 1)
    """
    char = text[at]
    if char == "\\":
        return min(len(text), at + 2)
    if char in "'`":
        end = text.find(char, at + 1)
        return len(text) if end < 0 else end + 1
    if char == '"':
        return _closed(text, at + 1, '"', depth)
    if char == "$" and at + 1 < len(text) and text[at + 1] in "({":
        return _closed(text, at + 2, ")" if text[at + 1] == "(" else "}", depth)
    return at + 1


def _closed(text: str, at: int, end: str, depth: int) -> int:
    """The place after the mark that closes what was opened before a place."""
    if depth > MOST_DEPTH:
        return len(text)
    while at < len(text):
        if text[at] == end:
            return at + 1
        if end == ")" and text[at] == "(":
            at = _closed(text, at + 1, ")", depth + 1)
        elif end == '"' and text[at] == "'":
            at += 1
        else:
            at = skipped(text, at, depth + 1)
    return len(text)


def shell_words(text: str, line: int = 1) -> tuple[ShellWord, ...]:
    r"""Every word and operator of a script, at most `MOST_WORDS`.

    >>> [word.text for word in shell_words('a=1 # no\nrun "$a b" && x')]
    ['a=1', '\n', 'run', '"$a b"', '&&', 'x']
    """
    reader, words = _Reader(text, line), list[ShellWord]()
    while len(words) < MOST_WORDS:
        before = reader.at
        reader.blank()
        if reader.at >= len(reader.text):
            break
        operator = reader.operator()
        if operator is not None:
            _take_operator(reader, operator, words, touches=reader.at == before)
        else:
            at = reader.line
            word = reader.word()
            array = _array(reader) if _ARRAY.fullmatch(word) and reader.operator() == "(" else None
            words.append(ShellWord(word, at, array=array))
    return tuple(words)


def _take_operator(reader: _Reader, operator: str, words: list[ShellWord], *, touches: bool) -> None:
    """Add an operator; after a newline the here-documents that were announced are read."""
    touches = touches and operator not in _OF_BOTH
    words.append(ShellWord(operator, reader.line, operator=True, touches=touches))
    reader.at += len(operator)
    if operator in _HERE:
        words.pop()
        reader.blank()
        delimiter = reader.word()
        plain = re.sub(r"[\\'\"]", "", delimiter)
        reader.waiting.append((len(words), plain, operator == "<<-"))
        quoted = plain != delimiter
        words.append(ShellWord("<<", reader.line, operator=True, here="", quoted=quoted, touches=touches))
    elif operator == "\n":
        reader.line += 1
        for index, plain, stripped in reader.waiting:
            at = reader.line
            words[index] = replace(words[index], line=at, here=_here(reader, plain, stripped))
        reader.waiting.clear()


def _here(reader: _Reader, delimiter: str, stripped: bool) -> str:
    """The lines of a here-document up to its delimiter."""
    lines: list[str] = []
    while reader.at < len(reader.text):
        end = reader.text.find("\n", reader.at)
        end = len(reader.text) if end < 0 else end
        line = reader.text[reader.at : end]
        reader.at, reader.line = min(len(reader.text), end + 1), reader.line + 1
        if (line.lstrip("\t") if stripped else line).rstrip("\r") == delimiter:
            break
        lines.append(line)
    return "\n".join(lines)


def _array(reader: _Reader) -> tuple[ShellWord, ...]:
    """The words between the parentheses of an array assignment."""
    reader.at += 1
    words: list[ShellWord] = []
    while reader.at < len(reader.text) and len(words) < MOST_WORDS:
        reader.blank()
        if reader.at >= len(reader.text):
            break
        char = reader.text[reader.at]
        if char == ")":
            reader.at += 1
            break
        if char == "\n":
            reader.at, reader.line = reader.at + 1, reader.line + 1
        elif char in ";&|(<>":
            reader.at += 1
        else:
            words.append(ShellWord(reader.word(), reader.line))
    return tuple(words)


# ── control flow: commands, branches, loops and functions, nothing run ─────────────────────────────────────

MOST_NESTED = 40
"""Blocks within blocks; deeper ones are passed over."""
_CLOSERS = frozenset(("fi", "then", "else", "elif", "done", "do", "esac", "}", ";;", ")", "in"))


@dataclass(slots=True)
class Command:
    """Words of one simple command, or of a test between ``[[`` and ``]]``."""

    words: tuple[ShellWord, ...]


@dataclass(slots=True)
class Branch:
    """``if`` and ``case``: conditions with bodies; a body without a condition is what runs otherwise."""

    line: int
    arms: list[tuple[list[Node] | Match | None, list[Node]]] = field(default_factory=list)


@dataclass(slots=True)
class Match:
    """A word of ``case`` and the patterns of one arm."""

    word: ShellWord
    patterns: tuple[ShellWord, ...]


@dataclass(slots=True)
class Loop:
    """``for``, ``while`` and ``until``; `words` are what ``for`` goes through."""

    kind: str
    name: str
    words: tuple[ShellWord, ...]
    body: list[Node]


@dataclass(slots=True)
class Function:
    """A function: its body runs where it is called."""

    name: str
    body: list[Node]


@dataclass(slots=True)
class CommandGroup:
    """``{ …; }`` or ``( … )``."""

    body: list[Node]


@dataclass(slots=True)
class Chain:
    """Commands joined by ``&&``, ``||`` and ``|``: each with the operator before it."""

    parts: list[tuple[str, Node]]


Node = Command | Branch | Loop | Function | CommandGroup | Chain


def tree_of(words: tuple[ShellWord, ...]) -> list[Node]:
    """The tree of a whole script; a stray end of a block is passed over."""
    parser, tree = _Parser(words), list[Node]()
    while parser.at < len(words):
        before = parser.at
        tree.extend(parser.body(0))
        parser.at = max(parser.at, before + 1) if parser.at < len(words) else parser.at
        if parser.at < len(words) and parser.at == before:
            parser.at += 1
    return tree


class _Parser:
    """A place among the words of a script."""

    def __init__(self, words: tuple[ShellWord, ...]) -> None:
        self.words, self.at = words, 0

    def text(self) -> str:
        """The word at this place, empty at the end."""
        return self.words[self.at].text if self.at < len(self.words) else ""

    def skip_breaks(self) -> None:
        """Pass separators."""
        while self.at < len(self.words) and self.words[self.at].operator and self.text() in ("\n", ";", "&"):
            self.at += 1

    def body(self, depth: int, *more_closers: str) -> list[Node]:
        """Commands up to a word that ends a block."""
        result: list[Node] = []
        while True:
            self.skip_breaks()
            if self.at >= len(self.words) or self.text() in _CLOSERS or self.text() in more_closers:
                return result
            before = self.at
            result.append(self.chain(depth))
            if self.at == before:
                self.at += 1

    def chain(self, depth: int) -> Node:
        """Commands joined by operators."""
        parts: list[tuple[str, Node]] = [("", self.block_or_command(depth))]
        while self.at < len(self.words) and self.words[self.at].operator and self.text() in ("&&", "||", "|"):
            operator = self.text()
            self.at += 1
            self.skip_breaks()
            parts.append((operator, self.block_or_command(depth)))
        return parts[0][1] if len(parts) == 1 else Chain(parts)

    def block_or_command(self, depth: int) -> Node:
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
        words: list[ShellWord] = []
        depth = 0
        while self.at < len(self.words) and self.text() != "\n":
            words.append(self.words[self.at])
            depth += {"(": 1, ")": -1}.get(self.text(), 0)
            self.at += 1
            if depth <= 0:
                break
        return Command(tuple(words))

    def is_function(self) -> bool:
        """Whether a name with parentheses begins here."""
        following = [word.text for word in self.words[self.at + 1 : self.at + 3]]
        return following == ["(", ")"] and not self.words[self.at].operator

    def simple(self) -> Command:
        """Words up to a separator."""
        words: list[ShellWord] = []
        depth = 0
        while self.at < len(self.words):
            word = self.words[self.at]
            if word.operator and word.text not in REDIRECTIONS and word.here is None:
                depth += {"(": 1, ")": -1}.get(word.text, 0)
                if (
                    word.text not in ("(", ")")
                    or depth < 0
                    or (words and depth == 0 and words[0].text != "(")
                ):
                    break
                if word.text == ")" and depth == 0:
                    self.at += 1
                    break
            words.append(word)
            self.at += 1
        return Command(tuple(words))

    def test(self) -> Command:
        """Words of ``[[ … ]]`` with the operators in between."""
        words: list[ShellWord] = []
        while self.at < len(self.words) and self.text() != "\n":
            words.append(self.words[self.at])
            self.at += 1
            if words[-1].text == "]]":
                break
        return Command(tuple(words))

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
        word = self.words[self.at] if self.at < len(self.words) else ShellWord("", 0)
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

    def patterns(self) -> tuple[ShellWord, ...]:
        """Patterns of one arm up to its parenthesis."""
        words: list[ShellWord] = []
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.operator and word.text == ")":
                break
            if word.operator and word.text == "\n":
                break
            if not word.operator:
                words.append(word)
        return tuple(words)

    def loop(self, depth: int) -> Loop:
        """``for x in …; do … done`` and ``while …; do … done``."""
        kind = self.text()
        self.at += 1
        name, words = "", list[ShellWord]()
        if self.is_arithmetic():  # for ((i = 0; i < 8; i++)): how often is left to a run
            self.arithmetic()
            self.skip_breaks()
        elif kind in ("for", "select"):
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

    def group(self, depth: int, end: str) -> CommandGroup:
        """Commands between braces or parentheses."""
        self.at += 1
        body = self.body(depth + 1)
        self.expect(end)
        self.skip_redirections()
        return CommandGroup(body)

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


# ── arithmetic of $(( … )): whole numbers within bounds, and nothing that is not known ─────────────────────

LARGEST = 10**18
_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]{1,15}|\d{1,18}(?![\w.]))|([A-Za-z_]\w*)|(\*\*|<=|>=|==|!=|&&|\|\||<<|>>|[-+*/%()<>?:!])|(.))"
)
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
    ("**",),
)
_OF: Mapping[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << b if 0 <= b < 64 else _unknown(),
    ">>": lambda a, b: a >> b if 0 <= b < 64 else _unknown(),
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: int(a / b) if abs(a) < 2**52 else a // b,
    "%": lambda a, b: a - b * int(a / b),
    "**": lambda a, b: a**b if 0 <= b <= 64 and abs(a) <= 10**6 else _unknown(),
}


class _UnknownNumberError(Exception):
    """The value cannot be told without running the script."""


def _unknown() -> int:
    raise _UnknownNumberError


def whole_number(text: str, value_of: Callable[[str], str | None]) -> int | None:
    """The value of an expression, None where it depends on what only a run knows.

    >>> whole_number("NODES * 8 / (TP*2)", {"NODES": "4", "TP": "2"}.get), whole_number("1/0", {}.get)
    (8, None)

    Args:
        text: The expression; dollar signs may be left out, as in bash.
        value_of: Text of a variable, None if it is not known.
    """
    tokens = []
    for match in _TOKEN.finditer(text[:1000]):
        number, name, mark, other = match.groups()
        if other is not None and other.strip():
            return None
        if number or name or mark:
            tokens.append(number or name or mark)
    try:
        reader = _Expression(tokens, value_of)
        choice = reader.choice(0)
        return choice if reader.at == len(tokens) else None
    except (_UnknownNumberError, ZeroDivisionError, OverflowError, RecursionError):
        return None


class _Expression:
    """A place among the tokens of an expression."""

    def __init__(self, tokens: list[str], value_of: Callable[[str], str | None]) -> None:
        self.tokens, self.value_of, self.at = tokens, value_of, 0

    def here(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def choice(self, depth: int) -> int:
        """``a ? b : c``."""
        if depth > 20:
            _unknown()
        level = self.level(0, depth)
        if self.here() != "?":
            return level
        self.at += 1
        yes = self.choice(depth + 1)
        if self.here() != ":":
            _unknown()
        self.at += 1
        no = self.choice(depth + 1)
        return yes if level else no

    def level(self, index: int, depth: int) -> int:
        """Operators of one precedence, from the left."""
        if index == len(_LEVELS):
            return self.primary(depth)
        count = self.level(index + 1, depth)
        while self.here() in _LEVELS[index]:
            mark = self.here()
            self.at += 1
            count = _OF[mark](count, self.level(index + 1, depth))
            if abs(count) > LARGEST:
                _unknown()
        return count

    def primary(self, depth: int) -> int:
        """A number, a variable, a sign or parentheses."""
        part = self.here()
        self.at += 1
        if part in ("-", "+", "!"):
            value = self.primary(depth)
            return {"-": -value, "+": value, "!": int(not value)}[part]
        if part == "(":
            choice = self.choice(depth + 1)
            if self.here() != ")":
                _unknown()
            self.at += 1
            return choice
        if part[:1].isdigit():
            return int(part, 16 if part[:2] in ("0x", "0X") else 10)
        text = self.value_of(part) if part else None
        if text is None or not re.fullmatch(r"\s*-?\d{1,18}\s*", text):
            return _unknown()
        return int(text)


# ── values: variables, defaults, arithmetic and arrays, nothing executed ───────────────────────────────────

UNKNOWN = "\x00"
LONGEST_TEXT = 100_000
"""Characters of one value; a script that doubles a variable stops here."""
MOST_TEXTS = 6_000
"""Words that one word may become."""
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_SPECIAL = re.compile(r"([A-Za-z_]\w*|[0-9@*]+)(?:\[([^\]]*)\])?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Text:
    """One expanded word and the line it was written on; `cause` names what made it unknown."""

    text: str
    line: int

    @property
    def known(self) -> bool:
        """Whether nothing in it depends on a run."""
        return UNKNOWN not in self.text


@dataclass(slots=True)
class Variables:
    """What is known of a script's variables; a list has the words of an array."""

    values: dict[str, tuple[Text, ...]] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    defaults: dict[str, str] = field(default_factory=dict)
    """Variables whose default was taken because nothing in the files sets them."""
    causes: set[str] = field(default_factory=set)
    """Names that a run would have to give."""
    printed: Callable[[str, Variables], str | None] | None = None
    """What a substituted command prints that calls a function of the script; None of any other."""

    def copy(self) -> Variables:
        """Another set with the same values; what was noted is shared."""
        return Variables(dict(self.values), set(self.arrays), self.defaults, self.causes, self.printed)

    def text(self, name: str) -> str | None:
        """Value of a variable as one text, None if nothing sets it."""
        texts = self.values.get(name)
        return None if texts is None else " ".join(part.text for part in texts)[:LONGEST_TEXT]

    def number(self, name: str) -> str | None:
        """Value for arithmetic: a variable may hold an expression of its own."""
        text = self.text(name)
        if text is None or UNKNOWN in text:
            self.causes.add(name)
        return text


def texts_of(value: tuple[Text, ...] | None) -> tuple[str, ...] | None:
    """The texts of a value."""
    return None if value is None else tuple(text.text for text in value)


def merged(values: list[tuple[Text, ...] | None]) -> tuple[Text, ...] | None:
    """What several ends of branches agree on: the words that all have, or nothing known."""
    lists = [value for value in values if value is not None]
    if len(lists) < len(values):  # one of them leaves it unset, as before the branch
        return (Text(UNKNOWN, lists[0][0].line if lists and lists[0] else 0),)
    if all(len(value) == 1 for value in lists):
        texts = [value[0].text for value in lists]
        shortest = min(texts, key=len)
        if shortest.strip() and all(text.startswith(shortest) for text in texts):
            return (Text(f"{shortest} {UNKNOWN}", lists[0][0].line),)
        return (Text(UNKNOWN, lists[0][0].line if lists[0] else 0),)
    common = min(lists, key=len)
    if all(texts_of(value[: len(common)]) == texts_of(common) for value in lists):
        return common
    return (Text(UNKNOWN, 0),)


def expanded(word: ShellWord, names: Variables) -> list[Text]:
    """The words that one word becomes, split as a shell would.

    >>> names = Variables({"A": (Text("--tp 8", 1),)})
    >>> [part.text for part in expanded(ShellWord('$A "$A" x${B:-1}', 1), names)]
    ['--tp', '8', '--tp 8', 'x1']
    """
    builder = _Builder(word.line)
    for text in _braces(word.text):
        _expand(text, names, builder, 0)
        builder.close()
    return builder.done()


_RANGE = re.compile(r"([\w./:-]*)\{(\d{1,5})\.\.(\d{1,5})\}([\w./:-]*)")


def _braces(text: str) -> list[str]:
    """The words of a range in braces, with the zeros that its ends begin with.

    >>> _braces("node{08..10}"), _braces("${A}")
    (['node08', 'node09', 'node10'], ['${A}'])
    """
    match = _RANGE.fullmatch(text)
    if match is None or abs(int(match[2]) - int(match[3])) >= MOST_TEXTS:
        return [text]
    first, last = int(match[2]), int(match[3])
    zeros = "0" in (match[2][0], match[3][0]) and max(map(len, match.group(2, 3))) > 1
    width = max(map(len, match.group(2, 3))) if zeros else 0
    step = 1 if first <= last else -1
    return [f"{match[1]}{number:0{width}d}{match[4]}" for number in range(first, last + step, step)]


def joined_text(text: str, names: Variables, line: int = 0, depth: int = 0) -> str:
    """The one text that a value becomes, as on the right of an assignment: not split."""
    builder = _Builder(line, split=False)
    _expand(text, names, builder, depth)
    return " ".join(part.text for part in builder.done())[:LONGEST_TEXT]


class _Builder:
    """Words being put together."""

    def __init__(self, line: int, *, split: bool = True) -> None:
        self.line, self.split = line, split
        self.texts: list[Text] = []
        self.current: list[str] | None = None
        self.current_line = line

    def add(self, text: str, line: int | None = None) -> None:
        """Text that is not split."""
        if self.current is None or not any(self.current):  # a quote that opens says nothing of the line
            self.current, self.current_line = [], line or self.line
        self.current.append(text)

    def close(self) -> None:
        """End the word that is being put together."""
        if self.current is not None and len(self.texts) < MOST_TEXTS:
            self.texts.append(Text("".join(self.current)[:LONGEST_TEXT], self.current_line))
        self.current = None

    def add_split(self, text: str, line: int) -> None:
        """Text that is split at blanks."""
        if not self.split:
            self.add(text, line)
            return
        parts = text.split()
        if text[:1].isspace():
            self.close()
        for index, part in enumerate(parts):
            if index:
                self.close()
            self.add(part, line)
        if parts and text[-1:].isspace():
            self.close()

    def done(self) -> list[Text]:
        """Every word."""
        self.close()
        return self.texts


def _expand(text: str, names: Variables, builder: _Builder, depth: int) -> None:
    """Add what a text becomes to a builder."""
    at = 0
    while at < len(text) and len(builder.texts) < MOST_TEXTS:
        char, end = text[at], skipped(text, at)
        piece = text[at:end]
        if char == "'" and len(piece) > 1:
            builder.add(piece[1:-1])
        elif char == '"' and len(piece) > 1:
            _expand_quoted(piece[1:-1] if piece.endswith('"') else piece[1:], names, builder, depth)
        elif char == "\\":
            builder.add("" if piece == "\\\n" else piece[1:])
        elif char == "`":
            builder.add(UNKNOWN)
        elif char == "$":
            end = _variable(text, at, end, names, builder, depth, quoted=False)
        elif char.isspace():
            _blank(char, builder)
        else:
            builder.add(char)
        at = end


def _blank(char: str, builder: _Builder) -> None:
    """A blank inside a word: it only stands there in text that is expanded anew."""
    builder.close() if builder.split else builder.add(char)


def _expand_quoted(text: str, names: Variables, builder: _Builder, depth: int) -> None:
    """Add what stands between double quotes."""
    builder.add("")
    at = 0
    while at < len(text) and len(builder.texts) < MOST_TEXTS:
        char = text[at]
        if char == "$":
            at = _variable(text, at, skipped(text, at), names, builder, depth, quoted=True)
        elif char == "`":
            builder.add(UNKNOWN)
            at = skipped(text, at)
        elif char == "\\" and at + 1 < len(text):
            following = text[at + 1]
            builder.add("" if following == "\n" else following if following in '$`"\\' else char + following)
            at += 2
        else:
            end = at + 1
            while end < len(text) and text[end] not in "$`\\":
                end += 1
            builder.add(text[at:end])
            at = end


def _variable(
    source: str, at: int, end: int, names: Variables, builder: _Builder, depth: int, *, quoted: bool
) -> int:
    """Add the value of what a dollar sign begins; returns where it ends."""
    piece = source[at:end]
    if depth > MOST_DEPTH:
        builder.add(UNKNOWN)
        return end
    if piece.startswith("$(("):
        value = whole_number(joined_text(piece[3:-2], names, depth=depth + 1), names.number)
        builder.add(UNKNOWN if value is None else str(value))
        return end
    if piece.startswith("$("):
        text = _substituted(piece[2:-1], names, depth)
        builder.add(text) if quoted else builder.add_split(text, builder.line)
        return end
    if piece.startswith("${"):
        _add(_parameter(piece[2:-1], names, builder.line, depth), builder, quoted=quoted)
        return end
    name = _NAME.match(source, at + 1)
    if name is None:
        builder.add("$")
        return at + 1
    _add(_value(name.group(), names, builder.line), builder, quoted=quoted, listed=name.group() == "@")
    return name.end()


def _substituted(command: str, names: Variables, depth: int) -> str:
    """What a substitution gives where that can be told: ``expr``, the text of ``cat << EOF``."""
    words = shell_words(command)
    if names.printed is not None and depth < MOST_DEPTH:
        text = names.printed(command, names)
        if text is not None:
            return text
    if words and words[0].text == "expr":
        substituted = whole_number(
            joined_text(command.partition("expr")[2].replace("\\", ""), names, depth=depth + 1), names.number
        )
        return UNKNOWN if substituted is None else str(substituted)
    if words and words[0].text == "cat":
        for word in words:
            if word.here is not None:
                return word.here if word.quoted else here_text(word.here, names, depth)
    return UNKNOWN


def here_text(text: str, names: Variables, depth: int = 0) -> str:
    """A here-document with its variables."""
    builder = _Builder(0, split=False)
    _expand_quoted(text, names, builder, depth + 1)
    return " ".join(part.text for part in builder.done())[:LONGEST_TEXT]


@dataclass(frozen=True, slots=True)
class _Expansion:
    """What a parameter expands to."""

    parts: tuple[Text, ...]
    listed: bool = False


def _add(result: _Expansion, builder: _Builder, *, quoted: bool, listed: bool = False) -> None:
    """Add a value: quoted as one text, or as the words of an array."""
    if quoted and not (result.listed or listed):
        builder.add(" ".join(part.text for part in result.parts)[:LONGEST_TEXT])
        return
    for index, part in enumerate(result.parts[:MOST_TEXTS]):
        if index:
            builder.close()
        if quoted:
            builder.add(part.text, part.line)
        else:
            builder.add_split(part.text, part.line)


def _value(name: str, names: Variables, line: int) -> _Expansion:
    """Value of a plain variable; what nothing sets is unknown."""
    if name in ("#", "@", "*"):
        return _Expansion((Text("0", line),) if name == "#" else names.values.get("@", ()))
    texts = names.values.get(name)
    if texts is None:
        names.causes.add(name)
        return _Expansion((Text(UNKNOWN, line),))
    if any(not part.known for part in texts):
        names.causes.add(name)
    return _Expansion(texts[:1] if name in names.arrays else texts)


_KEYS = re.compile(r"!(\w+)\[[@*]\]")
_KEYED = re.compile(r"\[(\w+)\]=")
"""The keys of an array, and a part of one that has keys."""


def _parameter(inside: str, names: Variables, line: int, depth: int) -> _Expansion:
    """What stands between ``${`` and ``}``."""
    if inside.startswith("#"):
        counted, bracket, index = inside[1:].partition("[")
        texts = names.values.get(counted)
        counts_words = bool(bracket) and counted not in names.arrays
        if texts is None or not (counts_words or all(part.known for part in texts)):
            names.causes.add(counted)
            return _Expansion((Text(UNKNOWN, line),))
        if bracket and index.rstrip("]") not in ("@", "*"):
            return _Expansion((Text(UNKNOWN, line),))
        count = len(texts) if bracket or counted in ("", "@", "*") else len(names.text(counted) or "")
        return _Expansion((Text(str(count), line),))
    if inside[:1] == "!" and (named := names.text(inside[1:])) and named.isidentifier():
        return _value(named, names, line)
    if (array := _KEYS.fullmatch(inside)) is not None:
        return _keys_of(array[1], names, line)
    match = _SPECIAL.fullmatch(inside)
    if match is None:
        return _Expansion((Text(UNKNOWN, line),))
    name, index, rest = match.groups()
    values = names.values.get(name)
    if index in ("@", "*"):
        return _Expansion(values if values is not None else (), listed=index == "@")
    if index is not None and values is not None:
        key = f"[{joined_text(index, names, depth=depth + 1)}]="
        keyed = next((part for part in values if part.text.startswith(key)), None)
        if keyed is not None:
            return _Expansion((Text(keyed.text.removeprefix(key), keyed.line),))
        number = whole_number(joined_text(index, names, depth=depth + 1), names.number)
        inside_it = number is not None and 0 <= number < len(values)
        return _Expansion((values[number],) if inside_it and number is not None else (Text(UNKNOWN, line),))
    return _modified(name, values, rest, names, line, depth)


def _keys_of(name: str, names: Variables, line: int) -> _Expansion:
    """The keys of an array, or the numbers of its parts: ``${!name[@]}``."""
    held = names.values.get(name) if name in names.arrays else None
    if held is None or not all(part.known for part in held):
        names.causes.add(name)
        return _Expansion((Text(UNKNOWN, line),))
    keyed = [_KEYED.match(part.text) for part in held]
    parts = (str(at) if key is None else key[1] for at, key in enumerate(keyed))
    return _Expansion(tuple(Text(part, line) for part in parts), listed=True)


MOST_PARTS = 300
"""Of an array that is given them one by one."""


def put_part(names: Variables, name: str, index: str, value: Text) -> None:
    """Give an array a part, by its number or its key; all of it is unknown where that is not known."""
    parts, key = list(names.values.get(name, ())), joined_text(index, names)
    keyed = next((at for at, part in enumerate(parts) if part.text.startswith(f"[{key}]=")), len(parts))
    number = whole_number(key, names.number) if not key[:1].isalpha() else None
    if UNKNOWN in key or len(parts) > MOST_PARTS or (number is not None and not 0 <= number <= len(parts)):
        parts = [Text(UNKNOWN, value.line)]
    elif number is not None and keyed == len(parts):
        parts[number : number + 1] = [value]
    else:
        parts[keyed : keyed + 1] = [Text(f"[{key}]={value.text}"[:LONGEST_TEXT], value.line)]
    names.values[name] = tuple(parts)
    names.arrays.add(name)


def _modified(
    name: str, values: tuple[Text, ...] | None, rest: str, names: Variables, line: int, depth: int
) -> _Expansion:
    """A parameter with a default, or with part of its value taken away."""
    mark, colon = rest.lstrip(":")[:1], rest.startswith(":")
    if mark in ("-", "=") and rest[:2] in (":-", ":=", "-" + rest[1:2], "=" + rest[1:2]):
        if values is not None and (not colon or any(part.text for part in values)):
            return _Expansion(values)
        text = joined_text(rest[2:] if colon else rest[1:], names, line, depth + 1)
        names.defaults[name] = text
        if mark == "=":
            names.values[name] = (Text(text, line),)
        return _Expansion((Text(text, line),))
    if rest[:2] == ":+" or rest[:1] == "+":
        held = values is not None and any(part.text for part in values)
        return _Expansion(
            (Text(joined_text(rest.lstrip(":+"), names, line, depth + 1), line),) if held else ()
        )
    if not rest or mark == "?":
        return _value(name, names, line)
    if values is None:
        names.causes.add(name)
        return _Expansion((Text(UNKNOWN, line),))
    return _Expansion(tuple(Text(_cut(part.text, rest, names, depth), part.line) for part in values))


def _cut(text: str, rest: str, names: Variables, depth: int) -> str:
    """A value with its case changed or a pattern taken away."""
    if rest in (",,", "^^"):
        return text.lower() if rest == ",," else text.upper()
    if rest[0] in "%#" and UNKNOWN not in text and len(text) < 1000:
        pattern = joined_text(rest.lstrip("%#"), names, depth=depth + 1)
        greedy = rest[:2] in ("%%", "##")
        cuts: Sequence[int] = range(len(text) + 1)
        if (rest[0] == "%") is not greedy:
            cuts = cuts[::-1]
        for cut in cuts:
            gone, kept = (text[cut:], text[:cut]) if rest[0] == "%" else (text[:cut], text[cut:])
            if _matches(gone, pattern):
                return kept
        return text
    return UNKNOWN


def _matches(text: str, pattern: str) -> bool:
    """Whether a shell pattern matches; a long one is not tried."""
    return pattern.count("*") <= 4 and len(pattern) < 200 and fnmatch.fnmatchcase(text, pattern)


# ── what a script comes to: commands, variables, what its scheduler is told ────────────────────────────────


@dataclass(frozen=True, slots=True)
class Started:
    """A command that a script would start.

    `assigned` are the variables before its first word; `sure` is false in a branch that may not be taken;
    `components` are those of a heterogeneous job that its step is told to run on. `loops` are those
    around it, of which the first round is followed, each with its place and how many rounds it has.
    """

    words: tuple[Text, ...]
    assigned: Mapping[str, Text]
    sure: bool
    line: int
    components: tuple[int, ...] = ()
    loops: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Script:
    """What a script comes to."""

    started: list[Started] = field(default_factory=list)
    names: Variables = field(default_factory=Variables)
    directives: dict[str, Text] = field(default_factory=dict)
    components: tuple[Mapping[str, Text], ...] = ()
    """What its scheduler is told of each component of a heterogeneous job."""
    documents: list[Text] = field(default_factory=list)
    """Here-documents with their variables, and the line they begin on."""
    sourced: list[str] = field(default_factory=list)
    """Files it reads that were not given."""
    branches: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    """Lines where only a run can tell what is taken, and the variables that decide."""


def slurm_variables(directives: Mapping[str, Text]) -> dict[str, str]:
    """Variables that Slurm sets by a script's own directives."""
    result: dict[str, str] = {}
    nodes = directives.get("--nodes", directives.get("-N"))
    if nodes is not None and nodes.text.isdigit():
        result |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes.text)
    for flag, name in (
        ("--ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
        ("--gpus-per-node", "SLURM_GPUS_PER_NODE"),
    ):
        value = directives.get(flag)
        if value is not None and value.text.rpartition(":")[2].isdigit():
            result[name] = value.text.rpartition(":")[2]
    return result


def variables_of_components(components: Sequence[Mapping[str, Text]]) -> dict[str, str]:
    """Variables that Slurm sets for each component of a heterogeneous job, with its number at their end."""
    several = components if len(components) > 1 else ()
    return {
        f"{name}_{group}_GROUP_{number}": value
        for number, directives in enumerate(several)
        for name, value in slurm_variables(directives).items()
        for group in ("HET", "PACK")
    }


# ── conditions: true, false, or not to be told without running them ────────────────────────────────────────

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b, "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
}  # fmt: skip
_WORDS = frozenset(("=", "==", "!="))


def condition_truth(words: tuple[ShellWord, ...], names: Variables) -> bool | None:
    """The truth of ``[ … ]``, ``[[ … ]]`` or ``test …``; None if only a run can tell.

    >>> condition_truth(shell_words('[[ "$A" == 1* && -n $B ]]'), Variables({"A": (Text("12", 1),)}))
    False
    """
    inside = [word for word in words[1:] if word.text not in ("]", "]]", "\n")]
    return _any(inside, names)


def _any(words: list[ShellWord], names: Variables) -> bool | None:
    """Alternatives."""
    return _fold([_all(part, names) for part in _parts(words, ("||", "-o"))], stop=True)


def _all(words: list[ShellWord], names: Variables) -> bool | None:
    """What must hold together."""
    return _fold([_comparison(part, names) for part in _parts(words, ("&&", "-a"))], stop=False)


def _fold(fold: list[bool | None], *, stop: bool) -> bool | None:
    if stop in fold:
        return stop
    return None if None in fold else not stop


def _parts(words: list[ShellWord], marks: tuple[str, ...]) -> list[list[ShellWord]]:
    """Words between marks."""
    parts: list[list[ShellWord]] = [[]]
    for word in words:
        if word.text in marks:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _comparison(words: list[ShellWord], names: Variables) -> bool | None:
    """One comparison."""
    plain = [word for word in words if word.text not in ("(", ")")]
    if plain and plain[0].text == "!":
        result = _comparison(plain[1:], names)
        return None if result is None else not result
    if len(plain) == 3:
        return _compared(plain[0], plain[1].text, plain[2], names)
    if len(plain) == 2:
        return _asked(plain[0].text, plain[1], names)
    if len(plain) == 1:
        return _asked("-n", plain[0], names)
    return None


def _asked(option: str, word: ShellWord, names: Variables) -> bool | None:
    """A test of one word."""
    if option not in ("-n", "-z"):
        return None  # what is on a disk
    before = set(names.causes)
    text = _text(word, names)
    if text == UNKNOWN and names.causes - before:  # a variable alone, which nothing sets
        names.causes.intersection_update(before)
        return option == "-z"
    return (text == "") is (option == "-z")


def _text(word: ShellWord, names: Variables) -> str:
    return " ".join(part.text for part in expanded(word, names))


def _compared(left: ShellWord, mark: str, right: ShellWord, names: Variables) -> bool | None:
    """A comparison of two words."""
    first, second = _text(left, names), _text(right, names)
    if UNKNOWN in first or UNKNOWN in second:
        return None
    if mark in _WORDS:
        if len(second) > 200 or second.count("*") > 4:
            return None
        same = fnmatch.fnmatchcase(first, second) if right.text == second else first == second
        return same is not (mark == "!=")
    if mark in _NUMBERS:
        try:
            return _NUMBERS[mark](int(first[:19]), int(second[:19]))
        except ValueError:
            return None
    return None


# ── following: the commands that a script would start ──────────────────────────────────────────────────────

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
    r"(?:^|[\s;&/=])(?:torchrun|deepspeed|accelerate|python3?|srun|mpirun|bash|vllm|sglang|trtllm-serve)\s"
    r".*\s--?[a-z]",
    re.DOTALL,
)
"""One word that is a command of its own, as remote shells and schedulers are given it."""
_DIRECTIVES = re.compile(r"^#SBATCH[ \t]+([^\n]*)", re.MULTILINE)
_OPTION = re.compile(
    r"(?<!\S)(--[\w-]+|-[A-Za-z](?=[\s=\d]|$))(?:[ \t]*=[ \t]*|[ \t]+(?!-)|(?=\d))?([^\s#]*)"
)
_COMPONENT = re.compile(r"(?:het|pack)job\b")
_ASKS_GPUS = ("--gres", "--gpus", "-G", "--gpus-per-node", "--gpus-per-task")


def _components(text: str) -> list[dict[str, Text]]:
    r"""Options of a batch script, however many stand on a line, of each component of a heterogeneous job.

    >>> told = "#SBATCH -N4 --gpus-per-node=a100:8\n#SBATCH hetjob\n#SBATCH --nodes 1"
    >>> [{name: text.text for name, text in component.items()} for component in _components(told)]
    [{'-N': '4', '--gpus-per-node': 'a100:8'}, {'--nodes': '1'}]
    """
    components: list[dict[str, Text]] = [{}]
    for match in _DIRECTIVES.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if _COMPONENT.match(match.group(1)):
            components.append({})
        for option in _OPTION.finditer(match.group(1).partition(" #")[0]):
            components[-1][option.group(1)] = Text(option.group(2), line)
    return components


def directives_of(script: Script, components: Sequence[int]) -> Mapping[str, Text]:
    """What the scheduler is told of the components that a step runs on, where it names some.

    Nodes of several add up; where these have other GPUs, their number is not known.
    """
    parts = [script.components[number] for number in components if number < len(script.components)]
    if len(parts) < 2:
        return parts[0] if parts else script.directives
    counts = [slurm_variables(part).get("SLURM_NNODES", "") for part in parts]
    alike = len({tuple(part[name].text for name in _ASKS_GPUS if name in part) for part in parts}) == 1
    whole = alike and all(count.isdecimal() and len(count) < LONGEST_COUNT for count in counts)
    nodes = str(sum(map(int, counts))) if whole else UNKNOWN
    rest = {name: text for name, text in parts[0].items() if name not in ("-N", "--nodes")}
    return {**rest, "--nodes": Text(nodes, min((text.line for text in rest.values()), default=1))}


LONGEST_COUNT = 8
"""Digits of a number of nodes."""
LONGEST_GROUPS = 100
"""Characters of the components that a step names; Slurm has 128 at most."""
_GROUP = re.compile(r"--(?:het|pack)-group(?:=(.*))?", re.DOTALL)
_GROUPS = re.compile(r"\d{1,3}(?:-\d{1,3})?(?:,\d{1,3}(?:-\d{1,3})?)*")


def components_of_step(words: Sequence[str]) -> tuple[int, ...]:
    """Components of a heterogeneous job that ``srun`` is told to run a step on; none where it is not told.

    >>> components_of_step(["srun", "--het-group=0,2-3"]), components_of_step(["srun", "--het-group", "1"])
    ((0, 2, 3), (1,))
    """
    for word, after in zip(words, (*words[1:], ""), strict=True):
        match = _GROUP.fullmatch(word)
        if match is None:
            continue
        text = after if match[1] is None else match[1]
        read = len(text) < LONGEST_GROUPS and _GROUPS.fullmatch(text)
        spans = [span.split("-") for span in text.split(",")] if read else []
        return tuple(number for span in spans for number in range(int(span[0]), int(span[-1]) + 1))
    return ()


def script_of_text(
    text: str, *, given: Mapping[str, str] | None = None, beside: Mapping[str, str] | None = None
) -> Script:
    r"""Follow a script.

    >>> script = script_of_text('TP=${TP:-4}\nARGS=(--tp $TP)\ntorchrun train.py "${ARGS[@]}"')
    >>> [word.text for word in script.started[0].words]
    ['torchrun', 'train.py', '--tp', '4']

    Args:
        text: The script.
        given: Variables of the environment.
        beside: Texts of other files by name, for ``source``.
    """
    script, components = Script(), _components(text)
    script.components = tuple(components)
    asks = (each for each in components if not each.keys().isdisjoint(_ASKS_GPUS))
    script.directives.update(next(asks, components[0]))
    set_by_slurm = {**slurm_variables(script.directives), **variables_of_components(components)}
    for name, value in {**OF_EVERY_SHELL, **set_by_slurm, **(given or {})}.items():
        script.names.values[name] = (Text(value, 0),)
    _Follower(script, beside or {}).run_text(text, script.names, line=1)
    return script


OF_EVERY_SHELL = {"HOME": "~"}
"""Variables that every shell sets; a path beneath them may name a model."""


def _is_given(texts: Sequence[Text]) -> bool:
    """Whether a value is of the environment, and not of a line of the script."""
    return len(texts) == 1 and texts[0].line == 0 and texts[0].known


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
        self.loops: list[tuple[int, int]] = []
        self.loops_met = 0
        self.run_within = 0
        self.left = False
        """Whether ``exit`` or ``return`` was reached."""
        self.here_string: str | None = None
        """The text of the last ``<<<``, which a command reads."""
        script.names.printed = self.printed
        self.output: list[str] | None = None
        """What the function prints whose output is substituted; None outside of one."""
        self.sure_of_output = True
        self.components: tuple[int, ...] = ()
        """Those of a heterogeneous job that the step runs on whose words are followed."""

    def run_text(self, text: str, names: Variables, line: int) -> None:
        """Follow a text."""
        self.run(tree_of(shell_words(text, line)), names)

    def run(self, nodes: list[Node], names: Variables) -> bool | None:
        """Follow commands; the truth of the last."""
        result: bool | None = True
        for node in nodes:
            if self.left or self.steps >= MOST_STEPS:
                break
            self.steps += 1
            result = self.node(node, names)
        return result

    def node(self, node: Node, names: Variables) -> bool | None:
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
        elif isinstance(node, CommandGroup):
            return self.run(node.body, names)
        return True

    def printed(self, command: str, names: Variables) -> str | None:
        """What a function of the script prints; None of any other command."""
        words = shell_words(command)
        if not words or words[0].text not in self.functions or self.calls >= MOST_CALLS:
            return None
        if any(word.operator for word in words):
            return UNKNOWN
        copy, started = names.copy(), len(self.script.started)
        outer, self.output = (self.output, self.sure_of_output), []
        self.sure_of_output = self.sure
        self.call(self.texts(words, copy), copy)
        output = "\n".join(self.output)[:LONGEST_TEXT]
        self.output, self.sure_of_output = outer
        del self.script.started[started:]
        return output

    def print_words(self, texts: list[Text], *, elsewhere: bool) -> None:
        """What ``echo``, ``printf`` and ``cat`` of a here-document print where output is substituted."""
        if self.output is None or elsewhere:
            return
        first, words = texts[0].text, [text.text for text in texts[1:]]
        documents = self.script.documents
        shown: str | None = None
        if first == "echo":
            shown = " ".join(words[1:] if words[:1] in (["-n"], ["-e"]) else words)
        elif first == "printf" and words:
            form = words[0].replace("\\n", " ").strip()
            shown = " ".join(words[1:]) if form == "%s" else form if "%" not in form else None
        elif first == "cat" and len(texts) == 1 and documents and documents[-1].line >= texts[0].line:
            shown = documents.pop().text
        elif first in _SILENT or first in ("local", "return", "true", "false", "test"):
            return
        known = shown is not None and self.sure == self.sure_of_output
        self.output.append(shown if shown is not None and known else UNKNOWN)

    def loop(self, loop: Loop, names: Variables) -> None:
        """The first round of ``for``; ``while`` mostly reads arguments that nobody gave."""
        if loop.kind != "for":
            return
        words = [text for word in loop.words for text in expanded(word, names)]
        if words:
            names.values[loop.name] = (words[0],)
            if len(words) > 1:
                self.script.branches.append((words[0].line, frozenset((loop.name,))))
        before = len(self.output or ())
        known = words and not any(UNKNOWN in text.text for text in words)
        self.loops_met += 1
        self.loops.append((self.loops_met, len(words) if known else 1))
        self.run(loop.body, names)
        self.loops.pop()
        if self.output is not None and len(words) != 1:
            self.output[before:] = [UNKNOWN]

    def chain(self, chain: Chain, names: Variables) -> bool | None:
        """``&&`` and ``||``."""
        result: bool | None = True
        for mark, node in chain.parts:
            if mark == "|" and self.output:
                self.output[-1] = UNKNOWN
            if (mark == "&&" and result is False) or (mark == "||" and result is True):
                continue
            if mark in ("&&", "||") and result is None:
                self.parallel([[node], []], names)
            else:
                result = self.node(node, names)
        return result

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
        value = joined_text(condition.word.text, names)
        if any(word.text == "*" for word in condition.patterns):
            return True
        if UNKNOWN in value:
            return None
        return any(joined_text(word.text, names) == value for word in condition.patterns)

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
            return condition_truth(command.words, names)
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
        if texts and texts[0].text not in self.functions:
            elsewhere = any(word.operator and ">" in word.text for word in command.words)
            self.print_words(texts, elsewhere=elsewhere)
        return self.start(texts, assigned, names) if texts else True

    def computed(self, text: str, names: Variables) -> bool | None:
        """``(( … ))`` and ``let``: an assignment, or a number that is true above or below zero."""
        match = _COMPUTED.fullmatch(joined_text(text, names))
        if match is None:
            count = whole_number(joined_text(text, names), names.number)
            return None if count is None else count != 0
        name, operator, value = match.groups()
        whole = whole_number(f"{name} {operator} ({value})" if operator else value, names.number)
        names.values[name] = (Text(UNKNOWN if whole is None else str(whole), 0),)
        return None if whole is None else whole != 0

    def texts(self, words: Iterable[ShellWord], names: Variables) -> list[Text]:
        """What words become, as long as all together are no more than any script has."""
        result: list[Text] = []
        for word in words:
            if self.expanded > MOST_EXPANDED:
                break
            texts = expanded(word, names)
            self.expanded += len(texts) + sum(len(text.text) for text in texts) // 100
            result.extend(texts)
        return result

    def assign(self, word: ShellWord, match: re.Match[str], names: Variables) -> None:
        """``NAME=value``, ``NAME+=value``, ``NAME=( … )``, ``NAME[index]=value``."""
        name, index, more = match.groups()
        before = names.values.get(name, ()) if more else ()
        if word.array is not None:
            texts = tuple(self.texts(word.array, names))
            names.values[name] = (*before, *texts)[:MOST_STEPS]
            names.arrays.add(name)
        elif index is not None:
            text = joined_text(word.text[match.end() :], names, word.line)
            put_part(names, name, index, Text(UNKNOWN if more else text, word.line))
        else:
            text = joined_text(word.text[match.end() :], names, word.line)
            whole = "".join(part.text for part in before) + text
            if UNKNOWN in whole and _is_given(names.values.get(name, ())):
                return  # what only a run would compute is what its environment is said to be
            names.values[name] = (Text(whole[:LONGEST_TEXT], word.line),)
            names.arrays.discard(name)

    def without_redirections(self, words: tuple[ShellWord, ...], names: Variables) -> list[ShellWord]:
        """Words of a command; its here-documents are kept aside."""
        result: list[ShellWord] = []
        skip = False
        for at, word in enumerate(words):
            if skip:
                skip = False
                continue
            descriptor = word.touches and result and result[-1] is words[at - 1]
            if descriptor and result[-1].text.isdecimal():
                result.pop()  # a descriptor, as of 2>
            if word.operator and word.here is not None:
                text = word.here if word.quoted else here_text(word.here, names)
                self.script.documents.append(Text(text, word.line))
            elif word.operator and word.text == "<<<":
                given = words[at + 1 : at + 2]
                self.here_string = joined_text(given[0].text, names, word.line) if given else None
                skip = True
            elif word.operator:
                skip = word.text in REDIRECTIONS
            else:
                result.append(word)
        return result

    def read_document(self, texts: list[Text], names: Variables, cut: str = "") -> None:
        """``read -d '' NAME << EOF``: the whole here-document; ``read A B <<< "1 2"``: its words.

        They are cut at spaces, or at the characters of ``IFS`` before it. What else is read nobody gave.
        """
        given, self.here_string = self.here_string, None
        if given is not None:
            for mark in cut:
                given = given.replace(mark, " ")
            self.read_words(
                [text for text in texts[1:] if not text.text.startswith("-")], given, texts, names
            )
            return
        documents, name = self.script.documents, texts[-1].text
        here = bool(documents) and documents[-1].line >= texts[0].line
        if (
            here
            and name.isidentifier()
            and any(text.text.startswith("-") and "d" in text.text for text in texts)
        ):
            text = documents.pop().text.replace("\\\n", " ").strip()
            names.values[name] = (Text(text[:LONGEST_TEXT], texts[0].line),)
            names.arrays.discard(name)

    def read_words(self, into: list[Text], given: str, texts: list[Text], names: Variables) -> None:
        """The words of a text as variables, the rest in the last; with ``-a`` as one array."""
        parts = given.split()
        line = texts[0].line
        if not into or not all(text.text.isidentifier() for text in into):
            return
        if any(text.text.startswith("-") and "a" in text.text for text in texts):
            names.values[into[0].text] = tuple(Text(part, line) for part in parts)
            names.arrays.add(into[0].text)
            return
        for at, text in enumerate(into):
            value = " ".join(parts[at:]) if text is into[-1] else "".join(parts[at : at + 1])
            unknown = UNKNOWN in given
            names.values[text.text] = (Text(UNKNOWN if unknown else value, line),)
            names.arrays.discard(text.text)

    def start(self, texts: list[Text], assigned: Mapping[str, Text], names: Variables) -> bool | None:
        """Follow a command whose words are known."""
        first, rest = texts[0].text, texts[1:]
        if first in self.functions and self.calls < MOST_CALLS:
            self.call(texts, names)
            return True
        if first == "read" and rest:
            ifs = assigned.get("IFS")
            self.read_document(texts, names, cut="" if ifs is None else ifs.text.strip())
            return True
        if first == "let":
            return self.computed(" ".join(text.text for text in rest), names)
        if first in ("true", "false", "test"):
            return {"true": True, "false": False}.get(first)
        if self.built_in(first, rest, names):
            return True
        outer = self.components
        self.components = components_of_step([text.text for text in texts]) or outer
        self.script.started.append(
            Started(tuple(texts), assigned, self.sure, texts[0].line, self.components, tuple(self.loops))
        )
        inside = slurm_variables(directives_of(self.script, self.components)) if self.components else {}
        before = {name: names.values.get(name) for name in inside}
        names.values |= {name: (Text(value, 0),) for name, value in inside.items()}
        self.within(texts, names)
        for name, value in before.items():
            names.values.pop(name) if value is None else names.values.update({name: value})
        self.components = outer
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
