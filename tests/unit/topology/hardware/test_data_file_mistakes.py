"""A mistake in a data file is answered in three lines that name the file, the entry and the key; never exit 3."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import costmodel.models.catalog as models_file
import costmodel.serving.engine as engines_file
import costmodel.stack as stacks_file
from app.cli import run
from topology.base.errors import InputError
from topology.builders import machine_spec
from topology.hardware import datasheets

ROOT = Path(__file__).parents[4]
SHEETS = ROOT / "topology" / "data"


@dataclass(frozen=True)
class DataFile:
    """A data file, how its entries begin, and what reads all of them."""

    path: Path
    module: ModuleType
    attribute: str
    header: str
    load: Callable[[], object]

    @property
    def text(self) -> str:
        """Its content."""
        return self.path.read_text(encoding="utf-8")


def _sheets() -> None:
    for sheet in datasheets.gpu_sheets().values():
        machine_spec(datasheets.reference_machine(sheet), 8)
    datasheets.default_gpu()
    for machine in datasheets.machines().values():
        datasheets.fabric_of(machine)
        datasheets.sheet_of(machine)
    for sheet in datasheets.gpu_sheets().values():
        datasheets.generation_of(sheet.gpu())
    for kind in ("nvlink", "pcie", "nic", "switch"):
        datasheets.link_latency_s(kind)
    datasheets.port_rates()


def _file(name: str, header: str) -> DataFile:
    return DataFile(SHEETS / name, datasheets, "DATA", header, _sheets)


FILES = {
    "gpus": _file("gpus.toml", r"\[\[gpu\]\]"),
    "generations": _file("generations.toml", r"\[\[generation\]\]"),
    "machines": _file("machines.toml", r"\[\[machine\]\]"),
    "fabrics": _file("fabrics.toml", r"\[\[(?:link|fabric|port)\]\]"),
    "models": DataFile(models_file._FILE, models_file, "_FILE", r"\[models\..*\]", models_file.models),
    "stacks": DataFile(
        stacks_file.STACKS_FILE, stacks_file, "STACKS_FILE", r"\[[\w-]+\]", stacks_file.stacks
    ),
    "serving_stacks": DataFile(
        engines_file._FILE, engines_file, "_FILE", r"\[engines\.\w+\]", engines_file.serving_stacks
    ),
}


def entries(file: DataFile) -> list[tuple[str, int, int]]:
    """Entries of a file: name, and where its text begins and ends."""
    starts = [match.start() for match in re.finditer(rf"(?m)^{file.header}$", file.text)]
    found = []
    for begin, end in zip(starts, [*starts[1:], len(file.text)], strict=True):
        text = file.text[begin:end]
        named = re.search(r'(?m)^(?:name|kind) = "(.*)"$', text) or re.match(
            r"\[(?:\w+\.)?\"?(.+?)\"?\]", text
        )
        assert named is not None
        found.append((named[1], begin, end))
    return found


def removals(file: DataFile) -> Iterator[tuple[str, str, str]]:
    """Each key of the first and the last entry, removed: entry, key, the text without it."""
    every = entries(file)
    for name, begin, end in (every[0], every[-1]):
        for match in re.finditer(r"(?m)^(\w+) = .*\n", file.text[begin:end]):
            text = file.text[: begin + match.start()] + file.text[begin + match.end() :]
            yield name, match[1], text


def forget(module: ModuleType) -> None:
    """Empty every cache of a module."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[DataFile, str], None]]:
    """Let a module read a file of another text."""
    touched = []

    def edit(file: DataFile, text: str) -> None:
        folder = tmp_path / "data"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(file.path.parent, folder, ignore=shutil.ignore_patterns("kernels"))
        (folder / file.path.name).write_text(text, encoding="utf-8")
        place = folder if file.attribute == "DATA" else folder / file.path.name
        monkeypatch.setattr(file.module, file.attribute, place)
        touched.append(file.module)
        forget(file.module)

    yield edit
    monkeypatch.undo()
    for module in touched:
        forget(module)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_key_is_told_with_file_entry_and_key(
    name: str, edited: Callable[[DataFile, str], None]
) -> None:
    """Of each key of two entries: an optional one is not missed, of another the three lines speak."""
    file, refused, whole = FILES[name], 0, file_text(name)
    for entry, key, text in removals(file):
        edited(file, text)
        try:
            file.load()
        except InputError as error:
            told = str(error)
            refused += 1
            names = {"name", "kind"} & {key}
            assert len(told.splitlines()) == 3, (entry, key, told)
            assert file.path.name in told, (entry, key, told)
            assert key in told, (entry, key, told)
            assert names or entry in told, (entry, key, told)
            assert not re.search(r"\b_\w+|(gpu|machine|generation|fabric|link|port)\[\d|Error\b", told), (
                entry,
                key,
                told,
            )
    assert refused >= 1
    edited(file, whole)
    file.load()


