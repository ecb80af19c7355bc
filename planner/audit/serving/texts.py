"""From the texts of files to the audit of a server, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.kernels.tables import load_calibration
from planner.audit.read import Reading, read_texts
from planner.audit.serving.audit import ServingAudit, audited_pools, audited_server
from planner.audit.serving.load import is_result, loads_of
from planner.audit.serving.pools import Pools, pools_of
from planner.audit.serving.server import server_of
from planner.questions.flags import ServeFlags


def audited_server_texts(
    texts: Mapping[str, str], asked: ServeFlags, given: Mapping[str, str], *, gpu: str | None = None
) -> ServingAudit | None:
    """Judge texts that were sent: nothing that they name is opened; None where they start no server.

    Args:
        texts: Launch files and what benchmark clients wrote, by name.
        asked: The load, where the texts say none.
        given: Variables of the environment that scripts read.
        gpu: The kind of GPU, where no text names one.
    """
    results = {name: text for name, text in texts.items() if is_result(name, text)}
    launches = {name: text for name, text in texts.items() if name not in results}
    if not launches:
        return None
    reading = read_texts(launches, given)
    if not reading.family.serves:
        return None
    return judged(reading, launches, results, asked, given, gpu=None if len(reading.gpus) == 1 else gpu)


def judged(
    reading: Reading,
    texts: Mapping[str, str],
    results: Mapping[str, str],
    asked: ServeFlags,
    given: Mapping[str, str],
    *,
    model: str | None = None,
    gpu: str | None = None,
) -> ServingAudit:
    """The audit of what was read; see `audited_server_texts`."""
    scripts = {name: text for name, text in texts.items() if reading.kinds.get(name) in ("shell", "page")}
    loads = loads_of(results, scripts, asked, given)
    pools = pools_of(texts, given, model=model, gpu=gpu)
    if isinstance(pools, Pools):
        return audited_pools(load_calibration(), reading, pools, loads)
    server = pools or server_of(reading, model=model, gpu=gpu)
    return audited_server(load_calibration(), reading, server, loads)
