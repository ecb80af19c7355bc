"""Build the environment in which the engines' own parsers judge what is written for them.

    python tools/build_parsers.py FOLDER

Torch, transformers and their kind are those of the interpreter that runs it (with the extras `run` and
`test`, which may come later), so that no second torch is fetched; the engines of `tools/parsers/` are added.
The last line names what to export.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

PINS = Path(__file__).parent / "parsers"
SETUPTOOLS = "setuptools==82.0.1"  # builds DeepSpeed and two others that come as archives
QUICK = ("--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check")


def pip(python: Path, *words: str) -> None:
    """One call of pip; DeepSpeed builds no kernels here."""
    command = [str(python), "-m", "pip", *words]
    subprocess.run(command, check=True, env={**os.environ, "DS_BUILD_OPS": "0"}, stdin=subprocess.DEVNULL)


SERVER_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "any")
LEFT_OUT = ("vllm/third_party/", "vllm/vllm_flash_attn/", "vllm/model_executor/models/", "vllm/models/")
"""Kernels and models: a parser needs neither, and they are most of it."""


def servers(python: Path, own: Path) -> None:
    """Put the Python files of the servers' wheels, and what names their versions, beside the rest."""
    platforms = [word for name in SERVER_PLATFORMS for word in ("--platform", name)]
    tags = ["--abi", "cp312", "--abi", "abi3", "--abi", "none", "--python-version", "3.12"]
    with tempfile.TemporaryDirectory() as name:
        found = [*platforms, *tags, "--only-binary=:all:", "--ignore-requires-python", "--dest", name]
        quick = ("--quiet", "--no-deps", "--disable-pip-version-check")
        pip(python, "download", *quick, *found, "-r", str(PINS / "serving.txt"))
        for wheel in Path(name).glob("*.whl"):
            with zipfile.ZipFile(wheel) as held:
                kept = [
                    one
                    for one in held.namelist()
                    if one.endswith((".py", ".dist-info/METADATA")) and not one.startswith(LEFT_OUT)
                ]
                held.extractall(own, kept)


def build(folder: Path) -> Path:
    """Make the environment; its interpreter."""
    borrowed = sysconfig.get_paths()["purelib"]
    venv.create(folder, with_pip=False, clear=True)
    python = folder / "bin" / "python"
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    own = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    (own / "borrowed.pth").write_text(f"{borrowed}\n", encoding="utf-8")
    pip(python, "install", *QUICK, SETUPTOOLS)
    pip(python, "install", *QUICK, "--no-build-isolation", "-r", str(PINS / "engines.txt"))
    newer = (
        "--python-version",
        "3.12",
        "--ignore-requires-python",
        "--only-binary=:all:",
        "--target",
        str(own),
    )
    pip(python, "install", *QUICK, *newer, "-r", str(PINS / "python312.txt"))
    servers(python, own)
    return python


if __name__ == "__main__":
    print(f"export MESHPLAN_PARSERS={build(Path(sys.argv[1]).resolve())}")
