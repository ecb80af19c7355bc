"""What slows a GPU although it has work, as NVML says it in `clocks_event_reasons`."""

THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake of the machine",
}
"""Bits of NVML's clock event reasons that slow a GPU although it has work (nvml.h); idle and caps do not."""
