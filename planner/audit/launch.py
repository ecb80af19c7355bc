"""Commands as settings: the flags of a launch command, of its launcher and of its scheduler."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from costmodel.models.catalog import exact_model
from planner.audit.facts import fields_recognised, meaning, tables_switched_off
from planner.audit.published import named_config, published_config
from planner.audit.server_flags import server_words, with_model
from planner.audit.words import FAMILIES, MACHINE_WORDS, MEGATRON_WORDS, Family
from planner.formats.settings import NOT_KNOWN, Setting, snake_case, whole_or_none
from planner.formats.shell import UNKNOWN, Script, Started, Text, directives_of, script_of_text
from planner.formats.structured import json_settings
from topology.base.errors import InputError

OPTION_FILES = ("config", "extra_llm_api_options", "extra_engine_args", "config_file")
"""Words of servers that name a file of their options."""
MOST_COMMANDS = 300
"""Of a script; a published one has some fifty."""
LEAST_WORDS = 2
"""Words of an engine that make a command a launch."""
_CLIENTS = (
    "bench", "bench_serving", "sglang.bench_serving", "benchmark_serving.py", "genai-perf", "aiperf",
    "guidellm", "token_benchmark_ray.py",
)  # fmt: skip
"""Words of a command that sends requests to a server."""
_WITHIN = ("throughput", "latency", "sglang.bench_offline_throughput", "sglang.bench_one_batch")
"""Words of a benchmark that starts an engine of its own, and sends it requests without a server."""
_FENCE = re.compile(r"^\s*```+[^\n`]*\n(.*?)^\s*```+", re.MULTILINE | re.DOTALL)
_HYDRA = re.compile(r"[+~]{0,2}[A-Za-z_][\w.\[\]-]*(?:\.[\w\[\]-]+)+=.*|[+~]{0,2}[a-z_]\w*=.+", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(?:=.*)?", re.DOTALL)
_SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-N": "nodes",
}
_SHORT_TRAINING = {
    "-tp": "tensor_model_parallel_size",
    "-pp": "pipeline_model_parallel_size",
    "-cp": "context_parallel_size",
    "-vp": "virtual_pipeline_model_parallel_size",
    "-ep": "expert_model_parallel_size",
    "-et": "expert_tensor_parallel_size",
    "-mb": "micro_batch_size",
    "-gb": "global_batch_size",
    "-ng": "num_gpus",
    "-mr": "model_recipe_name",
    "-g": "gpu",
    "-c": "compute_dtype",
    "-N": "nodes",
}
"""Short flags of the scripts of Megatron-Bridge and NeMo, known by those of the batch and of GPUs."""
_LAUNCHERS = (
    "torchrun", "deepspeed", "accelerate", "mpirun", "srun", "horovodrun", "llamafactory-cli", "axolotl",
    "swift", "tune", "torch.distributed.launch", "torch.distributed.run",
)  # fmt: skip
LAUNCHED: Mapping[str, str] = {
    **MACHINE_WORDS, "num_processes": "said.num_gpus", "num_machines": "said.machines",
}  # fmt: skip
"""What launchers and schedulers say of machines, whatever they start."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a script starts.

    Attributes:
        settings: Of the command, then of the scheduler and of the script's variables.
        family: Whose words they are.
        line: Where the command begins.
        known: How many words were recognised.
        sure: Whether the command is started whatever a run finds.
        others: Lines of other commands that could have been meant.
        components: Those of a heterogeneous job that its step is told to run on.
        flags: Of a server, what its engine itself is told; empty where what starts it is another program.
    """

    settings: tuple[Setting, ...]
    family: Family
    line: int
    known: int
    sure: bool = True
    others: tuple[int, ...] = ()
    components: tuple[int, ...] = ()
    flags: tuple[Setting, ...] = ()


def launch_of(
    text: str, given: Mapping[str, str], beside: Mapping[str, str], line_wanted: int = 0
) -> tuple[Launch | None, Script]:
    """The launch of a script: the command with most known words, else the script's variables.

    The command of a line where one is wanted.
    """
    script = script_of_text(text, given=given, beside=beside)
    commands = _whole_lists(script.started)
    for document in script.documents:
        if re.search(r"--[a-z]", document.text):
            commands.extend(script_of_text(document.text, given=given).started)
    for (
        values
    ) in script.names.values.values():  # a command kept in a variable, or written by ``$(cat << EOF)``
        commands.extend(_kept_command(values, given))
    lines = text.split("\n")
    launches = [launch for command in commands[:MOST_COMMANDS] if (launch := _launch(command, lines))]
    if line_wanted:
        launches = [launch for launch in launches if launch.line == line_wanted]
    if launches:
        best = max(launches, key=lambda launch: (launch.known, launch.sure, -launch.line))
        names = {setting.name for setting in best.settings}
        parts = {  # of its own, kept in a variable
            launch.line
            for launch in launches
            if names.issuperset(setting.name for setting in launch.settings)
        }
        others = tuple(sorted({launch.line for launch in launches} - parts - {best.line}))
        machine = (*_variables(script, machines_only=True), *_visible(script))
        directives = _directives(script, best.components)
        settings = (*best.settings, *_hosts(script, names), *directives, *machine)
        return replace(best, settings=settings, others=others), script
    flags = _flags_in_variables(script, lines)
    variables = [*flags, *_variables(script, machines_only=False)]
    family = _family_of_flags(flags)
    known = fields_recognised(variables, family)
    if known < LEAST_WORDS:
        return None, script
    return Launch((*variables, *_directives(script)), family, 1, known), script


def _family_of_flags(flags: Sequence[Setting]) -> Family:
    """Whose flags a script keeps for another: an engine's where they say more than a model and its sizes."""
    claimed = family_of(flags)
    fields = {meaning(setting, claimed.words) or "" for setting in flags} if claimed else set()
    if claimed is not None and sum(not name.startswith(("model.", "said.")) for name in fields if name) > 1:
        return claimed
    variables = FAMILIES[-1]
    return replace(variables, words={**MEGATRON_WORDS, **variables.words}) if flags else variables


