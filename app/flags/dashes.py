"""Another program's command behind ``--``: one word of ours, whatever flags it has."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final


def before_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before ``--``, and the rest."""
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at]], [*words[at:]]


def with_whole_command(words: Sequence[str]) -> list[str]:
    """The command line with the other program's command behind ``--`` as one word, as a shell would write it.

    >>> with_whole_command(["audit", "train.log", "--", "torchrun", "train.py", "--lr", "1e-4"])
    ['audit', 'train.log', '--', 'torchrun train.py --lr 1e-4']
    """
    flags, rest = before_dashes(words)
    command = rest[1:]
    files = all(is_here(word) for word in command)
    return [*words] if len(command) < MORE or files else [*flags, "--", shlex.join(command)]


MORE: Final = 2
"""Words of a command: one alone is a file, which may begin with a dash."""


PROGRAMS: Final = frozenset((
    "accelerate", "axolotl", "bash", "colossalai", "deepspeed", "horovodrun", "litgpt", "llamafactory-cli",
    "megatron", "mpiexec", "mpirun", "nemo", "python", "python3", "ray", "sbatch", "sglang", "sh", "srun",
    "swift", "torchrun", "trl", "trtllm-serve", "tune", "vllm",
))  # fmt: skip
"""What starts a training job or a server, or the shell that it is started from."""


def is_here(word: str) -> bool:
    """Whether a word is the path of a file or a folder on this machine; one that no system takes is none."""
    return os.path.exists(word)  # noqa: PTH110 - Path.exists raises of a name that is too long


def is_command(text: str) -> bool:
    """Whether one word of ours is another program's command line, and no path with a blank in it.

    >>> is_command("axolotl train config.yml"), is_command("train.py --lr 1e-4"), is_command("my train.sh")
    (True, True, False)
    """
    program, blank, _ = text.strip().partition(" ")
    return bool(blank) and (" -" in text or Path(program).name in PROGRAMS)
