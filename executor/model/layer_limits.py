"""Models that the executor does not build, refused before torch is imported."""

from __future__ import annotations

from costmodel.models.kinds import layer_kinds
from costmodel.models.spec import ModelSpec, unbuilt
from topology.base.errors import InputError


def check_layers(spec: ModelSpec) -> None:
    """Refuse a model with layers that the executor has no module for, whatever else it computes."""
    causes = {
        f"it has {layer_kinds(spec)}, and layers here are all alike": spec.layer_pattern,
        f"it has {(kinds := unbuilt(spec, 'meshplan'))}, of which there is no module here": kinds,
        f"its queries attend to {spec.index_topk} keys that an indexer chose": spec.index_topk,
        f"its experts are {spec.moe_latent_size} wide, its layers {spec.hidden_size}": spec.moe_latent_size,
        "its attention and feed-forward share a norm": spec.norms_per_layer == 1,
    }
    for cause in (cause for cause, holds in causes.items() if holds):
        raise InputError(
            what=f"{spec.name} cannot be built by the executor",
            cause=cause,
            fix="plan it, and train its own module: plan --for deepspeed or --for accelerate",
        )


def check_modelled(spec: ModelSpec) -> None:
    """Refuse a model that would be built but compute something else than the published one."""
    check_layers(spec)
    if spec.unmodelled:
        raise InputError(
            what=f"{spec.name} cannot be built as it is published",
            cause=f"the executor does not compute {'; '.join(spec.unmodelled)}",
            fix="plan and export it (`plan export`), or remove the setting from its config.json",
        )
