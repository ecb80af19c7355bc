"""What the words of a shell script become: variables, defaults, arithmetic and arrays, nothing executed.

What only a run knows (``$(…)``, variables of the environment, positional arguments) is `UNKNOWN`, a mark that
stays in the text, so that a value made of it is seen to be unknown too.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.formats.shell_numbers import whole_number
from planner.formats.shell_words import MOST_DEPTH, Word, skipped

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

    def copy(self) -> Variables:
        """Another set with the same values; what was noted is shared."""
        return Variables(dict(self.values), set(self.arrays), self.defaults, self.causes)

    def text(self, name: str) -> str | None:
        """Value of a variable as one text, None if nothing sets it."""
        found = self.values.get(name)
        return None if found is None else " ".join(part.text for part in found)[:LONGEST_TEXT]

    def number(self, name: str) -> str | None:
        """Value for arithmetic: a variable may hold an expression of its own."""
        found = self.text(name)
        if found is None or UNKNOWN in found:
            self.causes.add(name)
        return found


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


def expanded(word: Word, names: Variables) -> list[Text]:
    """The words that one word becomes, split as a shell would.

    >>> names = Variables({"A": (Text("--tp 8", 1),)})
    >>> [part.text for part in expanded(Word('$A "$A" x${B:-1}', 1), names)]
    ['--tp', '8', '--tp 8', 'x1']
    """
    builder = _Builder(word.line)
    _expand(word.text, names, builder, 0)
    return builder.done()


def joined(text: str, names: Variables, line: int = 0, depth: int = 0) -> str:
    """The one text that a value becomes, as on the right of an assignment: not split."""
    builder = _Builder(line, split=False)
    _expand(text, names, builder, depth)
    return " ".join(part.text for part in builder.done())[:LONGEST_TEXT]


class _Builder:
    """Words being put together."""

    def __init__(self, line: int, *, split: bool = True) -> None:
        self.line, self.split = line, split
        self.found: list[Text] = []
        self.current: list[str] | None = None
        self.current_line = line

    def add(self, text: str, line: int | None = None) -> None:
        """Text that is not split."""
        if self.current is None or not any(self.current):  # a quote that opens says nothing of the line
            self.current, self.current_line = [], line or self.line
        self.current.append(text)

    def close(self) -> None:
        """End the word that is being put together."""
        if self.current is not None and len(self.found) < MOST_TEXTS:
            self.found.append(Text("".join(self.current)[:LONGEST_TEXT], self.current_line))
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
        return self.found


def _expand(text: str, names: Variables, builder: _Builder, depth: int) -> None:
    """Add what a text becomes to a builder."""
    at = 0
    while at < len(text) and len(builder.found) < MOST_TEXTS:
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
    while at < len(text) and len(builder.found) < MOST_TEXTS:
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
    text: str, at: int, end: int, names: Variables, builder: _Builder, depth: int, *, quoted: bool
) -> int:
    """Add the value of what a dollar sign begins; returns where it ends."""
    piece = text[at:end]
    if depth > MOST_DEPTH:
        builder.add(UNKNOWN)
        return end
    if piece.startswith("$(("):
        value = whole_number(joined(piece[3:-2], names, depth=depth + 1), names.number)
        builder.add(UNKNOWN if value is None else str(value))
        return end
    if piece.startswith("$("):
        builder.add(_substituted(piece[2:-1], names, depth))
        return end
    if piece.startswith("${"):
        _add(_parameter(piece[2:-1], names, builder.line, depth), builder, quoted=quoted)
        return end
    name = _NAME.match(text, at + 1)
    if name is None:
        builder.add("$")
        return at + 1
    _add(_value(name.group(), names, builder.line), builder, quoted=quoted, listed=name.group() == "@")
    return name.end()


def _substituted(command: str, names: Variables, depth: int) -> str:
    """What a substitution gives where that can be told: ``expr``, the text of ``cat << EOF``."""
    from planner.formats.shell_words import words_of

    words = words_of(command)
    if words and words[0].text == "expr":
        found = whole_number(
            joined(command.partition("expr")[2].replace("\\", ""), names, depth=depth + 1), names.number
        )
        return UNKNOWN if found is None else str(found)
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
class _Found:
    """What a parameter expands to."""

    parts: tuple[Text, ...]
    listed: bool = False


def _add(found: _Found, builder: _Builder, *, quoted: bool, listed: bool = False) -> None:
    """Add a value: quoted as one text, or as the words of an array."""
    if quoted and not (found.listed or listed):
        builder.add(" ".join(part.text for part in found.parts)[:LONGEST_TEXT])
        return
    for index, part in enumerate(found.parts[:MOST_TEXTS]):
        if index:
            builder.close()
        if quoted:
            builder.add(part.text, part.line)
        else:
            builder.add_split(part.text, part.line)


def _value(name: str, names: Variables, line: int) -> _Found:
    """Value of a plain variable; what nothing sets is unknown."""
    if name in ("#", "@", "*"):
        return _Found((Text("0", line),) if name == "#" else names.values.get("@", ()))
    found = names.values.get(name)
    if found is None:
        names.causes.add(name)
        return _Found((Text(UNKNOWN, line),))
    if any(not part.known for part in found):
        names.causes.add(name)
    return _Found(found[:1] if name in names.arrays else found)


def _parameter(inside: str, names: Variables, line: int, depth: int) -> _Found:
    """What stands between ``${`` and ``}``."""
    if inside.startswith("#"):
        found = names.values.get(inside[1:].partition("[")[0])
        return _Found((Text(UNKNOWN if found is None else str(len(found)), line),))
    if inside[:1] == "!" and (named := names.text(inside[1:])) and named.isidentifier():
        return _value(named, names, line)
    match = _SPECIAL.fullmatch(inside)
    if match is None:
        return _Found((Text(UNKNOWN, line),))
    name, index, rest = match.groups()
    values = names.values.get(name)
    if index in ("@", "*"):
        return _Found(values if values is not None else (), listed=index == "@")
    if index is not None and values is not None:
        key = f"[{joined(index, names, depth=depth + 1)}]="
        keyed = next((part for part in values if part.text.startswith(key)), None)
        if keyed is not None:
            return _Found((Text(keyed.text.removeprefix(key), keyed.line),))
        number = whole_number(joined(index, names, depth=depth + 1), names.number)
        inside_it = number is not None and 0 <= number < len(values)
        return _Found((values[number],) if inside_it and number is not None else (Text(UNKNOWN, line),))
    return _modified(name, values, rest, names, line, depth)


MOST_PARTS = 300
"""Of an array that is given them one by one."""


def put_part(names: Variables, name: str, index: str, value: Text) -> None:
    """Give an array a part, by its number or its key; all of it is unknown where that is not known."""
    parts, key = list(names.values.get(name, ())), joined(index, names)
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
) -> _Found:
    """A parameter with a default, or with part of its value taken away."""
    mark, colon = rest.lstrip(":")[:1], rest.startswith(":")
    if mark in ("-", "=") and rest[:2] in (":-", ":=", "-" + rest[1:2], "=" + rest[1:2]):
        if values is not None and (not colon or any(part.text for part in values)):
            return _Found(values)
        text = joined(rest[2:] if colon else rest[1:], names, line, depth + 1)
        names.defaults[name] = text
        if mark == "=":
            names.values[name] = (Text(text, line),)
        return _Found((Text(text, line),))
    if rest[:2] == ":+" or rest[:1] == "+":
        held = values is not None and any(part.text for part in values)
        return _Found((Text(joined(rest.lstrip(":+"), names, line, depth + 1), line),) if held else ())
    if not rest or mark == "?":
        return _value(name, names, line)
    if values is None:
        names.causes.add(name)
        return _Found((Text(UNKNOWN, line),))
    return _Found(tuple(Text(_cut(part.text, rest, names, depth), part.line) for part in values))


def _cut(text: str, rest: str, names: Variables, depth: int) -> str:
    """A value with its case changed or a pattern taken away."""
    if rest in (",,", "^^"):
        return text.lower() if rest == ",," else text.upper()
    if rest[0] in "%#" and UNKNOWN not in text and len(text) < 1000:
        pattern = joined(rest.lstrip("%#"), names, depth=depth + 1)
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
