"""Servers on one GPU add their shares of its memory."""

import pytest

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
