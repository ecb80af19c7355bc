"""Hosts played by one machine: each has a name, a network interface and an address of its own.

Run as a program it is the machine that holds the hosts: NAMES, `--`, and what each of them runs. With `modules`
first it leaves for namespaces by itself, and so do its hosts, which run a module of Python: then all of them are
forked where tests fork processes, and launchers and ranks have what the first of them has imported.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

INTERFACE = "eth0"
WITHIN = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--uts")
LIMIT_S = 240
ROOT, MODULE, MODULES, HOST = Path(__file__).parents[3], "tests.executor.launch.namespaces", "modules", "host"
NEW_MOUNTS, NEW_NAMES, NEW_USERS, NEW_NETWORK = 0x20000, 0x4000000, 0x10000000, 0x40000000  # of unshare(2)
MS_REC, MS_PRIVATE = 0x4000, 0x40000  # of mount(2)
FIRST = "HOST_FIRST"  # commands that each host runs first
_HOST = """\
echo "$HOST_NAME" > /proc/sys/kernel/hostname
until ip link show "$INTERFACE" > /dev/null 2>&1; do sleep 0.02; done
ip link set lo up
ip link set "$INTERFACE" addrgenmode none  # one family of addresses, as gloo wants it
ip address add "$ADDRESS/24" dev "$INTERFACE"
ip link set "$INTERFACE" up
exec "$@"
"""
_PROBE = """\
ip link add probe type bridge
mount --bind /etc/hosts /etc/hosts
unshare --net --uts sh -c 'echo probe > /proc/sys/kernel/hostname'
"""


def possible() -> bool:
    """Whether this machine lets us make networks and names that nobody else sees."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    return subprocess.run([*WITHIN, "sh", "-ec", _PROBE], check=False, capture_output=True).returncode == 0


def on_hosts(
    names: Sequence[str], words: Sequence[str], folder: Path, named: Mapping[str, str]
) -> tuple[int, str]:
    """Run a command on every host: the first exit code that is not 0, and what all of them said.

    HOST_NUMBER is the place of a host among the names in their strings' order, as a scheduler numbers them.
    """
    call = [*WITHIN, sys.executable, __file__, *names, "--", *words]
    done = subprocess.run(
        call, cwd=folder, env={**os.environ, **named}, check=False, capture_output=True, text=True,
        timeout=LIMIT_S + 30,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def modules_on_hosts(
    names: Sequence[str], words: Sequence[str], folder: Path, named: Mapping[str, str], first: str = ""
) -> tuple[int, str]:
    """Run a module of Python on every host, after commands of bash: as `on_hosts`.

    In `named` ``$HOST_NAME`` and ``$HOST_NUMBER`` are those of each host. In the folder ``host-NAME`` has its
    process, which the module runs in, and ``said-NAME`` the standard output.
    """
    call = [sys.executable, "-m", MODULE, MODULES, *names, "--", *words]
    told = {**os.environ, **named, "PYTHONPATH": str(ROOT), FIRST: first}
    done = subprocess.run(
        call, cwd=folder, env=told, check=False, capture_output=True, text=True, timeout=LIMIT_S + 30
    )
    return done.returncode, done.stdout + done.stderr


def _main(arguments: list[str]) -> int:
    """Make the hosts, join them by a bridge, and wait for what they run."""
    if arguments[0] == HOST:
        return _be_host(arguments[1:])
    forked = arguments[0] == MODULES
    if forked:
        _leave(NEW_USERS | NEW_NETWORK | NEW_MOUNTS | NEW_NAMES)
    cut = arguments.index("--")
    names, words = arguments[forked:cut], arguments[cut + 1 :]
    entered = ["unshare", "--net", "--uts", "bash", "-c", _HOST, "host"]
    if forked:
        entered = [sys.executable, "-m", MODULE, HOST]
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=1)}
    with tempfile.NamedTemporaryFile("w", delete=False) as table:
        table.write("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in addresses.items()))
    _ip("link", "add", "bridge", "type", "bridge")
    _ip("link", "set", "bridge", "up")
    subprocess.run(["mount", "--bind", table.name, "/etc/hosts"], check=True)
    hosts = []
    for number, name in enumerate(names):
        told = {"HOST_NAME": name, "ADDRESS": addresses[name], "INTERFACE": INTERFACE}
        told["HOST_NUMBER"] = str(sorted(names).index(name))
        host = subprocess.Popen([*entered, *words], env={**os.environ, **told})
        hosts.append(host)
        while _network(host.pid) == _network(os.getpid()):
            time.sleep(0.02)
        _ip("link", "add", f"to{number}", "type", "veth", "peer", "name", INTERFACE, "netns", str(host.pid))
        _ip("link", "set", f"to{number}", "master", "bridge", "up")
    try:
        limit_s = time.monotonic() + LIMIT_S
        codes = [host.wait(max(1.0, limit_s - time.monotonic())) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
        Path(table.name).unlink()
    return next((code for code in codes if code), 0)


def _be_host(words: list[str]) -> int:
    """Make this process a host, and run a module in it."""
    from tests.fork_server import run_as_main

    _leave(NEW_NETWORK | NEW_NAMES)
    subprocess.run(["bash", "-c", _HOST, HOST, "true"], check=True)
    name = os.environ["HOST_NAME"]
    first = os.environ.pop(FIRST)
    subprocess.run(["bash", "-c", first], check=True)
    for variable, value in os.environ.items():
        os.environ[variable] = Template(value).safe_substitute(os.environ)
    Path(f"host-{name}").write_text(str(os.getpid()))
    said = os.open(f"said-{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(said, 1)
    os.close(said)
    run_as_main(words)
    return 0


def _leave(spaces: int) -> None:
    """Leave for namespaces of one's own, as root of them; what is started from here has them too."""
    from tests.fork_server import RANKS, is_forked, serve_from_here

    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(spaces):
        raise OSError(ctypes.get_errno(), "unshare")
    if spaces & NEW_USERS:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if spaces & NEW_MOUNTS and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "mount")
    if is_forked():
        serve_from_here(RANKS)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _network(process: int) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink())


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
