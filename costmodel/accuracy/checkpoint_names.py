"""What the name of a published checkpoint says: which model it is a copy of, and in which precision."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.models.catalog import listed_model
from costmodel.models.names import FORMAT_OF_WORD
from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import WEIGHTS, Weights, published_weights

WEIGHTS_OF_NAME: Mapping[str, Weights] = {
    word: weights for word, stated in FORMAT_OF_WORD.items() for weights in WEIGHTS if weights == stated
}
"""Names of weight formats in benchmark tables and checkpoint names."""


def checkpoint_model(name: str) -> ModelSpec:
    """Give the catalogued model of a checkpoint name such as ``nvidia/Llama-3.1-8B-Instruct-FP8``.

    Raises `InputError` when none is.

    >>> checkpoint_model("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16").name
    'llama-3.1-70b'
    """
    return listed_model(name)


def checkpoint_weights(name: str) -> Weights:
    """Precision of a checkpoint: what its name says, or how the model was first published.

    >>> checkpoint_weights("nvidia/Llama-3.3-70B-Instruct-FP4"), checkpoint_weights("openai/gpt-oss-20b")
    ('fp4', 'fp4')
    """
    return published_weights(checkpoint_model(name)) or "bf16"