def servers_started(
    text: str, given: Mapping[str, str], beside: Mapping[str, str]
) -> list[tuple[Launch, Started]]:
    """Every server that a script starts, as often as it does, with its command."""
    script, lines = script_of_text(text, given=given, beside=beside), text.split("\n")
    started = ((_launch(command, lines), command) for command in script.started[:MOST_COMMANDS])
    return [(launch, command) for launch, command in started if launch is not None and launch.family.serves]


def machine_settings(script: Script) -> tuple[Setting, ...]:
    """What a script says of how many GPUs it starts, where it hands the job itself to a file.

    Its launchers' flags and the variables before their first word, the scheduler's lines, its own variables.
    """
    settings: list[Setting] = []
    components: tuple[int, ...] = ()
    for command in script.started[:MOST_COMMANDS]:
        if _is_launcher(command):
            every = (*_of_node(command), *_assigned(command))
            settings.extend(setting for setting in every if meaning(setting, LAUNCHED) is not None)
            components = components or command.components
    directives = _directives(script, components)
    return (*settings, *directives, *_variables(script, machines_only=True), *_visible(script))


WITHIN = "engine_within"
"""What is told of a benchmark that starts its engine itself."""


def client_of(text: str, given: Mapping[str, str]) -> dict[str, str] | None:
    """What the first benchmark client of a script is told, by its flags with underscores; None without one.

    >>> client_of("vllm bench serve --model m --request-rate 4 --random-input-len 1000", {})
    {'model': 'm', 'request_rate': '4', 'random_input_len': '1000'}
    """
    for command in script_of_text(text, given=given).started[:MOST_COMMANDS]:
        if _benches(command.words):
            settings = settings_of_words(command.words)
            arguments = {
                setting.path[-1]: str(setting.value) for setting in settings if setting.value != NOT_KNOWN
            }
            return arguments | ({WITHIN: "true"} if _is_engine_within(command.words) else {})
    return None


