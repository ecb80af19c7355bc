"""A decoder-only transformer from a `ModelSpec`: plain torch modules under Hugging Face parameter names.

One class covers the catalogued families: grouped-query, multi-head or latent attention, windows, sinks and
soft caps, RMS or layer norm, rotary or learned positions, gated or plain feed-forward, experts with shared
ones and leading dense layers. What it cannot compute as published it refuses to build. A model may hold any
consecutive part of the layers (a pipeline stage) under the names of the whole. Modules carry their parallel
axes as plain attributes, None until `executor.parallel.parallelize` sets them.

Legend: ``B`` sequences, ``S`` sequence length of this rank, ``H`` hidden size, ``V`` vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from costmodel.models.attention import AttentionName
from costmodel.models.spec import ModelSpec, is_sliding
from costmodel.updates.adapters import Adapter
from executor.comm.tensor_parallel import TensorAxis, VocabEmbedding, local
from executor.model.attention.attend import ContextAxis, attend
from executor.model.attention.documents import Documents
from executor.model.gating import activate, gate_of, gated
from executor.model.layer_limits import check_modelled
from executor.model.linear import Head, Linear, RowLinear, project_together
from executor.model.moe import MoE
from executor.model.norms import LayerNorm, RmsNorm, soft_cap
from executor.model.rotary import Rope, deinterleave, latent_score_factor, rotary_size, rotary_tables, rotate

LATENT_NORM_EPSILON = 1e-6  # DeepSeek's published code gives these norms its default, whatever rms_norm_eps


def norm_offset(spec: ModelSpec) -> float:
    """Value that the weights of a family's norms count from."""
    return 1.0 if spec.norm.endswith("1p") else 0.0


def norm(spec: ModelSpec, size: int) -> nn.Module:
    """Build the family's norm."""
    kind = RmsNorm if spec.norm.startswith("rms") else LayerNorm
    return kind(size, spec.norm_epsilon, offset=norm_offset(spec))


class Attention(nn.Module):
    """Multi-head or grouped-query attention."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        H, d, bias = spec.hidden_size, spec.head_dim, spec.qkv_bias
        self.q_proj = Linear(H, spec.num_attention_heads * d, bias=bias)
        self.k_proj = Linear(H, spec.num_key_value_heads * d, bias=bias)
        self.v_proj = Linear(H, spec.num_key_value_heads * d, bias=bias)
        self.o_proj = RowLinear(spec.num_attention_heads * d, H, bias=spec.attention_output_bias)
        self.q_norm = RmsNorm(d, spec.norm_epsilon, offset=norm_offset(spec)) if spec.qk_norm else None
        self.k_norm = RmsNorm(d, spec.norm_epsilon, offset=norm_offset(spec)) if spec.qk_norm else None
        self.sinks = nn.Parameter(torch.zeros(spec.num_attention_heads)) if spec.attention_sinks else None
        self.head_dim = d
        self.scale = (spec.query_pre_attn_scalar or d) ** -0.5
        self.cap = spec.attn_logit_softcapping
        self.window = spec.sliding_window if is_sliding(spec, layer) else None
        self.axis: TensorAxis | None = None
        self.context: ContextAxis | None = None
        self.recompute_core_attention = False

    def forward(self, x: torch.Tensor, rope: Rope | None, documents: Documents | None = None) -> torch.Tensor:
        """Attend over the sequence of x (B, S, H), or over each of its documents."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)) for y in project_together(x, projections, self.axis))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        sinks = None if self.sinks is None else local(self.sinks)
        attention = functools.partial(
            attend,
            scale=self.scale,
            window=self.window,
            sinks=sinks,
            cap=self.cap,
            context=self.context,
            documents=documents,
        )
        return self.o_proj(_call(attention, q, k, v, recompute=self.recompute_core_attention).flatten(-2))


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2 §2.1): low-rank projections and a shared rotary key."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        del layer
        super().__init__()
        H, heads = spec.hidden_size, spec.num_attention_heads
        self.nope, self.rope, self.value = spec.qk_nope_head_dim, spec.qk_rope_head_dim, spec.v_head_dim
        self.rank = spec.kv_lora_rank
        self.low_rank_queries = spec.q_lora_rank > 0
        if self.low_rank_queries:
            self.q_a_proj = Linear(H, spec.q_lora_rank, bias=False)
            self.q_a_layernorm = RmsNorm(spec.q_lora_rank, LATENT_NORM_EPSILON)
            self.q_b_proj = Linear(spec.q_lora_rank, spec.query_size, bias=False)
        else:
            self.q_proj = Linear(H, spec.query_size, bias=False)
        self.kv_a_proj_with_mqa = Linear(H, self.rank + self.rope, bias=False)
        self.kv_a_layernorm = RmsNorm(self.rank, LATENT_NORM_EPSILON)
        self.kv_b_proj = Linear(self.rank, heads * (self.nope + self.value), bias=False)
        self.o_proj = RowLinear(heads * self.value, H, bias=spec.attention_output_bias)
        self.interleaved = spec.rotary.interleaved
        self.scale = spec.qk_head_dim**-0.5 * latent_score_factor(spec.rotary.scaling)
        self.axis: TensorAxis | None = None
        self.context: ContextAxis | None = None
        self.recompute_core_attention = False

    def forward(self, x: torch.Tensor, rope: Rope | None, documents: Documents | None = None) -> torch.Tensor:
        """Attend over the sequence of x (B, S, H), or over each of its documents."""
        first = self.q_a_proj if self.low_rank_queries else self.q_proj
        q, compressed = project_together(x, (first, self.kv_a_proj_with_mqa), self.axis)
        if self.low_rank_queries:
            q = self.q_b_proj(self.q_a_layernorm(q))
        q = q.unflatten(-1, (-1, self.nope + self.rope))
        latent, shared = compressed.split((self.rank, self.rope), -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (-1, self.nope + self.value))
        k_plain, v = kv.split((self.nope, self.value), -1)
        q_plain, q_turned = q.split((self.nope, self.rope), -1)
        k_turned = shared.unsqueeze(2)
        if self.interleaved:
            q_turned, k_turned = deinterleave(q_turned), deinterleave(k_turned)
        if rope is not None:
            q_turned, k_turned = rotate(q_turned, rope), rotate(k_turned, rope)
        q = torch.cat((q_plain, q_turned), -1)
        k = torch.cat((k_plain, k_turned.expand(*k_plain.shape[:-1], self.rope)), -1)
        attention = functools.partial(attend, scale=self.scale, context=self.context, documents=documents)
        return self.o_proj(_call(attention, q, k, v, recompute=self.recompute_core_attention).flatten(-2))


