"""Routed experts: measured kernels, those carried over, and the busiest of the ranks that share them."""

import numpy as np
import pytest

from costmodel.kernels.tables import DATA, load_calibration
from costmodel.models.catalog import model
from costmodel.serving.experts import chance_load, drawn_load, routed_experts
from topology.base.arrays import Floats
from topology.catalog import gpu

CAL = load_calibration()
TOKENS = np.array([1.0, 8.0, 64.0, 512.0, 4096.0])


def seconds(
    name: str,
    part: str,
    dtype: str,
    *,
    tp: int = 1,
    ep: int = 1,
    share: float = 1.0,
    exchanged: bool = False,
    warp_products: bool = False,
) -> Floats:
    """Seconds of a model's experts over `TOKENS`."""
    spec = model(name)
    return routed_experts(
        CAL, gpu(part), dtype, tokens=TOKENS, hidden_size=spec.hidden_size,
        intermediate_size=spec.moe_intermediate_size, top_k=spec.num_experts_per_token,
        num_experts=spec.num_experts, moe_tp=tp, moe_ep=ep, mxfp4_share=share, exchanged=exchanged,
        warp_products=warp_products,
    ).seconds  # fmt: skip


@pytest.mark.parametrize("part", ["h100-sxm", "h200-sxm", "b200-sxm"])
@pytest.mark.parametrize(("name", "tp"), [("qwen3-235b-a22b", 8), ("qwen3-30b-a3b", 4), ("mixtral-8x7b", 2)])
def test_eight_bit_experts_are_not_slower_than_sixteen_bit_ones(part: str, name: str, tp: int) -> None:
    """At 64 tokens, where weights are what is read; shapes without a block-scaled measurement included."""
    eight, sixteen = (seconds(name, part, dtype, tp=tp)[2] for dtype in ("fp8", "bf16"))
    assert eight < sixteen


@pytest.mark.parametrize("part", ["b200-sxm", "gb200", "b300-sxm", "gb300"])
def test_native_four_bit_experts_are_carried_over_from_kernels_that_multiply_four_bits_by_eight(
    part: str,
) -> None:
    """Those of MXFP4 were measured at another shape. No faster than memory; with many rows a third of unpacking."""
    taken, shape = seconds("gpt-oss-120b", part, "fp4"), (2880, 2880, 4, 128, 1, 1)
    touched = 128 * (1 - (1 - 4 / 128) ** 64)
    read_s = touched * 3 * 2880 * 2880 * 17 / 32 / gpu(part).memory_bandwidth_bytes_per_s
    assert 0.75 * read_s < taken[2] < 1.5 * read_s  # popular experts are fewer than those drawn evenly
    assert taken[-1] < 0.5 * np.exp(_table(part, "w4a16_mxfp4", shape))[-1]
    assert (np.diff(taken) > 0).all()


def test_two_ranks_lie_between_one_and_four() -> None:
    """A rank reads its own experts: t = launch + share, so at few tokens two ranks are on the line of 1/ranks."""
    for path in sorted(DATA.glob("moe-*.npz")):
        table = np.load(path)
        few = table["tokens"] <= 64
        keys = list(zip(table["dtypes"].tolist(), map(tuple, table["shapes"].tolist()), strict=True))
        known = {
            key: np.exp(row[few].astype(float)) for key, row in zip(keys, table["log_seconds"], strict=True)
        }
        for (dtype, (*shape, ep)), two in known.items():
            one, four = (known.get((dtype, (*shape, ranks))) for ranks in (1, 4))
            if ep == 2 and one is not None and four is not None:
                assert np.median(two / (four + (one - four) / 3)) < 1.21, (path.name, dtype, shape)


def test_only_mxfp4_kernels_take_the_engines_share() -> None:
    """An engine's MXFP4 library says nothing about its other experts, nor of products at the peak.

    On H100 989 TFLOP/s and 3.35 TB/s meet at 78 rows of an expert, here at 2,509 tokens: √0.5 of the time.
    """
    taken = seconds("gpt-oss-120b", "h100-sxm", "fp4", share=0.5) / seconds("gpt-oss-120b", "h100-sxm", "fp4")
    assert taken[0] == pytest.approx(0.5, rel=0.01)
    assert (np.diff(taken) > 0).all()
    ridge = 989e12 / 3.35e12 * (17 / 32) / 2
    rows = TOKENS * 4 / 128
    assert taken == pytest.approx(0.5 ** (ridge / (ridge + rows)), rel=0.01)
    assert seconds("mixtral-8x7b", "h100-sxm", "fp8", share=0.5) == pytest.approx(
        seconds("mixtral-8x7b", "h100-sxm", "fp8")
    )


