"""Which hosts a job got: Slurm's environment, host expressions, `scontrol show hostnames`, MPI host files."""

import re
from collections.abc import Mapping

from topology.base.decode import lines_of
from topology.base.errors import InputError, shown
from topology.discover.fabric import FabricFacts, fabric_facts
from topology.discover.hostlist import hosts_in
from topology.discover.places import MOST_HOSTS, Figure, Place

_LINE = re.compile(r"(?:\d+:\s+)?(?:export\s+|declare -x\s+)?(SLURM\w*)=(.*)")
_HOST = re.compile(r"([\w.:,\[\]-]+)(?:\s+(?:slots|max[_-]slots)=(\d{1,4}))*")
_GPUS = re.compile(r"(?:(?:gpu:)?([A-Za-z][\w.-]*):)?(\d{1,4})(?:\(.*\))?")
LONGEST_ADDRESS = 4096
"""Characters of a topology address: a name for each of a few levels."""
LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST")
COUNTS = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")


def environment_of(text: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return Slurm's variables of a printed environment, and every topology address with its pattern."""
    environment: dict[str, str] = {}
    addresses: list[tuple[str, str]] = []
    for line in lines_of(text, "the environment"):
        match = _LINE.fullmatch(line.strip())
        if match:
            name, value = match[1], match[2].strip().strip("\"'")
            if name == "SLURM_TOPOLOGY_ADDR":
                addresses.append((value, ""))
            elif name == "SLURM_TOPOLOGY_ADDR_PATTERN" and addresses:
                addresses[-1] = (addresses[-1][0], value)
            environment.setdefault(name, value)
    pattern = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    return environment, [(address, stated or pattern) for address, stated in addresses]


def from_environment(text: str) -> FabricFacts:
    """Return the facts of a printed environment (`printenv`, `env`, `export -p`)."""
    result, addresses = environment_of(text)
    return facts_of_environment(result, addresses)


def facts_of_environment(values: Mapping[str, str], addresses: list[tuple[str, str]]) -> FabricFacts:
    """Return the facts of Slurm's variables; a count that the list does not have is a contradiction."""
    listed = next((name for name in LISTS if values.get(name)), "")
    paths = {host: path for address, pattern in addresses for host, path in _addressed(address, pattern)}
    names = hosts_in(values[listed], listed) if listed else list(paths)
    if not names:
        cause = f"neither {LISTS[0]} nor SLURM_TOPOLOGY_ADDR is set in it"
        raise InputError("this environment names no hosts", cause, "print it inside the job")
    for name in COUNTS:
        count = values.get(name, "")
        if listed and count.isascii() and count.isdecimal() and int(count[:9]) != len(names):
            raise InputError(
                "this environment contradicts itself",
                f"{name} is {count[:20]}, and {listed} has {len(names)} hosts",
                "print it inside one job",
            )
    stray = [host for host in paths if host not in set(names)]
    if stray:
        cause = f"SLURM_TOPOLOGY_ADDR is of {shown(stray[0])}, which {listed} does not have"
        raise InputError("this environment contradicts itself", cause, "print it inside one job")
    gpus, gpu, text = _gpus(values)
    source = f"Slurm environment ({listed or 'SLURM_TOPOLOGY_ADDR'})"
    figures = [Figure(name="nodes", value=f"{len(names):,}", source=source)]
    figures += [Figure(name="GPUs per node", value=str(gpus), source=text)] if gpus else []
    notes = []
    if paths and len(paths) < len(names):
        notes.append(
            f"{len(paths)} of {len(names)} hosts have an address: run `srun printenv SLURM_TOPOLOGY_ADDR`"
        )
    usable = len(paths) == len(names)
    return fabric_facts(
        source=source,
        places=[Place(name=name, path=paths[name] if usable else (), gpus=gpus, gpu=gpu) for name in names],
        figures=figures,
        notes=notes,
        of_job=True,
    )


def _addressed(address: str, pattern: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the host of a topology address and the switches above it: `s0.s[1-2].node7`."""
    if max(len(address), len(pattern)) > LONGEST_ADDRESS:
        cause = f"SLURM_TOPOLOGY_ADDR has more than {LONGEST_ADDRESS:,} characters"
        raise InputError("this environment is not understood", cause, "print it inside the job")
    kinds = pattern.split(".") if pattern else []
    parts = re.split(r"\.(?![^\[]*\])", address)
    if kinds and len(parts) > len(kinds):  # a host name may hold dots
        parts = [*parts[: len(kinds) - 1], ".".join(parts[len(kinds) - 1 :])]
    if not parts[-1]:
        return []
    return [(parts[-1], tuple(part for part in parts[:-1] if part))]


def _gpus(values: Mapping[str, str]) -> tuple[int | None, str, str]:
    """Return GPUs of a host, their kind where it is told, and which variable says so."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        match = _GPUS.fullmatch(values.get(name, ""))
        if match and int(match[2]):
            return int(match[2]), match[1] or "", name
    return None, "", ""


def is_node_list(text: str) -> bool:
    """Return whether a text is host names and expressions alone; one bare word is not enough."""
    lines = [
        line.strip()
        for line in text.splitlines()[:10_000]
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines or not all(_HOST.fullmatch(line) for line in lines):
        return False
    return len(lines) > 1 or any(char in "[," or char.isdigit() for char in lines[0])


def from_node_list(text: str) -> FabricFacts:
    """Return the facts of host names, one or an expression a line; `slots=8` tells GPUs."""
    places: dict[str, Place] = {}
    if text.count("\n") > MOST_HOSTS:
        cause = f"it has more than {MOST_HOSTS:,} lines"
        raise InputError("this list of hosts is too long", cause, "give the hosts of one job")
    for line in lines_of(text, "the list"):
        match = _HOST.fullmatch(line.strip())
        if line.lstrip().startswith("#") or not line.strip():
            continue
        if not match:
            raise InputError(
                "this list of hosts is not understood", f"line {shown(line.strip())}", "one host a line"
            )
        gpus = int(match[2]) if match[2] and int(match[2]) else None
        for name in hosts_in(match[1]):
            places.setdefault(name, Place(name=name, gpus=gpus))
    source = "list of hosts"
    figures = (Figure(name="nodes", value=f"{len(places):,}", source=source),)
    return fabric_facts(source=source, places=list(places.values()), figures=figures, of_job=True)
