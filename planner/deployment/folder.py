"""A folder that starts a serving plan: scripts of the nodes, the router, the load test, and what they read.

Every word comes from `planner.deployment.vllm_sglang`; here it is only placed. Addresses of several nodes are
variables that `hosts.sh` asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from planner.deployment.autoscale import Scaling, autoscale_files
from planner.deployment.client import LENGTHS_FILE, client_words, lengths_file, spreads
from planner.deployment.forms import form_files, form_steps
from planner.deployment.kubernetes import BY_TURNS, NO_MANIFEST, PORT
from planner.deployment.multi_node import by_hand
from planner.deployment.placement import PlacedWorker, nodes_of, servers_of
from planner.deployment.vllm_sglang import (
    kubernetes,
    notes,
    option_files,
    router,
    served_checkpoint,
    server_commands,
)
from planner.engines.quoting import shell, single_line
from planner.serving.plan import ServingPlan, serving_to_json
from topology.base.errors import InputError
from topology.base.units import format_chance, format_seconds, three_digits

_ADDRESS = re.compile(r"<address of node (\d+)>")
_HEAD = '#!/bin/bash\n# {what}\nset -euo pipefail\ncd "$(dirname "${{BASH_SOURCE[0]}}")"\n{hosts}'
_HOSTS = "# shellcheck source=hosts.sh\nsource ./hosts.sh\n"
_TEMPLATE = ".in"
_READY_S = 1800
"""Patience of the load test: a large checkpoint takes that long from a slow disk."""


def folder(
    plan: ServingPlan, scaling: Scaling | None = None, forms: Sequence[str] | None = None
) -> dict[str, str]:
    """Every file of the folder by its name; with `scaling` also what scales its pools in Kubernetes.

    `forms` are of `planner.deployment.forms`; by default scripts and, where it can be told the plan, a
    manifest. A form that is named and cannot be told the plan is refused.
    """
    if scaling is not None and forms is not None and "kubernetes" not in forms:
        raise InputError(
            what="--autoscale writes files for plain Kubernetes",
            cause=f"--deploy {','.join(forms)} has no manifest that they scale",
            fix="add kubernetes to --deploy, or leave out --autoscale",
        )
    others = [form for form in forms or () if form != "scripts"]
    if others and plan.request.router not in BY_TURNS:
        raise InputError(
            what=f"a {plan.request.router} router is written for scripts alone",
            cause=f"--deploy {','.join(others)}, where another one is in front, by rules of its own",
            fix="use --deploy scripts, or --router round-robin",
        )
    files = _scripts(plan) if forms is None or "scripts" in forms else {}
    if forms is None or "kubernetes" in forms:
        files |= _kubernetes(plan, scaling, asked=forms is not None or scaling is not None)
    for form in forms or ():
        files |= form_files(plan, form)
    files["plan.json"] = serving_to_json(plan) + "\n"
    return files | {"README.md": _readme(plan, servers_of(plan), files)}


def _kubernetes(plan: ServingPlan, scaling: Scaling | None, *, asked: bool) -> dict[str, str]:
    """The manifest, and what scales it; nothing where there is none and nobody named it."""
    manifest = kubernetes(plan, scaled=scaling is not None)
    if not manifest.startswith(NO_MANIFEST):
        return {"kubernetes.yaml": manifest} | (autoscale_files(plan, scaling) if scaling else {})
    if not asked:
        return {}
    raise InputError(
        what="there is no manifest for this fleet",
        cause="; ".join(line.strip("# ") for line in manifest.splitlines()[:2]),
        fix=f"use --deploy dynamo, or pin a layout of at most {plan.gpus_per_node} GPUs",
    )


def _scripts(plan: ServingPlan) -> dict[str, str]:
    """The scripts of every node, of the router and the load test, and what they read."""
    servers = servers_of(plan)
    nodes = nodes_of(servers)
    files = {f"node{node}.sh": _node(plan, servers, node) for node in _started(plan, servers)}
    options = option_files(plan)
    if router(plan):
        files["router.sh"] = _router(
            plan, servers, [name for name, text in options.items() if _ADDRESS.search(text)]
        )
    files["loadtest.sh"] = _load_test(plan)
    if spreads(plan.request.job):
        files[LENGTHS_FILE] = lengths_file(plan.request.job)
    if nodes > 1:
        files["hosts.sh"] = _hosts(nodes)
    for name, text in options.items():
        files[f"{name}{_TEMPLATE * bool(_ADDRESS.search(text))}"] = text + "\n"
    return files


def _started(plan: ServingPlan, servers: Sequence[PlacedWorker]) -> list[int]:
    """The nodes on which something is started, in their order."""
    return sorted({node for server in servers for node in server_commands(plan, server)})


def _head(what: str, nodes: int) -> str:
    """The first lines of a script: what it is, strictness, its own folder, and the addresses."""
    return _HEAD.format(what=single_line(what), hosts=_HOSTS if nodes > 1 else "")


def _node(plan: ServingPlan, servers: Sequence[PlacedWorker], node: int) -> str:
    """The script of one node: its servers beside each other; when one ends, all do."""
    here = [
        (server, words)
        for server in servers
        for at, words in server_commands(plan, server).items()
        if at == node
    ]
    what = ", ".join(f"{server.name} on GPUs {server.gpus[0]} to {server.gpus[-1]}" for server, _ in here)
    lines = ["mkdir -p logs", "pids=()", "trap 'kill \"${pids[@]}\" 2>/dev/null || true' EXIT"]
    for server, words in here:
        lines += [f"{_line(words)} > logs/{server.name}.log 2>&1 &", 'pids+=("$!")']
    return _head(f"node {node}: {what}", nodes_of(servers)) + "\n".join([*lines, "wait -n", ""])


def _router(plan: ServingPlan, servers: Sequence[PlacedWorker], templates: Sequence[str]) -> str:
    """The script of the router, with the addresses put into the files it reads."""
    nodes = nodes_of(servers)
    fill = " ".join(f'-e "s/<address of node {node}>/$NODE_{node}/g"' for node in range(nodes))
    lines = [f"sed {fill} {name}{_TEMPLATE} > {name}" for name in templates]
    what = f"in front of {len(servers)} servers: clients ask it on port {PORT}"
    return _head(what, nodes) + "\n".join([*lines, f"exec {_line(router(plan))}", ""])


def _line(words: Sequence[str]) -> str:
    """A command line; an address that its user fills in becomes a variable.

    >>> print(_line(["serve", "--host", "<address of node 1>:80", "a b"]))
    serve --host "$NODE_1:80" 'a b'
    """
    return " ".join(
        f'"{_ADDRESS.sub(_variable, word)}"' if _ADDRESS.search(word) else shell(word) for word in words
    )


def _variable(match: re.Match[str]) -> str:
    """The variable of an address."""
    return f"$NODE_{match[1]}"


def _hosts(nodes: int) -> str:
    """The addresses of the nodes, to be filled in here or in the environment."""
    lines = ["# shellcheck shell=bash", "# addresses of the nodes; every script reads this file"]
    for node in range(nodes):
        lines += [
            f'NODE_{node}="${{NODE_{node}:-}}"',
            f': "${{NODE_{node}:?name the address of node {node}}}"',
        ]
    return "\n".join([*lines, f"export {' '.join(f'NODE_{node}' for node in range(nodes))}", ""])


def _load_test(plan: ServingPlan) -> str:
    """The question's own load, once the deployment answers."""
    what, url = (
        "the load of the question, measured as the plan predicts it",
        f"http://localhost:{PORT}/health",
    )
    return _head(what, 1) + "\n".join([
        f"for ((second = 0; second < {_READY_S}; second += 5)); do",
        f"  if curl --silent --fail --max-time 5 --output /dev/null {url}; then break; fi",
        "  sleep 5",
        "done",
        f"exec {_line(client_words(plan, served_checkpoint(plan), from_file=True))}",
        "",
    ])  # fmt: skip


