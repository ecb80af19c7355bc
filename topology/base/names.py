"""Lenient names: `70b` finds llama-3.1-70b, `H100` finds h100-sxm, and a typo is answered with candidates."""

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from topology.base.errors import LONGEST_SHOWN, AmbiguousNameError, UnknownNameError, shown

_FEW = 12  # names that are all shown where none is close
LEAST_LIKENESS = 0.6
"""How much of two short names is alike, of 1, where one may be a slip of the other."""

YES_NO: Mapping[str, bool] = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
"""What a flag, a pin or another engine's file may say for yes and no, in small letters."""


@lru_cache(maxsize=1024)  # a catalog's names are compared with every name that a file or flag gives
def normalize(name: str) -> str:
    """Return a name without case and punctuation.

    >>> normalize("Llama-3.1_70B")
    'llama3170b'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


@lru_cache(maxsize=1024)
def words(name: str) -> tuple[str, ...]:
    """Return the words of a name: runs of letters and digits, dots kept inside numbers.

    >>> words("llama-3.1-70B")
    ('llama', '3.1', '70b')
    """
    return tuple(re.findall(r"[a-z0-9]+(?:\.[0-9][a-z0-9]*)*", name.lower()))


def matches(name: str, candidates: Iterable[str]) -> list[str]:
    """Return the candidates a name may mean: the exact one, else by words, else by parts.

    A part holds whole numbers: ``7.5b`` is none of ``gpt-3-175b``, and ``34b`` none of ``qwen3-4b``. A family
    is a word of its name, a version behind it or not: ``qwen`` is of ``qwen3-4b`` and ``r1-qwen-1.5b`` alike.
    """
    names = sorted(set(candidates))
    if name.strip().lower() in names:  # points count: gpt-3-1.3b is not gpt-3-13b
        return [name.strip().lower()]
    wanted, wanted_words = normalize(name), set(words(name))
    exact = [c for c in names if normalize(c) == wanted]
    if exact or not wanted:
        return exact
    whole = [c for c in names if wanted_words <= {*words(c), *_FAMILY.findall(c)}]
    if whole:
        return whole
    part, each = _part(name), [_part(word) for word in wanted_words]
    names = [c for c in names if _begins_word(name, c) and _is_of_generation(name, c)]
    joined = [c for c in names if part.search(_spelled(c))]
    return joined or [c for c in names if all(word.search(_spelled(c)) for word in each)]


_LETTERS = re.compile(r"[a-z]+")


def _begins_word(name: str, candidate: str) -> bool:
    """Whether the letters that begin a name begin a word of a candidate: ``lama-70b`` is no codellama.

    >>> _begins_word("lama-70b", "codellama-70b"), _begins_word("gptoss20b", "gpt-oss-20b")
    (False, True)
    """
    letters = _LETTERS.match(normalize(name))
    parts = words(candidate)
    return letters is None or any(
        normalize("".join(parts[at:])).startswith(letters[0]) for at in range(len(parts))
    )


def _is_of_generation(name: str, candidate: str) -> bool:
    """Whether a name that ends in one digit behind its family is of that generation, and not of that size.

    >>> _is_of_generation("gemma-4", "gemma-3-4b"), _is_of_generation("llama-3", "llama-3.1-8b")
    (False, True)
    """
    asked = _GENERATION.fullmatch(name.strip().lower())
    if asked is None:
        return True
    family, digit = asked.groups()
    return re.search(rf"{re.escape(family)}[-_ ]?{digit}(?![0-9]*b)", candidate) is not None


_GENERATION = re.compile(r"([a-z]+)[-_ ]?([2-9])")
_FAMILY = re.compile(r"^[a-z]{2,}(?=[0-9])")
"""What begins a name before the number of a version."""


def _part(part: str) -> re.Pattern[str]:
    """What looks for a part in a spelled name, its separators free but those between two numbers."""
    wanted = _spelled(part)
    before = r"(?<![0-9])" if wanted[:1].isdigit() else ""
    after = r"(?![0-9])" if wanted[-1:].isdigit() else ""
    return re.compile(f"{before}{re.escape(wanted)}{after}")


@lru_cache(maxsize=1024)
def _spelled(name: str) -> str:
    """A name without case, points inside numbers, and separators that part no two numbers.

    >>> _spelled("Llama-3.1_70B")
    'llama31-70b'
    """
    whole = re.sub(r"(?<=[0-9])\.(?=[0-9])", "", name.lower())
    return re.sub(
        r"(?<![0-9])[^a-z0-9]+|[^a-z0-9]+(?![0-9])", "", re.sub(r"[^a-z0-9]+", "-", whole).strip("-")
    )


def suggest(name: str, candidates: Iterable[str], count: int = 5, least: float = 0.4) -> tuple[str, ...]:
    """Return the candidates that look most like a name, best first; alike by `least` of 1 at the fewest."""
    if len(name) > LONGEST_SHOWN:  # no name is so long, and comparing takes the square of it
        return ()
    by_key = {normalize(c): c for c in sorted(set(candidates))}
    return tuple(by_key[key] for key in _closest(normalize(name), by_key, count, least))


def _closest(name: str, keys: Iterable[str], count: int, least: float) -> list[str]:
    """What `difflib.get_close_matches` returns, from fewer comparisons.

    The quick ratio bounds the ratio from above, so once it is below that of the last which is returned, no
    other key is closer.
    """
    matcher = difflib.SequenceMatcher(b=name)
    bounds = list[tuple[float, str]]()
    for key in keys:
        matcher.set_seq1(key)
        if matcher.real_quick_ratio() >= least and (bound := matcher.quick_ratio()) >= least:
            bounds.append((bound, key))
    closest = list[tuple[float, str]]()
    for bound, key in sorted(bounds, reverse=True):
        if len(closest) == count and bound < closest[-1][0]:
            break
        matcher.set_seq1(key)
        if (ratio := matcher.ratio()) >= least:
            closest = sorted([*closest, (ratio, key)], reverse=True)[:count]
    return [key for _, key in closest]


def resolve(name: str, candidates: Iterable[str], kind: str, aliases: Mapping[str, str] | None = None) -> str:
    """Return the candidate a name means.

    >>> resolve("H100 SXM", ["h100-sxm", "h100-pcie"], "GPU")
    'h100-sxm'

    Args:
        name: what the user wrote.
        candidates: the known names.
        kind: what they name, for the message ("model", "GPU").
        aliases: short names and what each means, when several candidates would match.
    """
    known = sorted(set(candidates))
    shorts = {normalize(short): full for short, full in (aliases or {}).items() if full in known}
    meant = shorts.get(normalize(name))
    result = [meant] if meant is not None else matches(name, known)
    if len(result) == 1:
        return result[0]
    if result:
        raise AmbiguousNameError(kind, name, result)
    close = suggest(name, known, least=LEAST_LIKENESS)
    listed = ", ".join(close or (known if len(known) <= _FEW else known[:8]))
    raise UnknownNameError(
        f"unknown {kind} {shown(name)}",
        f"none of the {len(known)} known names match",
        f"did you mean: {listed}?" if close else f"known names include {listed}",
        close,
    )
