"""Python configurations as settings, from their syntax alone: nothing is imported or run.

Read are assignments of plain values to attributes (``cfg.model.tp = 8``) and keyword arguments of nested
calls (``Config(training=TrainingConfig(seq_len=4096))``), function by function; a function that calls another
one of the file has its settings too. A name that is given a value once in the file, outside of any branch, is
that value; what a branch or a loop sets is not known. A member of an enumeration (``Mode.full``) is its name,
and a class that builds itself under a name (``ModelConfig.small_7B(…)``) is one setting called as the class.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any

from planner.formats.settings import MOST_SETTINGS, NOT_KNOWN, Scalar, Setting
from topology.base.errors import InputError, shortened

MOST_CHARACTERS = 400_000
MOST_NESTED = 60
MOST_PRODUCT = 10**30
MOST_STATEMENTS = 20_000
_WITH = re.compile(r"(?:^|[._])with_(\w+)$")
"""A function that wraps a recipe to change one setting: ``with_global_batch_size(recipe(), 4096)``."""
_CLASS = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
"""A name of a class, as Python's style has them."""
_SWITCHED_ON = ("gradient_checkpointing_enable",)
"""Methods of a model that switch something on (transformers/modeling_utils.py)."""
_TORCH = re.compile(r"torch\.(bfloat16|float16|half|float32|float)")
"""A format of torch."""
CLASS = "__class__"
"""The last part of the setting that says of which class a table is: ``peft = LoraConfig(r=8)``."""
_GPUS = re.compile(r"(?:^|_)(\d{1,6})x?_?gpus?(?:_|$)")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of one function, or of the module (empty name)."""

    name: str
    settings: tuple[Setting, ...]
    line: int


class _Functions(dict[str, ast.FunctionDef]):
    """The functions of a file, and how many more statements may be read: a call reads its function again."""

    left = MOST_STATEMENTS
    calls: Mapping[str, ast.Call] = {}
    """What a name of the file holds that is given a call once."""


def recipes_of(text: str, where: str) -> list[Recipe]:
    """Every function of a file that sets something, in order; then the module itself."""
    if len(text) > MOST_CHARACTERS or _deepest(text) > MOST_NESTED * 3:
        raise InputError(
            f"{where} is not a configuration", "it is too long or nested too deeply", "name another file"
        )
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        cause = shortened(str(error), 200)
        raise InputError(f"{where} is not valid Python", cause, "correct the syntax at that place") from None
    _fill_constants(module)
    functions = _Functions(
        {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    )
    recipes = [
        Recipe(name, tuple(_of_function(node, functions, 0)), node.lineno) for name, node in functions.items()
    ]
    functions.calls = _calls_by_name(module)
    lengths = _tokenized(module)
    top = tuple(_last(setting for node in module.body for setting in _statement(node, functions, 0)))
    every = (recipe for recipe in (*recipes, Recipe("", top, 1)) if recipe.settings)
    return [replace(recipe, settings=(*recipe.settings, *lengths)) for recipe in every]


def _calls_by_name(module: ast.Module) -> dict[str, ast.Call]:
    """Calls of classes that a module keeps under a name: ``scaling = ScalingConfig(num_workers=24)``."""
    stored = Counter(node.id for node in ast.walk(module) if isinstance(node, ast.Name) and _stored(node))
    return {
        item.targets[0].id: item.value
        for item in module.body
        if isinstance(item, ast.Assign)
        and isinstance(item.targets[0], ast.Name)
        and isinstance(item.value, ast.Call)
        and stored[item.targets[0].id] == 1
        and _class_of(item.value)
    }


def _tokenized(module: ast.Module) -> tuple[Setting, ...]:
    """The length to which a tokenizer cuts samples, where all its calls with ``truncation`` have the same."""
    lengths = {
        plain: keyword.value.lineno
        for call in ast.walk(module)
        if isinstance(call, ast.Call) and any(keyword.arg == "truncation" for keyword in call.keywords)
        for keyword in call.keywords
        if keyword.arg == "max_length" and type(plain := _plain(keyword.value)) is int
    }
    return tuple(
        Setting(name="tokenized_length", value=length, line=line, how="what its tokenizer cuts samples to")
        for length, line in lengths.items()
        if len(lengths) == 1
    )


def _last(settings: Iterable[Setting]) -> list[Setting]:
    """What is set again holds as set last."""
    return list({setting.name: setting for setting in settings}.values())


def _fill_constants(module: ast.Module) -> None:
    """Put values in place of the names that have one."""
    nodes = list(ast.walk(module))
    stored = Counter(node.id for node in nodes if isinstance(node, ast.Name) and _stored(node))
    stored.update(node.arg for node in nodes if isinstance(node, ast.arg))
    values: dict[str, ast.Constant] = {}
    for body in (module.body, *(node.body for node in nodes if isinstance(node, ast.FunctionDef))):
        for item in body:
            if not isinstance(item, ast.Assign | ast.AnnAssign) or item.value is None:
                continue
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            if len(targets) == 1 and isinstance(name := targets[0], ast.Name) and stored[name.id] == 1:
                plain = _plain(item.value)
                if isinstance(plain, str | int | float):
                    values[name.id] = ast.Constant(plain, lineno=item.lineno, col_offset=0)
    for node in nodes:
        for field, part in ast.iter_fields(node):
            if isinstance(part, ast.Name) and not _stored(part) and part.id in values:
                setattr(node, field, values[part.id])
            elif isinstance(part, list):  # arguments of a call, parts of a list
                part[:] = [values.get(_loaded(each), each) for each in part]
    _fill_handed(nodes)


def _fill_handed(nodes: list[ast.AST]) -> None:
    """Put values in place of attributes of an argument that are called as one keyword of the file."""
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    keywords: dict[str, list[ast.Constant]] = {}
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg is not None:
            plain = _plain(node.value)
            if type(plain) is int:
                handed = ast.Constant(plain, lineno=node.value.lineno, col_offset=0)
                keywords.setdefault(node.arg, []).append(handed)
    values = {
        name: given[0] for name, given in keywords.items() if len({constant.value for constant in given}) == 1
    }
    for node in nodes:
        for field, part in ast.iter_fields(node):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                handed_over = part.value.id in arguments and isinstance(part.ctx, ast.Load)
                if handed_over and part.attr in values:
                    setattr(node, field, values[part.attr])


def _loaded(node: object) -> str:
    """The name that a node reads; empty where it is anything else."""
    return node.id if isinstance(node, ast.Name) and not _stored(node) else ""


def _stored(node: ast.Name) -> bool:
    """Whether a name is given something, or taken away."""
    return not isinstance(node.ctx, ast.Load)


def _deepest(text: str) -> int:
    """Brackets open at once, at most: a parser in C recurses as deep."""
    depth = most = 0
    for char in text:
        if char in "([{":
            depth += 1
            most = max(most, depth)
        elif char in ")]}":
            depth -= 1
    return most


def _of_function(node: ast.FunctionDef, functions: _Functions, depth: int) -> list[Setting]:
    """Settings of a function; the number of GPUs in its name is one."""
    settings: list[Setting] = _defaults(node)
    for statement in node.body:
        functions.left -= 1
        if functions.left < 0:
            break
        settings.extend(_statement(statement, functions, depth))
        if len(settings) > MOST_SETTINGS:
            break
    settings = _last(settings)
    gpus = _GPUS.search(node.name)
    if gpus and settings:
        how = "from the name of the function"
        settings.insert(0, Setting(name="num_gpus", value=int(gpus.group(1)), line=node.lineno, how=how))
    return settings


def _defaults(node: ast.FunctionDef) -> list[Setting]:
    """Arguments with a default."""
    arguments = [*node.args.args[len(node.args.args) - len(node.args.defaults) :], *node.args.kwonlyargs]
    values = [*node.args.defaults, *node.args.kw_defaults]
    settings: list[Setting] = []
    for argument, value in zip(arguments, values, strict=True):
        plain = ... if value is None else _plain(value)
        if not isinstance(plain, EllipsisType):
            settings.append(
                Setting(name=argument.arg, value=plain, line=argument.lineno, how="an argument's default")
            )
    return settings


def _statement(node: ast.stmt, functions: _Functions, depth: int) -> list[Setting]:
    """Settings of one statement."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return _assigned(node.targets[0], node.value, functions, depth)
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return _assigned(node.target, node.value, functions, depth)
    if isinstance(node, ast.Return | ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        if isinstance(called, ast.Attribute) and called.attr in _SWITCHED_ON:
            return [Setting(name=called.attr, value=True, line=node.lineno)]
        return _call(node.value, "", functions, depth)
    if isinstance(node, ast.With) or (isinstance(node, ast.If) and _is_main(node)):
        return _block(node.body, functions, depth)
    if isinstance(node, ast.Try):
        body = _block((*node.body, *node.orelse, *node.finalbody), functions, depth)
        handled = [statement for part in node.handlers for statement in part.body]
        return [*body, *_untold(handled, node, functions, depth)]
    if isinstance(node, ast.If | ast.For | ast.While):
        return _untold((*node.body, *node.orelse), node, functions, depth)
    return []


def _untold(body: Iterable[ast.stmt], node: ast.stmt, functions: _Functions, depth: int) -> list[Setting]:
    """Settings that hold only where a run comes past them."""
    how = f"line {node.lineno}: only a run knows whether its branch or loop sets "
    inside = _block(body, functions, depth)
    return [
        replace(setting, value=NOT_KNOWN, how=setting.how or f"{how}{setting.name}") for setting in inside
    ]


def _block(body: Iterable[ast.stmt], functions: _Functions, depth: int) -> list[Setting]:
    """Settings of statements inside another."""
    settings: list[Setting] = []
    for statement in body:
        functions.left -= 1
        if functions.left < 0 or depth > MOST_NESTED:
            break
        settings.extend(_statement(statement, functions, depth + 1))
    return settings[:MOST_SETTINGS]


def _is_main(node: ast.If) -> bool:
    """``if __name__ == "__main__":``, which is no branch of a job."""
    test = node.test
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _assigned(target: ast.expr, value: ast.expr, functions: _Functions, depth: int) -> list[Setting]:
    """``a.b.c = value``: the first part is the variable's own name."""
    name = _dotted(target)
    if name is None:  # model, tokenizer = Class.from_pretrained(…)
        several = isinstance(target, ast.Tuple) and isinstance(value, ast.Call)
        return _call(value, "", functions, depth) if several and isinstance(value, ast.Call) else []
    inside = name.partition(".")[2]
    if isinstance(value, ast.Call):
        text = _only_text(value)
        text = text if text is not None else _named_only(value, functions)
        if inside and text is not None:
            return [Setting(name=inside, value=text, line=value.lineno)]
        return _call(value, inside or name, functions, depth)
    if isinstance(value, ast.Dict):
        return _table(value, inside or name, functions, depth)
    plain = (_called(value) if isinstance(value, ast.List) else "") or _plain(value)
    return (
        []
        if isinstance(plain, EllipsisType)
        else [Setting(name=inside or name, value=plain, line=value.lineno)]
    )


def _call(call: ast.Call, prefix: str, functions: _Functions, depth: int) -> list[Setting]:
    """Keyword arguments of a call, and settings of the function of this file that it calls."""
    if depth > MOST_NESTED:
        return []
    settings: list[Setting] = []
    name = _dotted(call.func)
    if name is not None and name in functions and depth < 8:
        settings.extend(_of_function(functions[name], functions, depth + 1))
    settings.extend(_of_class(call.func, prefix))
    if prefix and (of_class := _class_of(call)):
        settings.append(Setting(name=f"{prefix}.{CLASS}", value=of_class, line=call.lineno))
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):  # Config(…).with_x(…)
        settings.extend(_call(call.func.value, prefix, functions, depth + 1))
    for argument in call.args:
        if isinstance(argument, ast.Call):
            settings.extend(_call(argument, prefix or _class_of(argument), functions, depth + 1))
        elif name is not None and isinstance(argument, ast.Constant):
            _add_argument(argument, name, prefix, settings)
        settings.extend(_of_class(argument, prefix))
    settings.extend(_model_of_trainer(call, name or ""))
    for keyword in call.keywords:
        if keyword.arg is not None:
            settings.extend(_value(keyword.value, f"{prefix}.{keyword.arg}".lstrip("."), functions, depth))
    return settings[:MOST_SETTINGS]


