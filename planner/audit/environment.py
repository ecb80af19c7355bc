"""Variables of the environment that make a job slow, wherever a file sets them; in `environment.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.formats.settings import Setting
from topology.base.decode import read_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowVariable:
    """One variable that slows a job down.

    Attributes:
        name: Its name.
        values: With which it does, in small letters.
        needs: ``node`` where several GPUs share one, ``peers`` where these also write into each other's
            memory, ``network`` where there are several nodes.
        does: What happens.
        fix: What changes it.
    """

    name: str
    values: tuple[str, ...]
    needs: str
    does: str
    fix: str

    @property
    def rule(self) -> str:
        """What an audit calls it."""
        return self.name.lower().replace("_", "-")


SLOW = tuple(
    SlowVariable(**{**row, "values": tuple(row["values"])})
    for row in read_toml(Path(__file__).parent / "data" / "environment.toml")["variables"]
)
"""All that are known."""
OVER_TCP = "tcp-between-nodes"
"""What audits call nodes that NCCL joins by sockets, as its log says."""
NICS = "NCCL_IB_HCA"
"""Which NICs NCCL takes: names that begin so, with ``=`` before them those alone, with ``^`` all others."""
FEWER_NICS = "fewer-nics"
"""What audits call a job that is told fewer NICs than its nodes have."""
FULL_PRECISION = "full-precision"
"""What audits call a job that multiplies in fp32, as no word asks for sixteen bits."""
SLOWING = frozenset((*(variable.rule for variable in SLOW), OVER_TCP, FULL_PRECISION, FEWER_NICS))
"""What audits call what slows a job down in no price: variables, a network, a format."""


INTERFACE = "NCCL_SOCKET_IFNAME"
"""Which interface NCCL's sockets take."""
THROUGH_HOSTS = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
"""Variables with which GPUs of a host exchange through its memory, which servers are priced with."""
OVER_SOCKETS = ("NCCL_IB_DISABLE", "NCCL_NET")
"""Variables with which nodes exchange over sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSetting:
    """A variable that slows a job down as a file sets it, and what then happens, in words."""

    variable: SlowVariable
    setting: Setting
    message: str


def slow_settings(
    kept: Mapping[str, Setting],
    anywhere: Mapping[str, Setting],
    *,
    shared: bool,
    several: bool,
    peers: bool,
) -> Iterator[SlowSetting]:
    """Variables that slow a job down, where it has what they slow down.

    Args:
        kept: What scripts set, by name; it holds over the rest.
        anywhere: What any file sets.
        shared: Whether GPUs of one node exchange.
        several: Whether nodes do.
        peers: Whether GPUs of one node can write into each other's memory.
    """
    applies = {"": True, "node": shared, "peers": shared and peers, "network": several}
    for variable in SLOW:
        known = kept.get(variable.name)
        setting = known if known is not None and known.value else anywhere.get(variable.name)
        if setting is None or str(setting.value).lower() not in variable.values:
            continue
        sockets = anywhere.get(INTERFACE) if variable.name in OVER_SOCKETS else None
        over = "" if sockets is None else f", over {sockets.value}"
        if applies[variable.needs]:
            message = f"{variable.name} is {setting.value}: {variable.does}{over}"
            yield SlowSetting(variable=variable, setting=setting, message=message)


def exchanges_through_hosts(kept: Mapping[str, Setting], anywhere: Mapping[str, Setting]) -> bool:
    """Whether a file tells NCCL that no GPU reads another's memory; scripts' variables hold over the rest."""
    slowing = slow_settings(kept, anywhere, shared=True, several=False, peers=True)
    return any(slow.variable.name in THROUGH_HOSTS for slow in slowing)


def nics_named(value: str) -> int:
    """How many NICs of a node NCCL is told to take; 0 where a value does not count them.

    Names without a number are all NICs of a driver, and a bond is of several.

    >>> nics_named("mlx5_0"), nics_named("=mlx5_0:1,mlx5_3:1"), nics_named("mlx5"), nics_named("^mlx5_0")
    (1, 2, 0, 0)
    """
    names = {name.partition(":")[0].strip() for name in value.removeprefix("=").split(",")}
    counted = all(re.fullmatch(r"[a-z][a-z0-9]*_(?:re|r)?\d{1,3}", name) for name in names)
    return len(names) if counted else 0


def set_variables(text: str, path: str) -> dict[str, Setting]:
    r"""Which of them a text sets, the last of several: of a script, a manifest, a program; not in comments.

    >>> set_variables("# NCCL_P2P_DISABLE=1\nexport NCCL_IB_DISABLE='1'", "x.sh")["NCCL_IB_DISABLE"].line
    2
    """
    variables: dict[str, Setting] = {}
    if not any(variable.name in text for variable in SLOW):
        return variables
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(("#", "//")) and not line.startswith(("#SBATCH", "#PBS")):
            continue
        for variable in SLOW:
            if variable.name not in line:
                continue
            value = _value(variable.name, line, lines[number] if number < len(lines) else "")
            if value is None:
                variables.pop(variable.name, None)
            elif value:
                variables[variable.name] = Setting(name=variable.name, value=value, line=number, file=path)
    return variables


def _value(name: str, line: str, after: str) -> str | None:
    """What a line sets a variable to; empty where it only names it, None where it takes it away."""
    if re.search(rf"\bunset\b[^;&|]*\b{name}\b", line):
        return None
    match = re.search(rf"\b{name}['\"]?\]?\s*[=:,]\s*['\"]?(?:\$\{{\w+:[-=]?)?(\w+)", line)
    if match is None and re.search(
        rf"\bname:\s*['\"]?{name}['\"]?\s*$", line
    ):  # a container's, over two lines
        match = re.match(r"\s*value:\s*['\"]?(\w+)", after)
    return match[1] if match else ""
