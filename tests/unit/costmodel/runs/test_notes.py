"""Notes of measured rows: a word states what it names only where its clause does not deny it."""

from collections.abc import Callable

import pytest

from costmodel.accuracy.training_runs import read_run
from costmodel.runs.cells import UnsupportedRunError
from costmodel.runs.mtp import mtp_layers_of
from costmodel.runs.notes import STATED, stated
from tests.unit.costmodel.accuracy.test_training_runs import ROW

WORDS = {
    "async tensor parallelism": "async TP",
    "dropped tokens": "token-drop",
    "CUDA graphs": "CUDA graph",
    "flash_attention_2": "flash attention 2",
    "flash_attention_3": "flash attention 3",
    "flash_attention_4": "flash attention 4",
    "fused lm head": "fused LM head",
    "lm head in chunks": "LM head in chunks",
    "blocking launches": "launch blocking",
    "FP8 activations": "FP8 activation store",
    "FP32 gradients": "fp32 grad accumulation",
    "attention inside documents": "document masking",
    "activation offload": "activation offload",
    "memory of processes": "nvidia-smi",
    "dropout": "dropout 0.1",
    "further tokens": "MTP",
    "LoRA": "LoRA",
    "QLoRA": "QLoRA",
    "DoRA": "DoRA",
}
"""How people write each of them."""
DENIED = (
    "no {}", "not {}", "without {}", "w/o {}", "{} disabled", "{} off", "{}=false", "{}=False", "{}=0",
    "{}: off", "{} = none", "{} is off", "{} was disabled", "{} not used", "{} not enabled", "non-{}",
    "--no-{}", "disable_{}", "{} unused", "never {}", "{} turned off", "no use of {}", "bf16, no {}, tp 8",
    "{} isn't used", "neither {} nor fp8", "(no {}) 8 GPUs", "flash attention; {} disabled; seq 8192",
    "disabling {}", "{} set to false",
)  # fmt: skip
"""Ways to deny it."""
AFFIRMED = (
    "{}", "with {}", "{} enabled", "{}=1", "{}=true", "{} on", "no recompute, {}", "dropout off; {}",
    "{}; no checkpointing", "without dropout (uses {})", "{} (not the default)", "not only {}",
    "run with {}, no fp8", "recompute disabled but {} on",
)  # fmt: skip
"""Ways to state it beside words that deny something else."""
FORMS: tuple[Callable[[str], str], ...] = (
    lambda word: word,
    lambda word: word.replace(" ", "_"),
    lambda word: word.lower().replace(" ", "-"),
)
OTHERS = [what for what in STATED if what != "further tokens"]
"""What a plain row's engine has none of without a word."""


@pytest.mark.parametrize("major", ["2", "3", "4"])
def test_the_name_of_the_package_is_its_kernel(major: str) -> None:
    """The package flash-attn of a major version, as pip prints it."""
    assert stated(f"bf16 and GQA with flash-attn-{major}.0.1 printed", f"flash_attention_{major}")
    assert stated(f"no flash-attn-{major}", f"flash_attention_{major}") is False


def test_every_word_that_is_read_is_tested() -> None:
    """One way to write each."""
    assert WORDS.keys() == STATED.keys()


@pytest.mark.parametrize("what", STATED)
def test_a_word_that_is_denied_is_not_stated(what: str) -> None:
    """Before it or behind it, as prose, as a flag or as an assignment."""
    notes = [text.replace("{}", form(WORDS[what])) for text in DENIED for form in FORMS]
    assert {note: stated(note, what) for note in notes} == dict.fromkeys(notes, False)


@pytest.mark.parametrize("what", STATED)
def test_a_word_is_stated_where_something_else_is_denied(what: str) -> None:
    """Denial ends with its clause."""
    notes = [text.replace("{}", form(WORDS[what])) for text in AFFIRMED for form in FORMS]
    assert {note: stated(note, what) for note in notes} == dict.fromkeys(notes, True)


@pytest.mark.parametrize("what", STATED)
def test_a_note_without_the_word_states_nothing(what: str) -> None:
    """Neither one nor the other."""
    assert stated("bf16; sequence length 8192; no recompute", what) is None


@pytest.mark.parametrize("what", OTHERS)
def test_a_row_whose_note_denies_a_word_is_the_row_without_the_note(what: str) -> None:
    """Stack, job, memory and adapter are those of an empty note: nothing is turned on, nothing refused."""
    for text in DENIED:
        assert read_run({**ROW, "note": text.replace("{}", WORDS[what])}) == read_run({**ROW, "note": ""})


@pytest.mark.parametrize("what", [what for what in OTHERS if "LoRA" not in what and what != "DoRA"])
def test_a_row_whose_note_states_a_word_is_another(what: str) -> None:
    """So the test above is of something; an engine may have it without a word."""
    rows = [ROW, {**ROW, "framework": "torchtitan"}]
    assert any(read_run({**row, "note": WORDS[what]}) != read_run(row) for row in rows)


@pytest.mark.parametrize("kind", ["LoRA", "QLoRA", "DoRA"])
def test_a_row_whose_note_states_an_adapter_asks_for_its_column(kind: str) -> None:
    """A rank and targets are no words of a note."""
    with pytest.raises(UnsupportedRunError, match=kind.lower()):
        read_run({**ROW, "note": f"{kind} fine-tuning"})


@pytest.mark.parametrize("text", DENIED)
def test_further_tokens_that_are_denied_are_not_filled_in_from_a_recipe(text: str) -> None:
    """The row's own word comes before the recipe of its engine."""
    row = {"framework": "Megatron-Bridge 26.04", "model": "DeepSeekV3"}
    assert mtp_layers_of(row) == 1
    assert mtp_layers_of({**row, "note": text.replace("{}", "MTP")}) == 0
