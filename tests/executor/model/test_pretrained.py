"""Published weights load: Hugging Face names, experts one by one or Mixtral's, safetensors."""

from __future__ import annotations

import dataclasses
import json
import struct
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file

from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model as find_model
from costmodel.models.hf.config import read_config
from costmodel.models.parameters import parameter_count
from costmodel.models.rotary import Rotary
from costmodel.models.routing import Routing
from costmodel.models.spec import ModelSpec
from executor.bench.local_ranks import run_ranks
from executor.comm.mesh import build_meshes
from executor.model.pretrained import pretrained_state, read_state_dict
from executor.model.transformer import build_model
from executor.parallel.parallelize import parallelize
from executor.parallel.weights import assemble, initialize, load_state_dict, parts
from topology.base.errors import InputError

CPU = torch.device("cpu")
MIXTRAL = ModelSpec(
    name="tiny-mixtral",
    num_layers=2,
    hidden_size=16,
    intermediate_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    vocab_size=32,
    max_sequence_length=32,
    num_experts=4,
    num_experts_per_token=2,
    moe_intermediate_size=24,
)


SELECTING = dataclasses.replace(
    MIXTRAL,
    name="tiny-selecting",
    router_bias=True,
    routing=Routing(scoring_func="sigmoid", n_group=2, topk_group=1, bias_selects=True),
)


def published(spec: ModelSpec, *, mixtral: bool) -> dict[str, torch.Tensor]:
    """State dict as a family publishes it: experts apart."""
    model = build_model(spec)
    initialize(model, None, seed=5, device=CPU)
    state: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        if name.endswith("e_score_correction_bias"):
            state[name] = torch.arange(4.0)
        elif ".mlp.experts." not in name:
            state[name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if mixtral else name] = value
        else:
            layer, projection = name.split(".mlp.experts.")
            theirs = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}[projection]
            for expert, matrix in enumerate(value):
                apart = f"{layer}.block_sparse_moe.experts.{expert}.{theirs}.weight"
                state[apart if mixtral else f"{layer}.mlp.experts.{expert}.{projection}.weight"] = matrix
    return state


@pytest.mark.parametrize("mixtral", [False, True], ids=["qwen-names", "mixtral-names"])
def test_published_experts_are_stacked(mixtral: bool) -> None:
    """The loaded model gives the logits of the model the weights came from."""
    truth, loaded = build_model(MIXTRAL), build_model(MIXTRAL)
    initialize(truth, None, seed=5, device=CPU)
    load_state_dict(loaded, None, published(MIXTRAL, mixtral=mixtral), device=CPU)
    tokens = torch.arange(20).view(1, 20) % 32
    assert torch.equal(loaded(tokens), truth(tokens))


@pytest.mark.parametrize("spec", [MIXTRAL, SELECTING], ids=lambda spec: spec.name)
def test_shards_of_a_loaded_model_are_the_model(spec: ModelSpec) -> None:
    """Loaded on expert- and tensor-parallel ranks, the parts put together are the state dict."""
    state = published(spec, mixtral=spec is MIXTRAL)
    layout = ParallelLayout(dp=2, tp=2, ep=2, zero_stage=3, sequence_parallel=True)
    whole = assemble(run_ranks(_load, 4, layout, state, spec))
    truth = build_model(spec)
    load_state_dict(truth, None, state, device=CPU)
    expected = dict(truth.named_parameters())
    assert whole.keys() == expected.keys()
    assert all(torch.equal(whole[name], expected[name]) for name in expected)


def _load(
    _rank: int, layout: ParallelLayout, state: dict[str, torch.Tensor], spec: ModelSpec
) -> dict[str, object]:
    meshes = build_meshes(layout, "cpu", experts=True)
    model = build_model(spec)
    parallelize(model, layout, meshes, sequence_length=8, precision="fp32")
    load_state_dict(model, meshes, state, device=CPU)
    return dict(parts(model, meshes))


WIDE = dataclasses.replace(
    MIXTRAL, name="wide-mixtral", num_layers=12, hidden_size=256, head_dim=64, moe_intermediate_size=320
)


