"""What few questions say of a job: whose engine it keeps to, adapters, offloading, hosts left out."""

from __future__ import annotations

from typing import Any

from app.pages.base.choices import choose, text_box
from planner.engines.contracts import CONTRACTS
from planner.plan import FREE

USUAL_ENGINE = "that of the stack"


def more_of_the_job(where: Any) -> dict[str, str | None]:
    """Draw the boxes, and read the flags that they are; None where a box says nothing."""
    engine = choose(
        where, "For engine", (USUAL_ENGINE, *CONTRACTS, FREE), "engine",
        help="Whose limits the plan keeps; any for none.",
    )  # fmt: skip
    adapter = text_box(
        where, "Adapter", "", "adapter", max_chars=80, placeholder="lora:r=16,targets=attention+mlp",
        help="Trained beside frozen weights.",
    )  # fmt: skip
    offload = text_box(
        where, "CPU offload", "", "offload", max_chars=60, placeholder="optimizer:0.5",
        help="optimizer, parameters, activations, with + between.",
    )  # fmt: skip
    modules = text_box(
        where, "Recompute modules", "", "recompute_modules", max_chars=120, placeholder="core_attn,mlp",
        help="What selective recomputation repeats.",
    )  # fmt: skip
    without = text_box(where, "Hosts left out", "", "without", max_chars=200, placeholder="node[3-5]")
    degraded = text_box(where, "Degraded hosts", "", "degraded", max_chars=200, placeholder="node4:gpu3")
    return {
        "engine": None if engine == USUAL_ENGINE else engine,
        "adapter": adapter or None,
        "offload": offload or None,
        "recompute_modules": modules or None,
        "without": without or None,
        "degraded": degraded or None,
    }
