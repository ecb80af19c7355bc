"""The script of a bundle that runs a program of the user's own with the plan, and stops it with another."""

from __future__ import annotations

import json

from planner.engines.program import FILE

PLANNED_FILE = "planned.py"
PLANNED = '''\
"""Run a training program with the plan, and with no other: python planned.py PROGRAM [words of its own].

The program takes its quantities from planned.PLAN, or from the environment (PLAN_SEQUENCE_LENGTH and so on),
and the engine's file from planned.CONFIG (PLAN_CONFIG). Before its first step it says what it uses:

    import planned
    planned.check(@KEYWORDS@)

It is stopped where one of them is missing or not the plan's, or at its first step if it has not said.
"""

import json
import os
import runpy
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIG = os.path.join(HERE, "@CONFIG@")
with open(os.path.join(HERE, "program.json"), encoding="utf-8") as file:
    PLAN = json.load(file)
KERNELS = {
    "fused": (
        "fused", "flash_attention", "flash_attention_2", "flash_attention_3", "efficient_attention",
        "cudnn_attention",
    ),
    "unfused": ("unfused", "eager", "math"),
}
checked = False


def check(**used):
    """Stop unless these are all of the plan's quantities, with its values."""
    global checked
    wrong = [
        f"{name}: the plan has {said}, the program {used.get(name, 'says nothing')}"
        for name, said in PLAN.items()
        if used.get(name) not in KERNELS.get(said, (said,))
    ]
    wrong += [f"{name}: no quantity of the plan" for name in used if name not in PLAN]
    if wrong:
        sys.exit("planned: " + "; ".join(wrong))
    checked = True


def require_checked(*_):
    """Stop a program that trains and has not said with what."""
    if not checked:
        sys.exit(f"planned: the program never called planned.check({', '.join(PLAN)})")


def settle():
    """The plan in the environment; a variable that says otherwise stops here."""
    told = {f"PLAN_{name.upper()}": str(said) for name, said in PLAN.items()} | {"PLAN_CONFIG": CONFIG}
    for name, said in told.items():
        if os.environ.get(name, said) != said:
            sys.exit(f"planned: {name} is {os.environ[name]}, the plan has {said}")
    os.environ.update(told)


def watch():
    """Every optimizer of torch asks before it steps; elsewhere the end of the program does."""
    try:
        from torch.optim.optimizer import register_optimizer_step_pre_hook
    except ImportError:
        return
    register_optimizer_step_pre_hook(require_checked)


def main():
    """The program as if python had been called with it."""
    program = os.path.abspath(sys.argv[1])
    sys.argv = [program, *sys.argv[2:]]
    sys.modules["planned"] = sys.modules["__main__"]  # what the program imports is this module
    sys.path.insert(0, os.path.dirname(program))
    settle()
    watch()
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    require_checked()


if __name__ == "__main__":
    main()
'''


def planned_script(config: str, program: str) -> str:
    """The script, for the engine's file of this name and the quantities of a program's file."""
    keywords = ", ".join(f"{name}={value!r}" for name, value in json.loads(program).items())
    return PLANNED.replace("@CONFIG@", config).replace("@KEYWORDS@", keywords)


def program_lines(contract_reads: str, program: str) -> list[str]:
    """What the README says of the program."""
    lines = [
        f"`PROGRAM` is a Python file of yours, run by `{PLANNED_FILE}`; its path is from this folder.",
        "",
    ]
    lines += [f"- It {contract_reads}."]
    lines += [f"- `{name}` = `{value}`" for name, value in json.loads(program).items()]
    lines += [
        "",
        f"It takes these from `planned.PLAN` (`{FILE}`) and says before its first step that it uses them,",
        "`planned.check(...)`; with another value, or without a word of one, it is stopped.",
        "",
    ]
    return lines


__all__ = ["PLANNED_FILE", "planned_script", "program_lines"]