def file_text(name: str) -> str:
    """Content of a data file."""
    return FILES[name].text


@pytest.mark.parametrize(
    ("name", "key", "instead", "words"),
    [
        (
            "gpus",
            "machine",
            '"pcie-of-nobody"',
            "gpu \"h100-sxm\" of gpus.toml names machine = 'pcie-of-nobody'",
        ),
        ("gpus", "memory_gib", '"much"', 'gpu "h100-sxm" of gpus.toml cannot be read'),
        ("gpus", "peak_tflop_per_s", "3", 'gpu "h100-sxm" of gpus.toml cannot be read'),
        ("machines", "fabric", '"strings"', "of machines.toml names fabric = 'strings'"),
        ("machines", "gpu", '"nobodys"', "of machines.toml names gpu = 'nobodys'"),
        ("generations", "compute_capability", '"new"', "compute_capability = 'new' is not like 9.0"),
        ("generations", "maker", '"nobody"', "generations.toml cannot be read"),
        ("models", "family", '"nobodys"', "family = 'nobodys' is none of the file's"),
    ],
)
def test_a_wrong_value_is_told_with_file_and_entry(
    name: str, key: str, instead: str, words: str, edited: Callable[[DataFile, str], None]
) -> None:
    """Also a name that another file does not have."""
    file = FILES[name]
    begin = next((begin for entry, begin, _ in entries(file) if entry == "h100-sxm"), entries(file)[0][1])
    changed = re.sub(rf"(?m)^{key} = .*$", f"{key} = {instead}", file.text[begin:], count=1)
    edited(file, file.text[:begin] + changed)
    with pytest.raises(InputError) as error:
        file.load()
    assert words in str(error.value)
    assert file.path.name in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (
            'machine = "pcie-l40s"\n',
            'machine = "pcie-of-nobody"\n',
            (
                "error: gpu \"l40s\" of gpus.toml names machine = 'pcie-of-nobody', which is not there",
                "cause: machines.toml has no [[machine]] with name = 'pcie-of-nobody'",
                "help:  add that machine to machines.toml",
            ),
        ),
        (
            "tdp_w = 350\nscaleup_gb_per_s = 0\n",
            "tdp_w = 350\n",
            (
                'error: gpu "l40s" of gpus.toml cannot be read',
                "cause: missing key scaleup_gb_per_s",
                "help:  add scaleup_gb_per_s: GB/s of all its NVLink or xGMI links, one way; 0 for a card",
            ),
        ),
    ],
)
def test_the_command_line_ends_with_two(
    old: str,
    new: str,
    lines: tuple[str, ...],
    edited: Callable[[DataFile, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A GPU without its machine, and one whose links nobody gave: no defect of ours, what to add is said."""
    file = FILES["gpus"]
    begin = next(begin for entry, begin, _ in entries(file) if entry == "l40s")
    assert old in file.text[begin:]
    edited(file, file.text[:begin] + file.text[begin:].replace(old, new, 1))
    code = run(["--model", "8b", "--gpus", "8", "--gpu", "l40s"])
    told = capsys.readouterr().err
    assert (code, [line for line in lines if line not in told]) == (2, [])
