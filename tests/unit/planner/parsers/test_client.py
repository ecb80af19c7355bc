"""Cases go to an interpreter of the engine's own, and answers come back in their order, whatever happens there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from costmodel.layout import ParallelLayout
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import facts_of
from planner.parsers import client, main
from tests.unit.planner.engines.priced import priced
from topology.cluster import Cluster


def interpreter_that(says: str, folder: Path) -> str:
    """A program in the place of an interpreter."""
    program = folder / "python"
    program.write_text(f"#!{sys.executable}\n{says}\n", encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def test_answers_come_in_the_order_of_the_cases(tmp_path: Path) -> None:
    """One line each; whoever waits hears that it is alive."""
    says = "import sys, json, time\nfor line in sys.stdin: print(json.dumps({'derived': json.loads(line)}), flush=True)\ntime.sleep(1)"
    heard: list[float] = []
    given = client.answers("megatron", [{"n": 1}, {"n": 2}], interpreter_that(says, tmp_path), heard.append)
    assert given == [{"derived": {"n": 1}}, {"derived": {"n": 2}}]
    assert heard[-1] == 1.0


def test_a_parser_that_dies_answers_for_the_rest(tmp_path: Path) -> None:
    """With the last line that it said."""
    says = "import sys\nprint('{\"derived\": {}}', flush=True)\nsys.exit('no such module')"
    given = client.answers("megatron", [{}, {}], interpreter_that(says, tmp_path))
    assert given == [{"derived": {}}, {"error": "no such module"}]


def test_a_parser_that_hangs_is_stopped(tmp_path: Path) -> None:
    """After its time."""
    given = client.answers(
        "megatron", [{}], interpreter_that("import time; time.sleep(60)", tmp_path), timeout_s=0.5
    )
    assert given == [{"error": "no answer in 0 s"}]


def test_an_interpreter_that_is_not_there_has_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The one that the variable names is asked first, then this one."""
    monkeypatch.setenv(client.VARIABLE, str(tmp_path / "none"))
    monkeypatch.setitem(client.PACKAGES, "megatron", "no-such-distribution")  # type: ignore[misc]
    assert client.interpreter("megatron") is None
    monkeypatch.setitem(client.PACKAGES, "megatron", "numpy")  # type: ignore[misc]
    pytest.importorskip("torch")
    assert client.interpreter("megatron") == sys.executable


def test_a_case_carries_what_is_exported_and_nothing_else() -> None:
    """On Blackwell kernels need no queue of their own."""
    found = []
    for gpu in ("h100-sxm", "b200-sxm"):
        plan = priced(
            ParallelLayout(tp=2, dp=4, sequence_parallel=True, zero_stage=1), gpu=gpu, engine="megatron"
        )
        cluster: Cluster = ask_cluster(gpu)
        case = client.case_of(CONTRACTS["megatron"], {"a": "text"}, facts_of(plan), cluster.gpu)
        found.append((case["capability"], "CUDA_DEVICE_MAX_CONNECTIONS" in case["environment"], case["gpus"]))
    assert found == [("9.0", True, 8), ("10.0", False, 8)]


def ask_cluster(gpu: str) -> Cluster:
    """A node of them."""
    from topology.builders import default_cluster

    return default_cluster(gpu, 8)


def test_a_fault_names_the_field_and_both_values() -> None:
    """Lists of JSON are tuples of a plan."""
    facts = {"layout.tp": 2, "split.layers": (3, 4)}
    assert client.faults(facts, {"derived": {"layout.tp": 2, "split.layers": [3, 4]}}) == ()
    assert client.faults(facts, {"derived": {"layout.tp": 1}}) == ("layout.tp = 2, its own parser derives 1",)


def test_the_program_sets_the_environment_of_a_case_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another case or the caller set is gone; what stops an engine is an answer."""
    import os

    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    monkeypatch.setenv("TORCH_NCCL_AVOID_RECORD_STREAMS", "")
    monkeypatch.chdir("/")

    def derive(case: main.Case) -> dict[str, str | None]:
        text = Path("a").read_text(encoding="utf-8")
        return {text: os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")}

    def stops(_: main.Case) -> dict[str, str]:
        raise SystemExit("usage:\n  none")

    case = {"files": {"a": "text"}, "environment": {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1"}}
    assert main.answer(derive, case) == {"derived": {"text": None}}
    assert main.answer(stops, case) == {"error": "SystemExit: usage: none"}
