"""Pickles of plain values, read opcode by opcode: nothing is imported, called or executed.

A pickle is a program for a stack machine. Of its opcodes those are known here that build dictionaries, lists,
tuples, sets, text, bytes, numbers, booleans and None. Every other opcode (a global, a call, an instance, a
persistent or an out-of-band reference) ends the reading. What is built is bounded: bytes, depth, and how many
values a walk through shared parts meets. A value that contains itself is refused, so every walk ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_PATH, read_bytes
from topology.base.units import MIB

MAX_PICKLE_BYTES: Final = 256 * MIB
"""Of a file. A memory snapshot of 100,000 events without stacks has a tenth of it."""
MAX_BUILT_BYTES: Final = 512 * MIB
"""Of what it builds: 300,000 events of a memory snapshot, read in some seconds."""
OPCODE_BYTES, CONTAINER_BYTES, MEMO_BYTES = 64, 192, 64
"""What CPython takes for a short value on the stack, for an empty dictionary, and for a place of the memo."""
MAX_DEPTH: Final = 64
"""Containers within each other. Dumps of torch have seven."""
MAX_WALK: Final = 10**10
"""Values that a walk through everything meets, shared parts counted wherever they stand."""
MAX_INTEGER_BYTES: Final = 255
"""Of an integer: what LONG1 can say."""
KEY_LIMIT: Final = 2**64
"""Integers as keys stay below it: of larger ones a million can have the same hash."""
HIGHEST_PROTOCOL: Final = 5

Container = dict[Any, Any] | list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any]
Plain = Container | str | bytes | int | float | None
"""What a pickle may hold. Keys and members of sets are no containers."""

REFUSED: Final[Mapping[int, str]] = {
    ord("c"): "GLOBAL", 0x93: "STACK_GLOBAL", ord("R"): "REDUCE", ord("b"): "BUILD", ord("i"): "INST",
    ord("o"): "OBJ", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", ord("P"): "PERSID", ord("Q"): "BINPERSID",
    0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x96: "BYTEARRAY8", 0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER", ord("0"): "POP", ord("1"): "POP_MARK", ord("2"): "DUP",
    ord("S"): "STRING", ord("T"): "BINSTRING", ord("U"): "SHORT_BINSTRING",
}  # fmt: skip
"""Opcodes that import, call or refer outside, or that plain values do not need; names as in pickletools."""

_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_OPEN: Final = (0, 0)


@dataclass(frozen=True, slots=True)
class _UnreadableError(Exception):
    """What is wrong with a pickle, at which byte."""

    cause: str


def is_pickle(head: bytes) -> bool:
    """Whether a file begins as a pickle of protocol 2 or later.

    >>> is_pickle(bytes([0x80, 4, 0x95])), is_pickle(b"{}")
    (True, False)
    """
    return len(head) >= 2 and head[0] == 0x80 and 2 <= head[1] <= HIGHEST_PROTOCOL


def read_pickle(path: str | Path) -> Plain:
    """The plain values of a pickle file; nothing in it is executed.

    Raises:
        InputError: It is no regular file, too large, cut short, or holds anything but plain values.
        OSError: There is none, or it may not be read.
    """
    return parse_pickle(read_bytes(path, MAX_PICKLE_BYTES), shortened(str(path), LONGEST_PATH))


def parse_pickle(content: bytes, name: str = "the pickle") -> Plain:
    r"""The plain values of a pickle, which is executed by nobody.

    >>> parse_pickle(b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x07s.")
    {'a': 7}

    Args:
        content: Its bytes; what follows its STOP is refused.
        name: What messages call it.

    Raises:
        InputError: It is cut short, beyond the bounds, or holds anything but plain values.
    """
    machine = _Machine(content)
    try:
        return machine.run()
    except _UnreadableError as error:
        fix = "dump plain values: dict, list, tuple, set, str, bytes, int, float, bool, None"
        cause = f"byte {machine.position - 1:,} of {len(content):,}: {error.cause}"
        raise InputError(f"{name} is not read", cause, fix) from None


class _Machine:
    """The stack machine of a pickle: a stack, its marks, and the memo."""

    __slots__ = ("_content", "_marks", "_memo", "_room", "_sizes", "_stack", "position")

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        # Of each container its depth and the values of a walk once it is part of another; _OPEN before that.
        self._sizes: dict[int, tuple[int, int]] = {}
        self._room = MAX_BUILT_BYTES
        self.position = 0

    def run(self) -> Plain:
        """Execute the opcodes that build values, and return what STOP leaves."""
        content, handlers = self._content, _HANDLERS
        while True:
            if self.position >= len(content):
                _refuse("it ends before its STOP")
            code = content[self.position]
            self.position += 1
            self.spend(OPCODE_BYTES)
            if code == _STOP:
                return self._stop()
            handler = handlers.get(code)
            if handler is None:
                _refuse(f"opcode {REFUSED.get(code, hex(code))} builds no plain value")
            handler(self)

    def _stop(self) -> Plain:
        """What the stack holds at the end, and nothing beside it."""
        if len(self._stack) != 1 or self._marks:
            _refuse(f"{len(self._stack)} values and {len(self._marks)} marks at STOP")
        if self.position != len(self._content):
            _refuse(f"{len(self._content) - self.position:,} bytes follow its STOP")
        value: Plain = self.part(self._stack[0])
        return value

    # ── bytes of the pickle ───────────────────────────────────────────────────────────────────────────────

    def take(self, count: int) -> bytes:
        """The next bytes."""
        beyond = self.position + count
        if count < 0 or beyond > len(self._content):
            _refuse(f"it names {count:,} bytes and has {len(self._content) - self.position:,}")
        taken = self._content[self.position : beyond]
        self.position = beyond
        return taken

    def number(self, width: int) -> int:
        """An unsigned little-endian integer of the next bytes."""
        return int.from_bytes(self.take(width), "little")

    def frame(self) -> None:
        """FRAME: how many of the next bytes may be read ahead."""
        count = self.number(8)
        self.take(count)
        self.position -= count

    def line(self) -> bytes:
        """What stands before the end of the line, of protocol 0."""
        stop = self._content.find(b"\n", self.position)
        if stop < 0:
            _refuse("a line of protocol 0 has no end")
        text = self._content[self.position : stop]
        self.position = stop + 1
        return text

    # ── values ────────────────────────────────────────────────────────────────────────────────────────────

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def spend(self, count: int) -> None:
        """Take bytes of the memory that the values may have."""
        self._room -= count
        if self._room < 0:
            _refuse(f"its values take more than {MAX_BUILT_BYTES:,} bytes of memory")

    def push_container(self, value: Container) -> None:
        """Put a container on the stack that is not yet part of another."""
        self.spend(CONTAINER_BYTES)
        self.push(value)
        self._sizes[id(value)] = _OPEN

    def top(self) -> Any:
        """The value that was put last."""
        if not self._stack:
            _refuse("the stack is empty")
        return self._stack[-1]

    def pop(self) -> Any:
        """Take the value that was put last."""
        if not self._stack:
            _refuse("the stack is empty")
        return self._stack.pop()

    def mark(self) -> None:
        """Begin the values of a container."""
        if len(self._marks) >= MAX_DEPTH:
            _refuse(f"more than {MAX_DEPTH} containers are within each other")
        self._marks.append(self._stack)
        self._stack = []

    def since_mark(self) -> list[Any]:
        """Take the values since the last mark."""
        if not self._marks:
            _refuse("no MARK stands before it")
        values, self._stack = self._stack, self._marks.pop()
        return values

    def _close(self, value: Container) -> tuple[int, int]:
        """Depth of a value and the values of a walk through it, which from here on does not change."""
        known = self._sizes.get(id(value), _OPEN)
        if known != _OPEN:
            return known
        depth, walk = 1, 1
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, _CONTAINERS):
                below, within = self._close(part)  # closed when it became a part, so this goes no deeper
                depth, walk = max(depth, below + 1), walk + within
            else:
                walk += 1
        if depth > MAX_DEPTH:
            _refuse(f"more than {MAX_DEPTH} containers are within each other")
        if walk > MAX_WALK:
            _refuse(f"a walk through its shared parts meets more than {MAX_WALK:,} values")
        self._sizes[id(value)] = depth, walk
        return depth, walk

    def part(self, value: Any) -> Any:
        """A value as a part of a container: from here on it does not change."""
        if isinstance(value, _CONTAINERS):
            self._close(value)
        return value

    def key(self, value: Any) -> Any:
        """A value as a key or a member of a set: no container, no integer that collides at will."""
        if isinstance(value, _CONTAINERS):
            _refuse(f"a {type(value).__name__} is a key or a member of a set")
        if isinstance(value, int) and abs(value) >= KEY_LIMIT:
            _refuse("a key is an integer of more than 64 bits")
        return value

    def growing(self, kind: type) -> Any:
        """The container on top of the stack, to which parts are added."""
        container = self.top()
        if type(container) is not kind:
            _refuse(f"parts of a {kind.__name__} are added to a {type(container).__name__}")
        if self._sizes.get(id(container), _OPEN) != _OPEN:
            _refuse("a container is changed that is part of another, or of itself")
        return container

    # ── memo ──────────────────────────────────────────────────────────────────────────────────────────────

    def remember(self, place: int) -> None:
        """Keep the value on top of the stack under a number."""
        if place < 0:
            _refuse("a number of the memo is negative")
        self.spend(MEMO_BYTES)
        self._memo[place] = self.top()

    def recall(self, place: int) -> None:
        """Put a remembered value on the stack; a container is complete from here on."""
        if place not in self._memo:
            _refuse(f"number {place} of the memo was never set")
        self.push(self.part(self._memo[place]))

    def memoize(self) -> None:
        """Keep the value on top of the stack under the next number."""
        self.remember(len(self._memo))


def _refuse(cause: str) -> NoReturn:
    """End the reading."""
    raise _UnreadableError(cause)


# ── opcodes ───────────────────────────────────────────────────────────────────────────────────────────────


def _protocol(machine: _Machine) -> None:
    """PROTO: the version of the format."""
    version = machine.number(1)
    if version > HIGHEST_PROTOCOL:
        _refuse(f"protocol {version} is newer than {HIGHEST_PROTOCOL}")


def _text(machine: _Machine, width: int) -> None:
    encoded = machine.take(machine.number(width))
    machine.spend(len(encoded))
    try:
        machine.push(encoded.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        _refuse("a text is not UTF-8")


def _bytes(machine: _Machine, width: int) -> None:
    content = machine.take(machine.number(width))
    machine.spend(len(content))
    machine.push(content)


def _line_of_text(machine: _Machine) -> None:
    """UNICODE of protocol 0, in raw-unicode-escape."""
    encoded = machine.line()
    machine.spend(len(encoded))
    try:
        machine.push(encoded.decode("raw-unicode-escape"))
    except UnicodeDecodeError:
        _refuse("a text of protocol 0 has a wrong escape")


def _integer_line(machine: _Machine) -> None:
    """INT of protocol 0; 00 and 01 are booleans."""
    text = machine.line()
    if text in (b"00", b"01"):
        machine.push(text == b"01")
    else:
        machine.push(_decimal(text))


def _decimal(text: bytes) -> int:
    """A written integer that is not too long."""
    digits = text.removeprefix(b"-")
    padded = digits.startswith(b"0") and len(digits) > 1
    if padded or not digits.isdigit() or len(digits) > 2.5 * MAX_INTEGER_BYTES:
        _refuse("an integer of protocol 0 is too long, or is none")
    return int(text)


def _float_line(machine: _Machine) -> None:
    text = machine.line()
    try:
        machine.push(float(text))
    except ValueError:
        _refuse("a number of protocol 0 is none")


def _long(machine: _Machine, width: int) -> None:
    count = machine.number(width)
    if count > MAX_INTEGER_BYTES:
        _refuse(f"an integer has {count:,} bytes, more than {MAX_INTEGER_BYTES}")
    machine.push(int.from_bytes(machine.take(count), "little", signed=True))


def _tuple_of(machine: _Machine, count: int) -> None:
    parts = [machine.part(machine.pop()) for _ in range(count)]
    machine.push_container(tuple(reversed(parts)))


def _marked_tuple(machine: _Machine) -> None:
    machine.push_container(tuple(machine.part(value) for value in machine.since_mark()))


def _marked_list(machine: _Machine) -> None:
    machine.push_container([machine.part(value) for value in machine.since_mark()])


def _marked_frozenset(machine: _Machine) -> None:
    machine.push_container(frozenset(machine.key(value) for value in machine.since_mark()))


def _fill(machine: _Machine, filled: dict[Any, Any], values: list[Any]) -> None:
    if len(values) % 2:
        _refuse("a key has no value")
    for key, value in zip(values[::2], values[1::2], strict=True):
        filled[machine.key(key)] = machine.part(value)


def _marked_dict(machine: _Machine) -> None:
    filled: dict[Any, Any] = {}
    _fill(machine, filled, machine.since_mark())
    machine.push_container(filled)


def _set_items(machine: _Machine) -> None:
    values = machine.since_mark()
    _fill(machine, machine.growing(dict), values)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _fill(machine, machine.growing(dict), [key, value])


def _append_all(machine: _Machine) -> None:
    values = machine.since_mark()
    machine.growing(list).extend(machine.part(value) for value in values)


def _append(machine: _Machine) -> None:
    value = machine.pop()
    machine.growing(list).append(machine.part(value))


def _add_items(machine: _Machine) -> None:
    values = machine.since_mark()
    machine.growing(set).update(machine.key(value) for value in values)


_STOP: Final = ord(".")
_HANDLERS: Final[Mapping[int, Callable[[_Machine], None]]] = {
    0x80: _protocol,
    0x95: lambda machine: machine.frame(),
    ord("("): _Machine.mark,
    ord("N"): lambda machine: machine.push(None),
    0x88: lambda machine: machine.push(True),  # noqa: FBT003 - NEWTRUE
    0x89: lambda machine: machine.push(False),  # noqa: FBT003 - NEWFALSE
    ord("I"): _integer_line,
    ord("L"): lambda machine: machine.push(_decimal(machine.line().removesuffix(b"L"))),
    ord("F"): _float_line,
    ord("J"): lambda machine: machine.push(int.from_bytes(machine.take(4), "little", signed=True)),
    ord("K"): lambda machine: machine.push(machine.number(1)),
    ord("M"): lambda machine: machine.push(machine.number(2)),
    0x8A: lambda machine: _long(machine, 1),
    0x8B: lambda machine: _long(machine, 4),
    ord("G"): lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    ord("V"): _line_of_text,
    ord("X"): lambda machine: _text(machine, 4),
    0x8C: lambda machine: _text(machine, 1),
    0x8D: lambda machine: _text(machine, 8),
    ord("B"): lambda machine: _bytes(machine, 4),
    ord("C"): lambda machine: _bytes(machine, 1),
    0x8E: lambda machine: _bytes(machine, 8),
    ord("}"): lambda machine: machine.push_container({}),
    ord("]"): lambda machine: machine.push_container([]),
    ord(")"): lambda machine: machine.push_container(()),
    0x8F: lambda machine: machine.push_container(set()),
    ord("t"): _marked_tuple,
    ord("l"): _marked_list,
    ord("d"): _marked_dict,
    0x91: _marked_frozenset,
    0x85: lambda machine: _tuple_of(machine, 1),
    0x86: lambda machine: _tuple_of(machine, 2),
    0x87: lambda machine: _tuple_of(machine, 3),
    ord("a"): _append,
    ord("e"): _append_all,
    ord("s"): _set_item,
    ord("u"): _set_items,
    0x90: _add_items,
    ord("p"): lambda machine: machine.remember(_decimal(machine.line())),
    ord("q"): lambda machine: machine.remember(machine.number(1)),
    ord("r"): lambda machine: machine.remember(machine.number(4)),
    ord("g"): lambda machine: machine.recall(_decimal(machine.line())),
    ord("h"): lambda machine: machine.recall(machine.number(1)),
    ord("j"): lambda machine: machine.recall(machine.number(4)),
    0x94: _Machine.memoize,
}
