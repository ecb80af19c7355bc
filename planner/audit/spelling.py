"""Changes of a layout in the words of the file that is changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from costmodel.parallel.divisions import BATCH
from planner.audit.read import Reading
from planner.audit.strategy_words import words_of_stage
from planner.audit.words import AGES
from planner.engines.contracts import CONTRACTS
from planner.engines.quoting import shell
from planner.engines.setting import Word
from planner.engines.torchtitan.contract import MODES_OF_POLICIES
from planner.formats.settings import snake_case

WITHOUT = "without "
"""What stands before a word that is to be taken away."""
_NAME = re.compile(r"[A-Za-z_][\w.\-\[\]]*")
"""A name that can be written before a value."""
_HF = ("Axolotl", "Accelerate", "LLaMA-Factory", "HF Trainer")


_TRUTHS = {"true": "True", "false": "False", "": "True"}
"""Yes and no of YAML in Python's words."""
_OWN_VALUES = ("schedule", "virtual_stages")
"""Fields whose values every engine has names of its own for."""
_TRAINERS = ("HF Trainer", "LLaMA-Factory", "Axolotl", "ms-swift", "Unsloth", "Lightning")
"""Programs whose sharding their launcher or a strategy is told, of whichever engine that is."""


def spelled_change(reading: Reading, fields: tuple[tuple[str, Any], ...]) -> tuple[str, ...]:
    """Words to write for new values of fields; what follows from others (dp of Megatron) is left out.

    None where one of them has no name that can be written, or where they would change a batch that the files
    do not state.
    """
    if not reading.family.engine and set(reading.kinds.values()) == {"log"}:
        return ()  # nobody says whose words the job was started with
    stage = dict(fields).get("zero_stage")
    if stage is not None and _by_launcher(reading) and words_of_stage(reading, stage) is None:
        return ()  # it is told by the launcher or in a file of its own, which nothing here shows
    batch = reading.facts.stated("job.global_batch_size")
    steps = None if batch else _accumulation(reading, dict(fields))
    if not batch and steps is None and {"dp", "microbatch_size"} & {name for name, _ in fields}:
        return ()
    if any(_is_unnamed(reading, name) for name, _ in fields):
        return ()  # what such a tool calls the value is not known
    if not reading.family.engine and "pp" in dict(fields) and "layout.pp" not in _worded(reading):
        return ()  # how it is told of a pipeline at all is not known
    experts = [name for name in ("ep", "expert_tp") if name in dict(fields)]
    if reading.family.name in _HF and any(f"layout.{name}" not in _worded(reading) for name in experts):
        return ()  # Megatron's word is one of its plugin alone
    words = [word for name, value in fields for word in _words(reading, name, value)]
    if any(word.startswith(_SIZES) for word in words) and not _has_launchers_file(reading):
        return ()  # neither a program nor the class of its arguments has the words of the launcher
    words = [f"{_OF_LAUNCHERS[1]}{word}" if word.startswith(_SIZES) else word for word in words]
    words += [f"{word_for(reading, 'said.accumulation')} {steps}"] if steps is not None else []
    names = {word.lstrip("-").partition(" ")[0] for word in words}
    if reading.family.recipes and not names <= {fact.word for fact in reading.facts.by_field.values()}:
        return ()  # which other keys such a recipe takes is not known
    if not all(_NAME.fullmatch(word.lstrip("-").partition(" ")[0]) for word in words):
        return ()
    return tuple(_styled(reading, word) for word in words)


def _has_launchers_file(reading: Reading) -> bool:
    """Whether the file is there that `accelerate launch` is told to read."""
    fact = reading.facts.by_field.get("said.distributed_type")
    return fact is not None and reading.kinds.get(fact.file) == "yaml"


def _by_launcher(reading: Reading) -> bool:
    """Whether what is sharded is told in words of FSDP, to a launcher or in a file beside the program's."""
    without = reading.family.name in _TRAINERS or not word_for(reading, "said.zero_stage")
    return without and "said.zero_stage" not in reading.facts.by_field


def _accumulation(reading: Reading, fields: Mapping[str, Any]) -> int | None:
    """Steps to accumulate that keep a batch which files state by its parts; None where it needs no others."""
    facts = reading.facts
    batch, dp = facts.count("job.global_batch_size"), fields.get("dp", facts.count("layout.dp"))
    size = fields.get("microbatch_size", facts.count("layout.microbatch_size"))
    before, worded = facts.count("said.accumulation"), _worded(reading)
    if not {"said.accumulation", "layout.microbatch_size"} <= worded or not (batch and dp and size):
        return None
    changes = {"dp", "microbatch_size"} & fields.keys() and not BATCH.rest(batch, dp, size)
    return batch // (dp * size) if changes and batch != dp * size * (before or 0) else None