def _class_of(call: ast.Call) -> str:
    """The name of the class that a call builds an instance of; empty where it calls something else."""
    name = (_dotted(call.func) or "").rpartition(".")[2]
    return name if _CLASS.fullmatch(name) else ""


def _model_of_trainer(call: ast.Call, name: str) -> list[Setting]:
    """The model that a trainer is given by its name, as its first argument or under ``model``."""
    if not name.endswith("Trainer"):
        return []
    named = next((keyword.value for keyword in call.keywords if keyword.arg == "model"), None)
    model = named or next(iter(call.args), None)
    if isinstance(model, ast.Constant) and isinstance(model.value, str):
        return [Setting(name="trainer.model", value=model.value, line=model.lineno)]
    return []


def _of_class(node: ast.expr, prefix: str) -> list[Setting]:
    """What is taken of a class by its name: a member of an enumeration, a model of a known size."""
    member = _member(node)
    if member is None or not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return []
    return [Setting(name=f"{prefix}.{node.value.id}".lstrip("."), value=member, line=node.lineno)]


def _member(node: ast.expr) -> str | None:
    """The name that is taken of a class: ``full`` of ``Mode.full``; None of anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if _CLASS.fullmatch(node.value.id) else None
    return None


def _add_argument(argument: ast.Constant, name: str, prefix: str, settings: list[Setting]) -> None:
    """A literal that a function is given without a name."""
    changed = _WITH.search(name)
    if changed and not isinstance(plain := _plain(argument), EllipsisType):
        settings.insert(
            0, Setting(name=changed.group(1), value=plain, line=argument.lineno)
        )  # over what it wraps
    elif isinstance(argument.value, str):
        inside = f"{prefix}.{name.rpartition('.')[2]}".lstrip(".")
        settings.append(Setting(name=inside, value=argument.value, line=argument.lineno))


def _value(node: ast.expr, inside: str, functions: _Functions, depth: int) -> list[Setting]:
    """What a name is given: a literal, a table, a call or the name of it, a list of calls."""
    if isinstance(node, ast.Name) and node.id in functions.calls and functions.left > 0:
        functions.left -= 1
        return _call(functions.calls[node.id], inside, functions, depth + 1)
    if isinstance(node, ast.Call):
        named = _named_only(node, functions)
        return (
            [Setting(name=inside, value=named, line=node.lineno), *_of_class(node.func, inside)]
            if named
            else _call(node, inside, functions, depth + 1)
        )
    if isinstance(node, ast.Dict):
        return _table(node, inside, functions, depth)
    if isinstance(node, ast.List) and (names := _called(node)):
        return [Setting(name=inside, value=names, line=node.lineno)]
    plain = _plain(node)
    return [] if isinstance(plain, EllipsisType) else [Setting(name=inside, value=plain, line=node.lineno)]


def _table(node: ast.Dict, prefix: str, functions: _Functions, depth: int) -> list[Setting]:
    """A dictionary whose keys are texts."""
    if depth > MOST_NESTED:
        return []
    settings: list[Setting] = []
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            settings.extend(_value(value, f"{prefix}.{key.value}", functions, depth + 1))
    return settings[:MOST_SETTINGS]


def _called(node: ast.List) -> str:
    """Names of what a list of calls calls."""
    calls = [part for part in node.elts[:64] if isinstance(part, ast.Call)]
    return ",".join(name for call in calls if (name := _dotted(call.func)) is not None)


def _only_text(call: ast.Call) -> str | None:
    """The text of a call whose one argument is a text: ``precision("bf16")``."""
    if len(call.args) == 1 and not call.keywords and isinstance(call.args[0], ast.Constant):
        value = call.args[0].value
        return value if isinstance(value, str) else None
    return None


def _named_only(call: ast.Call, functions: _Functions) -> str | None:
    """The name of what is called without arguments and is no function of this file: ``bf16_mixed()``."""
    name = _dotted(call.func)
    return None if call.args or call.keywords or name in functions else name


def _plain(node: ast.expr) -> Scalar | EllipsisType:
    """A literal, or a member of an enumeration; ``...`` for what is computed."""
    if (member := _member(node)) is not None:
        return member
    if (sequences := _sequences(node)) is not None:
        return sequences
    if classes := _classes(node):
        return classes
    if (dtype := _TORCH.fullmatch(_dotted(node) or "")) is not None:
        return dtype[1]
    try:
        value = _product(node) if isinstance(node, ast.BinOp) else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ...
    if isinstance(value, str | int | float | bool) or value is None:
        return value if not isinstance(value, int) or abs(value) < MOST_PRODUCT else ...
    if isinstance(value, list | tuple) and all(isinstance(part, str | int | float) for part in value):
        return ",".join(map(str, value))
    if isinstance(value, list) and all(isinstance(part, list) for part in value) and _is_short(value):
        return json.dumps(value)
    return ...


def _classes(node: ast.expr) -> str:
    """Names of classes in a set or a list of nothing else: the layers that a policy wraps."""
    parts = node.elts[:MOST_PARTS] if isinstance(node, ast.Set | ast.List | ast.Tuple) else []
    names = [part.id for part in parts if isinstance(part, ast.Name) and _CLASS.fullmatch(part.id)]
    return ",".join(names) if len(names) == len(parts) else ""


def _is_short(value: list[list[Any]]) -> bool:
    """Whether a list of lists of texts, such as the modules of every stage, is no longer than one can be."""
    texts = [text for part in value[:MOST_PARTS] for text in part[:MOST_PARTS]]
    return len(value) <= MOST_PARTS and all(isinstance(text, str) and len(text) < 80 for text in texts)


MOST_PARTS = 512
"""Of a list, and of each list in it."""


def _sequences(node: ast.expr) -> str | None:
    """Tokens of so many sequences whose length stands elsewhere: ``2 * common.max_sequence_length``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for count, length in ((node.left, node.right), (node.right, node.left)):
        whole = isinstance(count, ast.Constant) and type(count.value) is int and count.value < MOST_PRODUCT
        if whole and isinstance(length, ast.Attribute) and length.attr.endswith("sequence_length"):
            return f"{count.value} * {length.attr}"  # type: ignore[attr-defined]
    return None


