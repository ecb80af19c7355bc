"""GPUs beside a trace: what nvidia-smi and DCGM say of them, the same in three forms, and what it explains."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from planner.diagnose.devices import device_findings
from planner.traces.device_samples import DeviceSample, device_samples
from tests.counts import tries
from topology.base.errors import InputError
from topology.base.units import MEGA

BITS = {
    "hardware slowdown": 0x8,
    "thermal slowdown by software": 0x20,
    "thermal slowdown by hardware": 0x40,
    "power brake of the machine": 0x80,
}
WORDS = {
    "hardware slowdown": "hw_slowdown",
    "thermal slowdown by software": "sw_thermal_slowdown",
    "thermal slowdown by hardware": "hw_thermal_slowdown",
    "power brake of the machine": "hw_power_brake_slowdown",
}
WELL = DeviceSample(
    index=0,
    uuid="GPU-0",
    product="NVIDIA H100 80GB HBM3",
    busy=0.98,
    clock_hz=1755 * MEGA,
    most_hz=1980 * MEGA,
    uncorrected_errors=0,
    pcie_generation=5,
    most_generation=5,
    pcie_width=16,
    most_width=16,
)


def as_xml(samples: Sequence[DeviceSample], family: str = "event") -> str:
    """`nvidia-smi -q -x`, whose form is that of drivers from 535 on, or before."""

    def gpu(s: DeviceSample) -> str:
        reasons = "".join(
            f"<clocks_{family}_reason_{word}>{'Active' if name in s.throttles else 'Not Active'}</clocks_{family}_reason_{word}>"
            for name, word in WORDS.items()
        )
        return f"""<gpu id="00000000:{s.index:02d}:00.0"><product_name>{s.product}</product_name><uuid>{s.uuid}</uuid>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>{s.most_generation}</max_link_gen><current_link_gen>{s.pcie_generation}</current_link_gen></pcie_gen>
