"""Every command by its name: what it does, the group it is listed in, and its flags.

To add a command: put a function `command` in `app/commands/NAME.py`, one line in `GROUPS`, and examples in
`app.flags.examples`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

DEFAULT_COMMAND: Final = "train"
GROUPS: Final[dict[str, dict[str, str]]] = {
    "Ask": {
        "train": "Plan a training job (the default command).",
        "estimate": "Estimate one given layout.",
        "serve": "Plan a serving fleet for a load and its latency limits.",
        "explain": "Say what binds a plan, why the runner-up lost, what would help.",
        "ladder": "Turn one knob (length, microbatch, rank, GPUs) until memory runs out.",
    },
    "Compare": {
        "sweep": "Plan over GPUs, lengths, batches, models, layouts and precisions.",
        "diff": "Compare two plans.",
        "dash": "Start the what-if dashboard in a browser.",
    },
    "Judge": {
        "audit": "Read a job of another engine, and say what is wrong or slow with it.",
        "diagnose": "Read traces of a step, and say what is off, by how much and why.",
        "watch": "Say how a run stands against its plan: goodput, days left, faults.",
        "verify": "Hold a plan against its own claims, and derive its bound anew.",
    },
    "Run": {
        "run": "Train with a plan, or plan and then train.",
        "export": "Write a plan as another tool's configuration.",
        "validate": "Check a plan: counts, memory and numerics, on this machine.",
        "tokenize": "Write text as token ids that a run reads.",
        "convert": "Write what a run has trained as Hugging Face weights.",
    },
    "Measure": {
        "accuracy": "Predict measured runs, published or your own, and print the errors.",
        "calibrate": "Fit the levels of your own server to what a benchmark client wrote.",
        "bench": "Measure this machine, so that estimates use its own numbers.",
    },
    "Connect": {
        "mcp": "Answer an agent: these questions as tools of the Model Context Protocol.",
    },
    "Look up": {
        "recipes": "Show proven layouts of usual models on usual GPUs.",
        "memory": "Say what a model holds in memory, by parameter, layer and token.",
        "models": "List the models that can be named, or describe one.",
        "gpus": "List GPUs and machines with peaks, memory and prices.",
        "engines": "List engines and presets, or the switches of one.",
        "rule": "Say what a rule, an engine's limit or a bound of the search means.",
        "topology": "Show a cluster's levels and what each axis gets on it.",
    },
}
"""Every command with what it does, by the question that it answers."""
COMMANDS: Final[dict[str, str]] = {name: text for group in GROUPS.values() for name, text in group.items()}
CATALOGS: Final = ("models", "gpus", "engines", "recipes", "rule")  # commands of the wing of that name


def loaded(name: str) -> Callable[..., Any]:
    """Import one command."""
    wing = "app.commands.catalogs" if name in CATALOGS else "app.commands"
    function: Callable[..., Any] = import_module(f"{wing}.{name}").command
    return function


COMPLETION: Final = frozenset({"--install-completion", "--show-completion"})


def chosen_command(words: Sequence[str]) -> str:
    """The command that words ask for; "" for the program's own help, its version, or a word that is none.

    >>> chosen_command(["--model", "70b"]), chosen_command(["serve"]), chosen_command(["70b"])
    ('train', 'serve', '')
    """
    if not words or words[0] in ("--help", "--version", *COMPLETION):
        return ""
    if words[0].startswith("-"):
        return DEFAULT_COMMAND
    return words[0] if words[0] in COMMANDS else ""


def parameters_of(name: str) -> list[Any]:
    """Flags and arguments of a command."""
    parameters: list[Any] = _parser_of(name).params
    return parameters


def known_flags(name: str) -> tuple[str, ...]:
    """Every flag of a command."""
    flags = (flag for parameter in parameters_of(name) for flag in parameter.opts)
    return tuple(flag for flag in flags if flag.startswith("-"))


def given_to(name: str, words: Sequence[str]) -> Mapping[str, Any]:
    """What a command would be called with; it is not called.

    Args:
        name: The command.
        words: Its flags and arguments.

    Raises:
        typer.TyperException: They cannot be read.
    """
    given: Mapping[str, Any] = _parser_of(name).make_context(f"plan {name}", [*words]).params
    return given


@lru_cache(maxsize=4)  # an error asks for a command's flags several times
def _parser_of(name: str) -> Any:
    """What reads a command's words."""
    import typer

    from app.flags.plain import PlainCommand

    program = typer.Typer(add_completion=False)
    program.command(name, cls=PlainCommand)(loaded(name))
    return typer.main.get_command(program)
