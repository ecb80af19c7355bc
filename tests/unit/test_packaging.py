"""The wheel: the same bytes from the same sources, and what it says of versions is what was tested."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ("topology", "costmodel", "planner", "executor", "app", "meshplan")
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


def requirements() -> list[Requirement]:
    """All of them, extras too."""
    project = PROJECT["project"]
    lists = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        PROJECT["build-system"]["requires"],
    ]
    return [Requirement(line) for lines in lists for line in lines]


def test_every_dependency_has_a_lower_bound_that_the_tested_set_is_above():
    """Lower bounds only: what is newer is tried by the suite, not forbidden."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for requirement in requirements():
        assert [spec.operator for spec in requirement.specifier] == [">="], requirement
        assert Version(pinned[requirement.name]) in requirement.specifier, requirement


def test_the_versions_of_python_that_are_declared_are_those_that_are_admitted():
    """A classifier for each minor version between the bounds, and no other."""
    admitted = SpecifierSet(PROJECT["project"]["requires-python"])
    found = (re.fullmatch(r".* :: (3\.\d+)", line) for line in PROJECT["project"]["classifiers"])
    declared = {match[1] for match in found if match}
    assert declared == {f"3.{minor}" for minor in range(40) if f"3.{minor}.0" in admitted}
    assert ".".join(map(str, sys.version_info[:2])) in declared


def built(folder: Path, time_s: int) -> Path:
    """The wheel of a copy of the sources whose files were written at a time."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in NEEDED:
        shutil.copy(ROOT / name, folder)
    for path in folder.rglob("*"):
        os.utime(path, (time_s, time_s))
    code = "import hatchling.build; print(hatchling.build.build_wheel('dist'))"
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SOURCE_DATE_EPOCH")
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=folder, env=kept, capture_output=True, text=True, check=True
    )
    return folder / "dist" / done.stdout.split()[-1]


def test_two_builds_are_one_wheel(tmp_path):
    """To the last byte, whenever and wherever it is built; it holds our packages, their data, and no test."""
    pytest.importorskip("hatchling")
    wheels = [
        built(tmp_path / name, time_s) for name, time_s in (("one", 1_500_000_000), ("two", 1_700_000_001))
    ]
    first, second = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)
    assert first == second
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        about = Parser().parsestr(wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode())
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    data = {
        path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.toml")
    }
    assert data <= set(names)
    said = {str(Requirement(line)).partition(";")[0].strip() for line in about.get_all("Requires-Dist", [])}
    assert {str(Requirement(line)) for line in PROJECT["project"]["dependencies"]} <= said
