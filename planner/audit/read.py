"""Files as facts of one job: each read by what it is, then put together."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from costmodel.kernels.precisions import config_words
from costmodel.serving.engine import is_before
from planner.audit.conclusions import CLASSES_OF_ARGUMENTS, conclude
from planner.audit.environment import set_variables
from planner.audit.facts import JobFacts, fields_recognised, job_facts_of, meaning
from planner.audit.launch import (
    LAUNCHED,
    OPTION_FILES,
    UNTOLD,
    Launch,
    client_of,
    family_of,
    flags_of_release,
    launch_of,
    launch_of_page,
    machine_settings,
)
from planner.audit.manifests import (
    controlled_variables,
    machines_of,
    machines_of_command,
    script_of,
    variables_of,
)
from planner.audit.no_job import refuse_measured_links, refuse_no_job
from planner.audit.published import recipe_called
from planner.audit.started_texts import as_started
from planner.audit.words import FAMILIES, MACHINE_WORDS, UNKNOWN, Family, family_named, family_of_package
from planner.engines.accelerate import ARGUMENTS
from planner.engines.program import FILE as PROGRAM_FILE
from planner.formats.justfile import is_named_justfile, script_of_justfile
from planner.formats.kinds import Kind, kind_of
from planner.formats.logs import Measured, is_log, is_named_log, lines_like_steps, measured_of
from planner.formats.makefile import is_makefile, script_of_makefile
from planner.formats.python_commands import commands_of_python
from planner.formats.python_config import Recipe, models_named, recipes_of
from planner.formats.python_engines import engine_call
from planner.formats.server_lines import ServerLog, server_log_of
from planner.formats.settings import NOT_KNOWN, Setting, truth_of, with_defaults
from planner.formats.shell import Script, Text, script_of_text
from planner.formats.step_lines import COLOUR, known_engines
from planner.formats.structured import json_settings, toml_settings, yaml_settings
from planner.formats.systemd import is_unit, script_of_unit
from topology.base.decode import SERVING_COMMAND, is_serving_document, json_value
from topology.base.errors import InputError, shortened
from topology.base.files import read_ends
from topology.base.units import MIB
from topology.hardware.datasheets import machines_in_text, without_machines
from topology.hardware.device_names import (
    gpus_in_file_name,
    gpus_in_text,
    others_of_bare_names,
    slice_in_text,
    unknown_gpus_in_text,
)

MOST_BYTES = 6 * MIB
"""Of one launch file or log; of a longer log its two ends are read."""
MOST_CONFIG_CHARACTERS = 300_000
"""Of a file that is not a log: no configuration comes near."""
MOST_FILES = 16
TELLING_SHARE = 0.7
"""Of the settings of the recipe that has most: one with fewer is a part of others."""
_STARTS = re.compile(r"\b(?:torchrun|srun|sbatch|mpirun|python3?|deepspeed|bash)\b|\.py\b")
_PRESET = re.compile(r"^#.*\b(?:preset|for) (?:for )?(\d{1,5}) [AHB]\d+\w* GPUs", re.MULTILINE)
_NUMBER_OF_KIND = re.compile(
    r"(?<![\w.,-])(\d{1,5})\s?(?:[x×*]\s?)?(?:NVIDIA\s)?([A-Za-z]\w{1,6})(?:[- ](\w{2,6}))?", re.IGNORECASE
)
_WHOLE_MACHINES = ("DGX", "HGX")
_COUNTED = re.compile(
    r"^[ \t]*#(?!.*\b(?:nodes?|each|per|machines?)\b).*?(?<![\w.,-])(\d{1,5})\s?(?:[x×*]\s?)?(?:NVIDIA\s)?"
    r"([A-Za-z]\w{1,6})(?:[- ](\w{2,6}))?",
    re.MULTILINE | re.IGNORECASE,
)
"""A comment that counts something: of GPUs where the words behind the number name one, all of one job."""
_PRECISION_WORDS = "|".join(word for word, _ in config_words() if word[-1].isdigit())
_IN_NAME = re.compile(rf"(?:^|[_-])({_PRECISION_WORDS})(?:[_.-]|cs|$)", re.IGNORECASE)
"""A precision in the name of a file."""
_VERSION = re.compile(
    r"\b(vllm|sglang|tensorrt-llm)(?:-openai|/release)?(?: ?[:=@ ]=? ?|[\"']?\s{1,60}tag: ?[\"']?)v?"
    r"(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)",
    re.IGNORECASE,
)
"""A version of an engine: a tag of an image, a requirement, or words of a comment."""
_TAG = re.compile(
    r"\b(vllm|sglang|tensorrt-llm)(?:-openai|/release)?(?:-[a-z]\w*)?"
    r"(?::|[\"']?\s{1,60}tag: ?[\"']?)(latest|stable|main|dev|nightly(?:-[\w.-]+)?)\b",
    re.IGNORECASE,
)
"""A tag of an engine's image that names no release."""
_GPU_MEMORY = re.compile(r"\bGPUs? (?:of|with) (\d{2,3}) ?GB\b")
"""The memory of a GPU, in words of a comment."""
_OPTION = re.compile(r"^\s*[a-z][\w-]*:", re.MULTILINE)
"""A line of YAML."""
FILE_OF_ROUTER = re.compile(r"^\s*(?P<phase>context|generation)_servers:", re.MULTILINE)
"""Keys of the file of TensorRT-LLM's router of two pools, below which the servers of a phase stand."""
_DEBUG = re.compile(r"debug|test|tiny", re.IGNORECASE)


