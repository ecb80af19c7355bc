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
FEW, LONGER = 64, 1.2
"""Up to so many tokens, a kernel of two ranks that takes so much longer than the line of those of one and
four in 1/ranks measures something else: half of all shapes are within 3 % of that line."""
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
        table = without_outliers(table)
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


def without_outliers(table: pd.DataFrame) -> pd.DataFrame:
    """The table with kernels of two ranks on the line t₄ + (t₁ − t₄)/3 where they are far above it.

    A rank reads its own experts: t = launch + share of the experts. Of 2,880 · 2,880 in w4a16_mxfp4 with 128
    experts on H100 and H200 two ranks take 97 µs at one token, where one takes 60 and four 67.
    """
    mended = table.copy()
    few = [tokens for tokens in table.columns if tokens <= FEW]
    for key in table.index:
        *shape, ep = key
        one, four = (*shape, 1), (*shape, 4)
        if ep != 2 or one not in table.index or four not in table.index:
            continue
        line = table.loc[four] + (table.loc[one] - table.loc[four]) / 3
        if float((table.loc[key] / line)[few].median()) > LONGER:
            print(f"{key}: two ranks {(table.loc[key] / line)[few].median():.2f} times as long")
            mended.loc[key] = line
    return mended


if __name__ == "__main__":
    main()
