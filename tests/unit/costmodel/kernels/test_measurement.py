"""A user's own measurements: read, checked, and stronger than the tables."""

import json
from dataclasses import replace

import pytest

from costmodel.kernels.collectives import collective_time
from costmodel.kernels.compute import elementwise_time, gemm_time
from costmodel.kernels.measurement import Measurement, measurements_json, read_measurements
from costmodel.kernels.tables import load_calibration
from topology import catalog
from topology.base.errors import InputError
from topology.base.units import MIB
from topology.builders import default_cluster

H100 = catalog.gpu("h100-sxm")
GEMM = Measurement(
    what="gemm",
    cluster="c0ffee",
    gpu="h100-sxm",
    dtype="bf16",
    inputs={"m": 4096, "n": 4096, "k": 4096},
    value=2e-4,
    unit="s",
    repeats=20,
    p10=1.9e-4,
    p50=2e-4,
    p90=2.2e-4,
    software={"torch": "2.11", "nccl": "2.27.7"},
    when="2026-11-21",
)


def test_measurements_survive_the_round_trip(tmp_path):
    """What is written is read back equal."""
    path = tmp_path / "bench.json"
    path.write_text(measurements_json([GEMM]), encoding="utf-8")
    assert read_measurements(path) == (GEMM,)


def test_a_measured_gemm_is_reproduced_at_its_own_point():
    """The table yields to the measurement exactly there, and keeps its level elsewhere."""
    plain, mine = load_calibration(), load_calibration([GEMM])
    assert float(gemm_time(mine, H100, "bf16", 4096, 4096, 4096).seconds) == pytest.approx(GEMM.value)
    ratio = GEMM.value / float(gemm_time(plain, H100, "bf16", 4096, 4096, 4096).seconds)
    far = (
        gemm_time(mine, H100, "bf16", 64, 512, 512).seconds
        / gemm_time(plain, H100, "bf16", 64, 512, 512).seconds
    )
    assert float(far) == pytest.approx(ratio)


def test_other_gpus_and_data_types_are_left_alone():
    """A bf16 measurement of an H100 changes neither fp8 nor an A100."""
    plain, mine = load_calibration(), load_calibration([GEMM])
    a100 = catalog.gpu("a100-sxm-80gb")
    for gpu, dtype in ((H100, "fp8"), (a100, "bf16")):
        before, after = (float(gemm_time(c, gpu, dtype, 4096, 4096, 4096).seconds) for c in (plain, mine))
        assert before == after


def test_a_measured_copy_sets_the_memory_rate():
    """A measured elementwise pass is reproduced."""
    mine = load_calibration([replace(GEMM, what="elementwise", dtype="", inputs={"bytes": 1e9}, value=5e-4)])
    assert float(elementwise_time(mine, H100, 1e9).seconds) == pytest.approx(5e-4)


def test_a_measured_collective_counts_on_its_own_cluster_only():
    """On the cluster it ran on it is reproduced; a plan for another cluster does not see it."""
    h = default_cluster("h100-sxm", 16).hierarchy
    inputs = {"bytes": 64.0 * MIB, "size": 16, "stride": 1}
    mine = replace(GEMM, what="all_reduce", dtype="", inputs=inputs, value=1e-3)
    here, elsewhere = (load_calibration([mine], cluster=name) for name in ("c0ffee", "decade"))
    assert float(collective_time(here, h, "all_reduce", 64 * MIB, 16, 1)) == pytest.approx(1e-3)
    table = float(collective_time(load_calibration(), h, "all_reduce", 64 * MIB, 16, 1))
    assert float(collective_time(elsewhere, h, "all_reduce", 64 * MIB, 16, 1)) == table


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "not a list"),
        ("[{}]", "missing"),
        ("[1]", "entry 0"),
        ("not json", "JSON"),
        (json.dumps([{**json.loads(measurements_json([GEMM]))[0], "value": -1.0}]), "positive"),
        (json.dumps([{**json.loads(measurements_json([GEMM]))[0], "inputs": {"m": 1}}]), "lack n, k"),
        (json.dumps([{**json.loads(measurements_json([GEMM]))[0], "speed": 1}]), "speed"),
    ],
)
def test_a_bad_file_is_answered_in_words(tmp_path, text, complaint):
    """Each mistake is named; nothing is dropped silently."""
    path = tmp_path / "bench.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=complaint):
        read_measurements(path)


@pytest.mark.parametrize("size", [0, -0.0, -4096])
def test_a_measurement_of_no_size_is_refused(tmp_path, size):
    """A product without rows would make every other product's time undefined."""
    path = tmp_path / "bench.json"
    path.write_text(measurements_json([replace(GEMM, inputs={**GEMM.inputs, "n": size})]), encoding="utf-8")
    with pytest.raises(InputError, match="n is"):
        read_measurements(path)