@dataclass(slots=True)
class Reading:
    """What files say together.

    Attributes:
        facts: Of the job.
        family: Whose words they are.
        kinds: What each file is.
        measured: What logs measured.
        doubts: What was taken for granted, and what could have been meant instead.
    """

    facts: JobFacts
    family: Family
    kinds: dict[str, Kind] = field(default_factory=dict)
    measured: Measured | None = None
    doubts: list[str] = field(default_factory=list)
    gpus: tuple[str, ...] = ()
    """Kinds of GPU that the files mention."""
    unknown_gpus: tuple[str, ...] = ()
    """Cards that they name and the catalog lacks, where they name none of the catalog."""
    other_memories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of those that they name without a memory, GPUs of the same name and another one."""
    slice_profile: str = ""
    """The profile of slices of a GPU (MIG) that the files speak of; empty where they mean whole ones."""
    sets_queues: bool = False
    """Whether they speak of the variable that Megatron-LM asks for: a script, its launcher, a runtime."""
    gpu_memories_gb: tuple[int, ...] = ()
    """Memories of GPUs that comments speak of."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of engines that tags of images, requirements and comments name, where they name one each."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of images of engines that name no release, of those whose release nothing else names."""
    mentioned_gpus: int | None = None
    """How many a comment says the file is for."""
    most_counted_gpus: int | None = None
    """The most that a comment counts, of all nodes or of one: a node has no more."""
    variables: dict[str, Setting] = field(default_factory=dict)
    """What scripts set, by name."""
    settings: tuple[Setting, ...] = ()
    """Everything that was read, the first file that holds first."""
    served: ServerLog | None = None
    """What the log of a server prints."""
    flags: tuple[Setting, ...] = ()
    """What the engine of a server is told by its command, where that is plainly its own."""
    options: tuple[Setting, ...] = ()
    """What it is told by the file of options that its command names: of a script, or given beside it."""
    lacking: tuple[str, ...] = ()
    """Files of options that its command names and nobody gave."""
    stated: JobFacts = field(default_factory=JobFacts)
    """What words say, before anything follows from it."""
    slow_variables: dict[str, Setting] = field(default_factory=dict)
    """Variables of the environment that slow a job down, as the last line that sets each has it."""
    commanded: bool = False
    """Whether the settings of the first file are flags of a command that it starts, as a manifest's are."""
    presumed: Mapping[str, str] = field(default_factory=dict)
    """Counts that no file states and that are taken for granted, each with why (`planner.audit.presumed`)."""

    published: str = ""
    """Where figures of a configuration come from that a launch names and nobody gave."""
    published_name: str = ""
    """The name of that configuration."""

    @property
    def measured_anything(self) -> bool:
        """Whether a log says how a run went: its steps, its peak memory, or that memory ran out."""
        log = self.measured
        return log is not None and bool(log.has_steps or log.peak_memory_bytes or log.out_of_memory)


def read_files(paths: Iterable[str], given: Mapping[str, str] | None = None) -> Reading:
    """Read files that together describe one job; a name may end in ``::recipe`` for one of a Python file.

    Args:
        paths: Files.
        given: Variables of the environment that scripts read.
    """
    named = [str(path) for path in paths]
    _require_few(named)
    ends = {name: text_of(name.partition("::")[0]) for name in named}
    reading = read_texts({name: text for name, (text, _) in ends.items()}, given)
    reading.doubts.extend(note for _, note in ends.values() if note)
    return reading


def text_of(path: str) -> tuple[str, str]:
    """The text of a file, of a long log its two ends, and what was left out of it, in words."""
    text, left_out = read_ends(path, int(MOST_BYTES))
    if not left_out:
        return text, ""
    ends = f"{left_out / MIB:.1f} MiB between its first and last {MOST_BYTES / 2 / MIB:.0f} MiB"
    return text, f"{Path(path).name}: {ends} are not read; lines behind them are counted without them"


def read_texts(
    files: Mapping[str, str], given: Mapping[str, str] | None = None, *, mounts: bool = True
) -> Reading:
    """Read texts that together describe one job; what they name is never opened.

    Args:
        files: Text of every file, by a name like those of `read_files`.
        given: Variables of the environment that scripts read.
        mounts: Whether configurations of ConfigMaps count that commands name.
    """
    _require_few(tuple(files))
    files = as_started(files)
    mounted = mounted_files(files) if mounts else {}
    files = {**files, **mounted}
    texts = {name: _cleaned(name, text) for name, text in files.items()}
    if not any(text.strip() for text in texts.values()):
        raise _no_job(texts, "nothing is written there")
    for name, text in texts.items() if len(texts) == 1 else ():
        refuse_no_job(name.partition("::")[0], text)
    for name, text in texts.items():
        refuse_measured_links(name.partition("::")[0], text)
    beside = {Path(name).name: text for name, text in texts.items()}
    sourced = _sourced(texts)
    readings = [
        _read(name, text, given or {}, beside)
        for name, text in texts.items()
        if Path(name).name not in sourced
    ]
    readings = readings or [_read(name, text, given or {}, {}) for name, text in texts.items()]
    readings = _with_options(readings, texts, given or {})
    if written := _written_files(texts, readings, given or {}):
        return read_texts({**files, **written}, given)
    _require_step(readings, texts)
    whole = _together(readings)
    _require_job(whole, texts)
    _mentions(whole, [*texts, *texts.values()])
    if whole.served is not None and whole.served.version:
        whole.versions = {**whole.versions, whole.served.of.lower(): whole.served.version}
    for name, text in texts.items():
        if whole.kinds.get(name.partition("::")[0]) != "log":
            whole.slow_variables |= set_variables(text[:MOST_CONFIG_CHARACTERS], name)
    whole.kinds = {name: kind for name, kind in whole.kinds.items() if name not in mounted}
    return whole


def _with_options(
    readings: Sequence[Reading], texts: Mapping[str, str], given: Mapping[str, str]
) -> list[Reading]:
    """Readings; a file of options that a server's command names has the words of that server."""
    families = {
        Path(str(setting.value)).name: reading.family
        for reading in readings
        if reading.family.serves
        for setting in reading.settings
        if setting.path[-1].replace("-", "_") in OPTION_FILES
    }
    return [
        _of_configuration(name, "", texts[name], reading.kinds[name], given, families[Path(name).name], texts)
        if len(reading.kinds) == 1
        and (name := next(iter(reading.kinds))) in texts
        and Path(name).name in families
        and not reading.family.serves
        and reading.kinds[name] in ("yaml", "json", "toml")
        else reading
        for reading in readings
    ]


def mounted_files(texts: Mapping[str, str]) -> dict[str, str]:
    """Configurations that ConfigMaps of manifests hold and commands beside them name, by their names."""
    mounted: dict[str, str] = {}
    for name, text in texts.items():
        if "kind: ConfigMap" not in text or kind_of(text, name) != "yaml":
            continue
        try:
            settings = yaml_settings(text, name)
        except InputError:
            continue
        for setting in settings:
            table, _, file = setting.name.partition("data.")
            named = not table and re.fullmatch(r"[\w.-]+\.ya?ml", file) is not None
            if named and file not in texts and re.search(rf"/{re.escape(file)}(?![\w.])", text):
                mounted[file] = str(setting.value)
    return dict(list(mounted.items())[: max(0, MOST_FILES - len(texts))])


_WRITTEN = re.compile(r">\s*(?P<name>[\w./-]{1,80}\.(?:ya?ml|toml))")
"""Where a line of a script says that a configuration goes."""


