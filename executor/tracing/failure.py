"""What stopped a trace, in three lines: the error, and the line of the user's own code that it came from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from topology.base.errors import shortened

LONGEST = 300  # characters of a message of somebody's code

INSTALLED = frozenset(("site-packages", "dist-packages"))  # folders of packages, of another environment too


def explain(error: BaseException, builder: str) -> tuple[str, str, str]:
    """What stopped a trace, the line of the user's code, and what helps."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    fix = "correct that line; `python -c` with the builder and a real input shows the whole error"
    what = f"{shortened(builder)} cannot be traced"
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "not enough memory" in text:
        what = f"memory ran out while {shortened(builder)} was built"
        fix = "build it without reading values, so that torch.device('meta') needs no memory for weights"
    elif "meta" in text and ("item()" in text or "data-dependent" in text or "nonzero" in text):
        what, fix = f"{shortened(builder)} looks at values", "make its shapes depend on shapes alone"
    elif "indices" in text and "Long" in text:
        what = f"{shortened(builder)} looks up what it was given as numbers"
        fix = "say that an input holds tokens, for example --input 8x128:long"
    elif "CUDA" in text or "cuda" in text:
        what, fix = f"{shortened(builder)} needs a GPU to run", "use operations that every device has"
    place = failing_line(error)
    return what, shortened(f"{type(error).__name__}: {text}", LONGEST - len(place)) + place, fix


def failing_line(error: BaseException) -> str:
    """The last line of the user's own code that an error passed through, or nothing."""
    root, paths = Path(__file__).parents[2], sysconfig.get_paths()
    others = (*(str(root / name) for name in ("executor", "meshplan")), paths["purelib"], paths["stdlib"])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*others, "<")) and INSTALLED.isdisjoint(Path(frame.filename).parts)
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
