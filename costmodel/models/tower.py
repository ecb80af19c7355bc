"""What a model sees or hears with: an encoder before its decoder, and what joins the two.

Every image is a sequence of its own whose patches all attend to each other; `merge` patches become one token
of the decoder's sequence, which the `join` turns into the decoder's width. Of a tower that hears a clip of
sound stands for an image, and a frame of it for a patch.

Source: configurations and modules of ``transformers`` (`costmodel.models.hf.towers`, `hearing`).

Legend: ``h`` width of the tower, ``H`` of the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TowerNorm = Literal["rmsnorm", "layernorm"]
Sense = Literal["vision", "audio"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """One tower.

    Attributes:
        num_layers: Layers of the tower, all alike.
        hidden_size: h.
        intermediate_size: Width of its feed-forward.
        num_attention_heads: Heads of its attention, h/heads wide.
        norm: Norms before attention and feed-forward.
        gated_mlp: Whether the feed-forward has a third matrix.
        qkv_bias: Biases of queries, keys and values.
        output_bias: Bias of the attention's output.
        mlp_bias: Biases of the feed-forward.
        layer_extra: Parameters of a layer beside these: scales of its two blocks, norms of heads.
        patch_values: Numbers of one patch: channels × frames × pixels.
        stem_parameters: All that stands before the first layer: patches, positions, norms.
        join: Matrices (inputs, outputs) that every token of an image passes after the last layer.
        join_parameters: All that stands after the last layer, the matrices of `join` too.
        merge: Patches that become one token.
        image_tokens: Tokens of an image.
        any_size: Whether images have any number of tokens, `image_tokens` being a usual one.
        most_tokens: Of the largest image that its preprocessor lets through; 0: `image_tokens`.
        window_patches: Patches that attend to each other in windowed layers, 0 without such.
        full_layers: Layers without a window.
        sense: What it is given.
        before: Products before that of patches, each with an activation: (rows a patch, inputs, outputs).
        patch_kept: Numbers of its input that the product of patches keeps where windows overlap; 0: all.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    norm: TowerNorm = "layernorm"
    gated_mlp: bool = False
    qkv_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    layer_extra: int = 0
    patch_values: int
    stem_parameters: int
    join: tuple[tuple[int, int], ...]
    join_parameters: int
    merge: int = 1
    image_tokens: int
    any_size: bool = False
    most_tokens: int = 0
    window_patches: int = 0
    full_layers: int = 0
    sense: Sense = "vision"
    before: tuple[tuple[int, int, int], ...] = ()
    patch_kept: int = 0

    @property
    def given(self) -> str:
        """What it is given one of: a sequence of patches, or of frames."""
        return "image" if self.sense == "vision" else "clip"

    @property
    def verb(self) -> str:
        """What a model does with it."""
        return "sees" if self.sense == "vision" else "hears"

    @property
    def named(self) -> str:
        """What it is, with an article."""
        return f"{'an' if self.sense == 'audio' else 'a'} {self.sense} tower"

    @property
    def end_parameters(self) -> int:
        """Parameters before its first layer and after its last."""
        return self.stem_parameters + self.join_parameters