def test_a_rank_holds_its_own_part_of_the_files_and_no_more(tmp_path: Path) -> None:
    """Private memory grows by at most a tenth of the shard while 60 MB of experts one by one are loaded."""
    state = {name: value.contiguous() for name, value in published(WIDE, mixtral=True).items()}
    save_file(state, tmp_path / "model.safetensors")
    size = (tmp_path / "model.safetensors").stat().st_size
    layout = ParallelLayout(dp=2, tp=2, ep=2, zero_stage=3, sequence_parallel=True)
    for shard, grown in run_ranks(_grown_by_loading, 4, layout, tmp_path):
        assert shard < 0.3 * size
        assert grown <= 0.1 * shard


def _grown_by_loading(_rank: int, layout: ParallelLayout, folder: Path) -> tuple[int, int]:
    """Bytes of this rank's shard, and by how much private memory grew at its highest beyond it."""
    meshes = build_meshes(layout, "cpu", experts=True)
    model = build_model(WIDE)
    parallelize(model, layout, meshes, sequence_length=8, precision="fp32")
    initialize(model, meshes, seed=1, device=CPU)  # the shard's own pages are touched
    seen, done = [_private_bytes()], threading.Event()

    def watch() -> None:
        while not done.wait(0.0005):
            seen.append(_private_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    load_state_dict(model, meshes, read_state_dict(folder), device=CPU)
    done.set()
    watcher.join()
    shard = sum(values.numel() * values.element_size() for _, _, values in parts(model, meshes).values())
    return shard, max(seen) - seen[0]


def _private_bytes() -> int:
    """Memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def write_safetensors(path: Path, state: dict[str, torch.Tensor]) -> None:
    """Write a safetensors file by hand, from the format's description."""
    header, data, start = {}, b"", 0
    for name, tensor in state.items():
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [start, start + len(raw)],
        }
        data, start = data + raw, start + len(raw)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_safetensors_and_torch_files_are_read(tmp_path: Path) -> None:
    """One file, a folder of files, and a file by torch.save hold the same tensors."""
    state = {"a.weight": torch.arange(6.0).view(2, 3), "b.weight": torch.ones(4)}
    write_safetensors(tmp_path / "model-1.safetensors", {"a.weight": state["a.weight"]})
    write_safetensors(tmp_path / "model-2.safetensors", {"b.weight": state["b.weight"]})
    torch.save(state, tmp_path / "model.pt")
    for found in (read_state_dict(tmp_path), read_state_dict(tmp_path / "model.pt")):
        assert {name: value.tolist() for name, value in found.items()} == {
            name: value.tolist() for name, value in state.items()
        }


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({"model": {"a": torch.ones(1)}, "step": 3}, "'model' in it is a dict"),
        ({"a": torch.ones(1), "b": (torch.ones(1), 2)}, "'b' in it is a tuple"),
        ({7: torch.ones(1)}, "7 in it is a Tensor"),
        ([torch.ones(1)], "it holds a list"),
        (torch.ones(1), "it holds a Tensor"),
    ],
)
def test_what_is_saved_and_no_state_dict_is_refused(saved: object, said: str, tmp_path: Path) -> None:
    """A trainer's whole checkpoint, as many write it, among them: three lines, which name what is there."""
    torch.save(saved, tmp_path / "a.bin")
    with pytest.raises(InputError, match=said) as raised:
        read_state_dict(tmp_path / "a.bin")
    assert str(raised.value).count("\n") == 2


