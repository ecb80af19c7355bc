"""Arrays of numbers, masks and indices have one name each, declared once."""

from __future__ import annotations

import re
from pathlib import Path

from topology.base import arrays

ROOT = Path(__file__).resolve().parents[4]
PACKAGES = ("topology", "costmodel", "planner", "executor", "app", "meshplan", "tools")
NAMES = [name for name in vars(arrays) if name.istitle() and name not in ("Any", "NDArray")]


def test_no_other_file_declares_an_array_by_a_name_that_is_taken() -> None:
    """Neither the same array again nor another under that name."""
    assert {"Floats", "Vector", "Ints", "Index", "Mask", "Quantity"} == set(NAMES)
    declares = re.compile(rf"^({'|'.join(NAMES)})(: TypeAlias)? = ", re.MULTILINE)
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert {str(p.relative_to(ROOT)) for p in files if declares.search(p.read_text(encoding="utf-8"))} == {
        "executor/model/attention/masks.py",  # of 32 bits, as kernels take them
        "topology/base/arrays.py",
    }
