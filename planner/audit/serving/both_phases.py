"""One file that configures the workers of both pools: TensorRT-LLM's, before it was the router's alone.

What stands beside ``context_servers`` and ``generation_servers`` holds for both
(`extract_disagg_cfg`, tensorrt_llm/llmapi/disagg_utils.py: keys of a phase over those of the whole file).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
_NAME = "{phase} workers.yaml"
_OURS = re.compile(r"(?P<phase>prefill|decode) workers\.yaml")


def files_of_phases(texts: Mapping[str, str]) -> dict[str, str]:
    """A file of options for the workers of each phase, where one file configures both and their model."""
    import yaml

    for name, text in texts.items():
        if len(FILE_OF_ROUTER.findall(text)) < len(_PHASES) or kind_of(text, name) != "yaml":
            continue
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError:
            continue
        tables = (
            {phase: document.get(key) for phase, key in _PHASES.items()} if isinstance(document, dict) else {}
        )
        phases = {phase: table for phase, table in tables.items() if isinstance(table, dict)}
        whole = len(phases) == len(_PHASES) and all(set(table) - _OF_ROUTER for table in phases.values())
        if whole and document.get("model"):
            return {
                _NAME.format(phase=phase): yaml.safe_dump(_of_worker(document, table), sort_keys=False)
                for phase, table in phases.items()
            }
    return {}


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
    count = re.search(r"^num_instances: (\d+)$", text, re.MULTILINE)
    return ours["phase"], int(count[1]) if count else 1
