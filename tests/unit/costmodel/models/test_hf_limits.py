"""A config.json, or a model's name, with a typing error of any size is answered at once."""

import json
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from costmodel.models import catalog
from costmodel.models.catalog import model
from costmodel.models.hf.config import model_of_config, read_config
from costmodel.models.hf.reader import ConfigReader
from topology.base.errors import InputError

SIZES = {
    "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
    "num_hidden_layers": 24, "max_position_embeddings": 131072, "vocab_size": 201088,
}  # fmt: skip
GPT_OSS = {
    **SIZES, "model_type": "gpt_oss", "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
}  # fmt: skip
DEEP = 10**8


def windowed(kinds: object, layers: int = 24) -> dict[str, Any]:
    """A gpt-oss whose layers are stated one by one."""
    return {**GPT_OSS, "num_hidden_layers": layers, "layer_types": kinds}


@pytest.mark.parametrize("digits", [310, 400, 5000])
@pytest.mark.parametrize(
    "key", ["rope_theta", "rms_norm_eps", "router_aux_loss_coef", "num_hidden_layers", "factor"]
)
def test_an_integer_that_no_float_holds_is_refused(key: str, digits: int) -> None:
    """Of any length, in every place where a number is read."""
    scaling = {"rope_type": "yarn", "factor": 10**digits} if key == "factor" else None
    with pytest.raises(InputError) as error:
        model_of_config({**GPT_OSS, "rope_scaling": scaling, key: 10**digits}, name="large")
    assert len(error.value.cause) < 300


@pytest.mark.parametrize("value", [1e31, float("inf"), float("nan"), -1e-5, "1e6", True, [1]])
def test_a_number_of_no_sensible_size_is_refused(value: object) -> None:
    """No rotary base, epsilon or weight is beyond 1e30."""
    with pytest.raises(InputError, match="rope_theta is "):
        model_of_config({**GPT_OSS, "rope_theta": value}, name="large")


@pytest.mark.parametrize(
    "kinds",
    [["sliding_attention"], ["full_attention"] * 25, "sliding_attention", {}, []],
    ids=lambda k: str(k)[:20],
)
def test_layer_types_name_every_layer(kinds: object) -> None:
    """One entry for 24 layers is not the model that was published; its own code refuses it too."""
    with pytest.raises(InputError, match="layers, num_hidden_layers is 24"):
        model_of_config(windowed(kinds), name="short")


@pytest.mark.parametrize("kind", ["linear_attention", None, ["full_attention"]])
def test_a_kind_of_attention_that_no_field_holds_is_kept_by_name(kind: object) -> None:
    """A linear layer is priced as full attention, and said to be something else."""
    read = model_of_config(windowed([kind, "full_attention"] * 12), name="hybrid")
    assert read.unmodelled == (f"layer_types has {kind!r}",)


@pytest.mark.parametrize(
    "config",
    [
        {**SIZES, "model_type": "llama"},
        {**SIZES, "model_type": "mistral"},
        {**SIZES, "model_type": "gemma2"},
        {**SIZES, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3},
        GPT_OSS,
        windowed(["sliding_attention", "full_attention"]),
    ],
    ids=lambda config: config["model_type"],
)
def test_a_typing_error_in_the_layers_costs_no_time(config: dict[str, Any]) -> None:
    """A hundred million windowed layers were a list of them: 32 s and 1.6 GB."""
    begun = time.process_time()
    with pytest.raises(InputError, match=f"num_layers = {DEEP}|num_hidden_layers is {DEEP}"):
        model_of_config({**config, "num_hidden_layers": DEEP}, name="deep")
    assert time.process_time() - begun < 0.5


def test_an_irregular_list_of_layers_is_read_in_one_pass() -> None:
    """Every period up to the number of layers was tried on each of 20,000: more than ten seconds."""
    kinds = ["sliding_attention" if i % 7 else "full_attention" for i in range(20_000)]
    reader = ConfigReader(config=windowed(kinds, len(kinds)))
    begun = time.process_time()
    found = reader.windows()
    assert time.process_time() - begun < 0.5
    assert (found["num_sliding_layers"], len(reader.departures)) == (kinds.count("sliding_attention"), 1)


def test_a_family_s_windows_are_counted_as_its_layers_would_be() -> None:
    """Without a list: every other layer of gpt-oss, all of Mistral, those above a number of Qwen."""
    qwen = {**SIZES, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 20}
    found = [
        (read.num_sliding_layers, read.sliding_window_pattern)
        for layers in (1, 2, 23, 24)
        for config in (GPT_OSS, {**SIZES, "model_type": "mistral"}, qwen)
        for read in [model_of_config({**config, "num_hidden_layers": layers}, name="x")]
    ]
    assert found == [
        *((1, 0), (1, 0), (0, 0)),
        *((1, 2), (2, 0), (0, 0)),
        *((12, 2), (23, 0), (3, 0)),
        *((12, 2), (24, 0), (4, 0)),
    ]


def test_a_folder_s_name_need_not_be_text(tmp_path: Path) -> None:
    """A name may hold bytes that cannot be printed; the model is called what can."""
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT_OSS))
    read = read_config(folder)
    assert read.name == "caf?"
    assert "caf?" in read.source


def hub(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    """Put a stand-in for huggingface_hub where it will be imported from."""
    module = types.ModuleType("huggingface_hub")
    vars(module)["hf_hub_download"] = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a slash is asked for on the network, which may swallow the question."""
    answered = threading.Event()
    monkeypatch.setattr(catalog, "HUB_TIMEOUT_S", 0.05)
    hub(monkeypatch, lambda *_, **__: answered.wait(30))
    with pytest.raises(InputError) as error:
        model("acme/rocket")
    answered.set()
    assert error.value.cause == "it did not answer within 0.05 s"


@pytest.mark.parametrize(
    "name",
    ["x" * 3000, "x/" * 1500, "x" * 1500 + "/" + "y" * 1500, "x" * 3000 + ".json", "a\0b", "a\0/b", "\udce9", "\udce9/b", "/"],
    ids=lambda name: ascii(name)[:8],
)  # fmt: skip
def test_a_name_of_any_length_and_letters_is_answered(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It is no model, and no file can have it."""

    def refuse(repository: str, file: str, **_: object) -> str:
        raise ValueError(f"a repository is not called {repository!r}")

    hub(monkeypatch, refuse)
    with pytest.raises(InputError) as error:
        model(name)
    assert len(error.value.what) < 300
