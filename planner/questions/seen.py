"""What a model sees: images of a job that its tower and its sequences can hold."""

from __future__ import annotations

from costmodel.job import TrainingJob
from costmodel.models.spec import ModelSpec
from costmodel.ops.tower import images_of
from topology.base.counts import counted
from topology.base.errors import InputError


def require_seen(job: TrainingJob, model: ModelSpec) -> None:
    """Refuse images that no tower sees, that it cannot make, or that a sequence does not hold."""
    said = [f"job.{name}" for name in ("images", "image_tokens") if getattr(job, name) is not None]
    said += ["job.frozen_tower"] * job.frozen_tower
    if (tower := model.tower) is None:
        if said:
            raise InputError(
                what=f"{model.name} sees no images",
                cause=f"{' and '.join(said)} given, and it has no vision tower that is described",
                fix=f"leave {' and '.join(said)} out, or give the config.json of a model that sees",
            )
        return
    if job.image_tokens is not None and not tower.any_size and job.image_tokens != tower.image_tokens:
        raise InputError(
            what=f"an image of {model.name} has {counted(tower.image_tokens, 'token')}",
            cause=f"job.image_tokens = {job.image_tokens}, and its tower sees images of one size",
            fix="leave it out; job.images says how many images, or tiles of one, a sequence has",
        )
    images, patches = images_of(tower, job)
    seen = images * (patches // tower.merge)
    if seen > job.sequence_length:
        raise InputError(
            what="the images of a sequence do not fit into it",
            cause=f"{counted(images, 'image')} of {counted(patches // tower.merge, 'token')} are {seen:,} of "
            f"{counted(job.sequence_length, 'token')}",
            fix="give fewer with --set job.images=1 or job.image_tokens=256, or a longer --sequence-length",
        )