def _written_files(
    texts: Mapping[str, str], readings: Sequence[Reading], given: Mapping[str, str]
) -> dict[str, str]:
    """Configurations that scripts write as here-documents, of scripts that themselves state no job."""
    written: dict[str, str] = {}
    for reading in readings:
        for name in reading.kinds if reading.family.name == FAMILIES[-1].name else ():
            if name not in texts or reading.kinds[name] != "shell":
                continue
            lines = texts[name].split("\n")
            for document in script_of_text(texts[name], given=given).documents[:MOST_WRITTEN]:
                before = lines[max(0, document.line - 2) : document.line]  # what announces it
                if match := _WRITTEN.search("\n".join(before)):
                    written[Path(match["name"]).name] = document.text
    new = [(name, text) for name, text in written.items() if name not in texts]
    return dict(new[: max(0, MOST_FILES - len(texts))])


MOST_WRITTEN = 8
"""Here-documents of a script that are read as files."""
_FILE = re.compile(r"[\w./-]{1,80}\.(?:toml|ya?ml|json|sh|py)\b")
"""A file that a script names: the job may stand there."""


def _require_job(whole: Reading, texts: Mapping[str, str]) -> None:
    """Refuse files that state no fact, start no known engine and name no other file.

    Raises:
        InputError: Nothing of them speaks of a job.
    """
    is_named = whole.family is not UNKNOWN and whole.family is not FAMILIES[-1]
    if is_named or whole.measured is not None or whole.facts.by_field or whole.facts.unknown:
        return
    for name, text in texts.items():
        if whole.kinds.get(name) == "shell" and (client := client_of(text, {})) is not None:
            model = client.get("model", "MODEL")
            raise InputError(
                f"{shortened(Path(name).name)} starts a client of a server, and no server",
                "it says what is sent, and not what answers on how many GPUs",
                f"name the script that starts the server, too, or ask plan serve --model {shortened(model)}",
            )
    if any(_FILE.search(text) for text in texts.values()):
        return
    raise _no_job(texts, "no line starts an engine that is known, and none states a setting of a job")


def _no_job(texts: Mapping[str, str], cause: str) -> InputError:
    """The refusal of files in which there is no job."""
    names = ", ".join(shortened(Path(name.partition("::")[0]).name) for name in texts)
    fix = "name the launch script, the configuration or the log of a job"
    return InputError(f"no engine and no job was recognised in {names}", cause, fix)


def _require_step(readings: Sequence[Reading], texts: Mapping[str, str]) -> None:
    """Say which logs show no step, and what of them looks like one; refuse them where they are all there is.

    Raises:
        InputError: Nothing is read but logs, and nothing of them was recognised.
    """
    silent = [
        reading for reading in readings if reading.measured is not None and not reading.measured.has_steps
    ]
    blank = [
        reading
        for reading in silent
        if not reading.facts.by_field and not reading.settings and not reading.measured_anything
    ]
    if len(blank) == len(readings):
        names = ", ".join(Path(path).name for reading in blank for path in reading.kinds)
        likely = [line for reading in blank for path in reading.kinds for line in _likely(texts, path)]
        raise InputError(
            f"no line of a step was recognised in {names}",
            f"{likely[0] if likely else 'none looks like one'}; known forms are those of {known_engines()}",
            "name the launch file of the job: what it predicts stands beside that line"
            if likely
            else "name the log of the rank that prints steps, or the launch file of the job",
        )
    for reading in silent:
        if not reading.measured_anything:
            path = next(iter(reading.kinds))
            shown = "".join(f"{line}; " for line in _likely(texts, path))
            reading.doubts.append(
                f"{Path(path).name}: no line of a step was recognised; {shown}"
                f"known forms are those of {known_engines()}"
            )


