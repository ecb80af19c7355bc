"""Flags of engines that serve: which there are, which take no value, and what those do that nothing reads.

The tables are data: `server_flags.toml` as the parsers of pinned releases have them, `server_words.toml` what
earlier releases had, and what of all moves memory or nothing. Of TensorRT-LLM, whose parser is not asked,
all stands in the second, with the keys of its file of options. Names are in one spelling, with underscores.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.formats.settings import NOT_KNOWN, Setting, snake_case
from planner.formats.shell import UNKNOWN, Text
from topology.base.decode import read_toml

FLAGS = Path(__file__).parent / "data" / "server_flags.toml"
_WORDS = Path(__file__).parent / "data" / "server_words.toml"
_ENGINES = {"vLLM": "vllm", "SGLang": "sglang", "TensorRT-LLM": "trtllm"}
"""Tables by the names of families."""
_ENTRIES = re.compile(
    r"(?:^|/)(?:vllm/entrypoints/(?:openai/)?api_server\.py|sglang/launch_server\.py)$"
    r"|^(?:vllm\.entrypoints\.(?:openai\.)?api_server|sglang\.launch_server)$"
)
"""Programs whose words are those of a server alone."""
_COMMANDS = {("vllm", "serve"), ("sglang", "serve"), ("trtllm-serve", "serve")}
_ALONE = ("trtllm-serve",)
"""Commands that serve without a second word."""
OTHER_COMMANDS = ("serve", "disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve")
SERVING_IMAGE = re.compile(r"^(?:[\w.:-]+/)*vllm-openai(?:-\w+)?(?:[:@][\w.:@-]+)?$")
"""Images whose entry point is a server: what follows them are its words (vLLM's docker/Dockerfile)."""
_POSITIONAL = ("vLLM", "TensorRT-LLM")
"""Engines whose commands take the model as a word of its own."""
_FLAG = re.compile(r"--?[A-Za-z]")
_GLUED = re.compile(r"o\d")
LEAST_LIKENESS = 0.85
"""Likeness of two flags (`difflib`), from which one may be the other misspelt."""
MOST_COMPARED = 20
"""Unknown flags of a command that are compared with known ones: a command of more is of another program."""
_MOST_EDITS = 2
"""Letters by which a misspelt flag differs."""
_LEAST_SHORTENED = 4
"""Characters of a flag that argparse completes."""


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """The flags of an engine.

    Attributes:
        release: Whose parser has them.
        switches: Those that take no value.
        valued: Those that take one.
        many: Those that take several.
        retired: Those of earlier releases.
        memory: Those that move what a GPU holds.
        neutral: Those that move neither memory nor speed.
        options: Keys of its file of options, where these are no flags.
        removed: Releases from which some of the retired are gone, as far as that is known.
        tables: Keys below those of them whose keys are all known.
        shortens: Whether its parser takes flags that are shortened, as argparse does and click does not.
    """

    release: str
    switches: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    many: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()
    memory: frozenset[str] = frozenset()
    neutral: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()
    removed: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, frozenset[str]] = field(default_factory=dict)
    shortens: bool = True

    @property
    def all(self) -> frozenset[str]:
        """Of any release."""
        return self.switches | self.valued | self.many | self.retired


@functools.cache
def server_flags(family: str) -> ServerFlags | None:
    """The flags of an engine by the name of its family; None where no parser of it was asked.

    >>> flags = server_flags("vLLM")
    >>> "trust_remote_code" in flags.switches, "max_model_len" in flags.valued, "swap_space" in flags.retired
    (True, True, True)
    """
    if family not in _ENGINES:
        return None
    name = _ENGINES[family]
    words: Mapping[str, Any] = read_toml(_WORDS)[name]
    listed: Mapping[str, Any] = read_toml(FLAGS).get(name, words)
    old_switches, old_valued = _spelled(words["retired_switches"]), _spelled(words["retired_valued"])
    return ServerFlags(
        release=listed["release"],
        switches=_spelled(listed["switches"]) | old_switches,
        valued=_spelled(listed["valued"]) | old_valued,
        many=_spelled(listed.get("many", ())),
        retired=old_switches | old_valued,
        memory=_spelled(words["memory"]),
        neutral=_spelled(words["neutral"]),
        options=_spelled((*words.get("options", ()), *words.get("retired_options", ()))),
        removed={flag.replace("-", "_"): since for flag, since in words.get("removed", {}).items()},
        tables={table: _spelled(keys) for table, keys in words.get("tables", {}).items()},
        shortens=name != "trtllm",
    )


def _spelled(words: Iterable[str]) -> frozenset[str]:
    """Flags in one spelling."""
    return frozenset(word.replace("-", "_") for word in words)


