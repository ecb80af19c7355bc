"""Ranks and launchers that tests start, forked from a process that has imported what they import.

A start of Python with torch takes seconds, a fork milliseconds. `subprocess.Popen` stays what tests and the
launcher call, and everything it promises holds: the process is a child of the caller (clone(2) with
CLONE_PARENT makes it a brother of the one it is forked from), with its arguments, environment, folder and
descriptors. The server has imported modules and done nothing else: no thread, no kernel, no CUDA. A launcher
has one of its own, forked before it begins, from which its ranks are.

What differs from a start: /proc/PID/environ, seeds of `hash`, what is imported before the environment is read.
Tests of these use the fixture `real_starts`. Run as a program this is a server: ``fork_server.py DESCRIPTOR KIND``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
RANK, TRACER, SCRIPT = "executor.training.worker", "executor.tracing.worker", "-c"
LAUNCHERS = frozenset(("app", "executor.launch.supervise"))
RANKS, TRACERS = "ranks", "tracers"
SERVED = {
    RANK: RANKS,
    "app": RANKS,
    "executor.launch.supervise": RANKS,
    "tests.executor.launch.namespaces": RANKS,
    TRACER: TRACERS,
}
"""Modules that are run by ``python -m`` in what is forked, and the kind of server that has imported what they need."""
IMPORTED = {
    RANKS: (
        "absl",
        "app.actions.runs",
        "app.cli",
        "app.commands.run",
        "app.store.run_log",
        "cattrs",
        "executor.bench.local_ranks",
        "executor.bench.measured_run",
        "executor.launch.supervise",
        RANK,
        "meshplan.__main__",
        "planner.engines",
    ),
    TRACERS: (
        "torch",
        "torch._dynamo",
        "cattrs",
        "executor.tracing.libraries",
        "executor.tracing.trace",
        TRACER,
        "transformers",
        "transformers.models.auto.modeling_auto",
        "transformers.models.llama.modeling_llama",
        "transformers.models.gpt2.modeling_gpt2",
    ),
}
"""By kind, of ranks beside what `rank_server` loads: nothing that reads the environment for a run's sake."""
TOLD = {RANKS: {}, TRACERS: {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}}
"""What a kind of process tells itself when it begins, and its libraries read when they are imported."""
PACKAGES = frozenset(("app.actions.runs",))
"""Those whose modules are imported too."""
AT_START = (
    "ATEN_", "GLIBC_", "GOMP_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHONHASHSEED",
    "PYTHONHOME", "PYTHONIOENCODING", "PYTHONSTARTUP", "PYTHONTRACEMALLOC", "PYTHONUNBUFFERED", "PYTHONUTF8",
    "PYTHONWARNINGS", "TORCHINDUCTOR_", "TORCH_DISTRIBUTED_DEBUG", "TORCH_LOGS", "TORCH_CPP_LOG_LEVEL", "TZ",
)  # fmt: skip
"""Variables that Python, its libraries or torch read when they are loaded, by their first letters."""
HUB_AT_START = (
    "HF_",
    "HUGGINGFACE_",
    "TRANSFORMERS_",
    "XDG_CACHE_HOME",
    "TORCH_HOME",
    "DIFFUSERS_",
    "ACCELERATE_",
)
"""And those that libraries of models do."""
CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine) if hasattr(os, "uname") else None
CLONE_PARENT, CLONE_CHILD_SETTID, CLONE_CHILD_CLEARTID = 0x8000, 0x01000000, 0x00200000
PR_SET_PDEATHSIG, PR_GET_TID_ADDRESS = 1, 40
ROOM = 4096  # bytes for the command line that /proc shows of a process
LENGTH = 8
FORKED = "_forked_by_the_tests_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A process that is asked for; descriptors travel beside it, those `targets` name in their order."""

    flags: tuple[str, ...]
    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    targets: tuple[int, ...]
    new_session: bool
    group: int
    cores: tuple[int, ...]


