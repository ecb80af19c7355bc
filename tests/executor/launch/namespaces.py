"""Hosts played by one machine: each has a name, a network interface and an address of its own.

Run as a program it is the machine that holds the hosts: NAMES, `--`, and what each of them runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

INTERFACE = "eth0"
WITHIN = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--uts")
LIMIT_S = 240
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


def _main(arguments: list[str]) -> int:
    """Make the hosts, join them by a bridge, and wait for what they run."""
    cut = arguments.index("--")
    names, words = arguments[:cut], arguments[cut + 1 :]
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
        host = subprocess.Popen(
            ["unshare", "--net", "--uts", "bash", "-c", _HOST, "host", *words], env={**os.environ, **told}
        )
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


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _network(process: int) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink())


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