def _is_unnamed(reading: Reading, name: str) -> bool:
    """Whether nothing is known that tells a tool without a contract a field.

    Among how many ranks a copy is shared DeepSpeed alone has a word for, MiCS, which its releases no longer
    take: a file keeps it, and is told none.
    """
    parts = name == "shard_degree" and "layout.shard_degree" not in _worded(reading)
    return not reading.family.engine and (parts or name in _OWN_VALUES)


def _worded(reading: Reading) -> frozenset[str]:
    """Fields that words of the files state."""
    return frozenset(name for name, fact in reading.facts.by_field.items() if fact.word)


def spelled_words(reading: Reading, words: Mapping[str, Any], gone: tuple[str, ...]) -> tuple[str, ...]:
    """Words of a contract as the file has them: with its own names where it has them, in its own style.

    None where one of them is lacking of the program that starts the engine, and is not its default.
    """
    known = CONTRACTS[reading.family.engine].words
    lacking = [word for word in words if word in reading.family.lacks]
    if any(not _is_default(known[word].default, words[word]) for word in lacking):
        return ()
    words = {word: value for word, value in words.items() if word not in lacking}
    taken = words_of_age(reading, known)
    words = {  # what is left is judged anew
        word: value
        for word, value in words.items()
        if word in taken and not _of_other_file(reading, word) and not _is_untypable(reading, value)
    }
    by_path = {".".join(setting.path): setting.name for setting in reading.settings}
    by_last_part = {path.rpartition(".")[2]: name for path, name in by_path.items()}
    prefix = next(
        (name.rpartition(".")[0] for name in by_path.values() if name.endswith("parallel_size")), ""
    )

    def name(word: str) -> str:
        if not word.startswith("--"):
            spellings = (word, *known[word].aliases, f"{word}.mode")
            plain = word.rpartition(".")[2]  # a script of recipes has flags of its own for some fields
            flat = by_path.get(plain, word) if reading.family.recipes else word
            return next((by_path[spelling] for spelling in spellings if spelling in by_path), flat)
        plain = word.lstrip("-").replace("-", "_")
        plain = reading.family.spells.get(plain, plain)
        older = (snake_case(alias.lstrip("-")) for alias in known[word].aliases)
        spelled = next((by_last_part[name] for name in (plain, *older) if name in by_last_part), "")
        return spelled or f"{prefix}.{plain}".lstrip(".")

    written = [
        name(word) if value is True else f"{name(word)} {_of_release(name(word), _plain(value))}"
        for word, value in words.items()
    ]
    return tuple(_styled(reading, word) for word in (*written, *(f"-{name(word)}" for word in gone)))


def words_of_age(reading: Reading, known: Mapping[str, Word]) -> frozenset[str]:
    """Words that an engine of the files' age has: all, unless they use one that only old releases take."""
    names = {".".join(setting.path).rpartition(".")[2] for setting in reading.settings}
    for age in AGES.get(reading.family.name, ()):
        if names & set(age["marks"]):
            return frozenset(
                word
                for word, each in known.items()
                if {_plain_name(n) for n in (word, *each.aliases)} & set(age["words"])
            )
    return frozenset(known)


def _plain_name(word: str) -> str:
    """A flag in one spelling."""
    return snake_case(word.lstrip("-"))


def _of_other_file(reading: Reading, word: str) -> bool:
    """Whether a word stands in a table that is a file of a plan's folder, of which these files have nothing.

    DeepSpeed and Accelerate are told by a configuration, and the user's program by itself: how, nobody says.
    """
    table = word.partition(".")[0]
    return table in _TABLES_OF_PLANS and not any(setting.path[0] == table for setting in reading.settings)


_TABLES_OF_PLANS = ("program", "trainer")


def _is_untypable(reading: Reading, value: Any) -> bool:
    """Whether a value is a list of lists behind a flag, which no command line takes."""
    nested = isinstance(value, list | tuple) and any(isinstance(part, list | tuple) for part in value)
    return nested and _kind_of_file(reading) in ("shell", "page", "log")


def _of_release(name: str, value: str) -> str:
    """A value as releases of torchtitan take it that have a mode where later ones have a policy."""
    return MODES_OF_POLICIES.get(value, value) if name.endswith(".mode") else value


def _is_default(default: Any, value: Any) -> bool:
    """Whether a value is what an engine takes without the word."""
    return list(value) == list(default) if isinstance(default, list | tuple) else bool(value == default)


def _underscored(reading: Reading) -> bool:
    """Whether flags of the files join their words with underscores, as those of dataclasses do."""
    names = [setting.name.lstrip("-") for setting in reading.settings if not setting.name.isupper()]
    return any("_" in name for name in names) and not any("-" in name for name in names)