<link_widths><max_link_width>{s.most_width}x</max_link_width><current_link_width>{s.pcie_width}x</current_link_width></link_widths></pci_gpu_link_info></pci>
<clocks_{family}_reasons>{reasons}</clocks_{family}_reasons><utilization><gpu_util>{round(100 * (s.busy or 0))} %</gpu_util></utilization>
<ecc_errors><volatile><sram_correctable>5</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity><dram_uncorrectable>{s.uncorrected_errors}</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_pending>{"Yes" if "pending" in s.remaps else "No"}</remapped_row_pending><remapped_row_failure>{"Yes" if "failure" in s.remaps else "No"}</remapped_row_failure></remapped_rows>
<clocks><sm_clock>{round((s.clock_hz or 0) / MEGA)} MHz</sm_clock></clocks><max_clocks><sm_clock>{round((s.most_hz or 0) / MEGA)} MHz</sm_clock></max_clocks></gpu>"""

    return f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>{"".join(map(gpu, samples))}</nvidia_smi_log>'


def as_csv(samples: Sequence[DeviceSample], family: str = "event") -> str:
    """`nvidia-smi --query-gpu=… --format=csv`."""
    lines = [
        f"timestamp, index, uuid, name, utilization.gpu [%], clocks.current.sm [MHz], clocks.max.sm [MHz], clocks_{family}_reasons.active, ecc.errors.uncorrected.volatile.total, remapped_rows.pending, remapped_rows.failure, pcie.link.gen.gpucurrent, pcie.link.gen.max, pcie.link.width.current, pcie.link.width.max"
    ]
    for s in samples:
        bits = sum(BITS[name] for name in s.throttles) | 0x4  # a power cap slows no GPU by fault
        cells = [
            "2026/11/20 10:00:00.000",
            s.index,
            s.uuid,
            s.product,
            f"{round(100 * (s.busy or 0))} %",
            f"{round((s.clock_hz or 0) / MEGA)} MHz",
            f"{round((s.most_hz or 0) / MEGA)} MHz",
            f"0x{bits:016x}",
            s.uncorrected_errors,
            "Yes" if "pending" in s.remaps else "No",
            "Yes" if "failure" in s.remaps else "No",
            s.pcie_generation,
            s.most_generation,
            s.pcie_width,
            s.most_width,
        ]
        lines.append(", ".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def as_metrics(samples: Sequence[DeviceSample]) -> str:
    """What DCGM's exporter answers, one scrape after the other."""
    rounds: list[list[DeviceSample]] = []
    for s in samples:
        place = next((r for r in rounds if all((o.node, o.index) != (s.node, s.index) for o in r)), None)
        (place if place is not None else rounds.append([]) or rounds[-1]).append(s)
    lines = []
    for scrape in rounds:
        for name, value in (
            ("SM_CLOCK", lambda s: (s.clock_hz or 0) / MEGA), ("MAX_SM_CLOCK", lambda s: (s.most_hz or 0) / MEGA), ("GPU_UTIL", lambda s: round(100 * (s.busy or 0))),
            ("CLOCKS_EVENT_REASONS", lambda s: sum(BITS[n] for n in s.throttles) | 1), ("ECC_DBE_VOL_TOTAL", lambda s: s.uncorrected_errors),
            ("ROW_REMAP_PENDING", lambda s: int("pending" in s.remaps)), ("ROW_REMAP_FAILURE", lambda s: int("failure" in s.remaps)),
            ("PCIE_LINK_GEN", lambda s: s.pcie_generation), ("PCIE_MAX_LINK_GEN", lambda s: s.most_generation), ("PCIE_LINK_WIDTH", lambda s: s.pcie_width), ("PCIE_MAX_LINK_WIDTH", lambda s: s.most_width),
        ):  # fmt: skip
            lines += [f"# HELP DCGM_FI_DEV_{name} of the GPU.", f"# TYPE DCGM_FI_DEV_{name} gauge"]
            lines += [
                f'DCGM_FI_DEV_{name}{{gpu="{s.index}",UUID="{s.uuid}",device="nvidia{s.index}",modelName="{s.product}",Hostname="{s.node}"}} {value(s):g}'
                for s in scrape
            ]
        lines += [f'DCGM_FI_DEV_MEMORY_TEMP{{gpu="{scrape[0].index}",Hostname=""}} 9223372036854775794']
    return "\n".join(lines) + "\n"


def node(count: int = 8, **odd: object) -> list[DeviceSample]:
    """GPUs of a node, the sixth of which is odd."""
    gpus = [replace(WELL, index=place, uuid=f"GPU-{place}") for place in range(count)]
    gpus[5] = replace(gpus[5], **odd)  # type: ignore[arg-type]
    return gpus


ODD = {
    "throttled clocks": {
        "clock_hz": 1170 * MEGA,
        "throttles": ("hardware slowdown", "thermal slowdown by hardware"),
    },
    "slow rank": {"clock_hz": 1170 * MEGA},
    "slow link": {"pcie_generation": 1, "pcie_width": 8},
    "memory errors": {"uncorrected_errors": 3, "remaps": ("pending",)},
}


@pytest.mark.parametrize(
    "written", [as_xml, as_csv, as_metrics, lambda s: as_xml(s, "throttle"), lambda s: as_csv(s, "throttle")]
)
@pytest.mark.parametrize("cause", ["", *ODD])
def test_each_form_says_the_same_and_the_odd_gpu_is_named(
    tmp_path: Path, cause: str, written: object
) -> None:
    gpus = node(**ODD.get(cause, {}))
    path = tmp_path / "gpus"
    path.write_text(written(gpus))  # type: ignore[operator]
    read = device_samples(path.read_text(), str(path))
    assert sorted(read, key=lambda s: s.index) == gpus
    lasting = "clock_hz" in ODD.get(cause, {}) or "pcie_width" in ODD.get(cause, {})
    if lasting and "throttles" not in ODD[cause]:
        assert device_findings(read, step_s=2.0) == ()  # a moment
    findings = device_findings([*read, *read], step_s=2.0)
    assert [(f.cause, f.rank, f.gpu) for f in findings] == ([(cause, None, 5)] if cause else [])
    assert [f.words for f in findings] == ([f"{cause} (GPU 5)"] if cause else [])
    if "clock_hz" in ODD.get(cause, {}):  # a third of the clock is a third of the speed
        assert findings[0].seconds == pytest.approx(2.0 * (1 - 1170 / 1755))
    assert all("GPU 5" in f.evidence for f in findings)


