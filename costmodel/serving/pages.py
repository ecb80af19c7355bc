"""Pages of a cache whose layers keep unlike things, as an engine with one pool of pages counts them.

Compressed keys: a page of the pool holds what all layers keep of `tokens` tokens: entries, and keys of the
indexer. Windows and the unfinished entries' states have groups of their own, whose blocks are pages of the
same pool. While F tokens are computed, a window of w in blocks of t holds ⌈min(w − 1 + F, S)/t⌉ + 1 pages.

    bytes of a request = page · (⌈S/tokens⌉ + Σ groups · (⌈min(w − 1 + F, S)/t⌉ + 1))

Recurrences beside attention: a block has so many tokens that its keys take what a state takes. Layers are in
groups of as many as the rarer kind has; a group of recurrences holds a page for its state and one a draft.

    bytes of a request = page · (⌈S/block⌉ + ⌈recurrences/group⌉ · (1 + drafts))

Every request that runs needs one page of the pool at least, for its state.

Legend: ``S`` tokens of the request, ``F`` tokens in flight, ``w`` a window, ``t`` tokens of its block.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from costmodel.models.compressed_attention import AttentionCompression, reach_of
from costmodel.models.recurrence import FLOAT_BYTES, HALF_BYTES
from costmodel.models.spec import layer_runs
from costmodel.serving.deployment import Deployment, kv_token_bytes_per_layer
from costmodel.serving.engine import CompressedPages
from costmodel.serving.mixers import INDEX_KEY_BYTES, state_bytes

SCALED = 64
"""Numbers of an eight-bit entry to a scale of one byte, the scales filled up to a multiple of eight bytes."""
EVEN_GROUPS = 1.5
"""Times that a kind of layer is commoner than another, from which layers are grouped by the rarer kind."""
OVERLAP = 2  # entries of the sparse kind see two groups of tokens, those of the heavy kind their own
STATES = 2  # of an unfinished entry: its sum and its scores


def paged_request_bytes(deployment: Deployment, context: float, in_flight: int = 0) -> float | None:
    """Bytes of the pool that a request of `context` tokens holds on one GPU; None without such pages.

    Source: vLLM v0.28, kv_cache_interface.py and models/deepseek_v4; its issue 53961 prints 23.32 GiB of
    DeepSeek-V4-Pro at 1,048,576 tokens, steps of 16,384 and two of them in flight.
    """
    if deployment.stack.state_block_tokens and deployment.model.recurrence is not None:
        return _with_states_bytes(deployment, context)
    pages, compression = deployment.stack.compressed_pages, deployment.model.compression
    if pages is None or compression is None:
        return None
    page = _entries_bytes(deployment, pages, compression)
    blocks = float(ceil(context / pages.tokens))
    for window, block_tokens, layers_bytes in _window_groups(deployment, pages, compression):
        held = min(window - 1 + in_flight, context)
        blocks += ceil(layers_bytes / page) * (ceil(held / block_tokens) + 1)
    return page * blocks


def _with_states_bytes(deployment: Deployment, context: float) -> float | None:
    """The same of recurrences beside attention; None of a model with no attention at all.

    Source: vLLM v0.33, kv_cache_planning.py (groups) and MambaSpec.max_memory_usage_bytes.
    """
    attention, recurrences = _layers(deployment)
    if not attention:
        return None
    group, block = _group(attention, recurrences), _block_tokens(deployment)
    states = ceil(recurrences / group) * (1 + deployment.draft_tokens)
    pages = ceil(attention / group) * ceil(context / block) + states
    return _state_page_bytes(deployment, group, block) * pages


def state_page_bytes(deployment: Deployment) -> float:
    """Bytes of a page of the pool, which holds a request's state for a group of layers; 0 without states.

    Of a model with no attention all layers are one group. Source: vLLM v0.33, kv_cache_planning.py.
    """
    if not deployment.stack.state_block_tokens or deployment.model.recurrence is None:
        return 0.0
    attention, recurrences = _layers(deployment)
    if not attention:
        return recurrences * state_bytes(deployment)
    return _state_page_bytes(deployment, _group(attention, recurrences), _block_tokens(deployment))


def _state_page_bytes(deployment: Deployment, group: int, block: int) -> float:
    """Bytes of `block` tokens' keys in a group of layers, which a state fills as well."""
    return group * block * kv_token_bytes_per_layer(deployment)


