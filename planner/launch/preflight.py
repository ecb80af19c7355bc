"""What of a node differs from the plan, before an hour is lost: GPUs, software, NICs, rendezvous."""

from __future__ import annotations

from planner.engines.contract import Contract
from planner.engines.quoting import single_line
from planner.launch.entries import Entry
from planner.launch.machines import AlikeHosts, PlanMachines
from topology.base.names import words
from topology.base.units import GBIT, GIB, MIB
from topology.hardware.datasheets import generation_of, gpu_sheets
from topology.hardware.gpu import Gpu
from topology.hardware.link_state import ACTIVE_PORT, UP

MEMORY_SHARE = 0.95
"""Of the memory that the plan counts on, what a driver must show of a GPU: it keeps some for itself."""

RENDEZVOUS = '''\
"""Whether the ranks can meet: `python rendezvous.py NODE_RANK HOST PORT`, plan against found.

Node 0 must be able to listen on the port; from the others its host must answer. A refused connection is an
answer: node 0 may not have started yet. Names of new pods take a while, hence the patience.
"""

import os
import socket
import sys
import time


def found(rank, host, port, patience_s):
    """What is wrong, empty if nothing is."""
    if rank == 0:
        try:
            socket.create_server(("", port)).close()
        except OSError as error:
            return f"node 0 cannot listen there: {error.strerror}"
        return ""
    until = time.monotonic() + patience_s
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return ""
        except ConnectionRefusedError:
            return ""
        except OSError as error:
            if time.monotonic() > until:
                return f"no answer: {error.strerror or error}"
            time.sleep(1)


if __name__ == "__main__":
    rank, host, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    wrong = found(rank, host, port, float(os.environ.get("RENDEZVOUS_PATIENCE_S", "60")))
    print(f"preflight: rendezvous: plan {host}:{port}, found {wrong or 'it'}", file=sys.stderr)
    sys.exit(bool(wrong))
'''
"""The check of the rendezvous, a file of the bundle."""

_UP = f"""\
active="{ACTIVE_PORT}" up=",{",".join(UP)},"
"""
_NICS = """\
# cards of the fabric as "400 Gb/sec (4X NDR)", Ethernet cards in Mbit/s; virtual ones have no device,
# and what is not up does not count
nics="${SYS_CLASS:-/sys/class}"
fabric=$(for one in "$nics"/infiniband/*/ports/*; do
  case "$(cat "$one/state" 2>/dev/null)" in "$active"*) cat "$one/rate" 2>/dev/null || true ;; esac
done | awk '{s += $1} END {print int(s)}')
ethernet=$(for one in "$nics"/net/*/device; do
  state=$(cat "${one%device}operstate" 2>/dev/null || true)
  case "$up" in *",$state,"*) cat "${one%device}speed" 2>/dev/null || true ;; esac
done | awk '$1 > 0 {s += $1} END {print int(s/1000)}')
rate=$((fabric > ethernet ? fabric : ethernet))
if [ "$rate" -eq 0 ]; then
  echo "preflight: NIC rate: $nic_plan, found none that can be read here: not checked" >&2
elif [ "$rate" -lt "$nics_least" ]; then
  say "NIC rate: $nic_plan, found $rate"
else
  echo "preflight: NIC rate: $nic_plan, found $rate" >&2
fi
if [ -n "${NODE_RANK:-}" ] && [ -n "${MASTER_ADDR:-}" ]; then
  python rendezvous.py "$NODE_RANK" "$MASTER_ADDR" "${MASTER_PORT:-29500}" || wrong=1
else
  echo "preflight: rendezvous: NODE_RANK and MASTER_ADDR are not set: not checked" >&2
fi
"""
_NICS_PLAN = """\
nics_least={total} nic_plan="plan {total} Gbit/s of a node ({count} x {each})"
"""

ENGINE_VERSION = '''\
"""The engine of this node: `python engine_version.py MODULE PACKAGE FIRST LAST`, plan against found."""

import importlib
import importlib.metadata
import re
import sys


def found(module, package):
    """Its version; what is wrong with it where it has none."""
    try:
        known = getattr(importlib.import_module(module), "__version__", None)
        return known or importlib.metadata.version(package), True
    except Exception as error:  # whatever an import raises
        return f"none: {type(error).__name__}: {error}", False


def within(version, first, last):
    """Whether it is one of the releases from the first to the last; 0.17.1 is one of 0.17."""
    told, least, most = (list(map(int, re.findall(r"[0-9]+", text))) for text in (version, first, last))
    return told[: len(least)] >= least and told[: len(most)] <= most


if __name__ == "__main__":
    module, package, first, last = sys.argv[1:]
    version, good = found(module, package)
    print(f"preflight: engine: plan {package} {first} to {last}, found {version}", file=sys.stderr)
    sys.exit(not (good and within(version, first, last)))
'''
"""The check of the engine, a file of the bundle."""


