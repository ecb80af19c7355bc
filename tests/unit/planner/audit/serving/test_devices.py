"""Servers on one GPU add their shares of its memory."""

import pytest

from planner.audit.read import read_texts
from planner.audit.serving.devices import with_shared_device
from planner.audit.serving.refused import refusal_of
from planner.audit.serving.server import Server, server_of
from planner.audit.serving.start import Start
from planner.audit.serving.texts import audited_server_texts
from planner.questions.flags import ServeFlags

SERVICE = """
  {name}:
    image: vllm/vllm-openai:v0.11.0
    command: --model {model} --gpu-memory-utilization {share} --max-model-len 4096 --port {port}
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, device_ids: ["{device}"]}}]}}}}}}
"""
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct")


def start(name: str, text: str) -> Start:
    """What the judged server holds when it starts, on an H100."""
    found = audited_server_texts({name: text}, ServeFlags(), {}, gpu="h100-sxm")
    assert found is not None
    assert found.start is not None
    return found.start


@pytest.mark.parametrize(
    ("shares", "devices", "starts"),
    [((0.6, 0.5), (0, 0), False), ((0.45, 0.5), (0, 0), True), ((0.6, 0.5), (0, 1), True)],
)
def test_services_of_one_device_add_their_shares(shares: tuple, devices: tuple, starts: bool) -> None:  # type: ignore[type-arg]
    """A Compose file is of one host."""
    services = "".join(
        SERVICE.format(name=f"s{at}", model=MODELS[at], share=shares[at], device=devices[at], port=8000 + at)
        for at in range(2)
    )
    held = start("compose.yaml", f"services:{services}")
    assert held.starts is starts
    assert ("1.1 in all" in held.why) is not starts


def test_commands_of_a_script_may_be_of_several_hosts() -> None:
    """So that nothing is sure, and it is said."""
    lines = (
        f"CUDA_VISIBLE_DEVICES=0 vllm serve {MODELS[at]} --gpu-memory-utilization 0.6 --port {at + 8000} &"
        for at in range(2)
    )
    held = start("serve.sh", "\n".join(lines))
    assert held.starts is None
    assert "1.2 in all" in held.why


def script(*ends: str, before: str = "#!/bin/bash\n# vllm 0.11.0\n", words: str = "") -> str:
    """A script of a server a model, each of which ends in its own words."""
    lines = (
        f"vllm serve {MODELS[at]} {words} \\\n  --max-model-len 4096 --port {8000 + at} {end}"
        for at, end in enumerate(ends)
    )
    return before + "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        (script("&", "&"), False),  # 0.9 each, by the release's default
        (script("&", "> log 2>&1 &\nwait", before="# vllm 0.11.0\n"), False),
        (script("&", "&", words="--gpu-memory-utilization 0.45"), True),
        (script("&", "&", before="# vllm 0.11.0\n"), True),  # may be a list of commands for several hosts
        (script("", ""), True),  # one after the other
        (script("> a.log 2>&1", "&"), True),
        (script("&", "&", before="#!/bin/bash\nexport CUDA_VISIBLE_DEVICES=$GPU\n"), True),
        (script("&", "&", before="#!/bin/bash\nexport ENABLE_KVCACHED=true\n"), True),
        (script("&", "&").replace("vllm serve", "ssh $HOST vllm serve"), True),
        (script("--headless --node-rank 1 &", "&"), True),
    ],
)
def test_commands_beside_each_other_without_gpus_of_their_own_share_the_first(
    text: str, starts: bool
) -> None:
    """A script's servers in the background all begin at GPU 0 of its host, as those of a Compose file."""
    texts = {"serve.sh": text}
    server = server_of(read_texts(texts), model=None, gpu="h100-sxm")
    assert isinstance(server, Server)
    refused = refusal_of(with_shared_device(server, texts, {}))
    assert (refused is None) is starts
    assert starts or (refused is not None and refused.certain and "1.8 in all" in refused.why)
