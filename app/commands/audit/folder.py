"""The files of a folder that are one job: a launch, what it names, its launcher's settings, its logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.audit.launch import client_of
from planner.audit.read import MOST_BYTES, MOST_FILES, Reading, read_texts, text_of
from planner.audit.serving.load import is_result
from planner.audit.words import FAMILIES, UNKNOWN
from planner.formats.kinds import kind_of
from planner.serving.plan import is_serving_plan
from topology.base.errors import InputError, shortened

_ENDINGS = (
    ".sh", ".bash", ".sbatch", ".slurm", ".py", ".yaml", ".yml", ".toml", ".json", ".jsonl", ".log", ".out",
    ".err", ".mk", ".conf", ".env", "",
)  # fmt: skip
_OF_LOGS = (".log", ".out", ".err")
_SEEN_AT_MOST = 64
"""Files of a folder that are looked at."""
_OF_LOAD = 2
"""Files beside scripts of nodes that say their load: a client and a plan."""
_NAMED = 8
"""Files that a sentence names."""


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """Files of one job in a folder, the launch first, and those that were left out."""

    read: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def words(self) -> str:
        """What was read and what was not, in a line."""
        left = f"; left out: {_list(self.left_out)}" if self.left_out else ""
        return f"read: {_list(self.read)}{left}"


def job_in_folder(folder: Path) -> FolderFiles:
    """The files of a folder that are one job.

    Raises:
        InputError: None of them is a job, or several are jobs of their own; it says which files were seen.
    """
    seen = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    texts = {str(path): text for path in seen[:_SEEN_AT_MOST] if (text := _text(path))}
    readings = {
        name: reading for name, text in texts.items() if (reading := _reading(name, text)) is not None
    }
    jobs = [name for name in readings if _is_job(readings[name])]
    roots = [name for name in jobs if not any(_names(texts[other], name) for other in jobs if other != name)]
    nodes = _nodes_of_plan(roots, texts)
    roots = nodes[:1] or roots
    if len(roots) != 1:
        raise _refused(folder, seen, readings, roots)
    root = roots[0]
    beside = nodes[1:]
    beside += [
        name
        for name in readings
        if name not in (root, *nodes)
        and (_names(texts[name], root) or _belongs(name, readings[name], texts[root]))
    ]
    if readings[root].family.serves:
        beside += [
            name for name, text in texts.items() if name not in (root, *beside) and _says_load(name, text)
        ]
    together = (root, *beside)[:MOST_FILES]
    return FolderFiles(read=together, left_out=tuple(str(path) for path in seen if str(path) not in together))


def _nodes_of_plan(roots: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    """The scripts of the nodes, where a plan was written with them: one fleet; a manifest is another form.

    Empty without a plan, or where these are more files than are read together.
    """
    if not any(name.endswith(".json") and is_serving_plan(text) for name, text in texts.items()):
        return []
    scripts = [name for name in roots if kind_of(texts[name], name) == "shell"]
    return scripts if len(scripts) <= MOST_FILES - _OF_LOAD else []


def _says_load(name: str, text: str) -> bool:
    """Whether a file says the load of a server: a client, what one wrote, or the plan of the server."""
    if name.endswith((".json", ".jsonl")):
        return is_result(name, text) or is_serving_plan(text)
    return kind_of(text, name) == "shell" and client_of(text, {}) is not None


def _text(path: Path) -> str:
    """The text of a file that may be one of a job; empty of others, and of what is no text."""
    ending, size = path.suffix.lower(), path.stat().st_size
    if ending not in _ENDINGS or size == 0 or (size > MOST_BYTES and ending not in _OF_LOGS):
        return ""
    try:
        return text_of(str(path))[0]
    except InputError:
        return ""


def _reading(name: str, text: str) -> Reading | None:
    """What a file says alone; None of one that says nothing of a job."""
    try:
        return read_texts({name: text})
    except InputError:
        return None


def _is_job(reading: Reading) -> bool:
    """Whether a file starts or configures a job, and is neither its log nor its launcher's settings."""
    named = reading.family is not UNKNOWN and reading.family.name != FAMILIES[-1].name
    return named and not _is_beside(reading) and "log" not in reading.kinds.values()


def _is_beside(reading: Reading) -> bool:
    """Whether a file is the settings of a launcher, which another file starts."""
    return reading.family.launches and not {"shell", "page", "python"} & set(reading.kinds.values())


def _belongs(name: str, reading: Reading, launch: str) -> bool:
    """Whether a file is of the job of a launch: named by it, its launcher's settings, a log, a router."""
    return _names(launch, name) or _is_beside(reading) or reading.measured is not None


def _names(text: str, name: str) -> bool:
    """Whether a text names a file."""
    return Path(name).name in text


def _refused(folder: Path, seen: list[Path], readings: Mapping[str, Reading], roots: list[str]) -> InputError:
    """Why a folder is not one job, with the files that were seen."""
    if roots:
        each = [f"{Path(name).name} ({readings[name].family.name})" for name in roots[:_NAMED]]
        more = f" and {len(roots) - _NAMED} more" if len(roots) > _NAMED else ""
        return InputError(
            what=f"{shortened(str(folder))} holds {len(roots)} jobs, and an audit is of one",
            cause=f"each is a launch of its own: {', '.join(each)}{more}",
            fix=f"name one, with its logs: plan audit {roots[0]}",
        )
    files = _list(tuple(str(path) for path in seen)) or "no file"
    return InputError(
        what=f"no job was recognised in the folder {shortened(str(folder))}",
        cause=f"seen: {files}; none starts or configures an engine that is known",
        fix="name the launch script, the configuration or the log of a job",
    )


def _list(names: tuple[str, ...]) -> str:
    """Names of files, a few of them."""
    shown = ", ".join(shortened(Path(name).name) for name in names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
