"""One file that configures the workers of both pools.

TensorRT-LLM's was one, before it was the router's alone. What stands beside ``context_servers`` and
``generation_servers`` holds for both (`extract_disagg_cfg`, tensorrt_llm/llmapi/disagg_utils.py: keys of a
phase over those of the whole file).

A graph of Dynamo before its operator is another: a table for each service, whose keys are flags of its engine
(`ServiceConfig.as_args`, deploy/sdk). A flag that a table has not is the engine's default, as tp is 1.
The values of vLLM's production stack are a third: a row for each pool, told apart by the role of its caches.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from planner.audit.read import FILE_OF_ROUTER
from planner.formats.kinds import kind_of
from planner.formats.settings import whole_or_none
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY

_PHASES = {PROMPT_ONLY: "context_servers", OUTPUT_ONLY: "generation_servers"}
_OF_ROUTER = frozenset(
    ("hostname", "port", "urls", "num_instances", "router", "perf_metrics_max_requests", *_PHASES.values())
)
"""Keys that say nothing of a worker's engine."""
_NAME = "{phase} workers.{ending}"
_OURS = re.compile(r"(?P<phase>prefill|decode) workers\.(?:yaml|sh)")
_ENGINES = {"vllm": "vllm serve", "sglang": "python3 -m sglang.launch_server --model-path"}
"""What serves in a graph of Dynamo, by what the names of its services begin with."""
_OF_GRAPH = frozenset((
    "model", "model-path", "router", "remote-prefill", "conditional-disagg", "max-local-prefill-length",
    "max-prefill-queue-size", "kv-transfer-config", "common-configs", "ServiceArgs", "endpoint",
))  # fmt: skip
"""Keys of a service that are no flags of its engine, or say what its two pools say."""
_MOST_GPUS = 64


def files_of_phases(texts: Mapping[str, str]) -> dict[str, str]:
    """A file of options for the workers of each phase, where one file configures both and their model."""
    import yaml

    for name, text in texts.items():
        may_be = len(FILE_OF_ROUTER.findall(text)) >= len(_PHASES) or _WORKER.search(text)
        may_be = may_be or _ROLE_OF_STACK.search(text)
        if not may_be or kind_of(text, name) != "yaml":
            continue
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError:
            continue
        if commands := _commands_of_graph(document, text) or _commands_of_stack(document, text):
            return commands
        tables = (
            {phase: document.get(key) for phase, key in _PHASES.items()} if isinstance(document, dict) else {}
        )
        phases = {phase: table for phase, table in tables.items() if isinstance(table, dict)}
        whole = len(phases) == len(_PHASES) and all(set(table) - _OF_ROUTER for table in phases.values())
        if whole and document.get("model"):
            return {
                _NAME.format(phase=phase, ending="yaml"): yaml.safe_dump(
                    _of_worker(document, table), sort_keys=False
                )
                for phase, table in phases.items()
            }
    return {}


_WORKER = re.compile(r"^\w*Worker:\s*$", re.MULTILINE)


def _commands_of_graph(document: object, text: str) -> dict[str, str]:
    """Scripts of the workers of both phases of a graph of Dynamo, with its comments; empty of other files."""
    if not isinstance(document, dict):
        return {}
    tables = {str(name): table for name, table in document.items() if isinstance(table, dict)}
    workers = {name: table for name, table in tables.items() if name.endswith("Worker")}
    engines = {engine for engine in _ENGINES for name in workers if name.lower().startswith(engine)}
    phases = {name: _phase_of_service(name, table) for name, table in workers.items()}
    if len(engines) != 1 or sorted(phases.values()) != sorted(_PHASES):
        return {}
    served = {each.get("model") or each.get("model-path") for each in tables.values()} - {None}
    notes = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    scripts = {}
    for name, phase in phases.items():
        given = tables.get("Common", {})
        common = {key: given[key] for key in workers[name].get("common-configs") or () if key in given}
        flags = {**common, **workers[name]}
        model = (
            flags.get("model") or flags.get("model-path") or (next(iter(served)) if len(served) == 1 else "")
        )
        command = [_ENGINES[next(iter(engines))], shlex.quote(str(model)), *_flags(flags)]
        service = _table(flags.get("ServiceArgs"))
        asked = _table(service.get("resources"))
        gpus = min(whole_or_none(asked.get("gpu")) or 0, _MOST_GPUS)
        shown = [f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(gpus)))}"] if gpus > 0 else []
        count = f"# num_instances: {whole_or_none(service.get('workers')) or 1}"
        script = "\n".join((*notes, count, " ".join((*shown, *command)), ""))
        scripts[_NAME.format(phase=phase, ending="sh")] = script
    return scripts