def test_a_moment_or_an_idle_gpu_accuses_nobody() -> None:
    """Throttled in one sample of ten; idle GPUs have low clocks and an old PCIe generation; caps are no fault."""
    gpus = [replace(s, clock_hz=s.clock_hz) for _ in range(10) for s in node()]
    gpus[5] = replace(gpus[5], throttles=("hardware slowdown",))
    assert device_findings(gpus) == ()
    idle = node(clock_hz=345 * MEGA, busy=0.0, pcie_generation=1)
    assert device_findings(idle) == ()


def test_several_scrapes_are_several_samples() -> None:
    """And hosts are kept apart: of several nobody says which rank a GPU is."""
    scrapes = [
        replace(s, node=name, clock_hz=(1170 if (name, s.index) == ("b", 5) else 1755) * MEGA)
        for _ in range(3)
        for name in ("a", "b")
        for s in node()
    ]
    read = device_samples(as_metrics(scrapes), "metrics")
    assert len(read) == len(scrapes)
    (finding,) = device_findings(read)
    assert (finding.cause, finding.rank, finding.gpu) == ("slow rank", None, None)
    assert "GPU 5 of b" in finding.evidence


def test_values_are_those_that_prometheus_reads() -> None:
    """The oracle is its own parser."""
    parser = pytest.importorskip("prometheus_client.parser")
    text = as_metrics(node())
    clocks = {
        s.labels["gpu"]: s.value
        for family in parser.text_string_to_metric_families(text)
        for s in family.samples
        if s.name == "DCGM_FI_DEV_SM_CLOCK"
    }
    assert {str(s.index): s.clock_hz / MEGA for s in device_samples(text, "metrics") if s.clock_hz} == clocks


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "a, b\n1, 2\n",
        "index, name\n",
        "<nvidia_smi_log></nvidia_smi_log>",
        "<nvidia_smi_log>",
        '<!DOCTYPE x [<!ENTITY a "b">]><nvidia_smi_log>&a;</nvidia_smi_log>',
        'DCGM_FI_DEV_SM_CLOCK{gpu="x"} 5\n',
        'DCGM_FI_DEV_SM_CLOCK{gpu="0"} NaN\n',
        "index\n" + "\x00",
    ],
)
def test_what_says_nothing_of_a_gpu_is_answered_in_three_lines(text: str) -> None:
    with pytest.raises(InputError) as error:
        device_samples(text, "gpus.txt")
    assert len(str(error.value).splitlines()) == 3


def test_mutated_texts_never_break_it() -> None:
    draw = random.Random(5)
    texts = [written(node(**ODD["throttled clocks"])) for written in (as_xml, as_csv, as_metrics)]
    read = 0
    for _ in range(tries(600, 20_000)):
        text = draw.choice(texts)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(text))
            text = (
                text[:place]
                + draw.choice(
                    ("", "9" * 40, "-1", "nan", '"', "<", ",", "{", "\n", "1e999", "0x" + "f" * 30, "é")
                )
                + text[place + draw.randint(0, 6) :]
            )
        try:
            samples = device_samples(text, "gpus")
        except InputError:
            continue
        read += 1
        for finding in device_findings(samples, 1.0):
            assert 0 <= finding.share < 1
    assert read > 50
