"""Words of a server's command that its engine refuses: flags of no release, steps that hold no request."""

from __future__ import annotations

from collections.abc import Iterator

from planner.audit.serving.logged import stopped_by
from planner.audit.serving.server import Server


def refused_words(server: Server) -> Iterator[tuple[str, str]]:
    """Every such word, with what would be taken; before all what its log ends in."""
    if (stopped := stopped_by(server.printed)) is not None:
        yield stopped
    for flag, known in server.unread.misspelt:
        what = "flag" if flag.startswith("-") else "option"
        yield f"no release of its engine has the {what} {flag}, whose parser stops there", f"write {known}"
    for flag, release in server.unread.retired if server.version else ():
        yield (
            f"{server.engine} {server.version} has no {flag}, which is of releases before {release}",
            "leave it out, or take an image of such a release",
        )
    yield from server.broken_words
    if server.beyond_machine:
        yield server.beyond_machine, "split it over fewer GPUs, or give it as many as its degrees multiply to"
    if server.broken_stages:
        yield server.broken_stages, "give every stage a number of layers, all of the model's between them"
    if server.without_role:
        yield (
            f"{server.without_role} has no kv_role, without which vLLM stops (KVTransferConfig)",
            "add kv_role to --kv-transfer-config: kv_producer, kv_consumer or kv_both",
        )
    yield from _short_steps(server)


def _short_steps(server: Server) -> Iterator[tuple[str, str]]:
    """Prompts that are computed whole, and longer than a step (`SchedulerConfig` of vLLM).

    A length that nobody says is that of the checkpoint, where its configuration is known.
    """
    budget, longest = server.token_budget, server.longest
    if longest is None and server.knows_positions:
        longest = server.model.max_sequence_length
    if server.engine != "vllm" or not server.whole_prompts or not budget or not longest or longest <= budget:
        return
    yield (
        f"prompts are computed whole, and a step of {budget:,} tokens holds no request of {longest:,}",
        f"allow requests of at most {budget:,} tokens, steps of {longest:,}, or chunked prefill",
    )