def test_missing_and_misshapen_weights_are_named() -> None:
    """The message names the parameter, and both shapes."""
    state = published(MIXTRAL, mixtral=False)
    with pytest.raises(InputError, match=r"model\.norm\.weight"):
        load_state_dict(
            build_model(MIXTRAL),
            None,
            {k: v for k, v in state.items() if k != "model.norm.weight"},
            device=CPU,
        )
    with pytest.raises(InputError, match=r"shape \(32, 16\), the model needs \(40, 16\)"):
        load_state_dict(build_model(dataclasses.replace(MIXTRAL, vocab_size=40)), None, state, device=CPU)


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        ("model.layers.0.self_attn.q_proj.bias", "holds more than tiny-mixtral computes with"),
        ("model.layers.2.input_layernorm.weight", "holds more than tiny-mixtral computes with"),
        ("model.layers.0.self_attn.q_proj.weight_scale_inv", "is quantised"),
    ],
)
def test_weights_that_would_be_left_out_are_refused(extra: str, what: str) -> None:
    """A bias, a layer or a scale without a place in the model is the mark of another model."""
    state = {**published(MIXTRAL, mixtral=True), extra: torch.ones(16)}
    with pytest.raises(InputError, match=what) as error:
        load_state_dict(build_model(MIXTRAL), None, state, device=CPU)
    assert extra in error.value.cause


LLAMA = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rope_theta": 500000.0,
}


def test_the_config_beside_the_weights_must_be_of_the_planned_model(tmp_path: Path) -> None:
    """A rotary base changes no shape: only the configuration tells one model from another."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    same = read_config(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {"a.weight": torch.ones(4)})
    assert list(pretrained_state(tmp_path, dataclasses.replace(same, name="other"))) == ["a.weight"]
    other = dataclasses.replace(same, rotary=Rotary(theta=10_000.0))
    with pytest.raises(InputError, match="are not those of") as error:
        pretrained_state(tmp_path / "model.safetensors", other)
    assert error.value.cause.endswith("rotary.theta (planned 10000.0, published 500000.0)")


@pytest.mark.parametrize("family", ["llava", "another"])
def test_the_text_part_of_a_model_that_sees_may_be_trained_alone(tmp_path: Path, family: str) -> None:
    """Whether its tower is described or not, the planned decoder is the one beside the weights."""
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
             "image_size": 56, "patch_size": 14}  # fmt: skip
    whole = {"model_type": family, "text_config": LLAMA, "vision_config": tower}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    (tmp_path / "alone.json").write_text(json.dumps(LLAMA))
    write_safetensors(tmp_path / "model.safetensors", {"a.weight": torch.ones(4)})
    assert list(pretrained_state(tmp_path, read_config(tmp_path / "alone.json"))) == ["a.weight"]


@pytest.mark.parametrize(
    "extra",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "vision_tower.encoder.weight",
        ("model.layers.2.eh_proj.weight", "model.layers.2.input_layernorm.weight"),
    ],
)
def test_what_is_beside_the_language_model_is_left_out(extra: str | tuple[str, ...]) -> None:
    """Buffers of older versions, images, and modules that predict tokens further ahead."""
    names = (extra,) if isinstance(extra, str) else extra
    state = {**published(MIXTRAL, mixtral=True), **dict.fromkeys(names, torch.ones(16))}
    load_state_dict(build_model(MIXTRAL), None, state, device=CPU)


def test_a_model_that_is_not_computed_as_published_is_not_built() -> None:
    """The setting is named; planning such a model goes on."""
    spec = find_model("minimax-m2")
    with pytest.raises(InputError, match="cannot be built as it is published") as error:
        build_model(spec)
    assert "use_qk_norm" in error.value.cause


@pytest.mark.parametrize(
    "name", ["gpt-2", "llama-3.1-70b", "qwen3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"]
)
def test_built_model_has_the_published_number_of_parameters(name: str) -> None:
    """The torch model has exactly the parameters that the cost model counts."""
    spec = find_model(name)
    assert sum(p.numel() for p in build_model(spec).parameters()) == parameter_count(spec)


def test_names_are_those_of_hugging_face() -> None:
    """A Llama state dict has exactly these names."""
    spec = dataclasses.replace(find_model("llama-3.1-8b"), num_layers=1)
    layer = "model.layers.0"
    projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    feed_forward = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    norms = ("input_layernorm", "post_attention_layernorm")
    expected = {f"{layer}.{part}.weight" for part in (*projections, *feed_forward, *norms)}
    expected |= {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert set(build_model(spec).state_dict()) == expected