class Server:
    """The process that forks, as whoever asks it sees it; `stderr` has what it said, if that is kept."""

    def __init__(self, kind: str, asked: socket.socket, stderr: IO[bytes] | None = None) -> None:
        self.kind, self.owner = kind, os.getpid()
        self._socket, self._lock, self._stderr = asked, threading.Lock(), stderr
        self._at_start = _read_at_start(os.environ, kind)

    def forks(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment may be forked here: what is read at a start is the same."""
        return self.owner == os.getpid() and _read_at_start(environment, self.kind) == self._at_start

    def start(self, start: Start, descriptors: Sequence[int]) -> int:
        """Fork a process; its number."""
        text = json.dumps(asdict(start)).encode()
        answer = b""
        with self._lock, contextlib.suppress(ConnectionError):
            socket.send_fds(self._socket, [len(text).to_bytes(LENGTH, "big")], descriptors)
            self._socket.sendall(text)
            answer = _received(self._socket, LENGTH)
        if len(answer) < LENGTH:
            message = f"the fork server of {self.kind} has ended"
            if self._stderr is not None:
                self._stderr.seek(0)
                message += f": {self._stderr.read().decode()}"
            raise RuntimeError(message)
        return int.from_bytes(answer, "big")

    def close(self) -> None:
        """End it."""
        self._socket.close()
        if self._stderr is not None:
            self._stderr.close()


def possible() -> bool:
    """Whether processes can be forked here: on Linux, and where no rank would use a GPU."""
    return sys.platform == "linux" and CLONE is not None and not Path("/dev/nvidiactl").exists()


def begun(kind: str) -> tuple[Server, subprocess.Popen[bytes]]:
    """Start a server of this process; it ends when this process closes the socket, or ends."""
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-P", __file__, str(theirs.fileno()), kind, " " * ROOM]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= _read_at_start(os.environ, kind) | TOLD[kind]
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server
    with theirs:
        process = subprocess.Popen(
            words,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            cwd="/",
            env=environment,
        )
    return Server(kind, ours, stderr), process


def _read_at_start(environment: Mapping[str, str], kind: str) -> dict[str, str]:
    """The part of an environment that cannot be changed once a process of a kind has started."""
    names = AT_START + (HUB_AT_START if kind == TRACERS else ())
    return {name: value for name, value in environment.items() if name.startswith(names)}


# ------------------------------------------------------------------------------ in the process that asks

_PARAMETERS = inspect.signature(subprocess.Popen._execute_child)
_REAL = subprocess.Popen._execute_child
_UNUSED = {
    "executable": None,
    "preexec_fn": None,
    "startupinfo": None,
    "creationflags": 0,
    "shell": False,
    "restore_signals": True,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
}


class Forking:
    """Lets `subprocess.Popen` fork what servers can; `real` is how many ask for real starts now."""

    def __init__(self, server: Server | None = None) -> None:
        self.servers = {} if server is None else {server.kind: server}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.served = dict(SERVED)
        self.real = self.forked = 0
        self.nested = server is not None

    def install(self) -> None:
        """Take the place of the part of `subprocess.Popen` that forks and executes."""
        forking = self

        def execute_child(popen: Any, *arguments: Any, **named: Any) -> None:
            asked = _PARAMETERS.bind(popen, *arguments, **named).arguments
            if not forking.execute(popen, asked):
                _REAL(popen, *arguments, **named)

        subprocess.Popen._execute_child = execute_child

    def remove(self) -> None:
        """Give everything back, and end the server."""
        subprocess.Popen._execute_child = _REAL
        for server in self.servers.values():
            server.close()
        for process in self.processes:
            process.wait()

    def execute(self, popen: Any, asked: Mapping[str, Any]) -> bool:
        """Fork what is asked for, unless it must be started; whether it was."""
        flags, words = self._words(asked["args"])
        environment = os.environ if asked["env"] is None else asked["env"]
        if not words or self.real or any(asked[name] != value for name, value in _UNUSED.items()):
            return False
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
        server = self._of(self.served[words[0]], environment)
        if server is None:
            return False
        ends = {
            target: asked[name] if asked[name] != -1 else target
            for target, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        }
        ends |= {descriptor: descriptor for descriptor in asked["pass_fds"]}
        start = Start(
            flags=flags,
            words=words,
            environment=environment,
            folder=str(Path(os.fsdecode(asked["cwd"] or ".")).absolute()),
            targets=tuple(ends),
            new_session=bool(asked["start_new_session"]),
            group=asked.get("process_group", -1),
            cores=tuple(os.sched_getaffinity(0)),
        )
        popen.pid = server.start(start, tuple(ends.values()))
        popen._child_created = True
        popen._close_pipe_fds(
            *(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )
        self.forked += 1
        return True

    def _of(self, kind: str, environment: Mapping[str, str]) -> Server | None:
        """The server, begun when it is first needed: by the main thread, which alone lives as long as we do."""
        if kind not in self.servers:
            if self.nested or threading.current_thread() is not threading.main_thread():
                return None
            self.real += 1
            try:
                self.servers[kind], process = begun(kind)
            finally:
                self.real -= 1
            self.processes.append(process)
        server = self.servers[kind]
        return server if server.forks(environment) else None

    def _words(self, arguments: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Flags of Python, then module and words of a command that can be forked; no words of any other."""
        if isinstance(arguments, str | bytes | os.PathLike):
            return (), ()
        program, *words = map(os.fsdecode, arguments)
        flags = tuple(words[:1]) if words[:1] == ["-P"] else ()
        option, module, *rest = (*words[len(flags) :], "", "")
        if program != sys.executable:
            return (), ()
        if option == SCRIPT and SCRIPT in self.served:
            return flags, tuple(words[len(flags) :])
        if option != "-m" or module not in self.served or (module == "app" and rest[0] != "run"):
            return (), ()
        return flags, tuple(words[len(flags) + 1 :])


# ---------------------------------------------------------------------------------------- in the server


def serve(kind: str, asked: socket.socket) -> Start | None:
    """Fork what is asked for until nobody asks; returns also in each process that was forked, with what it is."""
    while True:
        header, descriptors, *_ = socket.recv_fds(asked, LENGTH, 64)
        if len(header) < LENGTH:
            return None
        value = json.loads(_received(asked, int.from_bytes(header, "big")))
        start = Start(**{key: tuple(item) if isinstance(item, list) else item for key, item in value.items()})
        process = clone()
        if process == 0:
            asked.close()
            _become(start, descriptors)
            served = server_of_its_own(kind) if start.words[0] in LAUNCHERS else None
            if served is None:
                return start
            asked = served
            continue
        for descriptor in descriptors:
            os.close(descriptor)
        asked.sendall(process.to_bytes(LENGTH, "big"))


def _received(asked: socket.socket, length: int) -> bytes:
    """All of a message, or what there is of it when nobody writes any more."""
    parts = bytearray()
    while len(parts) < length:
        part = asked.recv(length - len(parts))
        if not part:
            break
        parts += part
    return bytes(parts)


def clone() -> int:
    """Fork this process, which has one thread, with its own parent as parent; 0 in the new one."""
    library = ctypes.PyDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    thread = ctypes.c_ulong(0)  # where libc keeps the thread's number, for the kernel to write the new one
    known = library.prctl(PR_GET_TID_ADDRESS, ctypes.byref(thread), 0, 0, 0) == 0 and thread.value
    flags = CLONE_PARENT | signal.SIGCHLD | (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID if known else 0)
    place = ctypes.c_ulong(thread.value)
    last = (place, ctypes.c_ulong(0)) if CLONE == 56 else (ctypes.c_ulong(0), place)  # their order differs
    ctypes.pythonapi.PyOS_BeforeFork()
    result = int(library.syscall(ctypes.c_long(CLONE), ctypes.c_ulong(flags), None, None, *last))
    if result == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if result < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return result


def _become(start: Start, descriptors: Sequence[int]) -> None:
    """Take what a process gets from the one that starts it."""
    if start.new_session:
        os.setsid()
    elif start.group >= 0:
        os.setpgid(0, start.group)
    os.sched_setaffinity(0, start.cores)
    os.chdir(start.folder)
    beyond = max((*start.targets, *descriptors)) + 1
    for number, descriptor in enumerate(descriptors):  # first out of the way of each other
        os.dup2(descriptor, beyond + number)
    for number, target in enumerate(start.targets):
        os.dup2(beyond + number, target, inheritable=True)
    for descriptor in {*descriptors, *range(beyond, beyond + len(descriptors))} - set(start.targets):
        os.close(descriptor)
    setattr(sys, FORKED, True)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.dont_write_bytecode = bool(start.environment.get("PYTHONDONTWRITEBYTECODE"))
    given = [part for part in start.environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    safe = "-P" in start.flags or start.environment.get("PYTHONSAFEPATH")
    first = [*([] if safe else [start.folder]), *(str(Path(part).absolute()) for part in given)]
    sys.path[:] = [*first, *BASE_PATH]
    importlib.invalidate_caches()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = _streams()
    _show([sys.executable, *start.flags, *([] if start.words[0] == SCRIPT else ["-m"]), *start.words])


def _streams() -> tuple[TextIOWrapper, ...]:
    """Standard streams on what the descriptors are now: whether they seek or are a terminal is asked once."""
    made = []
    for descriptor, before in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        through = before.write_through  # with PYTHONUNBUFFERED, which the server was started with too
        mode, size = ("wb", 0 if through else -1) if descriptor else ("rb", -1)
        buffer = open(descriptor, mode, size, closefd=False)  # noqa: SIM115
        lines = not through and (buffer.isatty() or descriptor == 2)
        made.append(TextIOWrapper(buffer, before.encoding, before.errors, None, lines, through))
    return tuple(made)


def server_of_its_own(kind: str) -> socket.socket | None:
    """Fork a server from a launcher that is to run: its socket in that server, None in the launcher."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    if os.fork():
        theirs.close()
        Forking(Server(kind, ours)).install()
        return None
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    kept = os.dup(theirs.fileno())
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):  # what listed them
                os.close(int(name))
    ours.detach()
    theirs.detach()
    _show([sys.executable, __file__])
    return socket.socket(fileno=kept)


def serve_from_here(kind: str) -> None:
    """Fork what this process starts from itself as it is now: in namespaces of its own, say."""
    asked = server_of_its_own(kind)
    if asked is None:
        return
    start = serve(kind, asked)
    if start is not None:
        leave(ended(start.words))
    os._exit(0)


def is_forked() -> bool:
    """Whether this process has come from a server, and so has what that has imported."""
    return hasattr(sys, FORKED)


def _show(words: Sequence[str]) -> None:
    """Have /proc show a command line."""
    first, last = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: last - first - 1]
    ctypes.memmove(first, text.ljust(last - first, b"\0"), last - first)


BASE_PATH = list(sys.path)


def run_as_main(words: Sequence[str]) -> None:
    """Run a module as ``python -m`` does, or a script as ``python -c``."""
    name, *rest = words
    if name == SCRIPT:
        main = ModuleType("__main__")
        sys.argv[:], sys.modules["__main__"] = [SCRIPT, *rest[1:]], main
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)  # noqa: S102 - as the interpreter does
        return
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    if spec is None or spec.loader is None:
        sys.exit(f"{sys.executable}: No module named {name}")
    main = ModuleType("__main__")
    main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
    main.__file__, main.__cached__ = spec.origin, spec.cached
    sys.argv[:] = [str(spec.origin), *rest]
    sys.orig_argv[:] = [sys.executable, "-m", *words]
    sys.modules["__main__"] = main
    exec(spec.loader.get_code(spec.name), main.__dict__)  # noqa: S102 - as the interpreter does


def ended(words: Sequence[str]) -> int:
    """Run a module to its end: exit code, by the rules of the interpreter."""
    try:
        run_as_main(words)
    except SystemExit as asked:
        if asked.code is None or isinstance(asked.code, int):
            return (asked.code or 0) & 0xFF
        sys.stderr.write(f"{asked.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - also Ctrl-C
        sys.excepthook(*sys.exc_info())
        if sys.exc_info()[0] is KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """End this process in order, and leave thousands of modules as they are: to take them apart takes longer."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _main(descriptor: int, kind: str) -> None:
    """Import, then fork what is asked for; in what was forked run it."""
    gc.disable()
    sys.path.insert(0, str(ROOT))
    server = importlib.import_module("executor.training.rank_server") if kind == RANKS else None
    for name in (*IMPORTED[kind], *((*server.LOADED, *server.OPTIONAL) if server else ())):
        module = importlib.import_module(name)
        if name in PACKAGES:
            for part in iter_modules(module.__path__, f"{name}."):
                importlib.import_module(part.name)
    threads = [Path(path).read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    if len(threads) > 1:
        message = f"threads, which no fork has: {threads}"
        raise RuntimeError(message)
    gc.collect()
    gc.freeze()  # no collection touches, and so copies, what all share
    gc.enable()
    start = serve(kind, socket.socket(fileno=descriptor))
    if start is not None:
        leave(ended(start.words))


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
