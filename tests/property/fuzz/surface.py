"""A door of the product, seen from outside: how its inputs are made, and what consuming one gives."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random


@dataclass(frozen=True, slots=True)
class Box:
    """The folder of a worker: inputs are written there, and the canary must not be touched."""

    folder: Path

    def file(self, name: str, text: str) -> Path:
        """Write an input; half surrogate pairs become bytes that are not UTF-8."""
        path = self.folder / name
        path.write_bytes(
            text.replace("CANARY", str(self.folder / "canary")).encode("utf-8", errors="surrogatepass")
        )
        return path


@dataclass(frozen=True, slots=True)
class Surface:
    """One door.

    `weight` is its share of a campaign, `asked` gives the paths that an input names itself, and `ready` does once
    what every input needs.
    """

    name: str
    make: Callable[[Random, list[str]], str]
    consume: Callable[[str, Box], object]
    corpus: Sequence[str] = ()
    weight: int = 100
    asked: Callable[[str], frozenset[str]] = field(default=lambda _: frozenset())
    ready: Callable[[], object] = field(default=lambda: None)

    def input_of(self, seed: int, index: int) -> tuple[str, str]:
        """The input of this number and what was done to it: first the corpus, then mutations."""
        if index < len(self.corpus):
            return self.corpus[index], f"corpus {index}"
        story: list[str] = []
        text = self.make(Random(f"{self.name}/{seed}/{index}"), story)
        return text, "; ".join(story)


def answer_of_command(words: Sequence[str]) -> object:
    """Run a command in this process; its JSON document, or nothing when it has none or said no properly."""
    code, text = run_command(words)
    return json.loads(text, parse_constant=no_number) if code == 0 and text.startswith(("{", "[")) else None


def run_command(words: Sequence[str]) -> tuple[int, str]:
    """Exit code and stdout of a command; one that ends in another way than it may is a defect."""
    from app.cli import run

    out, err, kept = io.StringIO(), io.StringIO(), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = out, err
    try:
        code = run([*words])
    finally:
        sys.stdout, sys.stderr = kept
    last = err.getvalue().splitlines()[-3:]
    if code not in (0, 1, 2, 4):
        raise AssertionError(f"exit {code}: {' | '.join(last)[:400]}")
    if code == 2 and [line.split(":")[0] for line in last] != ["error", "cause", "help"]:
        raise AssertionError(f"exit 2 without three lines: {last}")
    return code, out.getvalue()


def no_number(text: str) -> float:
    raise AssertionError(f"the answer holds {text}")
