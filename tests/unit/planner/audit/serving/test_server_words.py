"""A server's command: where its model stands, and which of its flags nothing reads."""

import pytest

from planner.audit.read import read_texts

ARRAY = 'args: ["--trust-remote-code", "org/Model-8B", "-tp", "2"]'
COMPOSE = """services:
  server:
    image: vllm/vllm-openai:v0.11.0
    command: >
      org/Model-8B --trust-remote-code --tensor-parallel-size 2
"""
POD = f"""spec:
  containers:
    - image: registry.example.com:5000/vllm/vllm-openai:v0.11.0
      {ARRAY}
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.sh", "vllm serve org/Model-8B --trust-remote-code -tp 2"),
        ("s.sh", "vllm serve --trust-remote-code -tp 2 org/Model-8B"),
        ("s.sh", "vllm serve -tp 2 --no-enable-prefix-caching org/Model-8B --enforce-eager"),
        ("s.sh", "vllm serve --tensor-parallel-size=2 -O3 org/Model-8B"),
        ("s.sh", "docker run --gpus all -p 8000:8000 --ipc host vllm/vllm-openai:v0.11.0 org/Model-8B -tp 2"),
        ("s.sh", "docker run --gpus all vllm/vllm-openai:v0.11.0 --enforce-eager org/Model-8B -tp 2"),
        ("s.sh", "trtllm-serve --trust_remote_code --tp_size 2 org/Model-8B"),
        ("compose.yaml", COMPOSE),
        ("pod.yaml", POD),
    ],
)
def test_the_model_is_found_wherever_it_stands(name: str, text: str) -> None:
    """Between flags that take a value and flags that take none, and behind an image that serves."""
    facts = read_texts({name: text}).facts
    assert (facts.value("said.model"), facts.count("layout.tp")) == ("org/Model-8B", 2)


@pytest.mark.parametrize(
    "text",
    [
        "docker run --entrypoint bash vllm/vllm-openai:v0.11.0 org/Model-8B",
        "vllm serve --served-model-name first second --max-model-len 4096 --tensor-parallel-size 2",
    ],
)
def test_a_value_of_a_flag_is_no_model(text: str) -> None:
    """Nor is a word of an image whose entry point is another program."""
    assert read_texts({"s.sh": f"{text}\nTP=1 # s.py"}).facts.value("said.model") is None