_ROLE_OF_STACK = re.compile(r"\bkvRole:")
_ROLES = {"kv_producer": PROMPT_ONLY, "kv_consumer": OUTPUT_ONLY}
_OF_STACK = {
    "maxModelLen": "max-model-len",
    "maxNumSeqs": "max-num-seqs",
    "gpuMemoryUtilization": "gpu-memory-utilization",
    "tensorParallelSize": "tensor-parallel-size",
    "pipelineParallelSize": "pipeline-parallel-size",
    "dtype": "dtype",
    "enablePrefixCaching": "enable-prefix-caching",
    "enableChunkedPrefill": "enable-chunked-prefill",
}
"""Keys of the chart of vLLM's production stack, and the flags that it makes of them
(helm/templates/deployment-vllm-multi.yaml)."""
_SWITCHES = ("enablePrefixCaching", "enableChunkedPrefill")


def _commands_of_stack(document: object, text: str) -> dict[str, str]:
    """Scripts of the workers of both phases of a chart of vLLM's production stack; empty of other files."""
    specs = _table(_table(document).get("servingEngineSpec")).get("modelSpec")
    rows = [row for row in specs if isinstance(row, dict)] if isinstance(specs, list) else []
    roles = {str(_table(row.get("lmcacheConfig")).get("kvRole")): row for row in rows}
    if len(rows) != len(_ROLES) or set(roles) != set(_ROLES):
        return {}
    notes = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    scripts = {}
    for role, phase in _ROLES.items():
        row, options = roles[role], _table(roles[role].get("vllmConfig"))
        named = [(key, flag) for key, flag in _OF_STACK.items() if key in options]
        flags = [word for key, flag in named for word in _flag(key, flag, options[key])]
        extra = [str(word) for word in options.get("extraArgs") or ()]
        connector = json.dumps({"kv_connector": "LMCacheConnectorV1", "kv_role": role})
        words = [*flags, *extra, "--kv-transfer-config", connector]
        gpus = min(whole_or_none(row.get("requestGPU")) or 0, _MOST_GPUS)
        shown = [f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(gpus)))}"] if gpus > 0 else []
        image = f"# {row.get('repository', '')}:{row.get('tag', '')}"
        count = f"# num_instances: {whole_or_none(row.get('replicaCount')) or 1}"
        command = " ".join((*shown, "vllm serve", *map(shlex.quote, (str(row.get("modelURL")), *words))))
        scripts[_NAME.format(phase=phase, ending="sh")] = "\n".join((*notes, image, count, command, ""))
    return scripts


def _flag(key: str, flag: str, value: object) -> Iterator[str]:
    """A value of the chart as words of a command; a switch that is off is said by its own flag."""
    if key in _SWITCHES:
        yield f"--{flag}" if value else f"--no-{flag}"
        return
    yield from (f"--{flag}", str(value))


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _phase_of_service(name: str, table: Mapping[str, Any]) -> str:
    """The phase of a service: as it is told, else as its name says; outputs where that says none."""
    words = f"{table.get('disaggregation-mode') or name}".lower()
    return PROMPT_ONLY if "prefill" in words else OUTPUT_ONLY


def _flags(table: Mapping[str, Any]) -> Iterator[str]:
    """A service's keys as flags of its engine."""
    for key, value in table.items():
        if str(key) in _OF_GRAPH or value is None or value is False:
            continue
        yield shlex.quote(f"--{key}")
        if value is not True:
            yield shlex.quote(json.dumps(value) if isinstance(value, (dict, list)) else str(value))


def _of_worker(document: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a worker, and how many there are under ``num_instances``."""
    common = {key: value for key, value in document.items() if key not in _OF_ROUTER}
    count = whole_or_none(table.get("num_instances")) or len(table.get("urls") or ()) or 1
    phase_options = {key: value for key, value in table.items() if key not in _OF_ROUTER}
    return {"disable_overlap_scheduler": False, **common, **phase_options, "num_instances": count}


def workers_of_file(name: str, text: str) -> tuple[str, int] | None:
    """The phase of workers that a file of `files_of_phases` configures, and how many; None of other files."""
    if (ours := _OURS.fullmatch(name)) is None:
        return None
    count = re.search(r"^(?:# )?num_instances: (\d+)$", text, re.MULTILINE)
    return ours["phase"], int(count[1]) if count else 1
