"""Every number of the cost model that is neither a data sheet's nor a measured kernel table's, in one list.

Constants of a step (``data/constants.toml``), timing and memory properties of software stacks
(``data/stacks.toml``) and constants of collectives across nodes (``data/kernels/fits.json``), each with
unit, meaning and what it was fitted on; "fixed" marks what was not fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from costmodel.kernels.tables import Calibration
from costmodel.stack import bases, stacks, stated_fields
from costmodel.training.constants import Constant, described_constants
from topology.base.units import GIB

NETWORK = "network."
"""What names of constants of collectives across nodes begin with."""
_SIZE = {"GiB": GIB}
UNSOURCED = "fixed: chosen with the profile; no published source"
STACK_ORIGINS: Mapping[str, str] = {
    "megatron-lm-2021.product_time_ratio": "Korthikanti, Narayanan, Zero Bubble",
    "megatron-deepspeed.host_s_per_layer": "vTrain",
    "megatron-deepspeed.host_s_per_microbatch": "vTrain",
    "megatron-deepspeed.tp_slowdown": "vTrain, BLOOM",
    "megatron-core.host_s_per_layer": "NeMo, dgxc, MLPerf, SimuMax",
    "megatron-core.tp_overlap_share": "NeMo, dgxc, MLPerf",
    "torchtitan.product_time_ratio": "torchtitan; stands for what is not modelled of it",
    "pytorch-fsdp1.fsdp_exposed_share": "llm-foundry",
    "pytorch-fsdp1.loss_bytes_per_logit": "fixed: bf16 logits and gradient of its fused_crossentropy",
    "ideal.tp_overlap_share": "fixed: by definition",
    "ideal.expert_overlap_share": "fixed: by definition",
}
"""Properties that `tools/fit_constants.py` fits and the runs that determine each, then those fixed by reason.

What is not named here was chosen with its profile, and is listed as `UNSOURCED`.
"""


def heirs(profile: str, field: str) -> tuple[str, ...]:
    """Profiles that have one value of a field: the one that states it, and those based on it that do not."""
    stated, line = stated_fields(), bases()
    result = [profile]
    for name in stacks():
        if line.get(name) in result and field not in stated[name]:
            result.append(name)
    return tuple(result)


def every_constant(cal: Calibration) -> Mapping[str, Constant]:
    """Constants of the step, of the stacks and of the network, by name."""
    network = {
        f"{NETWORK}{name}": Constant(**{field.name: entry[field.name] for field in fields(Constant)})
        for name, entry in cal.fits()["network"].items()
    }
    return {**described_constants(), **_stack_constants(), **network}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """How many constants came from where.

    Attributes:
        fitted: On training runs, and refitted in every fold.
        fixed: Counted or published, and those that were chosen.
        chosen: Earlier or with a stack's profile, without a published source.
        network: Of the tables of networks, fitted or fixed there.
    """

    fitted: int
    fixed: int
    chosen: int
    network: int


def origins_of(constants: Mapping[str, Constant]) -> Origins:
    """Count constants by origin."""
    of_runs = [entry.fitted_on for name, entry in constants.items() if not name.startswith(NETWORK)]
    fixed = [origin for origin in of_runs if origin.startswith("fixed")]
    return Origins(
        fitted=len(of_runs) - len(fixed),
        fixed=len(fixed),
        chosen=sum(origin.startswith("fixed: chosen") for origin in fixed),
        network=len(constants) - len(of_runs),
    )


def _stack_constants() -> dict[str, Constant]:
    """Timing and memory properties in which a profile differs from the plain engine."""
    stated, line = stated_fields(), bases()
    return {
        f"{profile.name}.{at.name}": Constant(
            value=float(getattr(group, at.name)) / _SIZE.get(at.metadata["unit"], 1),
            unit=at.metadata["unit"],
            meaning=at.metadata["meaning"],
            fitted_on=STACK_ORIGINS.get(f"{profile.name}.{at.name}", UNSOURCED),
        )
        for profile in stacks().values()
        for group in (profile.timing, profile.memory)
        for at in fields(group)
        if "unit" in at.metadata
        and getattr(group, at.name) != at.default
        and (profile.name not in line or at.name in stated[profile.name])
    }
