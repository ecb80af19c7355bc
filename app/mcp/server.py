"""The server: lists the tools, runs a call as one bounded process, and answers with its JSON document."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from app.errors import ANSWERED, FAILED_AUDIT, INTERNAL_ERROR, NO_FEASIBLE_PLAN
from app.flags.program import COMMANDS
from app.mcp.tools import TOOLS, schema_of, words_of
from topology.base.errors import InputError
from topology.base.version import VERSION

LONGEST_CALL_S: Final = 120.0
"""A whole search of 16,384 GPUs takes a few seconds; what takes longer is ended."""
LARGEST_ANSWER_BYTES: Final = 4_000_000
_KIB: Final = 1024
LINE: Final = 64 * _KIB
INSTRUCTIONS: Final = (
    "Plans how to split a model across GPUs. train finds the fastest layout and proves it; estimate prices "
    "one layout; serve plans a fleet; audit reads launch files and logs of the working folder; models, gpus "
    "and engines list names. Numbers in answers are SI base units, named by the last word of the key."
)


async def called(tool: str, given: Mapping[str, Any], root: Path) -> tuple[dict[str, Any], bool]:
    """Run one call.

    Returns:
        The document of its answer, and whether it is an error of the call. That no plan is possible, or that
        an audit fails, is an answer: it has `exit_code`, and the three lines that say why.
    """
    try:
        words = words_of(tool, given, root)
    except InputError as refused:
        return {"exit_code": 2, "error": refused.what, "cause": refused.cause, "help": refused.fix}, True
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "app", *words, cwd=root, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=_environment(), limit=LINE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LONGEST_CALL_S):
            out, err = await asyncio.gather(_read(process.stdout), _read(process.stderr))
            code = await process.wait()
    except (TimeoutError, OverflowError) as beyond:
        process.kill()
        await process.wait()
        cause = str(beyond) or f"it took more than {LONGEST_CALL_S:g} s"
        return {"exit_code": 2, "error": "the call was ended", "cause": cause, "help": "ask for less"}, True
    if code in (ANSWERED, NO_FEASIBLE_PLAN, FAILED_AUDIT) and out:
        document = json.loads(out)
        return ({**document, "exit_code": code} if isinstance(document, dict) else {"rows": document}), False
    lines = _three_lines(err)
    if code not in (NO_FEASIBLE_PLAN, FAILED_AUDIT) or lines.keys() != {"error", "cause", "help"}:
        return {"exit_code": INTERNAL_ERROR if code in (ANSWERED, NO_FEASIBLE_PLAN) else code, **lines}, True
    return {"exit_code": code, **lines}, False


async def _read(stream: asyncio.StreamReader | None) -> str:
    """All of a stream, up to the largest answer."""
    content = bytearray()
    while stream is not None and (block := await stream.read(LINE)):
        content += block
        if len(content) > LARGEST_ANSWER_BYTES:
            raise OverflowError(f"the answer has more than {LARGEST_ANSWER_BYTES:,} bytes")
    return content.decode("utf-8", errors="replace")


def _three_lines(text: str) -> dict[str, str]:
    """What, cause and fix, as a command says them."""
    lines = (line.partition(":") for line in text.splitlines())
    return {name: rest.strip() for name, _, rest in lines if name in ("error", "cause", "help")}


def _environment() -> dict[str, str]:
    """Of a call: no network of the hub, no colours."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}


async def serve(root: Path) -> None:
    """Answer an agent on standard input and output until it leaves."""
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool

    async def list_tools(_: Any, _page: Any) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(name=name, description=COMMANDS[name], input_schema=schema_of(name)) for name in TOOLS
            ]
        )

    async def call_tool(_: Any, asked: CallToolRequestParams) -> CallToolResult:
        document, is_error = await called(asked.name, asked.arguments or {}, root)
        text = json.dumps(document, ensure_ascii=False)
        return CallToolResult(
            content=[TextContent(type="text", text=text)], structured_content=document, is_error=is_error
        )

    server: Any = Server(
        "meshplan",
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())