def _likely(texts: Mapping[str, str], path: str) -> list[str]:
    """What of a log looks like lines of steps, in words; nothing where no line does."""
    lines = lines_like_steps(texts.get(path, ""))
    if not lines:
        return []
    number, line = lines[len(lines) // 2]
    more = f" and {len(lines) - 1} more look" if len(lines) > 1 else " looks"
    return [f"line {number}{more} like one: {shortened(line)}"]


def _mentions(whole: Reading, texts: Sequence[str]) -> None:
    """Kinds and numbers of GPUs that names and comments speak of."""
    kinds: set[str] = set()
    bare: dict[str, tuple[str, ...]] = {}
    numbers: set[int] = set()
    versions: dict[str, set[str]] = {}
    tags: dict[str, str] = {}
    memories: set[int] = set()
    unknown: list[str] = []
    for text in texts:
        words = without_machines(text[:MOST_CONFIG_CHARACTERS])
        unknown += unknown_gpus_in_text(words)
        without = others_of_bare_names(words)
        bare |= without
        kinds |= {name for name in gpus_in_text(words) if name not in without}
        kinds |= {machine.gpu for machine in machines_in_text(text[:MOST_CONFIG_CHARACTERS])}
        whole.slice_profile = whole.slice_profile or slice_in_text(text[:MOST_CONFIG_CHARACTERS])
        numbers |= {int(match.group(1)) for match in _PRESET.finditer(text[:MOST_CONFIG_CHARACTERS])}
        numbers |= {
            int(match.group(1))
            for match in _COUNTED.finditer(text[:MOST_CONFIG_CHARACTERS])
            if any(gpus_in_text(words) for words in (match[2], f"{match[2]} {match[3]}"))
        } - {0}
        whole.sets_queues |= "CUDA_DEVICE_MAX_CONNECTIONS" in text
        memories |= {int(size) for size in _GPU_MEMORY.findall(text[:MOST_CONFIG_CHARACTERS])}
        for engine, version in _VERSION.findall(text[:MOST_CONFIG_CHARACTERS]):
            versions.setdefault(engine.lower().replace("-", ""), set()).add(version)
        for engine, tag in _TAG.findall(text[:MOST_CONFIG_CHARACTERS]):
            tags.setdefault(engine.lower().replace("-", ""), tag)
    if not kinds and not bare:
        kinds |= {name for path in whole.kinds for name in gpus_in_file_name(Path(path).name)}
    whole.unknown_gpus = () if kinds or bare else tuple(dict.fromkeys(unknown))
    whole.sets_queues |= not any(_STARTS.search(text[:MOST_CONFIG_CHARACTERS]) for text in texts)
    whole.versions = {engine: named.pop() for engine, named in versions.items() if len(named) == 1}
    whole.tags = {engine: tag for engine, tag in tags.items() if engine not in versions}
    whole.gpu_memories_gb = tuple(sorted(memories))
    asked = {
        name
        for setting in whole.settings
        if setting.path[-1] in _ASKED_OF_SCHEDULERS
        for name in gpus_in_text(str(setting.value))
    }
    if len(asked) == 1:  # of the part of a job that is read
        bare = {name: others for name, others in bare.items() if name in asked - kinds}
        kinds = asked - bare.keys()
    whole.other_memories = {
        name: others for name, others in bare.items() if kinds.isdisjoint((name, *others))
    }
    whole.gpus = tuple(sorted(kinds | whole.other_memories.keys()))
    whole.mentioned_gpus = numbers.pop() if len(numbers) == 1 else None
    whole.most_counted_gpus = max(
        (count for text in texts for count in _counts_of_comments(text)), default=None
    )


def _counts_of_comments(text: str) -> Iterator[int]:
    r"""Numbers before kinds of GPUs in comments; those of whole machines count none.

    >>> list(_counts_of_comments("# 2 nodes of 8 x H100\\n# 2 x DGX H100"))
    [8]
    """
    for line in text[:MOST_CONFIG_CHARACTERS].split("\n"):
        for match in _NUMBER_OF_KIND.finditer(line) if line.lstrip().startswith("#") else ():
            names = (match[2], f"{match[2]} {match[3]}")
            if match[2].upper() not in _WHOLE_MACHINES and any(map(gpus_in_text, names)):
                yield int(match[1])


_ASKED_OF_SCHEDULERS = (
    "gpus_per_node",
    "gres",
    "gpus",
    "num_gpus",
    "gpus_per_task",
    "accelerators",
    "accelerator_type",
)
"""Words that ask for GPUs, by their kind too."""


def _require_few(named: Sequence[str]) -> None:
    """Refuse what cannot be the files of one job."""
    if not named or len(named) > MOST_FILES:
        cause = f"{len(named)} files were named"
        fix = f"name one to {MOST_FILES} files of one job"
        raise InputError("these files cannot be read together", cause, fix)


def _cleaned(path: str, raw: str) -> str:
    """A text without characters that mean something to us."""
    text = COLOUR.sub("", raw.replace("\x00", "").replace("\r\n", "\n").replace("\r", "\n"))
    if len(text) > MOST_CONFIG_CHARACTERS and not is_named_log(path) and not is_log(text):
        cause = f"it has {len(text):,} characters and is no log"
        raise InputError(
            f"{path} is no launch file", cause, "name the script, the configuration or the log of a job"
        )
    return text


def _sourced(texts: Mapping[str, str]) -> frozenset[str]:
    """Names of given files that another of them reads."""
    names = {Path(name).name for name in texts}
    names_read: set[str] = set()
    for name, text in texts.items():
        if len(texts) > 1:
            for match in re.finditer(
                r"^[ \t]*(?:source|\.)\s+\S*?([\w.-]+)[\"')]*\s*$",
                text[:MOST_CONFIG_CHARACTERS],
                re.MULTILINE,
            ):
                if match.group(1) in names and match.group(1) != Path(name).name:
                    names_read.add(match.group(1))
    return frozenset(names_read)


def _read(name: str, text: str, given: Mapping[str, str], beside: Mapping[str, str]) -> Reading:
    """One file."""
    path, _, recipe = name.partition("::")
    kind = kind_of(text, path)
    _refuse_answer(path, text)
    if kind in ("shell", "page"):
        return _of_script(
            path, text, kind, given, beside, int(recipe) if recipe.isdecimal() and len(recipe) < 7 else 0
        )
    if kind == "log":
        return _of_log(path, text, given)
    package = family_of_package(text)
    return _of_configuration(path, recipe, text, kind, given, package, beside)


_ANSWER_KEYS = frozenset({"schema_version", "request"})
"""Keys of what our own commands write, which no engine's configuration has together."""
_MOST_ANSWER_BYTES = 20_000_000


def _refuse_answer(path: str, text: str) -> None:
    """Refuse a plan of our own: it is no job of another engine, and its numbers are claims already."""
    if not text.lstrip().startswith("{") or '"schema_version"' not in text or len(text) > _MOST_ANSWER_BYTES:
        return
    try:
        document = json_value(text)
    except (ValueError, RecursionError):
        return
    if is_serving_document(document):
        raise InputError(
            what=f"{path} is a plan of plan serve, not what starts a server",
            cause=f"it has {', '.join(sorted(_ANSWER_KEYS))}, which `{SERVING_COMMAND}` writes",
            fix=f"see what it does under a load: `plan serve --predict {path}`, with no other file",
        )
    if isinstance(document, dict) and document.keys() >= _ANSWER_KEYS:
        raise InputError(
            what=f"{path} is a plan of meshplan, not a job of another engine",
            cause=f"it has {', '.join(sorted(_ANSWER_KEYS))}, which plan --json writes",
            fix=f"check it with `plan verify {path}`, or audit the files that `plan export {path}` writes",
        )


def _of_configuration(
    path: str,
    recipe: str,
    text: str,
    kind: Kind,
    given: Mapping[str, str],
    package: Family | None,
    beside: Mapping[str, str],
) -> Reading:
    """Settings of a file that is no script: Python, TOML, YAML, JSON; of a package's, all its functions."""
    doubts: list[str] = []
    built = engine_call(text) if kind == "python" and not recipe else None
    if built is not None and package is None and _may_serve(text, path):
        package = family_named(_OF_PACKAGES[built[0]])
    if kind == "python" and package is not None and not recipe:
        started, parts = "", [setting for part in recipes_of(text, path) for setting in part.settings]
        settings = list({setting.name: setting for setting in reversed(parts)}.values())[::-1]
    else:
        settings, started = _settings_of(path, recipe, text, kind, doubts)
    settings = [_in_table(setting, _TABLES.get(Path(path).name, "")) for setting in with_defaults(settings)]
    started = script_of(settings) if kind == "yaml" else started
    line = int(recipe) if recipe.isdecimal() and len(recipe) < 7 else 0
    variables = {**variables_of(settings), **controlled_variables(settings), **given}
    launch, script = launch_of(started, variables, {}, line) if started else (None, None)
    if launch is not None and launch.family.name != FAMILIES[-1].name:
        return _of_started(path, kind, settings, launch, beside, doubts)
    family = package or family_of(settings) or _by_name(settings)
    flags = flags_of_release(settings) if family.serves else ()
    settings += built[1] if built is not None and family.serves else ()
    settings = [*flags, *settings]  # of a flag given twice the last counts, and those stand behind
    facts = job_facts_of(settings, family, path)
    if family.serves and any("prefill" in setting.path for setting in settings):
        facts.put("said.role", "prefill", "stated", "its part for prompts")
    _add_class_of_arguments(facts, settings)
    if kind == "python":
        _add_named_model(facts, family, text)
    for setting in settings:
        if "is not set" in setting.how and _used(setting, facts):
            doubts.append(setting.how)
        if (
            setting.value == NOT_KNOWN
            and meaning(setting, family.words) is not None
            and setting.how not in doubts
        ):
            doubts.append(setting.how)
    handed = _handed_files(script) if script is not None and family is UNKNOWN else {}
    return Reading(
        facts,
        family,
        {path: kind},
        None,
        doubts,
        settings=tuple(settings),
        flags=flags,
        options=built[1] if built is not None and family.serves else (),
        variables=handed,
    )


def _settings_of(
    path: str, recipe: str, text: str, kind: Kind, doubts: list[str]
) -> tuple[list[Setting], str]:
    """Settings of a file, and the commands that a Python file starts which configures nothing itself."""
    if kind == "python":
        recipes, called = recipes_of(text, path), recipe_called(text)
        started = "" if recipe else commands_of_python(text)
        least = LEAST_TELLING if called is None else 1
        settings = _of_recipe(recipes, recipe, path, doubts, started, least)
        started = "" if family_of(settings) else started
        return settings + ([called] if called is not None else []), started
    if kind == "json":
        settings, template = json_settings(text, path)
        if template:
            doubts.append(f"{path} is a template: values that a script fills in are not known")
        return settings, ""
    settings = toml_settings(text, path) if kind == "toml" else yaml_settings(text, path)
    return [*settings, *inner_documents(settings, path)], ""


_OF_PACKAGES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM"}


def _may_serve(text: str, path: str) -> bool:
    """Whether no function of a file has the words of a family that trains."""
    family = family_of(setting for part in recipes_of(text, path) for setting in part.settings)
    return family is None or family.serves


def _of_started(
    path: str,
    kind: Kind,
    settings: list[Setting],
    launch: Launch,
    beside: Mapping[str, str],
    doubts: list[str],
) -> Reading:
    """The command that a manifest, or a program, starts, with what its controller says of machines."""
    machine = [
        *(machines_of_command(settings, launch.line) if launch.family.serves else machines_of(settings)),
        *(setting for setting in settings if meaning(setting, MACHINE_WORDS) is not None),
    ]
    counted = {meaning(setting, MACHINE_WORDS) for setting in machine}
    options = [setting for setting in settings if launch.family.serves and _is_option_of_release(setting)]
    every, settings = (
        settings,
        [
            *(
                setting
                for setting in launch.settings
                if setting.value != NOT_KNOWN or meaning(setting, MACHINE_WORDS) not in counted
            ),
            *options,
            *machine,
        ],
    )
    facts = job_facts_of(settings, launch.family, path)
    mounted: list[Setting] = []
    lacking: tuple[str, ...] = ()
    if launch.family.serves:
        mounted = _add_option_files(facts, launch, beside, file_holds=False)
        lacking = tuple(name for name in _option_files(launch) if name and name not in beside)
        doubts += [f"{name} is read by the server and was not given: name it too" for name in lacking]
    if launch.family.serves and (pool := _prompt_pool(every)):
        facts.put("said.role", "prefill", "stated", f"{pool.name} {pool.value} (line {pool.line})")
    if kind == "yaml" and "said.nodes" not in facts.by_field:
        facts.unknown.add("said.nodes")  # the controller's number of pods
    return Reading(
        facts,
        launch.family,
        {path: kind},
        None,
        doubts,
        settings=tuple(settings),
        flags=launch.flags,
        options=tuple(mounted),
        lacking=lacking,
        commanded=True,
        variables={
            name: Setting(name=name, value=value, line=0)
            for name, value in variables_of(every).items()
            if launch.family.serves
        },
    )


INNER = "serve_config_v2"
"""The key below which a RayService has the configuration of Ray Serve, as a text."""


def inner_documents(settings: Sequence[Setting], path: str) -> list[Setting]:
    """Settings of configurations that stand as a text in another."""
    inner: list[Setting] = []
    for setting in settings:
        if setting.path[-1] == INNER and isinstance(setting.value, str):
            below = yaml_settings(setting.value, path)
            inner.extend(replace(each, line=setting.line + each.line) for each in below)
    return inner


def _of_recipe(
    recipes: list[Recipe], wanted: str, path: str, doubts: list[str], started: str, least: int
) -> list[Setting]:
    """Settings of the function that is meant; of a file that starts commands, none need be there."""
    try:
        chosen = _recipe(recipes, wanted, path, doubts, least)
    except InputError:
        if started:
            return []
        raise
    return [*chosen.settings, *_machines_of_module(recipes, chosen)]


def _add_named_model(facts: JobFacts, family: Family, text: str) -> None:
    """The model of the recipe that a Python file changes, or of the package whose registry it asks."""
    named, packages = models_named(text), {*_TITAN_MODEL.findall(text)}
    if family.recipes and len(named) == 1:
        facts.put("said.model", named.pop(), "derived", "the recipe that it changes")
    if family.name == "torchtitan" and len(packages) == 1:
        facts.put("said.model_family", packages.pop(), "derived", "the package of its models")


def _add_class_of_arguments(facts: JobFacts, settings: Iterable[Setting]) -> None:
    """The class of a trainer's arguments, which decides what holds where they say nothing."""
    classes = {setting.value for setting in settings if setting.path[-1] == "__class__"}
    shown = next((name for name in CLASSES_OF_ARGUMENTS if name in classes), None)
    if shown is not None:
        facts.put("said.arguments", shown, "derived", "the class of its arguments")


_TITAN_MODEL = re.compile(r"\btorchtitan\.(?:models|experiments)\.(\w+)")
"""The package of a model of torchtitan, whose registry has it by its size alone."""
_APART = ("parallelism", "model_artifacts")
"""Tables of a release (llm-d) that say of a server what its command does not."""


def _prompt_pool(settings: Iterable[Setting]) -> Setting | None:
    """What says that a release makes a pool for prompts beside that which decodes; None without it."""
    pools = (setting for setting in settings if setting.path[-2:] == ("prefill", "create"))
    return next((setting for setting in pools if truth_of(setting.value)), None)


def _is_option_of_release(setting: Setting) -> bool:
    """Whether a value of a release is an option of its server."""
    tables = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part).lower() for part in setting.path[:-1]]
    return bool(tables) and tables[-1] in _APART