class FeedForward(nn.Module):
    """Gated or plain feed-forward block."""

    def __init__(self, spec: ModelSpec, width: int) -> None:
        super().__init__()
        H, bias = spec.hidden_size, spec.mlp_bias
        self.gate_proj = Linear(H, width, bias=bias) if spec.gated_mlp else None
        self.up_proj = Linear(H, width, bias=bias)
        self.down_proj = RowLinear(width, H, bias=bias)
        self.gating = gate_of(spec)
        self.axis: TensorAxis | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform each token of x (B, S, H)."""
        if self.gate_proj is None:
            (up,) = project_together(x, (self.up_proj,), self.axis)
            inner = activate(up, self.gating.activation)
        else:
            gate, up = project_together(x, (self.gate_proj, self.up_proj), self.axis)
            inner = gated(gate, up, self.gating)
        result: torch.Tensor = self.down_proj(inner)
        return result


ATTENTIONS: Mapping[AttentionName, Callable[[ModelSpec, int], nn.Module]] = {
    "grouped": Attention,
    "latent": LatentAttention,
}


class DecoderLayer(nn.Module):
    """Attention and feed-forward with residuals; four-norm families also normalise what they add."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        H = spec.hidden_size
        self.input_layernorm = norm(spec, H)
        self.self_attn = ATTENTIONS[spec.attention.name](spec, layer)
        self.post_attention_layernorm = norm(spec, H)
        four = spec.norms_per_layer == 4
        self.pre_feedforward_layernorm = norm(spec, H) if four else None
        self.post_feedforward_layernorm = norm(spec, H) if four else None
        self.mlp: nn.Module
        if spec.is_moe and layer >= spec.num_dense_layers:
            shared = FeedForward(spec, spec.shared_expert_size) if spec.shared_expert_size else None
            self.mlp = MoE(spec, shared)
        else:
            self.mlp = FeedForward(spec, spec.intermediate_size)
        self.recompute: Callable[[], tuple[Any, Any]] | bool = False

    def forward(self, x: torch.Tensor, rope: Rope | None, documents: Documents | None = None) -> torch.Tensor:
        """Transform x (B, S, H), keeping only its input until the backward pass when told to recompute."""
        if not self.recompute or not torch.is_grad_enabled():
            return self._layer(x, rope, documents)
        context = {} if self.recompute is True else {"context_fn": self.recompute}
        result: torch.Tensor = checkpoint(
            self._layer, x, rope, documents, use_reentrant=False, preserve_rng_state=False, **context
        )
        return result

    def _layer(self, x: torch.Tensor, rope: Rope | None, documents: Documents | None) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x), rope, documents)
        if self.pre_feedforward_layernorm is None or self.post_feedforward_layernorm is None:
            x = x + attended
            result: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
            return result
        x = x + self.post_attention_layernorm(attended)
        gemma: torch.Tensor = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return gemma