def server_words(words: Sequence[Text]) -> tuple[Text, ...] | None:
    """The words that a command tells its server, behind what starts it; None where it starts none plainly.

    >>> def told(line): return [w.text for w in server_words([Text(word, 1) for word in line.split()]) or ()]
    >>> told("docker run --gpus all vllm/vllm-openai:v0.20 a/b -tp 2"), told("vllm serve -h")
    (['a/b', '-tp', '2'], ['-h'])
    >>> told("docker run --device=/dev/kfd vllm/vllm-openai-rocm:latest a/b")
    ['a/b']
    """
    texts = [word.text for word in words]
    for at, text in enumerate(texts):
        name, after = text.rpartition("/")[2], texts[at + 1] if at + 1 < len(texts) else ""
        if (name, after) in _COMMANDS:
            return tuple(words[at + 2 :])
        if _ENTRIES.search(text) or (name in _ALONE and after not in OTHER_COMMANDS):
            return tuple(words[at + 1 :])
    if any(text.startswith("--entrypoint") for text in texts):
        return None
    image = next((place for place, text in enumerate(texts) if SERVING_IMAGE.match(text)), None)
    return None if image is None else tuple(words[image + 1 :])


def with_model(family: str, settings: Sequence[Setting], words: Sequence[Text]) -> tuple[Setting, ...]:
    """Settings of a server's command with the model that stands among its words, wherever it does.

    The first word is the model that is neither a flag nor the value of one; flags without a value before it
    did not take it.
    """
    flags = server_flags(family)
    switches: frozenset[str] = flags.switches if flags is not None else frozenset(("trust_remote_code",))
    many: frozenset[str] = flags.many if flags is not None else frozenset()
    named = {setting.path[-1] for setting in settings}
    if family not in _POSITIONAL or named & {"serve", "model", "model_path"}:
        return tuple(settings)
    at = 0
    while at < len(words):
        text, line = words[at].text, words[at].line
        at += 1
        if not _FLAG.match(text):
            if UNKNOWN in text and not text.rpartition("/")[2].strip(UNKNOWN):
                return tuple(settings)
            freed = (
                replace(setting, value=True, more=()) if _took(setting, text, switches) else setting
                for setting in settings
            )
            return (*freed, Setting(name="serve", value=_named(text), line=line))
        name = snake_case(text.partition("=")[0])
        if "=" in text or _is_switch(name, switches):
            continue
        at += 1
        while name in many and at < len(words) and not _FLAG.match(words[at].text):
            at += 1
    return tuple(settings)


def _took(setting: Setting, word: str, switches: Collection[str]) -> bool:
    """Whether a flag that takes no value was read with a word behind it."""
    return _is_switch(setting.path[-1], switches) and word.strip("'\"") in (setting.value, *setting.more)


def _is_switch(name: str, switches: Collection[str]) -> bool:
    """Whether a flag takes no value, in whichever of its two forms, or has it glued (``-O3``)."""
    if _GLUED.fullmatch(name):
        return True
    return not {name, name.removeprefix("no_")}.isdisjoint(switches)


def _named(text: str) -> str:
    """A model as a word names it; below a folder that only a run knows, by its last part."""
    return text.strip("'\"") if UNKNOWN not in text else text.strip("'\"").rpartition("/")[2] or NOT_KNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Flags of a server's command that nothing read, as they are written, by what they do.

    Attributes:
        misspelt: Those that no release knows, with the flag that each is near.
        unknown: Those that no release knows, and that are near none.
        memory: Those that move what a GPU holds.
        speed: Those that may move its speed.
        neutral: Those that move neither.
        retired: Those that newer releases lack, with the release from which they surely do.
        lacking: Files of options that it names and nobody gave: they may say anything.
    """

    misspelt: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    speed: tuple[str, ...] = ()
    neutral: tuple[str, ...] = ()
    retired: tuple[tuple[str, str], ...] = ()
    lacking: tuple[str, ...] = ()
    release: str = ""
    version: str = ""

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Those that move memory, or may."""
        return (*self.memory, *self.unknown, *self.lacking)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not read, in words."""
        kinds = (
            (
                self.unknown,
                f"known of no release up to {self.release}: a parser without them stops",
            ),
            (self.memory, "moves memory, of which there is no verdict"),
            (self.speed, "may move speed, not priced"),
            (self.neutral, "moves neither memory nor speed"),
        )
        notes = [f"not read: {', '.join(flags)} ({why})" for flags, why in kinds if flags]
        notes += [
            f"{flag} is of releases before {since}, whose parser stops there: no file names the release"
            for flag, since in self.retired
            if not self.version
        ]
        return tuple(notes)


NOTHING_UNREAD = Unread()


def unread_flags(
    family: str,
    settings: Iterable[Setting],
    is_read: Callable[[Setting], bool],
    version: str = "",
    options: Iterable[Setting] = (),
) -> Unread:
    """Which flags of a server's command, and keys of its file of options, nothing read.

    Args:
        family: Its engine.
        settings: Flags behind what starts it.
        is_read: Whether a setting states a field or is asked for elsewhere.
        version: Of the engine; "" is the newest known. Of a newer one no flag is called misspelt.
        options: Settings of the file of options that it is told to read.
    """
    flags = server_flags(family)
    kinds: dict[str, list[str]] = {"unknown": [], "memory": [], "speed": [], "neutral": []}
    misspelt: dict[str, str] = {}
    settings = tuple(settings)
    unread = [(setting, setting.is_override) for setting in settings if not is_read(setting)]
    unread += [(setting, True) for setting in options if not is_read(setting)]
    candidates = [(_word_of_key if is_key else _word_of_flag)(setting, flags) for setting, is_key in unread]
    for each in dict.fromkeys(candidates):
        if each.known or flags is None:
            of_memory = flags is not None and any(_is_of(name, flags.memory) for name in each.names)
            neutral = flags is not None and any(_is_of(name, flags.neutral) for name in each.names)
            kinds["memory" if of_memory else "neutral" if neutral else "speed"].append(each.shown)
            continue
        skipped = _parts(version) > _parts(flags.release) or len(kinds["unknown"]) >= MOST_COMPARED
        name = each.names[0]
        matches = [] if skipped else difflib.get_close_matches(name, sorted(each.others), 1, LEAST_LIKENESS)
        if matches and _edits(name, matches[0]) <= _MOST_EDITS:
            spelled = matches[0].replace("_", "-") if flags.shortens else matches[0]
            misspelt[each.shown] = matches[0] if each.is_key else _shown(spelled)
        else:
            kinds["unknown"].append(each.shown)
    return Unread(
        misspelt=tuple(misspelt.items()),
        retired=tuple(_retired(settings, flags, version)) if flags is not None else (),
        version=version,
        release=flags.release if flags is not None else "",
        **{kind: tuple(dict.fromkeys(words)) for kind, words in kinds.items()},
    )


def _retired(settings: Iterable[Setting], flags: ServerFlags, version: str) -> Iterator[tuple[str, str]]:
    """Flags of earlier releases than the engine's own, or where that is not known than the newest."""
    for name in dict.fromkeys(setting.path[0] for setting in settings if not setting.is_override):
        since = flags.removed.get(name, flags.release)
        if name in flags.retired and (not version or _parts(version) >= _parts(since)):
            yield _shown(name.replace("_", "-")), since