_TABLES: Mapping[str, str] = {PROGRAM_FILE: "program.", ARGUMENTS: "trainer."}
"""Tables of a contract that files of a plan are, by their names."""


def _in_table(setting: Setting, table: str) -> Setting:
    """A setting of a file that is one table of its engine's words."""
    return replace(setting, name=f"{table}{setting.name}") if table else setting


def _used(setting: Setting, facts: JobFacts) -> bool:
    return any(fact.line == setting.line for fact in facts.by_field.values())


def _by_name(settings: list[Setting]) -> Family:
    """The family of settings without a mark: the one of which they have enough keys that few others share.

    One word decides nothing, and neither do words of two families that are as many.
    """
    counts = [(len(_telling_fields(settings, family)), family) for family in FAMILIES]
    counts.sort(key=lambda count: -count[0])
    (most, best), (second, other) = counts[:2]
    tied = second == most and other.name != best.name
    return UNKNOWN if most < LEAST_OWN_KEYS or tied else best


def _telling_fields(settings: list[Setting], family: Family) -> set[str]:
    """Fields that settings state in words which few families have."""
    fields = set()
    for setting in settings:
        stated = meaning(setting, family.words)
        endings = [".".join(setting.path[-length:]) for length in (3, 2, 1)]
        word = next((end for end in endings if end in family.words), None)
        if stated is not None and word is not None and _shared()[word] <= MOST_SHARING:
            fields.add(stated)
    return fields


