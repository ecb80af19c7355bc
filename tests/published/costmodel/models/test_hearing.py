"""Towers that hear are those that transformers builds, parameter by parameter, with the FLOP that torch counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.models.hf.config import model_of_config
from costmodel.models.parameters import parameter_count, without_tower
from costmodel.models.spec import layer_runs
from costmodel.ops.layer import embedding_ops, forward_flop, layer_ops
from costmodel.ops.op import ShardShape
from costmodel.stack import stack

from .test_towers import _TEXT

SMALL: Mapping[str, Any] = {"num_mel_bins": 16, "max_source_positions": 64}
OLD: Mapping[str, Any] = {
    **SMALL, "d_model": 96, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 384,
}  # fmt: skip
NEW: Mapping[str, Any] = {
    **SMALL, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384,
}  # fmt: skip
CONFIGS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "qwen2_audio": ("qwen2", OLD, {}),
    "voxtral": ("llama", NEW, {}),
    "audioflamingo3": ("qwen2", NEW, {}),
    "audioflamingo3 without biases": ("qwen2", NEW, {"projector_bias": False}),
}
TOKENS = {"qwen2_audio": 32, "voxtral": 16, "audioflamingo3": 32}


def told(case: str) -> dict[str, Any]:
    """The configuration of a case, as it would be published."""
    text, heard, more = CONFIGS[case]
    return {
        "model_type": case.split(maxsplit=1)[0],
        "text_config": {**_TEXT, "model_type": text},
        "audio_config": dict(heard),
        "tie_word_embeddings": False,
        **more,
    }


def built(config: dict[str, Any]) -> Any:
    """The model that transformers builds of it, without weights."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    found = transformers.AutoConfig.for_model(**config)
    found._attn_implementation = "eager"  # torch counts no fused attention of a processor
    kind = {
        "qwen2_audio": "Qwen2AudioForConditionalGeneration",
        "voxtral": "VoxtralForConditionalGeneration",
        "audioflamingo3": "AudioFlamingo3ForConditionalGeneration",
    }[config["model_type"]]
    with torch.device("meta"):
        return getattr(transformers, kind)(found)


def parameters(module: Any) -> int:
    """Each once."""
    return sum({id(one): one.numel() for one in module.parameters()}.values())


@pytest.mark.parametrize("case", CONFIGS)
def test_a_model_that_hears_has_the_parameters_that_transformers_gives_it(case: str) -> None:
    """Exactly: the tower, what joins it, and the decoder; tokens of a clip are those that replace its marks."""
    config = told(case)
    spec = model_of_config(config, name=case)
    assert spec.tower is not None
    assert (spec.left_out, spec.tower.sense) == ("", "audio")
    assert spec.tower.image_tokens == TOKENS[config["model_type"]]
    assert parameter_count(spec) == parameters(built(config))
    assert sum(run.count for run in layer_runs(spec)) == spec.num_layers


@pytest.mark.parametrize("family", ["qwen2_audio", "voxtral", "audioflamingo3"])
def test_sizes_that_are_left_out_are_those_of_the_family(family: str) -> None:
    """As published files have it: Qwen2-Audio writes five of its language model's sizes."""
    text = {"model_type": CONFIGS[family][0]}
    config = {"model_type": family, "audio_config": {}, "text_config": text, "tie_word_embeddings": False}
    spec = model_of_config(config, name=family)
    assert parameter_count(spec) == parameters(built(config))


@pytest.mark.parametrize("family", ["qwen2_audio", "voxtral", "audioflamingo3"])
@pytest.mark.parametrize(
    "said", [{}, {"text_config": {}}, {"text_config": None}, {"text_config": {"vocab_size": 640}}]
)
def test_a_configuration_that_says_nothing_is_its_class_by_default(family: str, said: dict[str, Any]) -> None:
    """An empty `text_config` was a family that is not known, a missing `audio_config` no tower."""
    config = {"model_type": family, **said}
    spec, class_ = model_of_config(config, name=family), built(config)
    assert parameter_count(spec) == parameters(class_)
    assert spec.norm_epsilon == class_.config.text_config.rms_norm_eps
    assert spec.rotary is not None
    assert spec.rotary.theta == class_.config.text_config.rope_parameters["rope_theta"]


def test_qwen2_audio_is_as_large_as_published() -> None:
    """8.4 B parameters by its card; its files hold 16,794,189,824 bytes in sixteen bits."""
    text = {"model_type": "qwen2", "intermediate_size": 11008, "vocab_size": 156032}
    config = {
        "model_type": "qwen2_audio",
        "audio_config": {},
        "text_config": {**text, "max_position_embeddings": 8192},
    }
    assert parameter_count(model_of_config(config, name="Qwen2-Audio-7B")) == 16_794_189_824 // 2


@pytest.mark.parametrize("case", ["qwen2_audio", "voxtral", "audioflamingo3"])
def test_flop_are_those_that_torch_counts(case: str) -> None:
    """Of one clip through the tower and what joins it, within 0.1 %."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    config = told(case)
    spec = model_of_config(config, name=case)
    module = built(config).to_empty(device="cpu").float()
    parts = getattr(module, "model", module)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        given = torch.zeros(1, 16, 128)
        mask = {"input_features_mask": torch.ones(1, 128)} if case == "audioflamingo3" else {}
        heard = parts.audio_tower(given, **mask).last_hidden_state
        parts.multi_modal_projector(heard.reshape(TOKENS[case], -1))
    job = TrainingJob(sequence_length=256, global_batch_size=1)
    shard = ShardShape(sequence_length=256.0)
    run = layer_runs(spec)[0]
    found = run.count * forward_flop(
        layer_ops(Workload(model=spec, job=job, stack=stack("ideal")), run.kind, shard)
    ) + forward_flop(embedding_ops(Workload(model=spec, job=job, stack=stack("ideal")), shard))
    assert found == pytest.approx(counter.get_total_flops(), rel=1e-3)


def test_the_tower_is_told_apart() -> None:
    """What is left out of the language model alone is an audio tower."""
    spec = model_of_config(told("voxtral"), name="voxtral")
    assert without_tower(spec).left_out.startswith("an audio tower of 3 layers")
    assert replace(spec, tower=None).tower is None
