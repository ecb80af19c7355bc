"""What a model sees: images of a job that its tower and its sequences can hold."""

from __future__ import annotations

from costmodel.job import TrainingJob
from costmodel.models.spec import ModelSpec
from costmodel.ops.tower import images_of
from topology.base.counts import counted
from topology.base.errors import InputError


def require_seen(job: TrainingJob, model: ModelSpec) -> None:
    """Refuse images that no tower sees, that it cannot make, or that a sequence does not hold."""
    values = [f"job.{name}" for name in ("images", "image_tokens") if getattr(job, name) is not None]
    values += ["job.frozen_tower"] * job.frozen_tower
    if (tower := model.tower) is None:
        if values:
            raise InputError(
                what=f"{model.name} sees no images",
                cause=f"{' and '.join(values)} given, and it has no tower that is described",
                fix=f"leave {' and '.join(values)} out, or give the config.json of a model that sees",
            )
        return
    seeing = tower.sense == "vision"
    text, tiles = ("an image", ", or tiles of one,") if seeing else ("a clip", "")
    if job.image_tokens is not None and not tower.any_size and job.image_tokens != tower.image_tokens:
        raise InputError(
            what=f"{text} of {model.name} has {counted(tower.image_tokens, 'token')}",
            cause=f"job.image_tokens = {job.image_tokens}; its tower {tower.verb} {tower.given}s of one size",
            fix=f"leave it out; job.images says how many {tower.given}s{tiles} a sequence has",
        )
    images, patches = images_of(tower, job)
    seen = images * (patches // tower.merge)
    smaller = " or job.image_tokens=256" if tower.any_size else ""
    if seen > job.sequence_length:
        raise InputError(
            what=f"the {tower.given}s of a sequence do not fit into it",
            cause=f"{counted(images, tower.given)} of {counted(patches // tower.merge, 'token')} are "
            f"{seen:,} of {counted(job.sequence_length, 'token')}",
            fix=f"give fewer with --set job.images=1{smaller}, or a longer --sequence-length",
        )