@functools.cache
def _shared() -> Counter[str]:
    """How many families, by name, have a word."""
    names = {family.name: set[str]() for family in FAMILIES}
    for family in FAMILIES:
        names[family.name] |= family.words.keys()
    return Counter(word for words in names.values() for word in words)


LEAST_OWN_KEYS = 3
"""Keys of its own that claim a family for a file without a mark."""
MOST_SHARING = 3
"""Families beyond which a word is nobody's own."""


LEAST_TELLING = 2
"""Settings that make a function one of a job; of one that changes a recipe by name, one."""


def _recipe(recipes: list[Recipe], wanted: str, path: str, doubts: list[str], fewest: int) -> Recipe:
    """The function that is meant: the named one, else the first that is no test."""
    names = [recipe.name for recipe in recipes if recipe.name]
    if wanted:
        chosen = next((recipe for recipe in recipes if recipe.name == wanted), None)
        if chosen is None:
            raise InputError(
                f"{path} has no recipe {wanted}",
                f"it has {', '.join(names[:8]) or 'none'}",
                "name one of them",
            )
        return chosen
    known = {
        recipe.name: fields_recognised(recipe.settings, family_of(recipe.settings) or FAMILIES[-1])
        for recipe in recipes
    }
    least = max(fewest, TELLING_SHARE * max(known.values(), default=0))
    telling = [recipe for recipe in recipes if known[recipe.name] >= least]
    if not telling:
        raise InputError(
            f"{path} sets nothing that is known",
            "no assignment of it is a setting of an engine",
            "name a recipe or a configuration",
        )
    first = next((recipe for recipe in telling if not _DEBUG.search(recipe.name)), telling[0])
    read = {(setting.name, setting.value) for setting in first.settings}
    others = [
        recipe
        for recipe in telling
        if recipe is not first and not {(setting.name, setting.value) for setting in recipe.settings} <= read
    ]
    if others:
        doubts.append(
            f"of {len(others) + 1} recipes the first is read, {first.name}: name another as {path}::NAME"
        )
    return first


def _machines_of_module(recipes: Sequence[Recipe], chosen: Recipe) -> Iterator[Setting]:
    """GPUs that a module counts for what one of its functions trains, where that counts none itself."""
    counted = {meaning(setting, MACHINE_WORDS) for setting in chosen.settings}
    for setting in recipes[-1].settings if chosen.name and not recipes[-1].name else ():
        stated = meaning(setting, MACHINE_WORDS)
        if stated is not None and stated not in counted:
            yield setting


def _of_script(
    path: str, text: str, kind: Kind, given: Mapping[str, str], beside: Mapping[str, str], line: int = 0
) -> Reading:
    """A script, or a page with commands (the first at or after a line)."""
    others = {name: other for name, other in beside.items() if other is not text}
    if kind == "shell" and is_named_justfile(path):
        text = script_of_justfile(text)
    elif kind == "shell" and is_makefile(text, path):
        text = script_of_makefile(text)
    elif kind == "shell" and is_unit(text):
        text = script_of_unit(text)
    launch, script = (
        launch_of(text, given, others, line) if kind == "shell" else launch_of_page(text, given, line)
    )
    if launch is None:
        facts = job_facts_of(machine_settings(script), replace(FAMILIES[-1], words=LAUNCHED), path)
        doubts = [*_doubts_of(script), f"{path} states no layout: its settings come from elsewhere"]
        _add_named_precision(facts, path, script.sourced, doubts)
        return Reading(facts, FAMILIES[-1], {path: kind}, None, doubts, variables=_handed_files(script))
    facts = job_facts_of(launch.settings, launch.family, path)
    variables = {
        name: Setting(
            name=name, value=script.names.text(name) or "", line=texts[0].line if texts else 0, file=path
        )
        for name, texts in script.names.values.items()
    }
    options: list[Setting] = []
    if launch.family.serves:
        variables |= _handed_variables(script, launch.line)
    if kind == "shell":
        for document in script.documents:
            is_of_server = launch.family.serves and _is_option_file(text, document, launch)
            holds = is_of_server and _file_holds(text, launch.family)
            written = _add_document(
                facts, document.text, path, document.line, launch.family, file_holds=holds
            )
            options += written if is_of_server else ()
        options += _add_option_files(facts, launch, beside, file_holds=_file_holds(text, launch.family))
    doubts = [*_doubts_of(script), *_doubts_of_launch(launch)]
    lacking = _unread_options(launch, script, beside) if launch.family.serves else {}
    doubts += [
        f"line {line}: {name} is read by the server and was not given: name it too"
        for name, line in lacking.items()
    ]
    if launch.family.serves or launch.family.name == FAMILIES[-1].name:
        _add_named_precision(facts, path, script.sourced, doubts)
    return Reading(
        facts,
        launch.family,
        {path: kind},
        None,
        doubts,
        variables=variables,
        settings=launch.settings,
        flags=launch.flags,
        options=tuple(options),
        lacking=tuple(lacking),
    )


_VARIABLE = re.compile(r"(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>.+)")


def _handed_variables(script: Script, line: int) -> dict[str, Setting]:
    """Variables that the command of a line is handed: as words of ``env``, or by ``docker run -e``."""
    variables: dict[str, Setting] = {}
    for command in script.started:
        words = [word.text for word in command.words] if command.line == line else []
        for before, word in pairwise(words):
            match = _VARIABLE.fullmatch(word)
            of_env = words[0].rpartition("/")[2] == "env" and (
                before == words[0] or _VARIABLE.fullmatch(before)
            )
            if match is not None and (of_env or before in ("-e", "--env")):
                variables[match["name"]] = Setting(name=match["name"], value=match["value"], line=line)
    return variables


_HANDED = re.compile(r"[\w./-]{1,80}\.(?:ya?ml|toml|json|sh)")


def _handed_files(script: Script) -> dict[str, Setting]:
    """Configurations that the commands of a script are handed, which state what the script does not."""
    words = (word for command in script.started for word in command.words if _HANDED.fullmatch(word.text))
    return {word.text: Setting(name=word.text, value=word.text, line=word.line) for word in words}


