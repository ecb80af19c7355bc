"""Write what the first command of the README prints between its transcript markers.

Run `python tools/write_transcript.py` with the package installed, after any change of the cost model.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
COMMAND = "plan --model 70b --gpus 32"
OPEN, CLOSE = "<!-- transcript -->", "<!-- /transcript -->"


def transcript() -> str:
    """The command and its standard output, as a fenced block."""
    done = subprocess.run(shlex.split(COMMAND), capture_output=True, text=True, check=True)
    lines = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
    return "\n".join(["```text", f"$ {COMMAND}", *lines, "```"])


def main() -> None:
    """Replace the block between the markers."""
    text = README.read_text(encoding="utf-8")
    block = f"{OPEN}\n{transcript()}\n{CLOSE}"
    README.write_text(re.sub(f"{OPEN}.*?{CLOSE}", lambda _: block, text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
