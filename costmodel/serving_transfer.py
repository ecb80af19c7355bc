"""Moving a prompt's KV cache from a prefill worker to a decode worker over the network."""

from __future__ import annotations

from costmodel.deployment import Deployment
from costmodel.queueing_pools import Transfer
from costmodel.serving_memory import kv_bytes_per_token
from topology.hierarchy import p2p_bandwidth


def transfer_of(prompts: Deployment, outputs: Deployment) -> Transfer:
    """Time to move a prompt's cache between pools: every GPU of the narrower replica sends its share over its own link.

    t = latency + tokens·bytes per token of a prefill GPU·(prefill tp / min(prefill tp, decode tp)) / p2p bandwidth
    """
    layout, h = prompts.layout, prompts.hierarchy
    per_gpu = kv_bytes_per_token(prompts) * layout.tp / min(layout.tp, outputs.layout.tp)
    apart = h.gpus_per_node if h.num_gpus > h.gpus_per_node else 1
    return Transfer(latency_s=prompts.stack.transfer_s, s_per_token=per_gpu / float(p2p_bandwidth(h, apart)))
