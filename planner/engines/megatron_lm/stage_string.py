"""Megatron's layout of pipeline stages as a string: E embedding, t a layer, m a prediction module, L loss.

`|` parts stages in model order, ``x*n`` repeats a letter and ``(…)*n`` a group
(``PipelineParallelLayerLayout`` of ``megatron/core/transformer/pipeline_parallel_layer_layout.py``).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence

MOST_LETTERS = 100_000
MOST_NESTED = 20
"""Groups within groups; published layouts have one."""
_GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,6})|\(([^()]*)\)|([A-Za-z])\*(\d{1,6})")


def layout_string(layers_of_stage: Sequence[int], modules: int = 0) -> str:
    """Stages of so many layers each, three equal ones or more as a group; prediction modules are in the last.

    >>> layout_string((1, 3)), layout_string((0, 2, 2, 2, 1), modules=1)
    ('Et|tttL', 'E|(tt|)*3tmL')
    """
    stages = ["t" * count for count in layers_of_stage]
    stages[0], stages[-1] = "E" + stages[0], stages[-1] + "m" * modules + "L"
    runs = [(stage, len(list(same))) for stage, same in itertools.groupby(stages[:-1])]
    parts = [f"({stage}|)*{count}" if count > 2 else f"{stage}|" * count for stage, count in runs]
    return "".join(parts) + stages[-1]


def _repeated(plain: str) -> str:
    """A layout with its innermost groups and letters written out."""
    letters = len(plain)

    def written(match: re.Match[str]) -> str:
        nonlocal letters
        group, times, bare, letter, repeats = match.groups()
        inside, count = (bare, 1) if bare is not None else (group or letter, int(times or repeats))
        letters += len(inside or "") * count
        if letters > MOST_LETTERS:
            raise ValueError("the layout is longer than any model")
        return (inside or "") * count

    return _GROUP.sub(written, plain)


def stages_of_string(text: str) -> tuple[int, ...]:
    """Layers of each stage that a string says; a ValueError where it says none.

    >>> stages_of_string("Et*3|(tt|)*2L"), stages_of_string("E|(t|)*3,mL")
    ((3, 2, 2, 0), (0, 1, 1, 1, 0))
    """
    return tuple(stage.count("t") for stage in _stages(text))


def modules_of_string(text: str) -> tuple[int, ...]:
    """Prediction modules of each stage that a string says; a ValueError where it says no stages.

    >>> modules_of_string("E|(t|)*3,mL")
    (0, 0, 0, 0, 1)
    """
    return tuple(stage.count("m") for stage in _stages(text))


@functools.lru_cache(maxsize=256)
def _stages(text: str) -> tuple[str, ...]:
    """Letters of each stage, written out."""
    plain = re.sub(r"[\s,]", "", text)
    for _ in range(MOST_NESTED):
        if not _GROUP.search(plain):
            break
        plain = _repeated(plain)
    if not re.fullmatch(r"[EtmL|]*", plain) or "t" not in plain:
        raise ValueError(f"{text[:60]!r} is no layout of stages")
    return tuple(plain.split("|"))
