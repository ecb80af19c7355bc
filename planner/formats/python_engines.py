"""Engines that a Python file builds itself, for requests without a server: what they are told."""

from __future__ import annotations

import ast

from planner.formats.settings import NOT_KNOWN, Setting

_CLASSES = {
    "vllm": ("LLM", "EngineArgs", "AsyncEngineArgs"),
    "sglang": ("Engine", "Runtime", "ServerArgs"),
    "tensorrt_llm": ("LLM",),
}
"""Classes whose keywords are options of an engine, by package."""


def engine_call(text: str) -> tuple[str, tuple[Setting, ...]] | None:
    r"""The package of the first engine that a file builds, and what it is told; None where it builds none.

    >>> found = engine_call('from vllm import LLM\nllm = LLM("a/b", tensor_parallel_size=2, seed=n)')
    >>> [(setting.name, setting.value == 2) for setting in found[1]], found[0]
    ([('model', False), ('tensor_parallel_size', True), ('seed', False)], 'vllm')
    >>> engine_call("import sglang as sgl\nsgl.gen('x')")
    """
    if not any(package in text for package in _CLASSES):
        return None
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = list(ast.walk(module))
    known = _imported(nodes)
    calls = (node for node in nodes if isinstance(node, ast.Call))
    for call in sorted(calls, key=lambda call: call.lineno):
        package = known.get(_dotted(call.func))
        if package is not None:
            return package, _keywords(call)
    return None


def _imported(nodes: list[ast.AST]) -> dict[str, str]:
    """Packages of the classes of engines, by the words that call them."""
    words: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            package = node.module.partition(".")[0]
            classes = _CLASSES.get(package, ())
            words |= {each.asname or each.name: package for each in node.names if each.name in classes}
        elif isinstance(node, ast.Import):
            for each in node.names:
                package = each.name.partition(".")[0]
                words |= {f"{each.asname or each.name}.{name}": package for name in _CLASSES.get(package, ())}
    return words


def _dotted(node: ast.expr) -> str:
    """A name, or one of a module's."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def _keywords(call: ast.Call) -> tuple[Setting, ...]:
    """Keywords of a call but for tables; its first word without one is the model."""
    keywords = [("model", value) for value in call.args[:1]]
    keywords += [
        (keyword.arg, keyword.value)
        for keyword in call.keywords
        if keyword.arg is not None and not isinstance(keyword.value, ast.Call | ast.Dict)
    ]
    return tuple(Setting(name=name, value=_value(value), line=value.lineno) for name, value in keywords)


def _value(node: ast.expr) -> str | int | float | bool | None:
    """A plain value; what is computed is not known."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool):
        return node.value
    return NOT_KNOWN