def _readme(plan: ServingPlan, servers: Sequence[PlacedWorker], files: Mapping[str, str]) -> str:
    """What to do in which order, in ten lines."""
    nodes = nodes_of(servers)
    scripts = [name for name in files if name.startswith("node")]
    ttft, tpot = format_seconds(plan.estimate.ttft.p50_s), format_seconds(plan.estimate.tpot.p50_s)
    rate = three_digits(plan.estimate.request_rate_per_s)
    steps = [
        *(_script_steps(scripts, nodes, routed="router.sh" in files) if scripts else ()),
        (
            f"Planned: at {rate} requests/s a p50 first token of {ttft}, and {tpot} an output token. "
            f"{_doubts(plan)}"
        ),
        *form_steps(files),
        *(f"{note[0].upper()}{note[1:]}." for note in notes(plan) if note not in by_hand(plan, servers)),
    ]
    title = f"# {plan.request.model.name} on {plan.num_gpus} × {plan.request.gpu}: {plan.label}"
    lines = [f"{number}. {single_line(step)}" for number, step in enumerate(steps, 1)]
    return "\n".join([single_line(title), "", *lines, ""])


def _doubts(plan: ServingPlan) -> str:
    """How surely the plan is kept, and what was measured of it."""
    limits = {"ttft": "first token", "tpot": "output token", "end_to_end": "whole request"}
    kept = [
        f"The limit of {format_seconds(check.limit_s)} for the {limits[name]} holds with a chance of "
        f"{format_chance(check.chance)}: p{plan.request.job.percentile:g} is "
        f"{format_seconds(check.predicted_s)}, at the upper end of the error band "
        f"{format_seconds(check.upper_s)}."
        for name, check in plan.estimate.limits.items()
    ]
    return " ".join([*kept, f"Behind it: {plan.measured}."])


def _script_steps(scripts: Sequence[str], nodes: int, *, routed: bool) -> list[str]:
    """What starts the servers by hand."""
    each = (
        f"Run `bash {scripts[0]}`"
        if len(scripts) == 1
        else (f"Run `bash {scripts[0]}` to `{scripts[-1]}`, each on its node")
    )
    return [
        *([f"Name the addresses of {nodes} nodes in `hosts.sh`."] if nodes > 1 else []),
        f"{each}; logs are in `logs/`, and when one server of a node ends, its others are ended.",
        *(["Run `bash router.sh` on node 0."] if routed else []),
        f"Clients ask port {PORT} of node 0. `bash loadtest.sh` there waits until it answers, then measures.",
    ]
