"""Moving a prompt's KV cache from a prefill worker to a decode worker over the network."""

from __future__ import annotations

from costmodel.serving.deployment import Deployment
from costmodel.serving.disaggregated import Transfer
from costmodel.serving.memory import kv_bytes_per_token
from topology.fabric.hierarchy import p2p_bandwidth


def transfer_of(prompts: Deployment, outputs: Deployment) -> Transfer:
    """Time to move a prompt's cache between pools.

    Every GPU of the narrower replica sends its share over its own link.

    t = latency + tokens·(bytes of a token on a prefill GPU)·tp_prefill/min(tp_prefill, tp_decode)/p2p rate
    """
    layout, h = prompts.layout, prompts.hierarchy
    per_gpu = kv_bytes_per_token(prompts) * layout.tp / min(layout.tp, outputs.layout.tp)
    apart = h.gpus_per_node if h.num_gpus > h.gpus_per_node else 1
    return Transfer(latency_s=prompts.stack.transfer_s, s_per_token=per_gpu / float(p2p_bandwidth(h, apart)))
