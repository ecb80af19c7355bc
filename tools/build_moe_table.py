"""Turn the measured expert kernels into the packaged tables `costmodel/data/kernels/moe-<gpu>.npz`.

Run: python tools/build_moe_table.py ../shared/data/kernels/moe_ffn.parquet Every table holds log seconds by
(number format, H, F, experts per token, experts, expert tp, expert ep) and tokens, for routing with the power
law of exponent 1.01. Where ranks divide the experts, the time is that of the rank with the most tokens.
Source: aiconfigurator-core 0.12.0 (Apache-2.0), collected 2026-11-21.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

TARGET = Path(__file__).resolve().parents[1] / "costmodel" / "data" / "kernels"
SHAPE = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
ROUTING = "power_law_1.01"


def main() -> None:
    """Write one table for each GPU."""
    rows = pd.read_parquet(sys.argv[1])
    rows = rows[rows.distribution == ROUTING]
    for gpu, measured in rows.groupby("gpu"):
        table = measured.pivot_table(
            index=["moe_dtype", *SHAPE],
            columns="num_tokens",
            values="latency_s",
            aggfunc="min",
            observed=True,
        )
        table = table.loc[:, table.notna().mean() > 0.5].dropna()
        keys = table.index.to_frame(index=False)
        path = TARGET / f"moe-{gpu}.npz"
        np.savez_compressed(
            path,
            dtypes=keys["moe_dtype"].astype(str).to_numpy().astype("U16"),
            shapes=keys[SHAPE].to_numpy(dtype=np.int32),
            tokens=table.columns.to_numpy(dtype=np.float64),
            log_seconds=np.log(table.to_numpy()).astype(np.float16),
        )
        print(f"{path.name}: {table.shape} shapes and token counts, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
