"""`plan audit`: what launch files and logs of any engine say, what is wrong, what would be faster."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from app.flags.dashes import PROGRAMS, is_command, is_here
from app.flags.job import SIZE, takes_job
from app.flags.shared import (
    AsJson,
    Concurrency,
    InputP99,
    InputTokens,
    OutputFile,
    OutputFormat,
    OutputP99,
    OutputTokens,
    RequestRate,
    TpotLimit,
    TtftLimit,
)
from planner.questions.flags import Flags, ServeFlags
from topology.base.errors import InputError, shortened


@takes_job(
    "without",
    "degraded",
    "objective",
    "memory_headroom",
    "top",
    "tokens",
    "deadline",
    "budget",
    "anchor",
    common=SIZE,
)
def command(
    flags: Flags,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Scripts, configurations and logs of one job, or their folder; FILE.py::NAME for one recipe "
            "of a file; - for standard input; or a command itself, behind --.",
        ),
    ],
    *,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", help="A variable that a script reads, as it would be set (repeat).", metavar="NAME=VALUE"
        ),
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            help="Leave with exit code 4 if the job is this much slower than the best (15%), too.",
            metavar="SHARE",
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            "--anchor", help="Keep what a log measured under this name, for plan --anchor.", metavar="NAME"
        ),
    ] = None,
    rate: RequestRate = None,
    concurrency: Concurrency = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    input_p99: InputP99 = None,
    output_p99: OutputP99 = None,
    ttft: TtftLimit = None,
    tpot: TpotLimit = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="Requests to replay on a server: CSV or JSONL of arrival_s,input_tokens,output_tokens.",
            metavar="FILE",
        ),
    ] = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Read a job that already runs, without running anything, and say what could be better.

    Prints what was read where and what was assumed, and settings that are illegal, contradictory or slow.
    Then predicted against measured, the distance to the proven best, and changes in the file's own words.
    Exit code 4: it is illegal, does not fit even with all that is not stated at its leanest, or is beyond
    --fail-above. A server is judged under the load that a benchmark
    client's result among the files tells, or --rate, --concurrency or --trace.
    """
    from app.commands.audit.answer import AuditQuestion, audit_answer_of
    from app.reports.answer import check_destination, emit

    _refuse_number(output)
    check_destination(wanted=output_format, as_json=as_json, output=output)
    load = ServeFlags(
        rate=rate, concurrency=concurrency, input_tokens=input_tokens, output_tokens=output_tokens,
        input_p99=input_p99, output_p99=output_p99, ttft=ttft, tpot=tpot, trace=trace,
    )  # fmt: skip
    names, texts = named_files(files)
    names = with_folders(names, texts)
    question = AuditQuestion(
        files=names, texts=texts, env=tuple(env or ()), fail_above=fail_above, anchor=anchor, load=load
    )
    return emit(audit_answer_of(question, flags), wanted=output_format, as_json=as_json, output=output)


def named_files(files: Sequence[Path]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Names of the files to read, and the texts of those that are no file.

    Standard input (``-``) is read as the file that was piped, a command in one word as a script of one line.
    """
    words, texts = [str(path) for path in files], dict[str, str]()
    if len(words) > 1 and Path(words[0]).name in PROGRAMS and not is_here(words[0]):
        words = [shlex.join(words)]  # a command without flags, which needs no dashes before it
    address = next((word for word in words if re.match(r"https?:/", word)), "")
    if address:
        raise InputError(
            what="an address is no file",
            cause=f"{address} names a page of the network, and an audit fetches none",
            fix=f"download it, and audit the file: plan audit {address.rpartition('/')[2] or 'FILE'}",
        )
    for at, word in enumerate(words):
        if word == STANDARD_INPUT:
            words[at] = "stdin"
            texts["stdin"] = _piped()
        elif is_command(word) and not is_here(word):
            words[at] = "command.sh"
            texts["command.sh"] = f"{word}\n"
    return tuple(words), texts


def with_folders(names: Sequence[str], texts: Mapping[str, str]) -> tuple[str, ...]:
    """The files, those of a folder in its place; what was read of it is said."""
    from app.commands.audit.folder import job_in_folder
    from app.reports.answer import note

    files: list[str] = []
    for name in names:
        if name in texts or not Path(name).is_dir():
            files.append(name)
            continue
        job = job_in_folder(Path(name))
        note(f"{shortened(name)}: {job.words}")
        files.extend(job.read)
    return tuple(files)


STANDARD_INPUT = "-"


def _piped() -> str:
    """The text on standard input, no longer than a file may be."""
    from planner.audit.read import MOST_BYTES

    content = sys.stdin.buffer.read(int(MOST_BYTES) + 1)
    what, fix = "", "pipe one: cat train.sh | plan audit -"
    if not content.strip():
        what, cause = "is empty", "- reads a script, a configuration or a log from it"
    elif len(content) > MOST_BYTES:
        what, cause = (
            "is too large",
            f"it has more than the {int(MOST_BYTES):,} bytes that such a file can have",
        )
        fix = "pipe its end: tail -n 100000 train.log | plan audit -"
    if what:
        raise InputError(f"standard input {what}", cause, fix)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        cause = f"byte {error.start} is not UTF-8"
        raise InputError("standard input is no text", cause, fix) from None


def _refuse_number(output: Path | None) -> None:
    """Refuse a bare number as a file: `plan serve` takes the tokens of an output under the same flag."""
    if output is not None and str(output).isdecimal():
        raise InputError(
            what=f"--output {shortened(str(output))} of an audit is a file to write to",
            cause="a bare number looks like the tokens of an output",
            fix=f"say --output-tokens {shortened(str(output))}, or a file with an ending, such as report.txt",
        )