@dataclass(frozen=True, slots=True)
class UnreadWord:
    """A flag or a key that nothing read.

    Attributes:
        shown: As it is written.
        names: In one spelling: whole, then the tables that it lies in.
        known: Whether a release has it.
        others: Those that are there in its place.
        is_key: Whether it is a key of a file.
    """

    shown: str
    names: tuple[str, ...]
    known: bool
    others: frozenset[str] = frozenset()
    is_key: bool = False


def _word_of_flag(setting: Setting, flags: ServerFlags | None) -> UnreadWord:
    """A flag of a command."""
    name, shown = setting.path[0], _shown(setting.name.partition(".")[0])
    if flags is None:
        return UnreadWord(shown, (name,), known=True)
    return UnreadWord(shown, (name,), any(_is_known(form, flags) for form in _forms(name)), flags.all)


def _word_of_key(setting: Setting, flags: ServerFlags | None) -> UnreadWord:
    """A key of a file of options: a flag without its hyphens, or one of the engine's own tables."""
    path = tuple(part.removesuffix("[]") for part in setting.path)
    names = tuple(".".join(path[:length]) for length in range(len(path), 0, -1))
    if flags is None:
        return UnreadWord(names[0], names, known=True, is_key=True)
    top = path[0]
    if not flags.options:
        known = any(form in flags.all for form in _forms(top))
        return UnreadWord(names[-1], (top,), known, flags.all, is_key=True)
    if top not in flags.options:
        return UnreadWord(names[-1], (top,), known=False, others=flags.options, is_key=True)
    keys = flags.tables.get(top)
    if keys is None or len(path) == 1 or path[1] in keys:
        return UnreadWord(names[0], names, known=True, is_key=True)
    there = frozenset(f"{top}.{key}" for key in keys)
    return UnreadWord(names[-2], (names[-2],), known=False, others=there, is_key=True)


def _parts(version: str) -> tuple[int, ...]:
    """A version as numbers."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _edits(word: str, other: str) -> int:
    """Letters to put in, take out or change, from one word to another (Levenshtein)."""
    row = list(range(len(other) + 1))
    for at, letter in enumerate(word, 1):
        before, row[0] = row[0], at
        for place, there in enumerate(other, 1):
            before, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, before + (letter != there)),
            )
    return row[-1]


def _forms(name: str) -> Iterator[str]:
    """A flag, and those that it switches the other way in this or another release."""
    yield name
    for prefix in ("no_", "disable_", "enable_"):
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            yield from (rest, f"enable_{rest}", f"disable_{rest}")


def _is_of(name: str, names: Collection[str]) -> bool:
    """Whether a flag or its other form is one of some."""
    return any(form in names for form in _forms(name))


def _is_known(name: str, flags: ServerFlags) -> bool:
    """Whether a parser of any release takes a flag: as it is, or shortened."""
    if name in flags.all or len(name) == 1 or _GLUED.fullmatch(name):
        return True
    return (
        flags.shortens
        and len(name) >= _LEAST_SHORTENED
        and any(known.startswith(name) for known in flags.all)
    )


def _shown(name: str) -> str:
    """A flag as it is written."""
    name = name.strip().lstrip("-")
    return f"{'-' if len(name) <= 3 else '--'}{name}"