def _add_named_precision(facts: JobFacts, path: str, sourced: Iterable[str], doubts: list[str]) -> None:
    """A precision that only names of files tell: of the script, or of one that it reads."""
    words = ("said.precision", "said.fp8", "said.fp4", "said.bf16", "said.fp16")
    named = next((name for name in (Path(path).name, *sourced) if _IN_NAME.search(name)), None)
    if named is not None and not any(word in facts.by_field for word in words):
        match = _IN_NAME.search(named)
        facts.put("said.precision", match.group(1) if match else "", "derived", f"the name of {named}")
        doubts.append(f"the precision is read from the name of {named}")


def _add_document(
    facts: JobFacts, text: str, path: str, line: int, family: Family, *, file_holds: bool = False
) -> tuple[Setting, ...]:
    """Add what a script writes itself: DeepSpeed's JSON, or options of a server; its settings."""
    form = "JSON" if text.lstrip().startswith("{") else "YAML"
    if FILE_OF_ROUTER.search(text):
        return ()
    if form == "YAML" and not (family.serves and _OPTION.search(text)):
        return ()
    filled = re.sub(r"\x00|\$\{?\w+\}?", "null", text)
    try:
        settings = json_settings(filled, path)[0] if form == "JSON" else yaml_settings(filled, path)
    except InputError:
        return ()
    _add_options(facts, settings, path, f"the {form} of line {line}", family, file_holds=file_holds)
    return tuple(settings)


_COMMAND_HOLDS = "1.3"
"""Release of TensorRT-LLM from which its command holds over its file of options (pull request 14812)."""


def _file_holds(text: str, family: Family) -> bool:
    """Whether a file of options overwrites what a script's command says, as older TensorRT-LLM has it."""
    named = [version for engine, version in _VERSION.findall(text) if engine.lower() == "tensorrt-llm"]
    return family.name == "TensorRT-LLM" and len({*named}) == 1 and is_before(named[0], _COMMAND_HOLDS)


def _add_options(
    facts: JobFacts,
    settings: Iterable[Setting],
    path: str,
    where: str,
    family: Family,
    *,
    file_holds: bool = False,
) -> None:
    """Add what a file of options states; a server's command holds over it, unless it overwrites that."""
    written = job_facts_of(settings, family if family.serves else family_named("DeepSpeed"), path)
    for name, fact in written.by_field.items():
        commanded = facts.by_field.get(name)
        if family.serves and commanded is not None and commanded.value != fact.value:
            words = f"{commanded.source} (line {commanded.line})", f"{fact.source} (in {where})"
            holds, other = words[::-1] if file_holds else words
            facts.notes.append(f"{holds} holds over {other}")
            if file_holds:
                del facts.by_field[name]
        if not (family.serves and name in facts.by_field):
            facts.put(name, fact.value, "stated", f"{fact.source} (in {where})")


def _option_files(launch: Launch) -> dict[str, int]:
    """Files of options that a server is told to read, by name, with the line that says so; "" is any name."""
    named = (setting for setting in launch.settings if setting.path[-1] in OPTION_FILES)
    return {
        "" if setting.value == NOT_KNOWN else Path(str(setting.value)).name: setting.line for setting in named
    }


def _is_option_file(text: str, document: Text, launch: Launch) -> bool:
    """Whether a here-document is the file of options that a server is told to read, as far as names tell."""
    files = _option_files(launch)
    before = text.split("\n")[max(0, document.line - 2) : document.line]  # what announces it
    match = _WRITTEN.search("\n".join(before))
    return bool(files) and (match is None or "" in files or Path(match["name"]).name in files)


def _add_option_files(
    facts: JobFacts, launch: Launch, beside: Mapping[str, str], *, file_holds: bool
) -> list[Setting]:
    """Add the files of options that a server is told to read and that were given; their settings."""
    options: list[Setting] = []
    for name in _option_files(launch) if launch.family.serves else ():
        if name not in beside or FILE_OF_ROUTER.search(beside[name]):
            continue
        with contextlib.suppress(InputError):
            is_json = beside[name].lstrip().startswith("{")
            settings = json_settings(beside[name], name)[0] if is_json else yaml_settings(beside[name], name)
            _add_options(facts, settings, name, name, launch.family, file_holds=file_holds)
            options += settings
    return options


def _unread_options(launch: Launch, script: Script, beside: Mapping[str, str]) -> dict[str, int]:
    """Files of options that a server is told to read, and that neither the script writes nor anybody gave."""
    if any(not document.text.lstrip().startswith("{") for document in script.documents):
        return {}
    return {name: line for name, line in _option_files(launch).items() if name and name not in beside}


def _doubts_of(script: Script) -> list[str]:
    """What a script leaves to a run."""
    doubts = [
        f"{name} is read by the script and was not given: name it too"
        for name in dict.fromkeys(script.sourced)
    ]
    for line, names in script.branches[:20]:
        if names:
            doubts.append(
                f"line {line}: only a run knows {', '.join(sorted(names)[:4])}; "
                "what its branches set differently is not told (--env says it)"
            )
    return doubts


def _doubts_of_launch(launch: Launch) -> list[str]:
    """What else a script starts."""
    doubts = (
        []
        if launch.sure
        else [f"the command of line {launch.line} is started only in a branch that is not sure to be taken"]
    )
    untold = [setting.line for setting in launch.settings if setting.name == UNTOLD][:1]
    doubts += [f"line {line}: the command has {UNTOLD}, and what they set is not told" for line in untold]
    if launch.others:
        lines = ", ".join(map(str, launch.others[:8]))
        doubts.append(
            f"other commands could be meant, of lines {lines}: the one of line {launch.line} is read"
        )
    return doubts


def _of_log(path: str, text: str, given: Mapping[str, str]) -> Reading:
    """A log: what it measured, and the job as far as it prints it."""
    measured, settings, command = measured_of(text)
    if (served := server_log_of(text)) is not None and not measured.has_trained:
        return _of_server_log(path, served, measured)
    family = FAMILIES[-1]
    facts, ran = JobFacts(), tuple[Setting, ...]()
    if command:
        launch, _ = launch_of(command, given, {})
        if launch is not None:
            facts, family = job_facts_of(launch.settings, launch.family, path), launch.family
            ran = launch.settings
    if settings:
        printed = _with_deepspeed(family_of(settings) or _by_name(settings), settings)
        if family.name == FAMILIES[-1].name:
            family = printed
        for name, fact in job_facts_of(settings, printed, path).by_field.items():
            facts.by_field.setdefault(name, fact)
    if family.name == FAMILIES[-1].name and measured.engine:
        family = family_named(measured.engine)
    for name, value, line in measured.job:
        facts.put(name, value, "stated", f"line {line} of the log")
    doubts = list(measured.doubts)
    whole = tuple(settings) or ran
    return Reading(facts, family, {path: "log"}, measured, doubts, settings=whole)


