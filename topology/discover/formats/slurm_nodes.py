"""What Slurm says of nodes and of a job: `scontrol show node`, `scontrol show job`, `sinfo -N`.

Nodes that are down, drained or failing are left out of what is planned on, and named with their reason.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from topology.base.decode import lines_of
from topology.base.errors import InputError, shortened
from topology.discover.fabric import FabricFacts, fabric_facts
from topology.discover.hostlist import hosts_in
from topology.discover.places import MOST_NAMED, Figure, Place

_FIELD = re.compile(r"(?<!\S)([A-Z]\w{0,40})=(.*?)(?=\s+[A-Z]\w{0,40}=|$)")
_GRES = re.compile(r"gpu(?::(?P<kind>[A-Za-z][\w.-]{0,40}))?:(?P<count>\d{1,3})(?![\w.])")
_RECORD = re.compile(r"^NodeName=\S+ .*\bArch=|^NodeName=[\s\S]{0,4000}?\bState=", re.MULTILINE)
_TRES = re.compile(r"gres/gpu(?::(?P<kind>[A-Za-z][\w.-]{0,40}))?[=:](?P<count>\d{1,7})(?!\w)")
_AWAY = re.compile(r"down|drain|drng|drained|fail|maint|unk|no_respond|inval|power", re.IGNORECASE)
_HEADS = ("NODELIST", "HOSTNAMES", "NODE_NAME")
_HEAD = re.compile(rf"^\s*(?:{'|'.join(_HEADS)})(?:\s+[A-Z_:/]+)+\s*$", re.MULTILINE)


def is_of_nodes(text: str) -> bool:
    """Whether a text is what `scontrol show node` or `sinfo` prints of nodes, each on lines of its own."""
    return bool(_RECORD.search(text) or _HEAD.search(text[:4000]))


def is_of_job(text: str) -> bool:
    """Whether a text is what `scontrol show job` prints."""
    return bool(re.search(r"^\s*JobId=\d+", text, re.MULTILINE)) and "NodeList=" in text


def from_job(text: str) -> FabricFacts:
    """The facts of a job: its hosts, and the GPUs of each as its resources say them."""
    fields: dict[str, str] = {}
    for line in lines_of(text, "the job"):
        for name, value in _FIELD.findall(line.strip()[:4000]):
            fields.setdefault(name, value.strip())
    source, listed = "scontrol show job", fields.get("NodeList", "")
    if listed in ("", "(null)", "None"):
        cause = f"it is {fields.get('JobState', 'not started')[:20]}, and NodeList is {listed or 'not there'}"
        raise InputError("this job has no hosts yet", cause, "print it once the job runs, or give --gpus")
    names = hosts_in(listed, "NodeList")
    gpus, kind = _gpus_of_job(fields, len(names))
    figures = [Figure(name="nodes", value=f"{len(names):,}", source=f"{source}: NodeList")]
    figures += [Figure(name="GPUs per node", value=str(gpus), source=f"{source}: TRES")] if gpus else []
    places = [Place(name=name, gpus=gpus, gpu=kind) for name in names]
    return fabric_facts(source=source, places=places, figures=figures, of_job=True)


def _gpus_of_job(fields: Mapping[str, str], hosts: int) -> tuple[int | None, str]:
    """GPUs of each host of a job, and their kind; None where its resources do not divide so."""
    each = _TRES.search(fields.get("TresPerNode", "")) or _GRES.search(fields.get("Gres", ""))
    allocated = [*_TRES.finditer(fields.get("AllocTRES", "") or fields.get("TRES", ""))]
    kind = next((match["kind"] for match in (each, *allocated) if match and match["kind"]), "")
    if each and int(each["count"]):
        return int(each["count"]), kind
    total = max((int(match["count"]) for match in allocated), default=0)
    return (total // hosts, kind) if total and not total % hosts else (None, kind)


def from_nodes(text: str) -> FabricFacts:
    """The facts of nodes; what has no GPUs is left out where others have some."""
    rows = list(_rows_of_table(text) if _HEAD.search(text[:4000]) else _rows_of_records(text))
    source = "sinfo" if _HEAD.search(text[:4000]) else "scontrol show node"
    listed = any(count for _, (count, _), _, _ in rows)
    away = [(name, state, why) for name, _, state, why in rows if _AWAY.search(state)]
    well = [(name, gres) for name, gres, state, _ in rows if not _AWAY.search(state)]
    without = [name for name, (count, _) in well if listed and not count]
    places = {
        name: Place(name=name, gpus=count, gpu=kind) for name, (count, kind) in well if count or not listed
    }
    notes = []
    if away:
        named = ", ".join(f"{name} ({_state_words(state, why)})" for name, state, why in away[:MOST_NAMED])
        more = f" and {len(away) - MOST_NAMED} more" if len(away) > MOST_NAMED else ""
        notes.append(f"{len(away)} of {len(rows)} nodes cannot run a job, and are left out: {named}{more}")
    if without:
        named = ", ".join(map(shortened, without[:MOST_NAMED]))
        notes.append(f"{len(without)} nodes have no GPUs and are left out: {named}")
    if not places:
        raise InputError(
            f"this {source} has no node that can run a job", "; ".join(notes) or "it names none",
            "give the output for nodes that are up",
        )  # fmt: skip
    figures = [Figure(name="nodes", value=f"{len(places):,}", source=source)]
    if listed:
        counts = sorted({place.gpus or 0 for place in places.values()})
        figures.append(
            Figure(name="GPUs per node", value=", ".join(map(str, counts)), source=f"{source}: Gres")
        )
    return fabric_facts(source=source, places=list(places.values()), figures=figures, notes=notes)


def _state_words(state: str, why: str) -> str:
    """The state of a node in small letters, with the reason that an administrator gave."""
    reason = re.sub(r"\s*\[.*$", "", why).strip()
    plain = shortened(re.sub(r"[*~#!%$@^-]", "", state.lower()))
    return f"{plain}: {shortened(reason)}" if reason and reason.lower() not in ("none", "(null)") else plain


def _gres(text: str) -> tuple[int | None, str]:
    """GPUs and their kind in a list of generic resources; of several kinds their sum."""
    matches = [*_GRES.finditer(text)]
    count = sum(int(match["count"]) for match in matches)
    kinds = {match["kind"] for match in matches if match["kind"]}
    return (count or None), (kinds.pop() if len(kinds) == 1 else "")


def _rows_of_records(text: str) -> Iterator[tuple[str, tuple[int | None, str], str, str]]:
    """Name, GPUs, state and reason of every record of `scontrol show node`."""
    fields: dict[str, str] = {}
    for line in (*lines_of(text, "the nodes"), "NodeName="):
        fields_of_line = _FIELD.findall(line.strip()[:4000]) if line != "NodeName=" else [("NodeName", "")]
        for name, value in fields_of_line:
            if name == "NodeName" and fields:
                yield (
                    fields["NodeName"],
                    _gres(fields.get("Gres", "")),
                    fields.get("State", ""),
                    fields.get("Reason", ""),
                )
                fields = {}
            if fields or name == "NodeName":
                fields.setdefault(name, value.strip())


def _rows_of_table(text: str) -> Iterator[tuple[str, tuple[int | None, str], str, str]]:
    """Name, GPUs, state and reason of every node of a table of `sinfo`, an expression of hosts opened."""
    header: Sequence[str] = ()
    for line in lines_of(text, "the table"):
        cells = line.split()
        if cells and cells[0] in _HEADS:
            header = cells
        elif header and len(cells) >= len(header) - 1:
            row = dict(zip(header, cells, strict=False))
            if "REASON" in header and header[-1] == "REASON":
                row["REASON"] = " ".join(cells[len(header) - 1 :])
            for name in hosts_in(cells[0]):
                yield name, _gres(row.get("GRES", "")), row.get("STATE", ""), row.get("REASON", "")
