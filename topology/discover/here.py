"""What the machine that this runs on can say of itself and of its job, and what it could not."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from topology.base.errors import InputError, shortened
from topology.discover.cluster import Discovery, discover
from topology.discover.formats import node_list, nvidia_smi, rocm, slurm_conf
from topology.discover.node import NodeFacts, from_smi_topo
from topology.discover.places import Figure
from topology.discover.recognise import DumpFacts

MOST_SECONDS = 20
"""Of one tool; one that takes longer waits for a driver that does not answer."""
INFINIBAND = Path("/sys/class/infiniband")
LINK_RATE = "ports/1/rate"


def here(gpu: str = "", environment: Mapping[str, str] | None = None) -> Discovery:
    """Return the cluster of this machine's job, as far as it can be seen from here."""
    known = os.environ if environment is None else environment
    facts: list[DumpFacts] = []
    missing: list[str] = []
    values = {name: value for name, value in known.items() if name.startswith("SLURM")}
    if any(values.get(name) for name in node_list.LISTS):
        text = "".join(f"{name}={value}\n" for name, value in values.items() if "\n" not in value)
        facts.append(node_list.from_environment(text))
    else:
        missing.append(f"{node_list.LISTS[0]} is not set: this machine is taken as the whole job")
    facts += _nodes(missing)
    topology = _output(("scontrol", "show", "topology"), missing)
    if topology and slurm_conf.is_topology_conf(topology):
        facts.append(slurm_conf.from_topology_conf(topology))
    nics = infiniband_devices()
    if not nics:
        missing.append(f"no device in {INFINIBAND}: NICs are the reference machine's")
    if not facts:
        raise InputError(
            "nothing can be seen from here",
            "; ".join(missing),
            "run it inside a job, or give dumps with --discover",
        )
    result = discover(facts, gpu)
    figures = (*result.figures, *(Figure(name="NIC", value=name, source=str(INFINIBAND)) for name in nics))
    notes = (*result.notes, *(f"not seen from here: {what}" for what in missing))
    return Discovery(spec=result.spec, notes=notes, figures=figures)


def _nodes(missing: list[str]) -> list[NodeFacts]:
    """Return what the tools of this machine's GPUs say."""
    facts: list[NodeFacts] = []
    query = _output(("nvidia-smi", "-q", "-x"), missing)
    if query and nvidia_smi.is_query(query):
        facts.append(nvidia_smi.from_query(query))
        matrix = _output(("nvidia-smi", "topo", "-m"), missing)
        facts += [from_smi_topo(matrix)] if "GPU0" in matrix else []
    elif not query:
        links = _output(("rocm-smi", "--showtopo"), missing)
        facts += [rocm.from_topology(links)] if rocm.is_topology(links) else []
    return facts


def _output(words: tuple[str, ...], missing: list[str]) -> str:
    """Return what a tool prints, "" where it is not there or fails; says so."""
    name = " ".join(words)
    if shutil.which(words[0]) is None:
        missing.append(f"{words[0]} is not installed")
        return ""
    try:
        done = subprocess.run(words, capture_output=True, timeout=MOST_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        missing.append(f"{name}: {shortened(str(error))}")
        return ""
    if done.returncode:
        missing.append(f"{name} failed with status {done.returncode}")
        return ""
    return done.stdout.decode("utf-8", "replace")


def infiniband_devices(folder: Path = INFINIBAND) -> list[str]:
    """Return the RDMA devices of this machine, each with the rate of its first port."""
    try:
        devices = sorted(folder.iterdir())
    except OSError:
        return []
    return [f"{device.name} {_line(device / LINK_RATE)}".strip() for device in devices[:64]]


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:40].strip()
    except (OSError, UnicodeDecodeError):
        return ""
