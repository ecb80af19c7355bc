"""A model written as a config.json reads back as itself, or is not written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.models.catalog import model, model_names
from costmodel.models.hf.config import model_of_config
from costmodel.models.stored import AS_NAMED
from executor.model.hf_config import published_config
from topology.base.errors import InputError


@pytest.mark.parametrize("name", model_names())
def test_every_model_that_can_be_built_can_be_written(name: str) -> None:
    """The file alone describes it; a model that no family computes is refused by its settings."""
    spec = model(name)
    if spec.unmodelled or spec.layer_pattern:
        with pytest.raises(InputError, match="cannot be written"):
            published_config(spec)
        return
    read = model_of_config(published_config(spec).config, name=name, source=spec.source)
    # No weights of these are written, and what is written is not quantised.
    written = replace(
        spec, num_nextn_predict_layers=0, left_out="", weight_format="", stored=AS_NAMED, encoder=None
    )
    assert replace(read, as_of=spec.as_of) == written


def test_a_setting_that_no_family_has_is_refused() -> None:
    """Sinks belong to gpt-oss alone."""
    with pytest.raises(InputError, match="cannot be written"):
        published_config(replace(model("llama-3.1-8b"), attention_sinks=True))