def _plain(value: Any) -> str:
    """A value as it stands after its word."""
    if value is None:
        return "none"
    if isinstance(value, list | tuple) and any(isinstance(part, list | tuple) for part in value):
        return json.dumps(value)
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _kind(reading: Reading) -> str:
    """Whose words are written."""
    megatron = "tensor_model_parallel_size" in reading.family.words
    return "megatron" if megatron and reading.family.name not in _HF else "other"


def _words(reading: Reading, name: str, value: Any) -> Iterator[str]:
    """Words for one field, of those that the family has; what follows from others is left out."""
    if name == "recompute":
        yield from _recomputed(reading, str(value))
    elif name == "sequence_parallel" and _kind(reading) == "megatron":
        yield f"{'' if value else '-'}{word_for(reading, 'layout.sequence_parallel')}"
    elif name == "zero_stage" and _kind(reading) == "megatron" and value < 2 and not _has_stages(reading):
        yield f"{'' if value else '-'}{word_for(reading, 'said.distributed_optimizer')}"
    elif name == "zero_stage" and _by_launcher(reading):
        word, strategy = words_of_stage(reading, value) or ("", "")
        yield f"{word} {shell(strategy) if _kind_of_word(reading, word) in _COMMANDS else strategy}"
    elif name == "zero_stage":
        yield f"{_key_in_json(reading) or word_for(reading, 'said.zero_stage')} {value}"
    elif name not in ("dp", "sequence_parallel") and (word := word_for(reading, f"layout.{name}")):
        yield f"{word} {value}"


def _key_in_json(reading: Reading) -> str:
    """The key of a text of JSON in a script that states a stage; empty where none does."""
    fact = reading.facts.by_field.get("said.zero_stage")
    return fact.source.partition(" ")[0] if fact is not None and "(in the JSON of" in fact.source else ""


def _has_stages(reading: Reading) -> bool:
    """Whether a tool with Megatron's words has its own for stages of ZeRO: that of its files."""
    return "said.zero_stage" in reading.facts.by_field or reading.family.name == "Megatron-DeepSpeed"


def _recomputed(reading: Reading, policy: str) -> Iterator[str]:
    """Words for a policy of recomputation."""
    granularity = word_for(reading, "said.recompute")
    if disabling := word_for(reading, "said.recompute_off"):
        yield f"{disabling} {'true' if policy == 'none' else 'false'}"
    elif reading.family.switches:
        yield f"{'-' if policy == 'none' else ''}{word_for(reading, 'said.recompute_full')}"
    elif _kind(reading) == "other":
        fact = reading.facts.by_field.get("said.recompute_full")
        counts = fact is not None and re.search(r"\b[01]$", fact.source) is not None
        off, on = ("0", "1") if counts else ("false", "true")
        yield f"{word_for(reading, 'said.recompute_full')} {off if policy == 'none' else on}"
    elif policy == "none":
        yield f"-{granularity}"
    else:
        yield f"{granularity} {policy}"
        if policy == "full":
            yield f"{word_for(reading, 'said.recompute_method')} uniform"
            yield f"{word_for(reading, 'said.recompute_layers')} 1"


def spelled_fix(reading: Reading, *stated: str) -> str:
    """Words that switch fields on, as the first file would have them."""
    return " ".join(_styled(reading, word_for(reading, name)) for name in stated)


def spelled_name(reading: Reading, field: str) -> str:
    """The name of a field of a layout, or of a dotted one, as the file would have it."""
    word = word_for(reading, field if "." in field else f"layout.{field}")
    if not word:
        return field.rpartition(".")[2]
    if reading.commanded or _kind_of_file(reading) in _COMMANDS:
        word = _with_table(reading, word)
    return re.split(r"[:= ]+(?=\S*$)", _styled(reading, f"{word} 1"))[0]


def _with_table(reading: Reading, word: str) -> str:
    """A flag that the files do not have, with the table that its engine wants before it."""
    contract = CONTRACTS.get(reading.family.engine)
    if contract is None or "." in word or reading.family.recipes:
        return word
    if any(".".join(setting.path) == word for setting in reading.settings):
        return word
    of_tables = (name for name in contract.words if not name.startswith("-") and "." in name)
    return next((name for name in of_tables if name.rpartition(".")[2] == word), word)


def spelled_names(reading: Reading, spellings: Mapping[str, str], text: str) -> str:
    """A text with the names of the file in place of its engine's flags.

    Args:
        reading: The files.
        spellings: Names of theirs by flag.
        text: What speaks in flags.
    """
    kind = _kind_of_file(reading)
    flags = kind in ("shell", "page", "log") or any("-" in name for name in spellings.values())

    def named(match: re.Match[str]) -> str:
        plain = match[1] if flags and not _underscored(reading) else match[1].replace("-", "_")
        name = spellings.get(match[0], plain)
        return f"--{name.lstrip('-')}" if flags else name

    return re.sub(r"--([a-z0-9-]+)", named, text)


