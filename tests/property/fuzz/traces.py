"""Traces of recorded steps: Kineto and rocprofv3 as JSON, Nsight Systems as the SQL that makes its export."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from random import Random
from typing import Any

from tests.property.fuzz.mutate import json_of, mutated_text, mutated_tree
from tests.property.fuzz.surface import Box, answer_of_command

_MESSAGE = {
    "Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096, "Group size": 2, "dtype": "Float",
    "Process Group Name": "0", "Process Group Description": "dp", "Process Group Ranks": "[0, 1]", "stream": 9,
}  # fmt: skip


def _event(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


_KINETO: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"name": "NVIDIA H100"}],
    "distributedInfo": {
        "backend": "nccl", "rank": 0, "world_size": 4,
        "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
            {"pg_name": "1", "pg_desc": "dp", "pg_size": 2, "ranks": [0, 1]},
        ],
    },
    "baseTimeNanoseconds": 1790857026000000000,
    "traceEvents": [
        *(_event("user_annotation", f"ProfilerStep#{step}", 200.0 * step, 200.0) for step in (1, 2)),
        *(_event("user_annotation", "dataloader", 200.0 * step, 60.0) for step in (1, 2)),
        *(_event("cpu_op", "aten::mm", 200.0 * step + 60, 9.0, **{"Input Dims": [[8, 8], [8, 8]], "Input type": ["float"]}) for step in (1, 2)),
        *(_event("cuda_runtime", "cudaLaunchKernel", 200.0 * step + 62, 2.0, correlation=step) for step in (1, 2)),
        *(_event("kernel", "sgemm", 200.0 * step + 70, 50.0, correlation=step, stream=7) for step in (1, 2)),
        *(_event("cuda_runtime", "cudaLaunchKernel", 200.0 * step + 66, 2.0, correlation=9 + step) for step in (1, 2)),
        *(_event("kernel", "ncclDevKernel_AllReduce", 200.0 * step + 130, 40.0, correlation=9 + step, **_MESSAGE) for step in (1, 2)),
        _event("gpu_memcpy", "Memcpy HtoD", 300.0, 5.0, correlation=1, stream=8, bytes=4096),
    ],
}  # fmt: skip
_GLOO: dict[str, Any] = {
    "distributedInfo": _KINETO["distributedInfo"],
    "traceEvents": [
        _event("user_annotation", "ProfilerStep#1", 0.0, 100.0),
        _event(
            "user_annotation", "gloo:all_reduce", 50.0, 40.0, **{"Input Dims": [[8]], "Input type": ["float"]}
        ),
        _event("cpu_op", "aten::mm", 10.0, 30.0),
    ],
}
_ROCPROF: dict[str, Any] = {
    "rocprofiler-sdk-tool": [
        {
            "kernel_symbols": [{"kernel_id": 8, "formatted_kernel_name": "Cijk_gemm"}],
            "buffer_records": {
                "kernel_dispatch": [
                    {
                        "correlation_id": {"internal": number}, "start_timestamp": 1000 * number,
                        "end_timestamp": 1000 * number + 400, "stream_id": {"handle": 0},
                        "dispatch_info": {"agent_id": {"handle": 5}, "kernel_id": 8},
                    }
                    for number in range(1, 6)
                ],
                "memory_copy": [],
            },
        }
    ]
}  # fmt: skip
_SQL = """
create table StringIds (id integer, value text);
create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, streamId integer, correlationId integer, globalPid integer, demangledName integer);
create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer, end integer, deviceId integer, streamId integer, correlationId integer, globalPid integer, bytes integer, copyKind integer);
create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, globalTid integer, correlationId integer, nameId integer);
create table NVTX_EVENTS (start integer, end integer, globalTid integer, text text, textId integer);
create table TARGET_INFO_GPU (id integer, name text);
create table TARGET_INFO_SESSION_START_TIME (utcEpochNs integer);
insert into StringIds values (1, 'nvjet_gemm'), (2, 'cudaLaunchKernel'), (3, 'ncclDevKernel_AllReduce');
insert into CUPTI_ACTIVITY_KIND_KERNEL values (1000, 2000, 0, 7, 1, 16777216, 1), (2500, 4000, 0, 9, 2, 16777216, 3);
insert into CUPTI_ACTIVITY_KIND_MEMCPY values (4000, 4500, 0, 7, 3, 16777216, 4096, 1);
insert into CUPTI_ACTIVITY_KIND_RUNTIME values (900, 950, 16777217, 1, 2), (960, 970, 16777217, 2, 2);
insert into NVTX_EVENTS values (800, 5000, 16777217, 'step 1', null);
insert into TARGET_INFO_GPU values (0, 'NVIDIA H100');
insert into TARGET_INFO_SESSION_START_TIME values (1790857026000000000);
"""
BOMBS = (
    '{"traceEvents": [' + "[" * 100_000,
    '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e400, "dur": NaN}]}',
    '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"correlation": '
    + "9" * 5000
    + "}}]}",
    '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "' + "k" * 300_000 + '", "ts": 0, "dur": 1}]}',
    '{"distributedInfo": {"rank": -1, "world_size": 1e308}, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 0, "dur": 1}]}',
    '{"distributedInfo": {"rank": 0, "world_size": 999999999999}, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 0, "dur": 1}]}',
    "[]",
    '{"rocprofiler-sdk-tool": [[[]]]}',
)


def make_trace(random: Random, story: list[str]) -> str:
    text = json_of(mutated_tree(random.choice((_KINETO, _KINETO, _GLOO, _ROCPROF)), random, story))
    return mutated_text(text, random, story) if random.random() < 0.2 else text


def diagnose_trace(text: str, box: Box) -> object:
    """The same trace as two ranks, so that collectives meet."""
    first = box.file("rank0.json", text)
    second = box.file("rank1.json", text.replace('"rank": 0', '"rank": 1'))
    return answer_of_command(["diagnose", str(first), str(second), "--json"])


def make_sql(random: Random, story: list[str]) -> str:
    return mutated_text(_SQL, random, story)


def diagnose_export(text: str, box: Box) -> object:
    """What SQL makes of the text, read as an export; statements that fail are left out."""
    path = box.folder / "report.sqlite"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as base:
        for statement in text.split(";"):
            try:
                base.execute(statement)
            except (sqlite3.Error, ValueError, UnicodeError):
                continue
        base.commit()
    return answer_of_command(["diagnose", str(path), "--json"])
