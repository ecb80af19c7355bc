"""GPU tests are collected where little is installed, and none of them fails on a warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

HERE = Path(__file__).parent
NEEDED = {"numpy", "cattrs", "torch", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist"}
PROGRAM = """
import importlib.metadata, re, sys, tomllib
from pathlib import Path
import pytest

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
wanted = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
missing = {re.match(r"[\\w.-]+", each)[0].replace("_", "-").lower() for each in wanted} - set(sys.argv[1:])
blocked = {
    package
    for package, names in importlib.metadata.packages_distributions().items()
    if {name.replace("_", "-").lower() for name in names} <= missing
}
assert len(blocked) > 5, blocked

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in blocked else self.finder.find_spec(name, path, target)

class Collected:
    def pytest_collection_finish(self, session):
        for item in session.items:
            warns = [mark.args for mark in item.iter_markers("filterwarnings")]
            print("found", ("default",) in warns, item.nodeid)

sys.meta_path[:] = map(Without, sys.meta_path)
options = ["-p", "xdist", "-p", "pytest_timeout", "-n", "0", "-q", "--collect-only", "-m", "gpu", "tests/executor/gpu"]
sys.exit(pytest.main(options, plugins=[Collected()]))
"""


def test_they_are_collected_and_take_warnings_as_warnings() -> None:
    """Of Meshplan's requirements numpy, cattrs and torch, and what the suite's settings ask for."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *NEEDED],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=HERE.parents[2],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("found ")]
    files = {name.split("::")[0].rsplit("/", 1)[1] for _, name in found}
    assert files == {"test_masked_attention.py", "test_one_rank.py", "test_products.py"}
    assert [name for default, name in found if default == "False"] == []
