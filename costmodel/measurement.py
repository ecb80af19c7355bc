"""What a user measured on their own cluster, as data that overrides a table.

A measurement file is a JSON list of `Measurement` objects; `plan bench` writes it and
`Calibration` reads it. Times are medians over `repeats`; p10 and p90 say how steady they were.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured kernel, collective or step, with what is needed to judge and repeat it.

    what: gemm, attention_prefill, attention_decode, elementwise, all_reduce, all_gather,
        reduce_scatter, all_to_all, p2p, or training_step.
    cluster: fingerprint of the cluster it ran on.
    inputs: the arguments of the cost function of that name (gpu, dtype, m, n, k; bytes, size, stride, …).
    value: the median, in `unit` ("s").
    when: ISO 8601 date.
    """

    what: str
    cluster: str
    inputs: Mapping[str, str | float] = field(hash=False)
    value: float
    unit: str
    repeats: int
    p10: float
    p50: float
    p90: float
    software: Mapping[str, str] = field(default_factory=dict, hash=False)
    when: str = ""
