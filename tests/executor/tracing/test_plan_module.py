"""The library plans a module as the command line does, and says which line of it cannot be traced."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))

import published
from test_plan_of_module import ask

import meshplan
from planner.plan import from_json
from topology.base.errors import InputError


def test_the_library_and_the_command_line_give_one_plan(tmp_path: Path) -> None:
    """Same request, same layout, same numbers; weights and mode of the module stay as they were."""
    file = tmp_path / "plan.json"
    words = ("--module", "published:resnet18", "--input", "8x3x64x64", "--gpus", "4")
    assert ask(*words, "--json", "--output", str(file)).returncode == 0
    asked = from_json(file.read_text(encoding="utf-8"), str(file))
    module = published.resnet18().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = meshplan.plan_module(module, torch.zeros(8, 3, 64, 64), name="published:resnet18", gpus=4)
    assert (found.request, found.layout, found.estimate) == (asked.request, asked.layout, asked.estimate)
    assert not module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_sizes_as_text_are_the_same_inputs() -> None:
    """A text stands for tensors; several inputs are a sequence."""
    module = torch.nn.Bilinear(64, 32, 16)
    tensors = (torch.zeros(4, 64), torch.zeros(4, 32))
    first = meshplan.plan_module(module, tensors, gpus=2)
    assert first.request == meshplan.plan_module(module, "4x64,4x32", gpus=2).request


def test_the_line_of_a_module_that_looks_at_values_is_told() -> None:
    """Three lines, of which the second has the file and the line of its author."""
    with pytest.raises(InputError) as caught:
        meshplan.plan_module(published.looks_at_values(), "2x4", gpus=2)
    assert "published.py, line" in caught.value.cause


def test_a_long_message_does_not_hide_the_line() -> None:
    """Torch explains shapes that depend on values in a paragraph; the line stands behind what is left of it."""
    with pytest.raises(InputError) as caught:
        meshplan.plan_module(published.selects(), "2x4", gpus=2)
    assert caught.value.what == "Selects looks at values"
    assert caught.value.cause.endswith(f"(published.py, line {line_of('return x[x > 0]')})")


def line_of(text: str) -> int:
    """Where a line stands in the file of published modules."""
    lines = Path(published.__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("module", "words", "says"),
    [
        (torch.nn.Linear, {}, "no torch module"),
        (torch.nn.Linear(4, 4), {"engine": "megatron-lm"}, "no setting of megatron-lm"),
        (torch.nn.Linear(4, 4), {"gpu_count": 3}, "no word of this call"),
    ],
)
def test_what_is_no_question_about_a_module_is_refused(module: object, words: dict, says: str) -> None:
    """A class, an engine that is told transformers, a word that no flag has."""
    with pytest.raises(InputError, match=says):
        meshplan.plan_module(module, "2x4", **{"gpus": 2, **words})


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ({"adapter": "lora:r=4"}, "adapters of a traced module are not planned"),
        ({"precision": "fp8"}, "a traced module is planned in sixteen bits"),
        ({"set": {"layout.tp": 2}}, "a traced module is not split by tp"),
        ({"set": {"layout.cp": 2}}, "a traced module is not split by cp"),
    ],
)
def test_what_a_trace_does_not_know_is_refused(words: dict[str, object], what: str) -> None:
    """Not priced as if it had not been asked."""
    module = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(2)))
    with pytest.raises(InputError) as caught:
        meshplan.plan_module(module, "4x64", gpus=2, **words)
    assert caught.value.what == what
    assert "config.json" in caught.value.fix