@pytest.mark.parametrize(
    ("part", "share"), [("h100-sxm", 0.629), ("h200-sxm", 0.629), ("a100-sxm-80gb", 1.0)]
)
def test_products_of_one_warp_reach_less_of_hoppers_peak_alone(part: str, share: float) -> None:
    """Marlin's mma instructions: 62.9 % of Hopper's peak, all of Ampere's, and none the slower at reading."""
    taken = seconds("gpt-oss-120b", part, "fp4", warp_products=True) / seconds("gpt-oss-120b", part, "fp4")
    card = gpu(part)
    ridge = card.peak("bf16") / card.memory_bandwidth_bytes_per_s * (17 / 32) / 2
    rows = TOKENS * 4 / 128
    assert taken == pytest.approx(share ** -(rows / (ridge + rows)), rel=0.01)


@pytest.mark.parametrize("part", ["b200-sxm", "gb200"])
def test_kernels_that_multiply_four_bits_have_no_such_products(part: str) -> None:
    """Nothing is unpacked there."""
    assert seconds("gpt-oss-120b", part, "fp4", warp_products=True) == pytest.approx(
        seconds("gpt-oss-120b", part, "fp4")
    )


def test_chance_loads_the_busiest_rank_less_the_more_rows_there_are() -> None:
    """One rank has no busiest; 32 ranks with 512 rows each have 12 % above the mean."""
    rows = np.array([4.0, 64.0, 512.0])
    assert chance_load(rows, 1).tolist() == [1.0, 1.0, 1.0]
    loads = chance_load(rows, 32)
    assert (np.diff(loads) < 0).all()
    assert loads[-1] == pytest.approx(1.116, abs=1e-3)


def test_sharing_experts_over_more_ranks_never_takes_longer() -> None:
    """The busiest of 32 ranks has less to do than the busiest of 8, at many tokens."""
    wide, narrow = (seconds("deepseek-v3", "h200-sxm", "fp8", ep=ep) for ep in (32, 8))
    assert (wide[2:] < narrow[2:]).all()


@pytest.mark.parametrize(("ranks", "tokens"), [(2, 64), (8, 64), (8, 8192), (32, 512)])
def test_the_busiest_rank_of_the_tables_is_the_one_that_drawing_gives(ranks: int, tokens: int) -> None:
    """As aiconfigurator draws it: popularity from x^−1.01 up to 0.8 of the tokens, 256 experts of DeepSeek."""
    low, high, power = 1.0, 0.8 * tokens, 1 - 1.01
    drawn = np.random.default_rng(5).random((2000, 256))
    popular = ((high**power - low**power) * drawn + low**power) ** (1 / power)
    shares = popular / popular.sum(axis=1, keepdims=True)
    busiest = shares.reshape(2000, ranks, -1).sum(axis=2).max(axis=1).mean() * ranks
    assert drawn_load(np.array([float(tokens)]), 8, 256, ranks)[0] == pytest.approx(busiest, rel=0.08)


@pytest.mark.parametrize(
    ("name", "part", "dtype", "kernel"),
    [("gpt-oss-120b", "h200-sxm", "fp4", "w4a16_mxfp4"), ("deepseek-v3", "b200-sxm", "fp8", "fp8_block")],
)
@pytest.mark.parametrize("ep", [2, 8])
def test_ranks_with_every_token_take_what_was_measured_of_such_ranks(
    name: str, part: str, dtype: str, kernel: str, ep: int
) -> None:
    """Within what unlike loads of the busiest rank move: the table between 0.5 and 1.5 times the tokens."""
    spec = model(name)
    shape = (
        spec.hidden_size,
        spec.moe_intermediate_size,
        spec.num_experts_per_token,
        spec.num_experts,
        1,
        ep,
    )
    taken = seconds(name, part, dtype, ep=ep)[2:]
    near = np.exp([_table(part, kernel, shape, of=times)[2:] for times in (0.5, 0.75, 1.0, 1.25, 1.5)])
    assert (near.min(axis=0) <= taken * 1.01).all()
    assert (taken <= near.max(axis=0) * 1.01).all()


def test_ranks_with_every_token_save_less_than_their_number() -> None:
    """Eight ranks of an H200 take 0.26 of one at 64 tokens of gpt-oss (133 of 517 µs), not an eighth."""
    one, eight = (seconds("gpt-oss-120b", "h200-sxm", "fp4", ep=ep)[2] for ep in (1, 8))
    assert 0.2 < eight / one < 0.3


def test_ranks_that_exchange_have_their_own_rows_alone() -> None:
    """Of many tokens they take less than ranks that have them all."""
    alone, everything = (
        seconds("deepseek-v3", "b200-sxm", "fp8", ep=8, exchanged=exchanged)[-1]
        for exchanged in (True, False)
    )
    assert alone < everything


def _table(part: str, kernel: str, shape: tuple[int, ...], of: float = 1.0) -> Floats:
    """Log seconds of one measured kernel at `TOKENS`, or at a multiple of them."""
    arrays = CAL.arrays(f"moe-{part}")
    found = (arrays["dtypes"] == kernel) & (arrays["shapes"] == np.array(shape)).all(axis=1)
    values = np.interp(
        np.log(of * TOKENS), np.log(arrays["tokens"]), arrays["log_seconds"][found][0].astype(float)
    )
    return np.asarray(values, dtype=np.float64)
