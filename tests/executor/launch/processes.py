"""Processes as Linux shows them under /proc."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

LISTENING = "0A"  # the state's number in /proc/net/tcp


def family(root: int) -> tuple[int, ...]:
    """A process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [root]
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    return tuple(found)


def alive(process: int) -> bool:
    """Whether a process runs: one that only waits to be buried does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def addresses(processes: tuple[int, ...]) -> frozenset[str]:
    """Addresses on which processes listen."""
    return frozenset(address for address, _ in endpoints(processes))


def endpoints(processes: tuple[int, ...]) -> frozenset[tuple[str, int]]:
    """Addresses and ports on which processes listen."""
    inodes = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            try:
                target = str(descriptor.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                words, _, port = fields[1].partition(":")
                found.add((address(words), int(port, 16)))
    return frozenset(found)


def address(words: str) -> str:
    """An address as /proc writes it: words of four bytes, each in the machine's order."""
    octets = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    return str(ip_address(octets))


def words_of(process: int) -> bytes:
    """Command line of a process."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
