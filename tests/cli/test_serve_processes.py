"""A command searches its boards by several processes, a library one after the other: one answer."""

import json
import threading

from planner.analysis.serving.processes import WORTH_PROCESSES, by_processes
from tests.cli import commands
from topology.base.decode import unstructure

QUESTION = {
    "gpu": "h100-sxm,h200-sxm", "weights": "bf16,fp8", "rate": "4/s", "ttft": "500ms", "input": "1000",
    "output": "100",
}  # fmt: skip


def test_the_command_answers_what_the_library_answers() -> None:
    """Four boards, worth processes: every figure but the time that it took."""
    import meshplan

    words = [word for name, value in QUESTION.items() for word in (f"--{name}", value)]
    answer = commands.plan("serve", "--model", "8b", *words, "--json")
    assert answer.returncode == 0, answer.stderr
    library = meshplan.serve("8b", **QUESTION)
    told, same = json.loads(answer.stdout), json.loads(json.dumps(unstructure(library)))
    assert len(same["other_fleets"]) >= WORTH_PROCESSES
    for name in ("estimate", "num_gpus", "other_fleets", "commands"):
        assert told[name] == same[name], name


def test_boards_are_searched_in_turn_where_processes_would_not_pay_or_be_safe() -> None:
    """Few boards; a process that has threads must not be forked."""
    with by_processes(WORTH_PROCESSES - 1) as each:
        assert each is map
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, daemon=True)
    thread.start()
    with by_processes(100) as each:
        assert each is map
    stop.set()
    thread.join()
