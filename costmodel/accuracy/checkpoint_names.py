"""What the name of a published checkpoint says: which model it is a copy of, and in which precision."""

from __future__ import annotations

import contextlib
import re

from costmodel.models.catalog import listed_model
from costmodel.models.spec import ModelSpec
from costmodel.runs.model_names import spellings
from costmodel.serving.deployment import Weights, published_weights
from topology.base.errors import InputError

WEIGHTS_OF_NAME: dict[str, Weights] = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16", "half": "bf16", "none": "bf16",
    "fp8": "fp8", "fp8_block": "fp8", "fp8_static": "fp8", "w8a8_fp8": "fp8",
    "int8": "int8", "int8_wo": "int8", "w8a16": "int8",
    "int4": "int4", "int4_wo": "int4", "w4a16": "int4", "awq": "int4", "gptq": "int4", "w4afp8": "int4",
    "fp4": "fp4", "nvfp4": "fp4", "mxfp4": "fp4", "w4a16_mxfp4": "fp4", "w4a8_mxfp4_mxfp8": "fp4",
}  # fmt: skip
"""Names of weight formats in benchmark tables and checkpoint names."""
_FORMATS = frozenset(WEIGHTS_OF_NAME)


def checkpoint_model(name: str) -> ModelSpec:
    """Give the catalogued model of a checkpoint name such as ``nvidia/Llama-3.1-8B-Instruct-FP8``.

    The organisation is dropped, then, last first, the words that name tuning, precision or release, until a
    model is found. Raises `InputError` when none is.

    >>> checkpoint_model("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16").name
    'llama-3.1-70b'
    """
    *others, last = spellings(name, _FORMATS)
    for spelling in others:
        with contextlib.suppress(InputError):
            return listed_model(spelling)
    return listed_model(last)


def checkpoint_weights(name: str) -> Weights:
    """Precision of a checkpoint: what its name says, or how the model was first published.

    >>> checkpoint_weights("nvidia/Llama-3.3-70B-Instruct-FP4"), checkpoint_weights("openai/gpt-oss-20b")
    ('fp4', 'fp4')
    """
    result = [WEIGHTS_OF_NAME[word] for word in re.split(r"[-_.]", name.lower()) if word in WEIGHTS_OF_NAME]
    return result[-1] if result else published_weights(checkpoint_model(name)) or "bf16"