def _is_client(words: Sequence[Text]) -> bool:
    """Whether a command sends requests instead of serving them."""
    return _benches(words) and not _is_engine_within(words)


def _benches(words: Sequence[Text]) -> bool:
    """Whether a command is a benchmark of requests."""
    names = [word.text.rpartition("/")[2] for word in words[:6]]
    return any(name in _CLIENTS or name in _WITHIN[2:] for name in names)


def _is_engine_within(words: Sequence[Text]) -> bool:
    """Whether a benchmark starts the engine itself: ``vllm bench throughput``, ``sglang.bench_one_batch``."""
    names = [word.text.rpartition("/")[2] for word in words[:6]]
    after = [second for first, second in pairwise(names) if first == "bench"]
    return any(name in _WITHIN for name in (*after, *(name for name in names if name in _WITHIN[2:])))


def _whole_lists(commands: Sequence[Started]) -> list[Started]:
    """Commands; lines of options in a row are one list of arguments."""
    lists: list[Started] = []
    for bare, together in groupby(commands, lambda command: command.words[0].text.startswith("--")):
        row = list(together)
        words = (word for command in row for word in command.words)
        lists.extend([replace(row[0], words=tuple(words))] if bare else row)
    return lists


def fenced_commands(text: str) -> list[tuple[str, int]]:
    """Commands in the fences of a page, with the line on which each begins."""
    return [(match.group(1), text.count("\n", 0, match.start(1)) + 1) for match in _FENCE.finditer(text)]


def launch_of_page(text: str, given: Mapping[str, str], line_wanted: int = 0) -> tuple[Launch | None, Script]:
    """The first launch in the fences of a page, or the first at or after a line."""
    launches: list[tuple[Launch, Script]] = []
    for block, line in fenced_commands(text)[:200]:
        launch, script = launch_of("\n" * (line - 1) + block, given, {})
        wanted = line + block.count("\n") >= line_wanted
        if launch is not None and wanted and launch.family.name != FAMILIES[-1].name:
            launches.append((launch, script))
    if not launches:
        return None, Script()
    first, script = launches[0]
    others = tuple(launch.line for launch, _ in launches[1:])
    return Launch(first.settings, first.family, first.line, first.known, first.sure, others), script


def _kept_command(values: Sequence[Text], given: Mapping[str, str]) -> list[Started]:
    """Commands in the text of a variable."""
    if len(values) != 1 or "\n" not in values[0].text or not re.search(r"\s--[a-z]", values[0].text):
        return []
    return script_of_text("\n" * (values[0].line - 1) + values[0].text, given=given).started


def _launch(command: Started, lines: Sequence[str]) -> Launch | None:
    """A command as a launch, if an engine knows its words."""
    if _is_client(command.words):
        return None
    programs = _programs(command)
    recipe = (*_recipe_of_torchtune(command, programs), *_recipe_of_litgpt(command), *_trainer_of(command))
    settings = (*_of_node(command, lines), *recipe)
    family = family_of((*settings, *_assigned(command)), programs)
    if family is None:
        return None
    words = server_words(command.words) if family.serves else None
    flags: tuple[Setting, ...] = ()
    if words is not None:
        settings = with_model(family.name, settings, words)
        flags = with_model(family.name, settings_of_words(words, lines), words)
    known = fields_recognised(settings, family)
    if words is not None and any(setting.path[-1] in OPTION_FILES for setting in flags):
        known = max(known, 1)
    settings = (*settings, *_assigned(command))
    launch = Launch(
        settings, family, command.line, known, command.sure, components=command.components, flags=flags
    )
    if published_config(named_config(settings, family.name), family.name):
        return replace(launch, known=max(known, LEAST_WORDS))
    enough = LEAST_WORDS if not family.serves else 1
    names_options = family.serves and any(setting.name in _OPTION_FLAGS for setting in settings)
    return None if known < enough and not (known and _is_launcher(command)) and not names_options else launch


