"""Towers that hear: encoders of Whisper's kind inside a larger model, from its ``audio_config``.

A clip of sound is a spectrogram of twice as many columns as `max_source_positions`; two convolutions, the
second with a stride of two, make its frames.

Shapes are those that ``transformers`` builds (`tests/published/costmodel/models/test_hearing.py`).

Legend: ``h`` width of the tower, ``H`` of the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.models.hf.reader import ConfigReader
from costmodel.models.hf.towers import LAYER_NORM
from costmodel.models.tower import Tower

WINDOW = 3
"""Columns of a spectrogram, or frames, under either convolution."""
STRIDE = 2
"""Columns of a spectrogram for a frame."""
UNBIASED = 2
"""Biases of queries and values; keys of Whisper have none."""


def hearing_of(config: Mapping[str, Any], hidden_size: int, problems: list[str]) -> Tower | None:
    """The tower that hears of a whole configuration; None where it has none, or one that is not described.

    Args:
        config: The configuration of all of the model.
        hidden_size: Width of its decoder.
        problems: Where to say what cannot be read.
    """
    table, family = config.get("audio_config"), config.get("model_type")
    table = {} if table is None else table  # as transformers has it: all sizes are the usual ones
    if not isinstance(table, dict) or not isinstance(family, str) or family not in _TOWERS:
        return None
    return _TOWERS[family](
        ConfigReader(config=table, problems=problems),
        ConfigReader(config=config, problems=problems),
        hidden_size,
    )


def _whisper(a: ConfigReader) -> dict[str, Any]:
    """An encoder of Whisper's kind: sizes of its largest unless said."""
    h = a.size("d_model", "hidden_size", default=1280)
    mel = a.size("num_mel_bins", default=128)
    heads = a.size("encoder_attention_heads", "num_attention_heads", default=20)
    if h % heads:
        a.problems.append(f"a tower {h} wide is no multiple of {heads} heads")
        heads = 1
    frames = a.size("max_source_positions", default=1500)
    convolutions = (WINDOW * mel * h + h) + (WINDOW * h * h + h)
    return {
        "num_layers": a.size("encoder_layers", "num_hidden_layers", default=32),
        "hidden_size": h,
        "intermediate_size": a.size("encoder_ffn_dim", "intermediate_size", default=5120),
        "num_attention_heads": heads,
        "qkv_bias": False,
        "layer_extra": UNBIASED * h,
        "patch_values": WINDOW * h,
        "patch_kept": STRIDE * h,
        "before": ((STRIDE, WINDOW * mel, h),),
        "stem_parameters": convolutions + frames * h,
        "sense": "audio",
        "frames": frames,
    }


def _joined(joined: dict[str, Any], merge: int, join: tuple[tuple[int, int], ...], *, bias: bool) -> Tower:
    """The tower whose frames become tokens, so many one, by these matrices after a norm."""
    frames, h = joined.pop("frames"), joined["hidden_size"]
    matrices = sum(inputs * outputs + outputs * bias for inputs, outputs in join)
    return Tower(
        **joined,
        join=join,
        join_parameters=LAYER_NORM * h + matrices,
        merge=merge,
        image_tokens=max(1, frames // merge),
    )


def _qwen2_audio(a: ConfigReader, _: ConfigReader, hidden_size: int) -> Tower:
    """Qwen2-Audio: two frames averaged to a token, one matrix."""
    whisper = _whisper(a)
    return _joined(whisper, 2, ((whisper["hidden_size"], hidden_size),), bias=True)


def _voxtral(a: ConfigReader, _: ConfigReader, hidden_size: int) -> Tower:
    """Voxtral: frames side by side, as many as its feed-forward is wide, two matrices."""
    whisper = _whisper(a)
    h, wide = whisper["hidden_size"], whisper["intermediate_size"]
    if wide % h:
        a.problems.append(
            f"intermediate_size {wide} is no multiple of hidden_size {h}, whose frames it joins"
        )
    join = ((wide, hidden_size), (hidden_size, hidden_size))
    return _joined(whisper, max(1, wide // h), join, bias=False)


def _flamingo(a: ConfigReader, whole: ConfigReader, hidden_size: int) -> Tower:
    """Audio Flamingo 3: two frames averaged to a token, two matrices."""
    whisper = _whisper(a)
    join = ((whisper["hidden_size"], hidden_size), (hidden_size, hidden_size))
    return _joined(whisper, 2, join, bias=whole.flag("projector_bias", default=True))


_TOWERS: Mapping[str, Callable[[ConfigReader, ConfigReader, int], Tower]] = {
    "qwen2_audio": _qwen2_audio,
    "voxtral": _voxtral,
    "audioflamingo3": _flamingo,
}

DECODERS: Mapping[str, str] = {"qwen2_audio": "qwen2", "voxtral": "llama", "audioflamingo3": "qwen2"}
"""Family of the decoder of a whole configuration whose tower that hears is described, where it says none.

Source: `sub_configs_defaults` of the configuration classes of transformers 5.23.
"""