def _of_server_log(path: str, served: ServerLog, measured: Measured) -> Reading:
    """The log of a server: what it was started with, what it holds, how it ran or why it stopped."""
    family = family_named(served.of)
    known = [setting for setting in served.settings if meaning(setting, family.words) is not None]
    facts = job_facts_of(known, family, path)
    if not served.error and measured.out_of_memory:
        served = replace(served, error="a GPU ran out of memory", error_line=measured.out_of_memory)
    return Reading(facts, family, {path: "log"}, settings=tuple(known), served=served)


def _with_deepspeed(family: Family, settings: Iterable[Setting]) -> Family:
    """The family of printed arguments: of Megatron's that switch DeepSpeed on, its copy over DeepSpeed."""
    over = any(setting.path[-1] == "deepspeed" and truth_of(setting.value) for setting in settings)
    return family_named("Megatron-DeepSpeed") if over and family.name == "Megatron-LM" else family


def _together(readings: list[Reading]) -> Reading:
    """Facts of several files: what a command says overrides the file that it names."""
    ranks = ("shell", "page", "python", "toml", "yaml", "json", "log")
    order = sorted(readings, key=lambda reading: ranks.index(next(iter(reading.kinds.values()))))
    first = order[0]
    named = [reading for reading in order if reading.family not in (UNKNOWN, FAMILIES[-1])]
    named.sort(key=lambda reading: reading.family.launches)
    telling = next((reading for reading in (*named, *order) if reading.facts.by_field), None)
    telling = named[0] if named and (telling is None or telling not in named) else telling or first
    whole = Reading(JobFacts(), telling.family, commanded=first.commanded)
    for reading in order:
        for name, fact in reading.facts.by_field.items():
            known = whole.facts.by_field.setdefault(name, fact)
            if known is not fact and known.value != fact.value and not name.startswith("said."):
                whole.doubts.append(
                    f"{name}: {known.source} of {Path(known.file).name} holds over {fact.source} of "
                    f"{Path(fact.file).name}"
                )
        whole.facts.unknown |= reading.facts.unknown
        whole.variables |= reading.variables
        whole.settings += tuple(
            replace(setting, file=next(iter(reading.kinds))) for setting in reading.settings
        )
        whole.kinds |= reading.kinds
        whole.flags = whole.flags or reading.flags
        whole.options = whole.options or reading.options
        whole.lacking = whole.lacking or reading.lacking
        whole.served = reading.served or whole.served
        whole.doubts.extend((*reading.doubts, *reading.facts.notes))
        if whole.measured is None or not whole.measured.has_steps:
            whole.measured = reading.measured or whole.measured
    take_counts_of_rates(whole.facts, whole.measured)
    whole.stated = JobFacts(dict(whole.facts.by_field), set(whole.facts.unknown))
    conclude(whole.facts, whole.family)
    take_counts_of_rates(whole.facts, whole.measured)  # of GPUs that only follow from nodes
    whole.doubts.extend(whole.facts.notes)
    return whole


COUNTS_OF_MACHINES = ({"said.num_gpus"}, {"said.gpus_per_node", "said.nodes"})
"""Words of files that together count GPUs, whatever a log's rates mean."""
ROUND = 64
"""Tokens of which the length of a sequence is a multiple, where a rate tells it."""
NEAREST = 0.02
"""Share by which a count that follows from printed rates may miss a whole one: they are medians."""


def take_counts_of_rates(facts: JobFacts, log: Measured | None) -> None:
    """Add the length, the batch and the GPUs that a log's step and rates mean, where no file states them."""
    step_s = None if log is None else log.step_time_s or log.interval_s
    if log is None or step_s is None:
        return
    gpus, batch = facts.count("cluster.num_gpus"), facts.count("job.global_batch_size")
    length = facts.count("job.sequence_length")
    rate = log.tokens_per_s or (
        log.tokens_per_s_per_gpu * gpus if log.tokens_per_s_per_gpu and gpus else None
    )
    tokens = None if rate is None else rate * step_s
    each = _samples_of_gpu(facts)
    if each and gpus is None and any(words <= facts.by_field.keys() for words in COUNTS_OF_MACHINES):
        return  # files count them: what follows of that holds
    exact = log.step_time_s is not None or (each is not None and gpus is None)  # a clock has seconds between
    if batch is None and exact and "job.global_batch_size" not in facts.unknown:
        samples = log.samples_per_s * step_s if log.samples_per_s else None
        if samples is None and tokens is not None and length:
            samples = tokens / length
        batch = None if samples is None else _nearest_multiple(samples, each or 1)
        if batch is not None:
            source = "the log's rate times " + ("its step" if log.step_time_s else "its clock")
            facts.put("job.global_batch_size", batch, "derived", source)
    samples = log.samples_per_s * step_s if log.samples_per_s and log.step_time_s else None
    printed = None if samples is None else _nearest_multiple(samples, each or 1)
    if gpus and each and batch == gpus * each and printed is not None and printed != batch:
        shown = f"the log's rate times its step is {printed:,} samples"
        note = f"{shown}, the files count {batch:,} ({gpus:,} GPUs of {each}): they may be of different jobs"
        facts.notes += [note] if note not in facts.notes else []
    if gpus is None and batch and each and not batch % each and "cluster.num_gpus" not in facts.unknown:
        source = f"{batch:,} samples a step, {each} of each GPU"
        facts.put("cluster.num_gpus", batch // each, "derived", source)
    if length is None and tokens is not None and batch and "job.sequence_length" not in facts.unknown:
        length = _nearest_multiple(tokens / batch, ROUND)
        if length is not None:
            facts.put(
                "job.sequence_length",
                length,
                "derived",
                f"{rate:,.0f} tokens/s · {step_s:.4g} s / {batch:,} sequences, as the log claims",
            )


def _samples_of_gpu(facts: JobFacts) -> int | None:
    """Samples of a step on each GPU, where they are stated and data is all that is split; else None."""
    size, steps = facts.count("layout.microbatch_size"), facts.count("said.accumulation")
    split = any((facts.count(f"layout.{name}") or 1) > 1 for name in ("tp", "pp", "cp"))
    unknown = facts.unknown & {"layout.tp", "layout.pp", "layout.cp", "layout.microbatch_size"}
    return size * steps if size and steps and not split and not unknown else None


def _nearest_multiple(value: float, multiple: int) -> int | None:
    """The multiple that a number is near; None where it is near none."""
    nearest = round(value / multiple) * multiple
    return nearest if nearest > 0 and abs(value / nearest - 1) <= NEAREST else None