_OPTION_FLAGS = ("config", "extra_llm_api_options", "extra_engine_args")
"""Flags of servers by which a file says all that their command does not."""


def _recipe_of_torchtune(command: Started, programs: Sequence[str]) -> Iterator[Setting]:
    """The recipe that ``tune run`` starts, and whether it is of a single GPU: its file says neither."""
    if [program.rpartition("/")[2] for program in programs[:2]] != ["tune", "run"]:
        return
    recipe = next((program for program in programs[2:] if RECIPE.search(program)), "")
    if recipe:
        line = command.line
        yield Setting(name="tune.recipe", value=recipe.removesuffix(".py").rpartition("/")[2], line=line)
        if "single_device" in recipe:
            yield Setting(name="tune.num_gpus", value=1, line=line, how=f"the recipe {recipe}")


_OF_PREFERENCES = ("dpo", "grpo", "ppo", "kto", "rloo", "gkd", "orpo", "cpo", "simpo", "xpo", "rlhf")
"""Methods that train on preferences or on generated answers, as programs have them in their names."""


def _trainer_of(command: Started) -> Iterator[Setting]:
    """The method that a script's name or a command of TRL tells: ``trl/scripts/dpo.py``, ``trl grpo``."""
    words = [text.text for text in command.words]
    for at, word in enumerate(words):
        if at and words[at - 1] == "-m" and re.fullmatch(r"[\w.]+", word):  # a module: trl.scripts.sft
            words[at] = f"{word.replace('.', '/')}.py"
    for word, after in zip(words, (*words[1:], ""), strict=True):
        name = word.rpartition("/")[2]
        stem = name.removesuffix(".py") if name.endswith(".py") else after if name == "trl" else ""
        method = next((part for part in re.split(r"[_.-]", stem.lower()) if part in _OF_PREFERENCES), "")
        if method:
            yield Setting(name="started.method", value=method, line=command.line)
        of_trl = name == "trl" or word.endswith((f"trl/scripts/{name}", f"trl/examples/scripts/{name}"))
        if of_trl and (stem == "sft" or method):
            yield Setting(
                name="started.arguments", value=f"{(method or stem).upper()}Config", line=command.line
            )
        elif name in _OF_TRANSFORMERS:
            yield Setting(name="started.arguments", value="TrainingArguments", line=command.line)
        if method or of_trl:
            return


_OF_TRANSFORMERS = ("run_clm.py", "run_mlm.py", "run_plm.py", "run_fim.py")
"""Programs that read `TrainingArguments` (transformers, examples/pytorch/language-modeling)."""


def _recipe_of_litgpt(command: Started) -> Iterator[Setting]:
    """The recipe that ``litgpt`` starts, and the model that its next word may name: litgpt/__main__.py."""
    words = [text.text for text in command.words]
    if not words or words[0].rpartition("/")[2] != "litgpt" or len(words) < 2:
        return
    recipe, rest = words[1], words[2:]
    if recipe == "finetune":  # of releases before July 2024 with the recipe behind it, of later ones LoRA's
        old = bool(rest) and rest[0] in ("full", "lora", "adapter", "adapter_v2")
        recipe, rest = (f"finetune_{rest[0]}", rest[1:]) if old else ("finetune_lora", rest)
    yield Setting(name="litgpt.recipe", value=recipe, line=command.line)
    if rest and not rest[0].startswith("-") and UNKNOWN not in rest[0]:
        yield Setting(name="litgpt.checkpoint_dir", value=rest[0], line=command.line)


RECIPE = re.compile(r"_(?:single_device|distributed)\b|finetune|dpo")
"""A recipe of torchtune (torchtune/_recipe_registry.py, release 0.6.1)."""


def _programs(command: Started) -> list[str]:
    """The first words of a command that are no options."""
    return [text.text for text in command.words if not text.text.startswith("-")][:12]