def _block_tokens(deployment: Deployment) -> int:
    """Tokens of a block whose keys take what a state takes."""
    token, unit = kv_token_bytes_per_layer(deployment), deployment.stack.state_block_tokens
    return ceil(state_bytes(deployment) / token / unit) * unit


def _group(attention: int, recurrences: int) -> int:
    """Layers of a group: as many as the rarer kind has, or all where both kinds have about as many."""
    fewer, more = sorted((attention, recurrences))
    return more if more < EVEN_GROUPS * fewer else fewer


def _layers(deployment: Deployment) -> tuple[int, int]:
    """Layers with attention, that of a drafter among them, and with a recurrence."""
    counts = {"attention": 0, "recurrence": 0, "none": 0}
    for run in layer_runs(deployment.model):
        counts[run.kind.attention if run.kind.attention in counts else "attention"] += run.count
    drafts = deployment.drafter == "mtp" and deployment.draft_tokens > 0
    return counts["attention"] + drafts, counts["recurrence"]


def _entries_bytes(
    deployment: Deployment, pages: CompressedPages, compression: AttentionCompression
) -> float:
    """Bytes of one page of the pool: what every layer keeps of its tokens."""
    model = deployment.model
    total = 0.0
    for run in layer_runs(model):
        reach = reach_of(run.kind.attention)
        if reach == "sparse":
            entries = pages.tokens / compression.sparse_rate
            key = model.index_head_dim * INDEX_KEY_BYTES
            total += run.count * (
                _filled(deployment, pages, entries * _entry_bytes(deployment))
                + _filled(deployment, pages, entries * key)
            )
        elif reach == "heavy":
            entries = pages.tokens / compression.heavy_rate
            total += run.count * _filled(deployment, pages, entries * _entry_bytes(deployment))
    return total


def _window_groups(
    deployment: Deployment, pages: CompressedPages, compression: AttentionCompression
) -> Iterator[tuple[int, int, float]]:
    """Tokens of a window, of its block, and bytes of all layers' blocks: windows, states of both kinds."""
    model = deployment.model
    counts = {"sparse": 0, "heavy": 0}
    for run in layer_runs(model):
        reach = reach_of(run.kind.attention)
        if reach in counts:
            counts[reach] += run.count
    layers = model.num_layers + (deployment.drafter == "mtp" and deployment.draft_tokens > 0)
    window = _filled(deployment, pages, pages.window_tokens * _entry_bytes(deployment))
    yield model.sliding_window or 1, pages.window_tokens, layers * window

    def state(width: int, tokens: int) -> float:
        return _filled(deployment, pages, tokens * STATES * width * FLOAT_BYTES, is_state=True)

    sparse = state(OVERLAP * model.head_dim, pages.sparse_state_tokens) + state(
        OVERLAP * model.index_head_dim, pages.sparse_state_tokens
    )
    yield OVERLAP * compression.sparse_rate, pages.sparse_state_tokens, counts["sparse"] * sparse
    heavy = state(model.head_dim, pages.heavy_state_tokens)
    yield compression.heavy_rate, pages.heavy_state_tokens, counts["heavy"] * heavy


def _entry_bytes(deployment: Deployment) -> float:
    """Bytes of an entry: in eight bits the rotated part stays in bf16, and scales lie beside the rest."""
    model = deployment.model
    if deployment.kv_dtype == "bf16":
        return model.head_dim * HALF_BYTES
    rotated = int(model.head_dim * model.rotary.fraction)
    scales = ceil((model.head_dim - rotated) / SCALED / 8) * 8
    return model.head_dim - rotated + rotated * HALF_BYTES + scales


def _filled(deployment: Deployment, pages: CompressedPages, size: float, *, is_state: bool = False) -> float:
    """Bytes filled up to the engine's alignment, which pages of sixteen bits do without."""
    if deployment.kv_dtype == "bf16" and not is_state:
        return size
    return ceil(size / pages.alignment_bytes) * pages.alignment_bytes