def word_for(reading: Reading, stated: str) -> str:
    """The name under which files state a field: their own, else their family's; empty if none."""
    fact = reading.facts.by_field.get(stated)
    if fact is not None and fact.word:
        return fact.word
    words = [word for word, field in reading.family.words.items() if field == stated]
    word = min(words, key=lambda word: word.count("."), default="")
    return reading.family.spells.get(word, word)


def _kind_of_file(reading: Reading) -> str:
    """What the first file is, as its words are written: those of a manifest are flags of a command.

    A script that only starts a program states nothing of its arguments: they are the program's.
    """
    batch = reading.facts.by_field.get("layout.microbatch_size")
    if not reading.family.engine and batch is not None and reading.kinds.get(batch.file) == "python":
        return "python"
    return "shell" if reading.commanded else next(iter(reading.kinds.values()), "shell")


_COMMANDS = ("shell", "page", "log")
"""Kinds of files whose words are flags."""


def _kind_of_word(reading: Reading, name: str) -> str:
    """The kind of the file that a word is changed in: no command overrides a launcher's file."""
    kind = _kind_of_file(reading)
    if name == _key_in_json(reading):
        return "json"
    files = [fact.file for fact in reading.facts.by_field.values() if fact.word == name]
    kinds = {reading.kinds.get(file, "") for file in files}
    of_launcher = kind in _COMMANDS and not reading.commanded and name.startswith(_OF_LAUNCHERS)
    has_file = "yaml" in kinds or (not kinds and _has_launchers_file(reading))
    return "json" if "json" in kinds else "yaml" if of_launcher and has_file else kind


_OF_LAUNCHERS = ("fsdp_config.", "parallelism_config.", "deepspeed_config.")
"""Tables of the file that `accelerate launch` is told to read."""
_SIZES = "parallelism_config_"
"""What names of its degrees begin with."""


def _recipe_of(reading: Reading) -> str:
    """The variable that holds a recipe: that of a function of NeMo, which alone counts GPUs of a node so."""
    held = (each.name.split(".") for each in reading.settings if each.path[1:] == ("num_gpus_per_node",))
    return next((parts[0] for parts in held), "cfg")


def _is_override(reading: Reading, name: str) -> bool:
    """Whether a command is told a name as a word ``name=value``: as the file has it, or else its like.

    Hydra stops at a flag, and a parser of flags at such a word. A name that stands nowhere is told as those
    are that do: with dots as the dotted ones, without as the others.
    """
    written = {each.name: each.is_override for each in reading.settings}
    if name in written:
        return written[name] or reading.family.overrides
    of_fields = reading.family.engine == "megatron-bridge" and "." in name and "=" not in name
    alike = [is_override for each, is_override in written.items() if ("." in each) == ("." in name)]
    return reading.family.overrides or of_fields or (bool(alike) and all(alike))


def _styled(reading: Reading, word: str) -> str:
    """A word as the first file would have it: a flag, a line of TOML, YAML or Python."""
    gone = word.startswith("-")
    name, _, value = word.lstrip("-").partition(" ")
    kind = _kind_of_word(reading, name)
    if kind in _COMMANDS:
        dashes = _kind(reading) == "megatron" and "." not in name and not name.isupper()
        dashes = dashes and not _underscored(reading)
        flag = (
            name
            if name.isupper() or ("." in name and "=" in name)
            else f"--{name.replace('_', '-') if dashes else name}"
        )
        value = shell(value) if re.search(r"[|()*;&<>$]", value) else value
        text = f"{flag} {value}".rstrip() if not name.isupper() else f"{name}={value}"
        if _is_override(reading, name):
            text = f"{name}={value or 'true'}"
    elif kind == "python":
        written = (
            repr(value)
            if value and not re.fullmatch(r"-?[\d.]+|True|False|\[.*\]", value)
            else value or "True"
        )
        text = f"{_recipe_of(reading)}.{name if '.' in name else f'model.{snake_case(name)}'} = {written}"
        if not (
            reading.family.engine or reading.family.recipes
        ):  # an argument of a class, a name of a module
            text = f"{name.rpartition('.')[2]}={_TRUTHS.get(value, written)}"
    else:
        written = value or "true"
        if kind == "toml" and not re.fullmatch(r"-?[\d.]+|true|false|\[.*\]", written):
            written = f'"{written}"'
        text = f"{name} = {written}" if kind == "toml" else f"{name}: {written}"
    return f"{WITHOUT}{text.split(' ')[0].rstrip(':')}" if gone else text
