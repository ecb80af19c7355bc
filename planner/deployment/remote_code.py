"""Checkpoints whose repositories bring code that a server and its client must be told to run.

Without `--trust-remote-code` they stop: "The repository contains custom code which must be executed to
correctly load the model" (a tokenizer, or a configuration that the engine does not register).
"""

from __future__ import annotations

_OWN_CODE = ("moonshotai/Kimi-", "nvidia/NVIDIA-Nemotron-3-", "nvidia/NVIDIA-Nemotron-Nano-")
"""Beginnings of their names. Kimi: tokenizer of its own (vllm-project/recipes: moonshotai; vllm-project/
tpu-inference pull 2927, where the client alone lacked the flag). Nemotron: every command of
vllm-project/recipes NVIDIA/Nemotron-3-Nano-30B-A3B.md, of servers and clients, has it."""


def trusting(engine: str, checkpoint: str) -> list[str]:
    """The flag by which an engine runs the code of a checkpoint, where it has any.

    >>> trusting("vllm", "moonshotai/Kimi-K2.5"), trusting("trtllm", "moonshotai/Kimi-K2.5")
    (['--trust-remote-code'], ['--trust_remote_code'])
    >>> trusting("vllm", "Qwen/Qwen3-32B"), trusting("vllm", "<int4 checkpoint of moonshotai/Kimi-K2>")
    ([], ['--trust-remote-code'])
    """
    name = checkpoint.rstrip(">").rpartition(" ")[2]
    if not name.startswith(_OWN_CODE):
        return []
    return ["--trust_remote_code" if engine == "trtllm" else "--trust-remote-code"]