def _of_node(command: Started, lines: Sequence[str] = ()) -> tuple[Setting, ...]:
    """Flags of a command; those with which DeepSpeed counts GPUs are of a node, or of hosts that it lists."""
    settings = (*settings_of_words(command.words, lines), *_ranks_of_mpi(command))
    if submitted := tuple(_of_submitter(command)):
        mine = {setting.name for setting in submitted} | {
            "gpus",
            "num_nodes",
            "num_processes",
            "num_machines",
        }
        settings = (*(setting for setting in settings if setting.name not in mine), *submitted)
    if not any(program.rpartition("/")[2] == "deepspeed" for program in _programs(command)[:4]):
        return settings
    renamed = (
        replace(setting, name="num_gpus_per_node") if setting.name == "num_gpus" else setting
        for setting in settings
    )
    return tuple(setting for flag in renamed for setting in (flag, *_included(flag)))


def _of_submitter(command: Started) -> Iterator[Setting]:
    """Nodes and GPUs of each that a submitting script asks for before a ``--`` with a launcher behind it.

    As AI2's mason.py: ``python mason.py --num_nodes 4 --gpus 8 -- accelerate launch …``.
    """
    words = [text.text for text in command.words]
    end = words.index("--") if "--" in words else len(words)
    if not any(word.rpartition("/")[2] in _LAUNCHERS for word in words[end:]):
        return
    asked = {snake_case(setting.name): setting for setting in settings_of_words(command.words[:end])}
    nodes, gpus = ("num_nodes", "nnodes", "nodes"), ("gpus", "num_gpus")
    for names, name in ((nodes, "nnodes"), (gpus, "gpus_per_node")):
        option = next((asked[word] for word in names if word in asked), None)
        if option is not None and (count := whole_or_none(option.value)):
            how = f"{option.name} of the submitting script"
            yield Setting(name=name, value=count, line=option.line, how=how)


_MPI = ("mpirun", "mpiexec", "orterun")
_OF_EVERY_NODE = ("torchrun", "deepspeed", "accelerate", "torch.distributed.run", "torch.distributed.launch")
"""Launchers that start a process for each GPU themselves, where MPI starts one a node."""


def _ranks_of_mpi(command: Started) -> Iterator[Setting]:
    """Processes that ``mpirun -np`` starts: one a GPU, or one a node where another launcher stands behind."""
    words = [text.text for text in command.words]
    if not words or words[0].rpartition("/")[2] not in _MPI:
        return
    behind = any(word.rpartition("/")[2] in _OF_EVERY_NODE for word in words)
    for flag, count in pairwise(words):
        if flag in ("-np", "--np", "-n") and count.isdecimal() and len(count) < 8:
            yield Setting(name="nnodes" if behind else "num_gpus", value=int(count), line=command.line)
            return


def _included(setting: Setting) -> Iterator[Setting]:
    """GPUs that ``--include`` names by host: ``localhost:0,1,2@other:0,1``."""
    hosts = str(setting.value).split("@") if setting.name in ("include", "i") else []
    gpus = [host.partition(":")[2].split(",") for host in hosts if ":" in host]
    if gpus and len(gpus) == len(hosts):
        yield replace(setting, name="num_gpus", value=sum(map(len, gpus)))


def _assigned(command: Started) -> list[Setting]:
    """Variables that are set before the first word of a command, with the GPUs that it is shown."""
    settings = [
        Setting(name=name, value=text.text, line=text.line)
        for name, text in command.assigned.items()
        if text.known
    ]
    shown = command.assigned.get(VISIBLE)
    if shown is not None and shown.known and (_takes_all(command) or _count(shown) == 1):
        settings.append(_count_of_visible(shown))
    return settings


VISIBLE = "CUDA_VISIBLE_DEVICES"
_TAKE_ALL = ("llamafactory-cli", "axolotl", "accelerate", "deepspeed")
"""Launchers that start a process on every GPU that they are shown, where no word counts them."""


