"""Write what examples/README.md shows by running every example: `write_examples_page.py [NAME...]`.

Each example that the page names by its command is run; what it prints stands below its name, between two
marks. With names, only those are run anew. One that takes longer than 90 s on this machine is told.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "examples" / "README.md"
LIMIT_S = 90
BEGIN, END = "<!-- what they print -->", "<!-- end -->"
COMMAND = re.compile(r"`python -m examples\.(\w+)`")
BLOCK = re.compile(r"`(\w+)`\n\n```\n(.*?)\n```", re.DOTALL)


def printed(name: str) -> str:
    """What an example prints."""
    began_s = time.monotonic()
    call = [sys.executable, "-m", f"examples.{name}"]
    done = subprocess.run(call, cwd=PAGE.parents[1], capture_output=True, text=True, check=True)
    took_s = time.monotonic() - began_s
    late = f", more than {LIMIT_S} s" if took_s > LIMIT_S else ""
    sys.stderr.write(f"{name}: {took_s:.0f} s{late}\n")
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def page(text: str, again: list[str]) -> str:
    """The page with the tables of these examples anew, of all that it names where none is given."""
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    known = dict(BLOCK.findall(old))
    names = list(dict.fromkeys(COMMAND.findall(head)))
    unknown = [name for name in again if name not in names]
    if unknown:
        raise SystemExit(f"{PAGE.name} names no example {', '.join(unknown)}; it has {', '.join(names)}")
    found = {
        name: printed(name) if name in again or not again or name not in known else known[name]
        for name in names
    }
    blocks = "\n\n".join(f"`{name}`\n\n```\n{said}\n```" for name, said in found.items())
    return f"{head}{BEGIN}\n\n{blocks}\n\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), sys.argv[1:]), encoding="utf-8")
