"""What a server is told to load is a name of the hub, or says that one must be put in."""

import re
from dataclasses import replace

import pytest

from costmodel.accuracy.checkpoint_names import checkpoint_model
from costmodel.models.catalog import model, model_names
from costmodel.serving.deployment import published_weights
from planner.deployment.client import client_words
from planner.deployment.placement import servers_of
from planner.deployment.vllm_sglang import served_checkpoint, server_commands
from tests.unit.planner.deployment.test_serving_flags import planned

NAME = re.compile(r"[\w.-]+/[\w.-]+")
PLACEHOLDER = re.compile(r"<\w+ checkpoint of ([\w./-]+)>")


def handed_out(name: str) -> str:
    """What a server of a model loads in the format that was published."""
    plan, spec = planned("vllm", "pipelined bf16"), model(name)
    weights = published_weights(spec) or "bf16"
    return served_checkpoint(replace(plan, request=replace(plan.request, model=spec), weights=weights))


def test_every_catalogued_model_is_loaded_by_a_name_or_a_placeholder() -> None:
    """Remarks of a source, addresses of papers and bare names of the catalog start nothing."""
    handed = {name: handed_out(name) for name in model_names()}
    wrong = {
        name: text
        for name, text in handed.items()
        if not (NAME.fullmatch(text) or PLACEHOLDER.fullmatch(text))
    }
    assert wrong == {}


def test_an_audit_knows_what_a_server_loads() -> None:
    """Each name is read back as the model that it was handed out for."""
    for name in model_names():
        if NAME.fullmatch(text := handed_out(name)):
            assert checkpoint_model(text).name == name, text


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("gemma-3-27b", "google/gemma-3-27b-it"),
        ("google/gemma-3-27b-pt", "google/gemma-3-27b-pt"),
        ("gemma-4-31b", "google/gemma-4-31B-it"),
        ("mistral-large-3-675b", "mistralai/Mistral-Large-3-675B-Instruct-2512"),
        ("glm-5.2", "zai-org/GLM-5.2"),
        ("gpt-3-175b", "<BF16 checkpoint of gpt-3-175b>"),
    ],
)
def test_a_server_loads_what_is_tuned(name: str, loaded: str) -> None:
    """A short name is of a model that answers; a checkpoint named in full is itself."""
    assert handed_out(name) == loaded


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_repository_with_code_of_its_own_is_trusted_by_servers_and_clients(engine: str) -> None:
    """Kimi's tokenizer is Python of its repository; a Qwen brings none, and no code is trusted for nothing."""
    plan = planned(engine, "pipelined bf16")
    for name, asked in (("kimi-k2.5", True), ("qwen3-32b", False)):
        kimi = replace(plan, request=replace(plan.request, model=model(name)))
        servers = [words for one in servers_of(kimi) for words in server_commands(kimi, one).values()]
        for words in (*servers, client_words(kimi, served_checkpoint(kimi))):
            assert any(word.replace("_", "-") == "--trust-remote-code" for word in words) == asked