def _takes_all(command: Started) -> bool:
    """Whether a command starts a process on every GPU that it sees."""
    return any(program.rpartition("/")[2] in _TAKE_ALL for program in _programs(command)[:4])


def _count_of_visible(shown: Text) -> Setting:
    """How many GPUs a list of them has."""
    how = f"{VISIBLE} {shown.text}"
    return Setting(name="visible_gpus", value=_count(shown) or NOT_KNOWN, line=shown.line, how=how)


def _count(shown: Text) -> int:
    """GPUs of a list; one that is shown alone is all that a job has, whatever starts it."""
    return len([part for part in shown.text.strip("'\"").split(",") if part.strip()])


def _visible(script: Script) -> list[Setting]:
    """GPUs that a script shows to all that it starts, if a command of it takes them all."""
    values = script.names.values.get(VISIBLE, ())
    if len(values) != 1 or not values[0].known:
        return []
    if _count(values[0]) != 1 and not any(map(_takes_all, script.started)):
        return []
    return [_count_of_visible(values[0])]


def _flags_in_variables(script: Script, lines: Sequence[str]) -> list[Setting]:
    """Flags that a script keeps in variables for another script to use."""
    settings: list[Setting] = []
    for values in script.names.values.values():
        words = [Text(part, value.line) for value in values for part in value.text.split()]
        if any(word.text.startswith("--") for word in words):
            settings.extend(
                setting for setting in settings_of_words(words, lines) if setting.value != NOT_KNOWN
            )
    return settings


def _is_launcher(command: Started) -> bool:
    """Whether a command's first words name a launcher."""
    return any(text.text.rpartition("/")[2] in _LAUNCHERS for text in command.words[:4])


