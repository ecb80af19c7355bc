"""What torch's own AdamW moves of a parameter, and what torch.autocast casts and keeps of a product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import linear
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.ops.op import gemm
from costmodel.ops.passes import autocasts
from costmodel.stack import stack
from costmodel.switches.profile import with_switches
from costmodel.training.slowdowns import job_environment
from topology.builders import default_cluster

PARAMETERS = 1000
TYPES = {"fp32": (torch.float32, 4), "bf16": (torch.bfloat16, 2)}


class Traffic(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """Bytes that operations read and write, each tensor of an operation once."""

    def __init__(self) -> None:
        """Nothing moved yet."""
        super().__init__()
        self.moved = 0
        self.cast = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count it."""
        out = func(*args, **(kwargs or {}))
        read = {id(x): x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if not made:  # in place
            made = [x for x in tree_leaves(args[0]) if isinstance(x, torch.Tensor)]
        size = sum(x.nbytes for x in (*read.values(), *made) if x.numel() > 1)
        if "_foreach" in func.name():
            self.moved += size
        if "_to_copy" in func.name():
            self.cast += size
        return out


@pytest.mark.parametrize("width", TYPES)
def test_a_chain_of_kernels_moves_what_torch_moves_beyond_one_kernel(width: str) -> None:
    """80 bytes of a parameter in fp32 for 28, 40 in sixteen bits for 14: torch's foreach AdamW, counted."""
    kind, size = TYPES[width]
    parameter = torch.nn.Parameter(torch.ones(PARAMETERS, dtype=kind))
    parameter.grad = torch.ones_like(parameter)
    update = torch.optim.AdamW([parameter], foreach=True)
    update.step()  # makes the moments
    with Traffic() as counted:
        update.step()
    one_kernel = (2 + 4 + 1) * size

    pure = {"weight_dtype": "bf16", "gradient_dtype": "bf16", "moment_dtype": "bf16", "master_dtype": "none"}
    values = pure if width == "bf16" else {"weight_dtype": "fp32", "gradient_dtype": "fp32"}
    beyond = [_update_bytes(values | {"update_kernel": each}) for each in ("foreach", "fused")]
    assert beyond[0] - beyond[1] == pytest.approx(counted.moved / PARAMETERS - one_kernel)


@pytest.mark.parametrize("width", TYPES)
def test_a_chain_of_kernels_holds_the_root_of_a_moment(width: str) -> None:
    """As many bytes as one moment, beside weights, gradients and moments; one kernel holds none."""
    kind, size = TYPES[width]
    held = []
    for arguments in ({"foreach": True}, {"fused": True}):
        parameter = torch.nn.Parameter(torch.ones(PARAMETERS, dtype=kind))
        parameter.grad = torch.ones_like(parameter)
        update = torch.optim.AdamW([parameter], **arguments)
        update.step()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            update.step()
        events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
        now = most = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            now += event.nbytes()
            most = max(most, now)
        held.append(most)
    assert held[0] == pytest.approx(size * PARAMETERS, rel=0.05)
    assert held[1] < 0.05 * size * PARAMETERS


def _update_bytes(values: dict[str, str]) -> float:
    """Bytes that an update moves of a parameter beyond those of AdamW in one kernel."""
    job = TrainingJob(sequence_length=512, global_batch_size=1)
    case = Case(
        model=model("llama-3.1-8b"),
        cluster=default_cluster("a100-sxm-80gb", 1),
        job=job,
        stack=with_switches(stack("pytorch-plain"), values),
        cal=load_calibration(),
    )
    return float(job_environment(case).update_bytes)


def test_a_product_under_autocast_casts_and_keeps_what_torch_does() -> None:
    """Weights and input are cast from fp32, six bytes a number, and both are kept in sixteen bits."""
    rows, outputs, inputs = 32, 64, 128
    x, weight = (torch.randn(each, inputs, requires_grad=True) for each in (rows, outputs))
    kept: dict[int, int] = {}

    def keep(saved: Any) -> Any:
        """Note the storage of what waits for the backward."""
        kept[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    with saved_tensors_hooks(keep, lambda saved: saved), Traffic() as counted:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = linear(x, weight)
        forward = counted.cast
        y.float().sum().backward()

    plain = with_switches(stack("pytorch-plain"), {"weight_dtype": "fp32"})
    product = gemm("product", m=rows, n=outputs, k=inputs, saved_elements=rows * inputs)
    cast, op, gradient_cast = autocasts(product, plain, wide_input=True)
    assert float(np.ravel(cast.bytes)[0]) == forward
    assert float(np.ravel(op.saved_bytes)[0]) == sum(kept.values())
    of_sum = 2 * (2 + 4) * rows * outputs  # of y to fp32, and back
    assert float(np.ravel(gradient_cast.bytes)[0]) == counted.cast - forward - of_sum
