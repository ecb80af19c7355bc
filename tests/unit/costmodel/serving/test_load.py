"""Loads: arrival processes, lengths, and traces."""

from pathlib import Path

import numpy as np
import pytest

from costmodel.serving.simulation.load import Lengths, mean_rate_per_s, open_load, read_trace, thin
from topology.base.errors import InputError


def test_poisson_arrivals_have_the_rate_and_the_variation_of_a_poisson_process() -> None:
    """Mean gap 1/rate and coefficient of variation one."""
    load = open_load(rate_per_s=20.0, count=50_000, inputs=Lengths(mean=10), outputs=Lengths(mean=10))
    gaps = np.diff(load.arrival_s)
    assert float(gaps.mean()) == pytest.approx(0.05, rel=0.02)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(1.0, rel=0.03)


def test_bursty_arrivals_keep_the_rate_and_vary_more() -> None:
    """Burstiness is the coefficient of variation of the gaps."""
    load = open_load(
        rate_per_s=20.0, count=80_000, inputs=Lengths(mean=10), outputs=Lengths(mean=10), burstiness=2.0
    )
    gaps = np.diff(load.arrival_s)
    assert mean_rate_per_s(load) == pytest.approx(20.0, rel=0.04)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(2.0, rel=0.05)


def test_lengths_have_their_mean_and_their_99th_percentile() -> None:
    """A log-normal is fitted to both."""
    drawn = Lengths(mean=1000, p99=4000).draw(200_000, np.random.default_rng(1))
    assert float(drawn.mean()) == pytest.approx(1000, rel=0.02)
    assert float(np.percentile(drawn, 99)) == pytest.approx(4000, rel=0.03)


def test_the_same_seed_gives_the_same_load() -> None:
    """Loads are deterministic."""
    one, two = (
        open_load(rate_per_s=3.0, count=100, inputs=Lengths(mean=9, p99=20), outputs=Lengths(mean=9))
        for _ in "ab"
    )
    assert one.arrival_s.tolist() == two.arrival_s.tolist()
    assert one.input_tokens.tolist() == two.input_tokens.tolist()


def test_a_trace_is_read_sorted_and_shifted_to_zero(tmp_path: Path) -> None:
    """Times start at zero and requests are in order of arrival."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n12,30,3\n10,10,1\n11,20,2\n")
    load = read_trace(path)
    assert load.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert load.input_tokens.tolist() == [10, 20, 30]


def test_the_columns_of_the_azure_trace_are_understood(tmp_path: Path) -> None:
    """TIMESTAMP, ContextTokens and GeneratedTokens mean what ours mean."""
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:48.68,396,109\n"
    )
    load = read_trace(path)
    assert load.arrival_s.tolist() == pytest.approx([0.0, 2.0])
    assert load.output_tokens.tolist() == [44, 109]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no row below the header"),
        ("arrival_s,input_tokens\n1,2\n", "no column output_tokens"),
        ("arrival_s,input_tokens,output_tokens\n1,2,0\n", "line 2: output_tokens = '0'"),
        ("arrival_s,input_tokens,output_tokens\n1,2,3\nsoon,2,3\n", "line 3: arrival_s = 'soon'"),
        ("arrival_s,input_tokens,output_tokens\n1,2.5,3\n", "line 2: input_tokens = '2.5'"),
        ("arrival_s,input_tokens,output_tokens\n1,2\n", "line 2: output_tokens = ''"),
    ],
)
def test_a_malformed_trace_names_its_line(tmp_path: Path, text: str, cause: str) -> None:
    """Every mistake says where it is."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_trace(path)
    assert cause in refused.value.cause


def test_thinning_shares_every_request_once() -> None:
    """Round-robin over three replicas gives each a third."""
    load = open_load(rate_per_s=3.0, count=10, inputs=Lengths(mean=9), outputs=Lengths(mean=9))
    parts = [thin(load, 3, which) for which in range(3)]
    assert [len(part) for part in parts] == [4, 3, 3]
    assert sorted(np.concatenate([part.arrival_s for part in parts]).tolist()) == load.arrival_s.tolist()