def flags_of_release(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """Flags that values of a release hand to its server, under keys that end in ``args``.

    >>> extra = Setting(name="vllmConfig.extraArgs", value="--enforce-eager --tensor-parallel-size 4", line=9)
    >>> [(flag.name, flag.value, flag.line) for flag in flags_of_release([extra])]
    [('enforce-eager', True, 9), ('tensor-parallel-size', '4', 9)]
    """
    flags: list[Setting] = []
    before = ""
    for setting in settings:
        text = setting.value if isinstance(setting.value, str) else ""
        is_rest = setting.path[-1].rpartition("_")[2] in _REST_OF_COMMAND or before in _VARIABLES_OF_FLAGS
        before = text if setting.path[-2:] == ("env", "name") else ""
        if is_rest and _is_option(text.strip()):
            with contextlib.suppress(ValueError):  # a quote that nothing closes
                words = [Text(word, setting.line) for word in shlex.split(text)]
                flags.extend(settings_of_words(words))
    return tuple(flags)


_REST_OF_COMMAND = ("args", "arguments")
_VARIABLES_OF_FLAGS = ("VLLM_ADDITIONAL_ARGS",)
"""Variables of containers whose value is the rest of a command (KServe's LLMInferenceService)."""


UNTOLD = "words that only a run knows"
"""The name of what a command is told beside its settings; more flags could be there."""


def settings_of_words(words: Sequence[Text], lines: Sequence[str] = ()) -> tuple[Setting, ...]:
    """Flags of a command as settings; a value that only a run knows is left out.

    >>> words = [Text(word, 1) for word in ("run", "--tp-size=4", "--bf16", "--seq", "1", "a.b=2")]
    >>> [(setting.name, setting.value) for setting in settings_of_words(words)]
    [('tp-size', '4'), ('bf16', True), ('seq', '1'), ('a.b', '2')]
    """
    settings: list[Setting] = []
    at = 0
    short = _SHORT_TRAINING if {"-mb", "-gb", "-ng"} & {word.text for word in words} else _SHORT
    while at < len(words):
        text, line = words[at].text, words[at].line
        at += 1
        name, equals, value = text.partition("=")
        if text == "--set":  # of TensorRT-LLM and helm: the override behind it speaks for itself
            continue
        if _OPTION.fullmatch(text) and name.strip("-"):
            values = [value] if equals else []
            flag, _, more = name.partition(" ")
            if more and not equals:  # one word of an array that holds a flag and its value
                name, values = flag, [more.strip()]
            while not equals and at < len(words) and not _begins_setting(words[at].text, values, name):
                if _takes_model(words[at].text, words[at + 1 :]):
                    break
                values.append(words[at].text)
                at += 1
            settings.extend(_setting(short.get(name, name.lstrip("-")), values, _line(name, line, lines)))
            if UNKNOWN in values[1:]:
                settings.append(Setting(name=UNTOLD, value=NOT_KNOWN, line=line))
        elif text == UNKNOWN:
            settings.append(Setting(name=UNTOLD, value=NOT_KNOWN, line=line))
        elif " " in text and text.startswith("--"):
            settings.extend(settings_of_words([Text(part, line) for part in text.split()], lines))
        elif _HYDRA.fullmatch(text) and not text.startswith("/"):
            settings.extend(
                replace(each, is_override=True) for each in _setting(name.lstrip("+~"), [value], line)
            )
        elif _takes_model(text, words[at:]):
            settings.extend(_setting("serve", [words[at].text], line))
    last = {setting.name: setting for setting in settings}  # of a flag given twice the last counts
    return tuple(each for setting in last.values() for each in (setting, *_inside(setting)))


def _inside(setting: Setting) -> Iterator[Setting]:
    """The settings of a table that a flag is told as JSON, as the Trainer takes DeepSpeed's configuration."""
    text = setting.value if isinstance(setting.value, str) else ""
    if text[:1] == "{" and text[-1:] == "}" and len(text) <= LONGEST_TABLE:
        with contextlib.suppress(InputError):
            for each in json_settings(text, setting.name)[0]:
                yield replace(each, name=f"{setting.name}.{each.name}", line=setting.line)


LONGEST_TABLE = 10_000
"""Characters of a table behind a flag."""


def _takes_model(text: str, rest: Sequence[Text]) -> bool:
    """Whether the word after this one is the model that a server is started with."""
    serves = text.rpartition("/")[2] in ("serve", "trtllm-serve") and bool(rest)
    return serves and rest[0].text not in ("serve", "disaggregated") and not rest[0].text.startswith("-")


def _begins_setting(text: str, values: Sequence[str], name: str) -> bool:
    """Whether a word begins another setting: a flag, or behind a value an override ``name=value``."""
    override = bool(values) and bool(re.match(r"[a-z_]\w*=.", text)) and "=" not in values[0]
    return _is_option(text) or override or (bool(values) and name == "-m")


def _is_option(text: str) -> bool:
    """Whether a word begins another setting."""
    return bool(re.match(r"--?[A-Za-z]", text)) or bool(re.match(r"[+~]{0,2}[A-Za-z_]\w*\.[\w.\[\]]+=", text))


def _setting(name: str, values: list[str], line: int) -> list[Setting]:
    """One setting, if its value is known."""
    if UNKNOWN in name:
        return []
    if any(UNKNOWN in value for value in values[:1]):
        return [Setting(name=name, value=_model_beneath(values[0]) or NOT_KNOWN, line=line)]
    value = values[0].strip("'\"") if values else True
    more = tuple(word.strip("'\"") for word in values[1:] if UNKNOWN not in word)
    return [Setting(name=name, value=value, line=line, more=more)]


def _model_beneath(path: str) -> str:
    """The model whose name ends a path that begins with what only a run knows; else "".

    >>> _model_beneath(f"{UNKNOWN}/Qwen3-8B"), _model_beneath(f"{UNKNOWN}/final")
    ('Qwen3-8B', '')
    """
    folder, slash, name = path.strip("'\"").rstrip("/").rpartition("/")
    known = bool(slash) and folder.startswith(UNKNOWN) and UNKNOWN not in name
    return name if known and exact_model(name) is not None else ""


def _line(flag: str, line: int, lines: Sequence[str]) -> int:
    """The line on which a flag stands, at or after the one on which its command or variable begins."""
    for number in range(max(line, 1), min(len(lines), line + 120) + 1):
        written = lines[number - 1]
        if flag in written and not written.lstrip().startswith("#"):
            return number
    return line


_OF_SLURM: Mapping[str, str] = {"-N": "nodes", "-n": "ntasks", "-G": "num_gpus", "--gpus": "num_gpus"}
"""Options of sbatch that have another name here: ``--gpus`` are those of the whole job."""


_HOST = re.compile(r"^[ \t]*[\w.-]+[ \t]+slots=(\d{1,3})[ \t]*$", re.MULTILINE)


def _hosts(script: Script, names: Collection[str]) -> tuple[Setting, ...]:
    """Nodes and GPUs of each, by a list of hosts that the script writes and its launcher is told to read."""
    counted = {snake_case(name) for name in names} & {"num_gpus", "nnodes", "num_nodes", "np"}
    if counted or not {"hostfile", "machinefile"} & {snake_case(name) for name in names}:
        return ()
    for document in script.documents:
        slots = _HOST.findall(document.text)
        if slots and len({*slots}) == 1:
            line = document.line
            how = f"{len(slots)} hosts of {slots[0]} slots"
            return (
                Setting(name="nnodes", value=len(slots), line=line, how=how),
                Setting(name="gpus_per_node", value=int(slots[0]), line=line, how=how),
            )
    return ()


def _directives(script: Script, components: Sequence[int] = ()) -> list[Setting]:
    """What the scheduler is told, of the components that a step is told to run on."""
    return [
        Setting(
            name=_OF_SLURM.get(name, name.lstrip("-")),
            value=text.text,
            line=text.line,
        )
        for name, text in directives_of(script, components).items()
        if text.text
    ]


def _variables(script: Script, *, machines_only: bool) -> list[Setting]:
    """A script's own variables as settings."""
    settings: list[Setting] = []
    for name, values in script.names.values.items():
        if len(values) != 1 or not values[0].known or values[0].line == 0:
            continue
        how = f"the variable {name}" + (
            ", which nothing sets otherwise" if name in script.names.defaults else ""
        )
        settings.append(Setting(name=name, value=values[0].text, line=values[0].line, how=how))
    return [setting for setting in settings if not machines_only or is_machine(setting)]


def is_machine(setting: Setting) -> bool:
    """Whether a variable says how many GPUs there are."""
    return setting.path[-1] in (
        "nnodes",
        "num_nodes",
        "nodes",
        "gpus_per_node",
        "num_gpus_per_node",
        "num_gpus",
        "nproc_per_node",
        "ngpu",
        "tf_config",
    )


def family_of(settings: Iterable[Setting], programs: Sequence[str] = ()) -> Family | None:
    """The family whose marks some settings have; programs are words of the command.

    Words of a table that is switched off mark none, unless nothing else does.
    """
    given = tuple(settings)
    off = tables_switched_off(given)
    on = [setting for setting in given if not any(setting.path[: len(table)] == table for table in off)]
    return _family_of(on, programs) or (_family_of(given, programs) if off else None)


def _family_of(settings: Iterable[Setting], programs: Sequence[str]) -> Family | None:
    """The first family whose marks some settings have."""
    paths = [".".join(setting.path) for setting in settings]
    text = " ".join(programs)
    for family in FAMILIES:
        if family.programs and any(program in text for program in family.programs):
            if family.serves or not family.marks or any(_marked(path, family.marks) for path in paths):
                return family
        elif (not family.programs and any(_marked(path, family.marks) for path in paths)) or (
            family.serves and family.marks and any(_marked(path, family.marks) for path in paths)
        ):
            return family
    return None


def _marked(path: str, marks: Sequence[str]) -> bool:
    return any(path == mark or path.endswith(f".{mark}") for mark in marks)