def _product(node: ast.expr) -> int:
    """The value of a product or a quotient of whole numbers: ``8 * 1024``, ``128 // 32``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        product = _product(node.left) * _product(node.right)
        if abs(product) < MOST_PRODUCT:
            return product
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        dividend, divisor = _product(node.left), _product(node.right)
        if divisor > 0:
            return dividend // divisor
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError


def _dotted(node: ast.expr) -> str | None:
    """``a.b.c`` as text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < MOST_NESTED:
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


_RECIPE = re.compile(
    r"\b([a-z]\w{3,60}?)_(?:pretrain|sft|finetune)_config\(|\bllm\.(\w{3,60})\.(?:pretrain|finetune)_recipe\("
)
"""The recipe of a model that a Python file changes."""
_RENAMED = re.compile(r"\b([a-z]\w{3,60}?)_(?:pretrain|sft|finetune)_config as \w+")
"""A recipe that a file imports under another name."""
_SIZED_CLASS = re.compile(r"\bllm\.([A-Z][A-Za-z0-9]*?)Config(\d+(?:x\d+)?[BM])\(")
"""A class of NeMo whose name is that of a model and its size."""


def models_named(text: str) -> set[str]:
    """Models whose recipes a file calls, or else whose classes it builds.

    >>> models_named("cfg = llama31_405b_pretrain_config()"), models_named("llm.Llama31Config8B()")
    ({'llama31_405b'}, {'llama31_8b'})
    """
    recipes = {match[1] or match[2] for match in _RECIPE.finditer(text)}
    recipes = recipes or {*_RENAMED.findall(text)}
    return recipes or {f"{match[1]}_{match[2]}".lower() for match in _SIZED_CLASS.finditer(text)}
