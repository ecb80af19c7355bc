"""What must hold of every input: no defect, no hang, no gigabyte, a sensible answer, and nothing touched unasked.

`Guard` watches one process: what it opens, runs and connects to (an audit hook), how long it computes and how
much memory it may add. It is made once in a worker, after everything is imported.
"""

from __future__ import annotations

import functools
import math
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

MOST_SECONDS = 10.0
"""Of computing: waiting for a busy machine does not count."""
MOST_BYTES = 2**30
_NEVER = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn", "socket.connect",
    "socket.bind", "socket.getaddrinfo", "socket.sendto", "pickle.find_class", "os.kill", "urllib.Request", "webbrowser.open",
)  # fmt: skip
_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree", "os.chmod")  # fmt: skip
_MAY_FALL = ("relative", "change", "error", "saved", "faster", "slower", "difference", "residual", "gain", "gap", "delta", "bias", "lost_on", "p50_", "median", "signed")  # fmt: skip
_MEASURES = ("_s", "_bytes", "_gib", "_usd", "_wh", "_flop", "_tokens", "_per_gpu", "_per_hour", "mfu", "hfu", "deviation")  # fmt: skip


class TooSlowError(BaseException):
    """An input took more than `MOST_SECONDS` of computing; no `except Exception` may swallow it."""


class Guard:
    """Limits and audit of one worker."""

    def __init__(self, sandbox: Path, limit_s: float = MOST_SECONDS) -> None:
        """Start watching; files may be written below `sandbox`, but for its canary."""
        here = Path(__file__).resolve().parents[3]
        installed = (
            place for place in sys.path if place.endswith("-packages")
        )  # of a shared environment, too
        places = {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, str(here), *installed}
        self.readable = (
            *places,
            str(sandbox),
            "/usr",
            "/lib",
            f"/proc/{os.getpid()}",
            "/proc/cpuinfo",
            "/proc/meminfo",
            "/sys",
        )
        self.exact = {"/dev/null", "/dev/urandom", "/etc/localtime", "/etc/mime.types", "/proc/stat", "/proc/sys/kernel/random/boot_id", f"/proc/{os.getpid()}/status"}  # fmt: skip
        self.sandbox, self.canary = str(sandbox), str(sandbox / "canary")
        self.limit_s = limit_s
        self.asked: frozenset[str] = frozenset()
        self.touched: list[str] = []
        self.watching = False
        sys.dont_write_bytecode = True  # what is imported late in a fresh checkout is no write of an input's
        if hasattr(os, "sched_setaffinity"):  # on one core a search forks nothing
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
        sys.addaudithook(self._hook)
        signal.signal(signal.SIGPROF, self._too_slow)
        size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, size + MOST_BYTES))

    def start(self, asked: frozenset[str]) -> None:
        """Watch one input, which names these paths itself."""
        self.asked, self.touched, self.watching = asked, [], True
        signal.setitimer(signal.ITIMER_PROF, self.limit_s)

    def stop(self) -> list[str]:
        """Stop watching; returns what was touched unasked."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.watching = False
        return self.touched

    def _too_slow(self, *_: object) -> None:
        raise TooSlowError

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event == "open":
            self._opened(*arguments)
        elif event in _NEVER:
            self.touched.append(f"{event} {str(arguments)[:100]}")
        elif event in _CHANGES and isinstance(arguments[0], str | bytes | os.PathLike):
            self._changed(event, os.fsdecode(arguments[0]))

    def _opened(self, path: object, mode: str | None, flags: int | None) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.fsdecode(path)
        if any(letter in (mode or "") for letter in "wax+") or (flags or 0) & (
            os.O_WRONLY | os.O_RDWR | os.O_CREAT
        ):
            self._changed("write", name)
        elif not self._named(name):
            full = os.path.realpath(name)
            if full.startswith(self.canary) or not (full in self.exact or full.startswith(self.readable)):
                self.touched.append(f"read {name[:100]}")

    def _changed(self, event: str, name: str) -> None:
        full = os.path.realpath(name)
        inside = full.startswith(self.sandbox) and not full.startswith(self.canary)
        if not (inside or full == "/dev/null" or self._named(name)):
            self.touched.append(f"{event} {name[:100]}")

    def _named(self, name: str) -> bool:
        return name in self.asked


def faults_of_answer(answer: object) -> list[str]:
    """Numbers of an answer that are not finite, or negative where they measure something."""
    if not _odd(answer):
        return []
    return [f"{path} = {value}" for path, value in _numbers(answer, "") if not _sensible(path, value)][:3]


def _odd(value: object) -> bool:
    """Whether any number is negative or not finite: asked first, for paths take longer to write than to read."""
    kind = type(value)
    if kind is float:
        return not 0 <= value < math.inf  # type: ignore[operator]
    if kind is str or value is None or kind is bool:
        return False
    if isinstance(value, int):
        return value < 0
    if isinstance(value, Mapping):
        return any(map(_odd, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_odd, value))
    names = _field_names(kind)
    return any(_odd(getattr(value, name)) for name in names) if names else isinstance(value, float)


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def _sensible(path: str, value: float) -> bool:
    name = path.rpartition(".")[2].partition("[")[0]
    if not math.isfinite(value):
        return False
    return value >= 0 or not name.endswith(_MEASURES) or any(word in path for word in _MAY_FALL)


def _numbers(value: object, path: str) -> Iterator[tuple[str, float]]:
    """Every number of an answer with its path."""
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path, float(max(-(2**1000), min(value, 2**1000)))  # whole numbers are finite at any length
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{path}[{index}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _numbers(getattr(value, field.name), f"{path}.{field.name}")
