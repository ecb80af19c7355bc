"""A rank starts without torch's compiler, and has it as soon as something asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("forked_scripts")

STEP = """
import sys, torch
from executor.torch_internals.lean_start import leave_compiler_out
leave_compiler_out()
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    torch.ones(2)
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.AdamW([weight], fused=True)
(weight * 2).sum().backward()
optimizer.step()
optimizer.zero_grad()
"""
LOADED = "print('torch._dynamo.convert_frame' in sys.modules)"
COMPILES = """
twice = torch.compile(lambda x: x * 2 + 1, backend="eager", fullgraph=True)
print(twice(weight.detach()).tolist() == (weight.detach() * 2 + 1).tolist())
"""
ASKS = ("torch._dynamo.utils.counters", "import torch._dynamo.guards")
OWN = """
import importlib, pkgutil
own = sys.modules["torch._dynamo"]
print(torch._dynamo is own, own.__spec__.name, own.config is sys.modules["torch._dynamo.config"])
parts = {name: part for name, part in sys.modules.items() if name.startswith("torch._dynamo.") and part}
print(len({part.__file__ for part in parts.values()}) == len(parts), all(p.__spec__.name == n for n, p in parts.items()))
"""
WHOLE = ["True torch._dynamo True", "True True"]


def said(program: str) -> list[str]:
    """What a process of its own prints."""
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=120
    ).stdout.splitlines()


def test_an_optimizer_and_fake_tensors_do_not_load_it() -> None:
    """They would, to be hidden from what is not there."""
    without = STEP.replace("\nleave_compiler_out()\n", "\n")
    assert (said(without + LOADED), said(STEP + LOADED)) == (["True"], ["False"])


def test_a_kernel_that_is_made_on_the_way_is_compiled() -> None:
    """As attention under a mask is on a GPU, in a run whose layers are not."""
    program = """
from executor.torch_internals.compiler import compile_graph
x = torch.linspace(-1, 1, 8)
print(torch.allclose(compile_graph(torch.tanh, (x,))(x), torch.tanh(x)))
"""
    assert said(STEP + program + OWN) == ["True", *WHOLE]


def test_whoever_compiles_gets_torchs_own() -> None:
    """Its settings, read before, are those of the compiler that is loaded then."""
    assert said(STEP + COMPILES + OWN) == ["True", *WHOLE]


@pytest.mark.parametrize("asked", ASKS)
def test_whoever_asks_for_another_part_gets_torchs_own(asked: str) -> None:
    """Whichever part it is, the whole is loaded, in its own order and once."""
    assert said(f"{STEP}\n{asked}\n{LOADED}\n{OWN}") == ["True", *WHOLE]
