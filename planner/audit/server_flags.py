"""Flags of engines that serve: which there are, which take no value, and what those do that nothing reads.

The tables are data: `server_flags.toml` as the parsers of pinned releases have them, `server_words.toml` what
earlier releases had, and what of all moves memory or nothing. Names are in one spelling, with underscores.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.formats.settings import NOT_KNOWN, Setting, snake_case
from planner.formats.shell import UNKNOWN, Text
from topology.base.decode import read_toml

FLAGS = Path(__file__).parent / "data" / "server_flags.toml"
_WORDS = Path(__file__).parent / "data" / "server_words.toml"
_ENGINES = {"vLLM": "vllm", "SGLang": "sglang"}
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
SERVING_IMAGE = re.compile(r"^(?:[\w.:-]+/)*vllm-openai(?:[:@][\w.:@-]+)?$")
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
    """

    release: str
    switches: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    many: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()
    memory: frozenset[str] = frozenset()
    neutral: frozenset[str] = frozenset()

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
    listed: Mapping[str, Any] = read_toml(FLAGS)[name]
    words: Mapping[str, Any] = read_toml(_WORDS)[name]
    old_switches, old_valued = _spelled(words["retired_switches"]), _spelled(words["retired_valued"])
    return ServerFlags(
        release=listed["release"],
        switches=_spelled(listed["switches"]) | old_switches,
        valued=_spelled(listed["valued"]) | old_valued,
        many=_spelled(listed["many"]),
        retired=old_switches | old_valued,
        memory=_spelled(words["memory"]),
        neutral=_spelled(words["neutral"]),
    )


def _spelled(words: Iterable[str]) -> frozenset[str]:
    """Flags in one spelling."""
    return frozenset(word.replace("-", "_") for word in words)


def server_words(words: Sequence[Text]) -> tuple[Text, ...] | None:
    """The words that a command tells its server, behind what starts it; None where it starts none plainly.

    >>> def told(line): return [w.text for w in server_words([Text(word, 1) for word in line.split()]) or ()]
    >>> told("docker run --gpus all vllm/vllm-openai:v0.20 a/b -tp 2"), told("vllm serve -h")
    (['a/b', '-tp', '2'], ['-h'])
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
    """

    misspelt: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    speed: tuple[str, ...] = ()
    neutral: tuple[str, ...] = ()
    release: str = ""

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Those that move memory, or may."""
        return (*self.memory, *self.unknown)

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
        return tuple(f"not read: {', '.join(flags)} ({why})" for flags, why in kinds if flags)


NOTHING_UNREAD = Unread()


def unread_flags(
    family: str, settings: Iterable[Setting], read: Collection[str], version: str = ""
) -> Unread:
    """Which flags of a server's command nothing read.

    Args:
        family: Its engine.
        settings: Flags behind what starts it.
        read: Names that state a field or are asked for elsewhere, in one spelling.
        version: Of the engine; "" is the newest known. Of a newer one no flag is called misspelt.
    """
    flags, neutral = server_flags(family), _neutral(family)
    kinds: dict[str, list[str]] = {"unknown": [], "memory": [], "speed": [], "neutral": []}
    misspelt: list[tuple[str, str]] = []
    for setting in settings:
        name = setting.path[0]
        if (
            name in read
            or ".".join(setting.path) in read
            or (len(setting.path) > 1 and setting.path[-1] in read)
        ):
            continue
        shown = _shown(setting)
        known = flags is None or any(_is_known(form, flags) for form in _forms(name))
        if not known and flags is not None:
            skipped = _parts(version) > _parts(flags.release) or len(kinds["unknown"]) >= MOST_COMPARED
            matches = [] if skipped else difflib.get_close_matches(name, sorted(flags.all), 1, LEAST_LIKENESS)
            if matches and _edits(name, matches[0]) <= _MOST_EDITS:
                misspelt.append(
                    (shown, _shown(Setting(name=matches[0].replace("_", "-"), value=True, line=0)))
                )
            else:
                kinds["unknown"].append(shown)
            continue
        is_of_memory = flags is not None and _is_of(name, flags.memory)
        kind = "memory" if is_of_memory else "neutral" if _is_of(name, neutral) else "speed"
        kinds[kind].append(shown)
    return Unread(
        misspelt=tuple(misspelt),
        release=flags.release if flags is not None else "",
        **{kind: tuple(dict.fromkeys(words)) for kind, words in kinds.items()},
    )


def _neutral(family: str) -> frozenset[str]:
    """Flags that move neither memory nor speed; of an engine without a table, those of the others."""
    flags = server_flags(family)
    listed = (flags,) if flags is not None else tuple(map(server_flags, _ENGINES))
    return frozenset(name for each in listed if each is not None for name in each.neutral)


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
    return len(name) >= _LEAST_SHORTENED and any(known.startswith(name) for known in flags.all)


def _shown(setting: Setting) -> str:
    """A flag as it is written."""
    name = setting.name.strip().lstrip("-")
    return f"{'-' if len(name) <= 3 else '--'}{name}"
