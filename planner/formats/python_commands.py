"""Commands that a Python file holds as texts or lists of words, to start them elsewhere; nothing is run."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from planner.formats.shell import UNKNOWN

MOST_COMMANDS = 100
LONGEST = 20_000
"""Characters of a command."""
_LAUNCHER = (
    r"(?:torchrun|deepspeed|accelerate|srun|mpirun|axolotl|tune|swift|megatron|llamafactory-cli|python3?|bash"
    r"|uv|trl|litgpt|vllm|trtllm-serve)"
)
_STARTS = re.compile(rf"(?:^|[\s;&/'\"]){_LAUNCHER}\s")
_FLAG = re.compile(r"\s(?:--?[a-zA-Z]|[\w.]+=)")
_FIRST = re.compile(rf"(?:\S*/)?{_LAUNCHER}")
_PARTS = ("command", "args", "arguments")


def commands_of_python(text: str) -> str:
    r"""The commands of a file, each on the line on which it stands; empty where there is none, or no Python.

    >>> commands_of_python('N = 4\nrun(f"torchrun --nproc_per_node={N} a.py --tp 2")')
    '\ntorchrun --nproc_per_node=4 a.py --tp 2'
    >>> commands_of_python('pool(command=["torchrun"], args=["a.py", "--tp=2"])')
    'torchrun a.py --tp=2'
    >>> commands_of_python('c = ["vllm", "serve", "a/b"]\nc += ["-tp", str(2)]')
    'vllm serve a/b -tp 2'
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    values = {
        node.targets[0].id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    result = ""
    for line, command in sorted({*itertools.islice(_commands(module, values), MOST_COMMANDS)}):
        begins = "\n" * max(1 if result else 0, line - 1 - result.count("\n"))
        result += begins + command[:LONGEST]
    return result


def _commands(module: ast.Module, values: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Texts that begin as commands do, and lists whose words are one."""
    nodes = list(ast.walk(module))
    documents = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    documents |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    longer = _continued(nodes)
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in documents:
            text = _text(node, values)
            if text is not None and (starts := _STARTS.search(text)) and _FLAG.search(text, starts.end() - 1):
                yield node.lineno, " ".join(text.split("\n")) if "\\\n" not in text else text
        elif isinstance(node, ast.List | ast.Tuple):
            more = longer.get(id(node), ())
            yield from _of_words(
                node.lineno, [*_words(node, values), *(w for m in more for w in _words(m, values))]
            )
        elif isinstance(node, ast.Call | ast.Dict):
            yield from _of_parts(node, values)


def _continued(nodes: Sequence[ast.AST]) -> dict[int, list[ast.List | ast.Tuple]]:
    """Lists that go on another in the same block of statements (``cmd += […]``), by that other."""
    longer: dict[int, list[ast.List | ast.Tuple]] = {}
    bodies = (block for node in nodes if isinstance(block := getattr(node, "body", None), list))
    for body in bodies:
        begun: dict[str, int] = {}
        for step in body:
            if isinstance(step, ast.Assign) and isinstance(step.targets[0], ast.Name):
                begun.pop(step.targets[0].id, None)
                if isinstance(step.value, ast.List):
                    begun[step.targets[0].id] = id(step.value)
            name, more = _appended(step)
            if name in begun and more is not None:
                longer.setdefault(begun[name], []).append(more)
    return longer


def _appended(step: ast.AST) -> tuple[str, ast.List | ast.Tuple | None]:
    """The name of a list that a statement makes longer, and by what."""
    if isinstance(step, ast.AugAssign) and isinstance(step.target, ast.Name):
        return step.target.id, step.value if isinstance(step.value, ast.List | ast.Tuple) else None
    call = step.value if isinstance(step, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(call.args) == 1:
        owner, given = call.func.value, call.args[0]
        if (
            isinstance(owner, ast.Name)
            and call.func.attr == "extend"
            and isinstance(given, ast.List | ast.Tuple)
        ):
            return owner.id, given
        if isinstance(owner, ast.Name) and call.func.attr == "append":
            return owner.id, ast.List(elts=[given])
    return "", None


def _of_parts(node: ast.Call | ast.Dict, values: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """The words of a command and of its arguments, which are told apart."""
    pairs: list[tuple[object, ast.expr]] = (
        [(keyword.arg, keyword.value) for keyword in node.keywords]
        if isinstance(node, ast.Call)
        else [
            (key.value, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
    )
    lists = [value for name, value in pairs if name in _PARTS and isinstance(value, ast.List | ast.Tuple)]
    if len(lists) > 1:
        yield from _of_words(node.lineno, [word for part in lists for word in _words(part, values)])


def _of_words(line: int, words: list[str]) -> Iterator[tuple[int, str]]:
    """Words as a command, if the first of them starts one."""
    if len(words) > 1 and _FIRST.fullmatch(words[0]):
        yield line, " ".join(word if UNKNOWN in word else shlex.quote(word) for word in words)


def _words(node: ast.List | ast.Tuple, values: Mapping[str, object]) -> list[str]:
    """Texts of a list; what is computed is not known."""
    return [UNKNOWN if (text := _text(part, values)) is None else text for part in node.elts]


def _text(node: ast.expr, values: Mapping[str, object]) -> str | None:
    """A text, with the values of the names in it; None where a node is none."""
    if isinstance(node, ast.Constant):
        return (
            node.value
            if isinstance(node.value, str)
            else str(node.value)
            if type(node.value) is int
            else None
        )
    if isinstance(node, ast.Name) and node.id in values:
        return str(values[node.id])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return _text(node.args[0], values) if len(node.args) == 1 and not node.keywords else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = [
        part.value if isinstance(part, ast.Constant) else _text(part.value, values)
        for part in node.values
        if isinstance(part, ast.Constant | ast.FormattedValue)
    ]
    return "".join(UNKNOWN if part is None else str(part) for part in parts)
