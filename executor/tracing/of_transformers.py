"""Models of `transformers` by their configuration: what their forward takes, and the loss that they have.

Inputs are those that a configuration says: texts as long as its positions, images of its size, spectrograms
of its encoder's. A model with a decoder predicts what its decoder reads; one with two towers contrasts them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from costmodel.models.traced import no_length
from topology.base.errors import InputError, shown

LONGEST_TEXT, USUAL_TEXT, USUAL_IMAGE = 2048, 512, 224
PREDICTS_TOKENS = ("ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "LMHeadModel")
SAMPLES = 8


def build(name: str, length: int = 0) -> tuple[Any, str]:
    """The module of a configuration, and its usual inputs; empty where nobody can say.

    Args:
        name: A path, or a type of model.
        length: Tokens of a sample, in place of the usual; 0 for those.

    Raises:
        InputError: If there is no such configuration here, or it holds no samples of that length.
    """
    import transformers

    return of_configuration(_config(transformers, name), length)


def of_configuration(config: Any, length: int = 0) -> tuple[Any, str]:
    """The module of a configuration of `transformers`, and its inputs, usual or of a length in tokens."""
    import transformers

    config.use_cache = False
    value = (getattr(config, "architectures", None) or [""])[0]
    kind = getattr(transformers, value, None)
    if kind is None and type(config) not in transformers.AutoModel._model_mapping:  # noqa: SLF001 - no other says
        raise InputError(
            what=f"transformers {transformers.__version__} names no model of {shown(config.model_type)}",
            cause="its configuration has no architectures, or one that is not there, and no usual model",
            fix="give the config.json of a part of it that is a model, or --module with what builds it",
        )
    model = kind(config) if kind else transformers.AutoModel.from_config(config)
    usual = _usual(config, model, length)
    return _called(config, model, tuple(usual)), ",".join(usual.values())


def _called(config: Any, model: Any, names: tuple[str, ...]) -> Any:
    """A model that takes its inputs in order."""
    import torch

    words: dict[str, Any] = {"return_loss": True} if _contrasts(config, model) else {}
    predicts = type(model).__name__.endswith(PREDICTS_TOKENS)

    class Called(torch.nn.Module):
        """Takes its inputs in order, and gives its loss, or the first tensor that it computes."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Any) -> Any:
            """Its loss on what it is given to predict; of others, their first output."""
            known = names or (model.main_input_name,)
            inputs = dict(zip(known, given, strict=False))
            if config.is_encoder_decoder and "decoder_input_ids" not in inputs and predicts:
                inputs["decoder_input_ids"] = given[0]
            last = inputs.get("decoder_input_ids", given[0])
            return self.model(**inputs, **words, **({"labels": last} if predicts else {}))[0]

    return Called()


def _contrasts(config: Any, model: Any) -> bool:
    """Whether a model has a text tower and an image tower, and a loss between the two."""
    towers = hasattr(config, "text_config") and hasattr(config, "vision_config")
    return towers and hasattr(model, "logit_scale")


def _config(transformers: Any, name: str) -> Any:
    place = Path(name)
    types = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if not place.exists() and name in types:
        return transformers.AutoConfig.for_model(name)
    try:
        return transformers.AutoConfig.from_pretrained(str(place), local_files_only=True)
    except (OSError, ValueError):
        raise InputError(
            what=f"transformers {transformers.__version__} has no configuration of {shown(name)} here",
            cause="no readable file of a type that it knows, no type of model, and not fetched before",
            fix="give its config.json: transformers:PATH, or a type with usual sizes: transformers:bert",
        ) from None


def _usual(config: Any, model: Any, length: int = 0) -> dict[str, str]:
    """Eight samples of each input that a configuration says, by the name that the forward has for it."""
    main = model.main_input_name
    if length and main != "input_ids":
        raise no_length(str(config.model_type), length)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    value = getattr(text, "max_position_embeddings", None)
    most = (value or USUAL_TEXT) - _padding(model)
    goes_on = bool(getattr(text, "rope_parameters", None) or getattr(text, "rope_theta", None))
    if value and length > most and not goes_on:  # rotary positions end nowhere, a table of them does
        raise InputError(
            what=f"--sequence-length {length} is longer than {config.model_type} reads",
            cause=f"its configuration has {most} positions",
            fix=f"use --sequence-length {most}, or less",
        )
    tokens = f"{SAMPLES}x{length or min(most, LONGEST_TEXT)}:long"
    if (
        main == "input_features"
        and hasattr(config, "num_mel_bins")
        and hasattr(config, "max_source_positions")
    ):
        heard = (
            f"{SAMPLES}x{config.num_mel_bins}x{2 * config.max_source_positions}"  # a stride of two follows
        )
        return {main: heard, "decoder_input_ids": f"{SAMPLES}x{config.max_target_positions}:long"}
    if main == "pixel_values":
        return {main: _image(config)}
    if main != "input_ids":
        return {}
    if vision := getattr(config, "vision_config", None):
        return {main: tokens, "pixel_values": _image(vision)}
    return {main: tokens, "decoder_input_ids": tokens} if config.is_encoder_decoder else {main: tokens}


def _padding(model: Any) -> int:
    """Rows of a table of positions that no token has: RoBERTa counts from behind that of padding."""
    tables = [part for path, part in model.named_modules() if path.endswith("position_embeddings")]
    rows = [table.padding_idx + 1 for table in tables if getattr(table, "padding_idx", None) is not None]
    return max(rows, default=0)


def _image(config: Any) -> str:
    """Images of a configuration's size, of 224 pixels a side where it says none."""
    size = getattr(config, "image_size", None) or USUAL_IMAGE
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return f"{SAMPLES}x{getattr(config, 'num_channels', 3)}x{height}x{width}"
