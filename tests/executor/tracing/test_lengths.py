"""Lengths, positions and batches of traced models are asked, said and refused as those of described ones."""

import json
from pathlib import Path
from typing import Any

import pytest

import meshplan
from app.actions.module import understood_question
from app.reports.plan_headline import headline
from executor.tracing import process, worker
from planner.questions.flags import Flags
from topology.base.errors import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "bert": ({**SIZES, "architectures": ["BertForMaskedLM"], "max_position_embeddings": 512, "vocab_size": 128}, 512),
    "roberta": (
        {**SIZES, "architectures": ["RobertaForMaskedLM"], "max_position_embeddings": 514, "vocab_size": 128},
        512,
    ),
    "t5": (
        {"architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_ff": 128, "d_kv": 32, "num_heads": 2,
         "num_layers": 2, "vocab_size": 128},
        0,
    ),
}  # fmt: skip
"""Configurations of a family, and the tokens that it reads at most; 0 where nothing limits them."""


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace without the start of another interpreter, which is tested elsewhere."""

    def traced(builder: str, inputs: str, *, length: int = 0) -> Any:
        return worker._trace(builder, inputs, length)

    monkeypatch.setattr(process, "traced_by_process", traced)


def config(family: str, folder: Path) -> str:
    """A small config.json of a family."""
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": family, **FAMILIES[family][0]}), encoding="utf-8")
    return str(path)


def asked(model: str, **words: str) -> Any:
    """What a question about a model is understood as."""
    return understood_question(Flags(model=model, gpus="8", **words))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_length_is_that_of_the_trace_and_is_said(family: str, tmp_path: Path) -> None:
    """Asked for or not, the samples have one length, which headline and notes say."""
    model, most = config(family, tmp_path), FAMILIES[family][1]
    for words, tokens in (
        ({}, most or 512),
        ({"sequence_length": "128"}, 128),
        ({"sequence_length": "0.5k"}, 512),
    ):
        understood = asked(model, **words)
        assert understood.request.model.module.sample_tokens == tokens
        assert understood.request.job.sequence_length == 1
        assert f"512 samples of {tokens} tokens" in headline(understood.request)
        assert any(f"samples of {tokens} tokens" in note for note in understood.notes)


@pytest.mark.parametrize("family", [name for name, (_, most) in FAMILIES.items() if most])
def test_a_length_beyond_the_positions_is_refused_with_their_number(family: str, tmp_path: Path) -> None:
    """The last position is read, the one behind it is not."""
    model, most = config(family, tmp_path), FAMILIES[family][1]
    assert asked(model, sequence_length=str(most)).request.model.module.sample_tokens == most
    with pytest.raises(InputError) as refused:
        asked(model, sequence_length=str(most + 1))
    assert f"{most} positions" in refused.value.cause
    assert f"--sequence-length {most}" in refused.value.fix


def test_work_grows_with_the_length(tmp_path: Path) -> None:
    """A length that is asked for is what is priced."""
    model = config("bert", tmp_path)
    flop = [
        asked(model, sequence_length=length).request.model.module.forward_flop for length in ("64", "128")
    ]
    assert 2 * flop[0] < flop[1] < 3 * flop[0]


def test_batches_and_runs_may_be_counted_in_tokens(tmp_path: Path) -> None:
    """Both are whole samples of the length that is traced."""
    model = config("bert", tmp_path)
    understood = asked(model, sequence_length="256", global_batch_size="1Mtok", tokens="1B")
    assert understood.request.job.global_batch_size == 4096
    assert understood.request.job.total_tokens == -(-(10**9) // 256)
    assert "--global-batch-size 1Mtok is 4,096 samples" in understood.notes
    assert "--tokens 1B is 3,906,250 samples of 256 tokens" in understood.notes
    with pytest.raises(InputError, match="no whole number"):
        asked(model, sequence_length="384", global_batch_size="1Mtok")


def test_inputs_and_a_length_must_agree(tmp_path: Path) -> None:
    """Inputs of 128 tokens have a length of 128."""
    model = config("bert", tmp_path)
    flags = Flags(model=model, gpus="8", sequence_length="128")
    assert understood_question(flags, None, "8x128:long").request.model.module.sample_tokens == 128
    with pytest.raises(InputError, match="two lengths"):
        understood_question(flags, None, "8x64:long")


def test_samples_that_are_no_text_have_no_length() -> None:
    """A length and a batch in tokens are refused, a batch in samples is taken."""
    module, words = (
        torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)),
        {"gpus": 4, "top": 1},
    )
    assert meshplan.plan_module(module, "8x16", batch=64, **words).request.model.module.sample_tokens == 0
    for wrong in ({"seq": 512}, {"batch": "4Mtok"}, {"batch": "4M"}):
        with pytest.raises(InputError):
            meshplan.plan_module(module, "8x16", **{**words, **wrong})


class Text(torch.nn.Module):
    """Tokens, a table and a layer."""

    def __init__(self) -> None:
        """Build it small."""
        super().__init__()
        self.table, self.layer = torch.nn.Embedding(64, 16), torch.nn.Linear(16, 16)

    def forward(self, tokens: Any) -> Any:
        """Its hidden states."""
        return self.layer(self.table(tokens))


def test_the_library_says_and_holds_the_length_of_its_inputs() -> None:
    """As the command line does."""
    found = meshplan.plan_module(Text(), "8x128:long", seq=128, batch="64ktok", gpus=4, top=1)
    assert found.request.model.module.sample_tokens == 128
    assert found.request.job.global_batch_size == 512
    with pytest.raises(InputError, match="two lengths"):
        meshplan.plan_module(Text(), "8x128:long", seq=64, gpus=4)