def preflight(contract: Contract, entry: Entry, where: PlanMachines) -> dict[str, str]:
    """The script of one node, and the files that it calls."""
    maker, (first, last) = where.maker, contract.releases
    torch = f'python -c "{maker.torch}" \\\n  || say "torch has no {maker.built_for} here"\n'
    place = f'PYTHONPATH="${{{entry.checkout}:-}}:${{PYTHONPATH:-}}" ' if entry.checkout else ""
    text = f"""\
#!/bin/bash
# says what of this node is not what was planned for, and stops if it cannot work
set -euo pipefail
cd "$(dirname "$0")"
wrong=0
say() {{ echo "preflight: $1" >&2; wrong=1; }}
{maker.tools}count=$(gpus | wc -l)
{"" if where.unequal else _count(where.gpus_per_node)}least=$(memory | sort -n | head -n 1)
least=${{least:-0}}
driver=$(driver | head -n 1 || true)
names | sort | uniq -c >&2 || true
{_of_kinds(where)}{place}python engine_version.py {entry.package} {contract.package} {first} {last} || wrong=1
{torch if entry.torch else ""}{_network(where)}exit $wrong
"""
    meeting = {"rendezvous.py": RENDEZVOUS} if where.nodes > 1 else {}
    return {"preflight.sh": text, "engine_version.py": ENGINE_VERSION, **meeting}


def _of_kinds(where: PlanMachines) -> str:
    """The checks that each kind of host has its own of; of several the rank of this node says which."""
    unlike = len(where.kinds) > 1
    texts = [(_count(kind.ranks) if where.unequal else "") + _of_kind(where, kind) for kind in where.kinds]
    if not unlike:
        return texts[0]
    text = ': "${NODE_RANK:?rank of this node: the plan has unlike ones}"\n'
    for hosts, checks in zip(where.kinds, texts, strict=True):
        end = hosts.first + hosts.count
        text += f'if [ "$NODE_RANK" -ge {hosts.first} ] && [ "$NODE_RANK" -lt {end} ]; then\n'
        text += "".join(f"  {line}\n" for line in [*_product(hosts).splitlines(), *checks.splitlines()])
        text += "fi\n"
    return text


def _count(ranks: int) -> str:
    """The check that a node has as many GPUs as it has ranks."""
    return f'[ "$count" -ge {ranks} ] || say "$count GPUs, the plan has {ranks} of a node"\n'


def _of_kind(where: PlanMachines, kind: AlikeHosts) -> str:
    """What the GPUs, their driver and the NICs of one kind of host must be."""
    gpu, spec = kind.gpu, kind.spec
    least = int(gpu.memory_bytes * MEMORY_SHARE / GIB) * (GIB // MIB)
    text = (
        f'[ "$least" -ge {least} ]'
        f' || say "$least MiB of a GPU, the plan counts on {least} of {single_line(gpu.name)}"\n'
    )
    each = int(spec.nic_bandwidth_bytes_per_s / GBIT)
    nics = _NICS_PLAN.format(total=each * spec.nics_per_node, count=spec.nics_per_node, each=each)
    return text + _driver(gpu) + (nics if where.nodes > 1 else "")


_FORMS = {"pcie", "nvl"}
_PRODUCT = """\
other=$(names | awk '{{ t = " " tolower($0) " "; gsub(/[^a-z0-9]/, " ", t) }} \
  !({wanted}) {{ print; exit }}')
[ -z "$other" ] || say "the stages of this node are planned on {gpu}, found $other"
"""


def _product(kind: AlikeHosts) -> str:
    """The check of what the driver calls the GPUs: the model and the form that their name in the catalog has.

    Only where several kinds are planned for, and only of GPUs of the catalog: others have a user's name.
    """
    if kind.gpu.name not in gpu_sheets():
        return ""
    parts = words(kind.gpu.name)
    model = next((part for part in parts if any(map(str.isdigit, part)) and not part.endswith("gb")), "")
    wanted = [f'index(t, " {part} ")' for part in (model, *sorted(_FORMS & {*parts})) if part]
    wanted += [f'!index(t, " {part} ")' for part in sorted(_FORMS - {*parts})]
    return _PRODUCT.format(wanted=" && ".join(wanted), gpu=kind.gpu.name)


def _driver(gpu: Gpu) -> str:
    """The check of the driver: the first that knows the GPU, where that is known."""
    first, architecture = generation_of(gpu).nvidia_driver, single_line(gpu.architecture)
    asked = f"{first} or later, that of {architecture}" if first else "any"
    return _DRIVER.format(asked=asked) + (_DRIVER_FIRST if first else _DRIVER_ANY).format(first=first)


_DRIVER = """\
driver_plan="driver: plan {asked}, found ${{driver:-none that can be read here}}"
"""
_DRIVER_FIRST = """\
if [ "${{driver%%.*}}" -lt {first} ]; then say "$driver_plan"; else echo "preflight: $driver_plan" >&2; fi
"""
_DRIVER_ANY = """\
echo "preflight: $driver_plan" >&2
"""


def _network(where: PlanMachines) -> str:
    """The checks between nodes; one node has none."""
    return _UP + _NICS if where.nodes > 1 else ""