class Decoder(nn.Module):
    """Embedding, layers and final norm; a pipeline stage has only some of them."""

    def __init__(self, spec: ModelSpec, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embed_tokens = VocabEmbedding(spec.vocab_size, spec.hidden_size) if first else None
        learned = first and spec.learned_positions > 0
        self.embed_positions = nn.Embedding(spec.learned_positions, spec.hidden_size) if learned else None
        self.layers = nn.ModuleDict({str(i): DecoderLayer(spec, i) for i in layers})
        self.norm = norm(spec, spec.hidden_size) if last else None


class CausalLM(nn.Module):
    """From tokens to logits; stages of a pipeline take or give hidden states instead."""

    def __init__(self, spec: ModelSpec, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.spec = spec
        self.model = Decoder(spec, layers, first=first, last=last)
        self.lm_head = Head(spec.hidden_size, spec.vocab_size, bias=False) if last else None
        self.tie_weights()
        self.axis: TensorAxis | None = None
        self.positions: torch.Tensor | None = None
        self.adapter: Adapter | None = None

    def tie_weights(self) -> None:
        """Make the head the embedding, where the family ties them and this part has both."""
        if self.spec.tie_word_embeddings and self.lm_head is not None and self.model.embed_tokens is not None:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, x: torch.Tensor, documents: Documents | None = None) -> torch.Tensor:
        """Compute this part of the model for tokens (B, S) or hidden states (B, S, H).

        `documents` of each sequence do not attend to each other. Positions go on through them: rotary
        attention sees distances alone.
        """
        positions = torch.arange(x.shape[1], device=x.device) if self.positions is None else self.positions
        if self.model.embed_tokens is not None:
            x = self._with_positions(self._scaled(self.model.embed_tokens(x)), positions)
        ropes = self._ropes(positions, x.dtype)
        for index, layer in self.model.layers.items():
            x = layer(x, ropes[is_sliding(self.spec, int(index))], documents)
        if self.lm_head is None or self.model.norm is None:
            return x
        logits, cap = self.lm_head(self.model.norm(x)), self.spec.final_logit_softcapping
        # the loss writes over what it is given, and the cap keeps its value for its own gradient
        return logits if cap is None else soft_cap(logits, cap).clone()

    def _ropes(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[Rope | None, Rope | None]:
        """Rotary tables of full and of windowed layers."""
        size, rotary = rotary_size(self.spec), self.spec.rotary
        if not size:
            return None, None
        full = rotary_tables(positions, size, rotary, dtype)
        if rotary.sliding_theta is None:
            return full, full
        return full, rotary_tables(positions, size, rotary, dtype, sliding=True)

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply embeddings by √H, rounded to their type, where the family does."""
        if not self.spec.scale_embeddings:
            return x
        return x * torch.tensor(self.spec.hidden_size**0.5, dtype=x.dtype).item()

    def _with_positions(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Add learned positions when the family has them."""
        if self.model.embed_positions is None:
            return x
        table = local(self.model.embed_positions.weight)
        if self.axis is not None and self.axis.sequence_parallel:
            positions = positions.chunk(self.axis.size)[self.axis.rank]
        return x + functional.embedding(positions, table)


def _call(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, recompute: bool) -> torch.Tensor:
    """Run a function, forgetting its insides until the backward pass when asked."""
    if not recompute or not torch.is_grad_enabled():
        return function(*inputs)
    result: torch.Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result


def build_model(
    spec: ModelSpec,
    *,
    layers: range | None = None,
    first: bool = True,
    last: bool = True,
    device: str | torch.device = "meta",
) -> CausalLM:
    """Build the model, or the part of it with these layers, without values on ``meta`` until materialised.

    `first` parts embed tokens, `last` parts end in logits. Values come from
    `executor.parallel.weights.initialize`.
    """
    check_modelled(spec)
    with torch.device(device):
        return CausalLM(spec, range(spec.num_layers) if layers is None else layers, first=first, last=last)