def test_gaps_of_nothing_are_refused() -> None:
    """So bursty that all requests come at once have no rate."""
    with pytest.raises(InputError, match="burstiness"):
        open_load(
            rate_per_s=5.0, count=200, inputs=Lengths(mean=10), outputs=Lengths(mean=10), burstiness=1000.0
        )


def test_a_rate_of_zero_is_refused() -> None:
    """There is nothing to serve."""
    with pytest.raises(InputError, match="no load to serve"):
        open_load(rate_per_s=0.0, count=10, inputs=Lengths(mean=9), outputs=Lengths(mean=9))


@pytest.mark.parametrize("cell", ["9" * 400, "9" * 5000, "1000000000", "-1", "1.5", "", "nan"])
def test_a_number_of_tokens_nobody_sends_is_named(tmp_path: Path, cell: str) -> None:
    """Integers of any length are answered, not computed with."""
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens\n0,{cell},1\n")
    with pytest.raises(InputError) as error:
        read_trace(path)
    assert error.value.cause.startswith("line 2: input_tokens")
    assert len(error.value.cause) < 250


@pytest.mark.parametrize("moment", ["1e308", "-1e308", "inf", "nan"])
def test_a_time_is_within_the_ages(tmp_path: Path, moment: str) -> None:
    """The difference of two such times is infinite."""
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{moment},1,1\n0,1,1\n")
    with pytest.raises(InputError, match="malformed"):
        read_trace(path)


def test_a_trace_comes_from_a_regular_file() -> None:
    """A device has no end."""
    with pytest.raises(InputError, match="not a regular file"):
        read_trace(Path("/dev/zero"))


def test_the_lines_of_the_mooncake_trace_are_understood(tmp_path: Path) -> None:
    """Milliseconds become seconds, and hashes stay with their requests when these are sorted."""
    path = tmp_path / "trace.jsonl"
    lines = [(4500, 1100, 7, [1, 2, 9]), (1500, 900, 5, [1, 2])]
    path.write_text("".join(
        f'{{"timestamp": {at}, "input_length": {i}, "output_length": {o}, "hash_ids": {h}}}\n' for at, i, o, h in lines
    ))  # fmt: skip
    load = read_trace(path)
    assert load.arrival_s.tolist() == [0.0, 3.0]
    assert load.input_tokens.tolist() == [900, 1100]
    assert load.block_hashes == ((1, 2), (1, 2, 9))
    assert thin(load, 2, 1).block_hashes == ((1, 2, 9),)


def test_the_columns_of_burstgpt_and_own_json_lines_are_understood(tmp_path: Path) -> None:
    """BurstGPT's header; arrival_s of one's own lines is in seconds, and a CSV tells hashes with spaces."""
    burst, own, hashed = (tmp_path / name for name in ("burst.csv", "own.jsonl", "hashed.csv"))
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n"
        "45,GPT-4,1087,230,1317,API log\n"
    )
    own.write_text(
        '{"arrival_s": 1.5, "input_tokens": 3, "output_tokens": 2}\n{"arrival_s": 2, "input_tokens": 4, "output_tokens": 1}\n'
    )
    hashed.write_text("arrival_s,input_tokens,output_tokens,hash_ids\n0,1024,5,7 8\n1,600,5,7\n")
    assert read_trace(burst).arrival_s.tolist() == [0.0, 40.0]
    assert read_trace(burst).output_tokens.tolist() == [18, 230]
    assert read_trace(own).arrival_s.tolist() == [0.0, 0.5]
    assert read_trace(hashed).block_hashes == ((7, 8), (7,))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('{"arrival_s": 1, "input_tokens": 3}\n', "no column output_tokens"),
        ('{"arrival_s": 1, "input_tokens": 3, "output_tokens": 2}\n[1]\n', "line 2"),
        (
            '{"arrival_s": 1, "input_tokens": 3, "output_tokens": 2}\n{"arrival_s": 1}\n',
            "line 2 has other keys",
        ),
        ('{"arrival_s": 1, "input_tokens": 3, "output_tokens": 2, "hash_ids": ["a"]}\n', "not whole numbers"),
    ],
)
def test_malformed_json_lines_name_their_line(tmp_path: Path, text: str, cause: str) -> None:
    """As of a CSV."""
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_trace(path)
    assert cause in refused.value.cause
