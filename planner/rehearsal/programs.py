"""The programs of a rehearsal, in place of those that a saved deployment starts.

    python -m planner.rehearsal.programs PROGRAM WORDS…

`PROGRAM` is what a script says (vllm, python, trtllm-serve, srun, vllm-router, nginx, curl); found first on
the PATH, a stand-in of that name comes here with the script's own words.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from planner.engines.quoting import shell
from planner.rehearsal.client import run_client
from planner.rehearsal.http import asking
from planner.rehearsal.router import run_router, workers_of
from planner.rehearsal.script import NODE, RehearsalScript, read_script
from planner.rehearsal.server import WORKER_FLAGS, after, check_words, run_server
from topology.base.errors import InputError

PROGRAMS: Final = ("vllm", "python", "trtllm-serve", "srun", "vllm-router", "nginx", "curl")
_ROUTER_MODULE, _FRONT = "sglang_router.launch_router", "8000"


def write_programs(folder: Path) -> None:
    """Write the stand-ins, one a name."""
    folder.mkdir()
    for name in PROGRAMS:
        start = shell(sys.executable)
        path = folder / name
        path.write_text(
            f'#!/bin/sh\nexec {start} -P -m planner.rehearsal.programs {name} "$@"\n', encoding="utf-8"
        )
        path.chmod(0o755)


def program_work(program: str, words: list[str], script: RehearsalScript) -> Coroutine[Any, Any, None]:
    """What a program of these words does in the rehearsal."""
    if program == "curl":
        return _is_healthy(script, words[-1])
    if program == "vllm" and words[:2] == ["bench", "serve"]:
        return run_client(script, script.door(after(words, "--base-url")).port)
    if program in ("vllm-router", "nginx") or _ROUTER_MODULE in words or words[:1] == ["disaggregated"]:
        door = script.door(f"localhost:{after(words, '--port') or _FRONT}")
        return run_router(script, workers_of(program, words, script), door.port)
    if any(flag in words for flag in WORKER_FLAGS) or after(words, "--node-rank") not in ("", "0"):
        return asyncio.sleep(script.life_s)
    node = os.environ[NODE]
    door = script.door(f"{node}:{after(words, '--port')}")
    check_words(words, script, door.role)
    return run_server(script, door.role, door.port)


async def _is_healthy(script: RehearsalScript, url: str) -> None:
    """Ask a health page, and fail as `curl --fail` does."""
    try:
        async with asking(script.door(url).port, "/health") as (status, _):
            if status != 200:
                raise SystemExit(22)
    except OSError:
        raise SystemExit(7) from None


def main() -> None:
    """Play one program until it is ended, or the rehearsal is over."""
    script = read_script()

    async def within() -> None:
        await asyncio.wait_for(program_work(sys.argv[1], sys.argv[2:], script), script.life_s)

    try:
        asyncio.run(within())
    except InputError as problem:
        sys.exit(str(problem))
    except TimeoutError:
        sys.exit(f"{sys.argv[1]}: the rehearsal is over")


if __name__ == "__main__":
    main()
