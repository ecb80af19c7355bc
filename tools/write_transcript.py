"""Write what commands print between the transcript markers of the pages that show them.

Run `python tools/write_transcript.py` with the package installed, after any change of the cost model.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    ROOT / "README.md": ("plan --model 70b --gpus 32", "", 80),
    ROOT / "docs" / "campaign.md": ("plan --model 405b --gpus 16384 --tokens 15T --full", "Campaign", 110),
}
"""The command that a page shows, the one section of its answer, where not all, and the screen's width."""
OPEN, CLOSE = "<!-- transcript -->", "<!-- /transcript -->"


def transcript(command: str, section: str, columns: int) -> str:
    """The command and its standard output, as a fenced block."""
    with tempfile.TemporaryDirectory() as home:  # a new user has no measurements
        screen = {**os.environ, "COLUMNS": str(columns), "HOME": home, "XDG_DATA_HOME": home}
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True, env=screen)
    lines = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
    if section:
        start = lines.index(section)
        lines = lines[start : lines.index("", start)]
    return "\n".join(["```text", f"$ {command}", *lines, "```"])


def main() -> None:
    """Replace the blocks between the markers."""
    for page, (command, section, columns) in PAGES.items():
        text = page.read_text(encoding="utf-8")
        block = f"{OPEN}\n{transcript(command, section, columns)}\n{CLOSE}"
        written = re.sub(f"{OPEN}.*?{CLOSE}", lambda _, block=block: block, text, flags=re.DOTALL)
        page.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
