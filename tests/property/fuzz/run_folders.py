"""What a run finds in its folder and is given from a hub: checkpoints, published weights, tokenizers, its own words.

An input is JSON: files by name, their bytes in hexadecimal. Manifests are made to agree with the files beside
them half of the time: whoever writes in the folder can do so.
"""

from __future__ import annotations

import io
import json
import struct
import tempfile
import warnings
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.property.fuzz.mutate import mutated_text, mutated_tree
from tests.property.fuzz.surface import Box

SHAPES = {"model.embedding.weight": (8, 4), "exp_avg.embedding.weight": (8, 4), "model.norm.weight": (4,)}


def _text(files: dict[str, bytes], **more: Any) -> str:
    return json.dumps({"files": {name: raw.hex() for name, raw in files.items()}, **more})


def _changed_bytes(raw: bytes, random: Random, story: list[str]) -> bytes:
    """One byte, a cut, a part again, or bytes of another number."""
    changed, kind = bytearray(raw), random.choice(("byte", "cut", "more", "number"))
    at = random.randrange(max(1, len(changed)))
    if kind == "byte" and changed:
        changed[at] = random.randrange(256)
    elif kind == "cut":
        del changed[at:]
    elif kind == "more":
        changed[at:at] = changed[: random.randrange(1, 64)]
    else:
        changed[at : at + 8] = struct.pack("<q", random.choice((0, -1, 1 << 40, 1 << 62, 255)))
    story.append(f"{kind} at {at}")
    return bytes(changed)


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────


@cache
def checkpoint_files() -> dict[str, bytes]:
    """A checkpoint as a run writes it."""
    import torch
    import torch.distributed.checkpoint as dcp

    from executor.training.manifest import MANIFEST, Manifest, stored_file
    from executor.training.settings import settings_json

    state = {
        name: torch.arange(float(torch.Size(shape).numel())).view(shape) for name, shape in SHAPES.items()
    }
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder, no_dist=True)
        files = tuple(stored_file(path) for path in sorted(Path(folder).iterdir()))
        result = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        manifest = Manifest(step=3, samples=12, files=files, torch_version=torch.__version__)
        return {**result, MANIFEST: settings_json(manifest).encode()}


def make_checkpoint(random: Random, story: list[str]) -> str:
    """Change the manifest as a tree or as text, or the bytes of a file."""
    files = dict(checkpoint_files())
    name = random.choice(sorted(files))
    if name == "manifest.json":
        text = json.dumps(mutated_tree(json.loads(files[name]), random, story))
        text = mutated_text(text, random, story) if random.random() < 0.2 else text
        files[name] = text.encode("utf-8", errors="surrogatepass")
        return _text(files, agrees=False)
    files[name] = _changed_bytes(files[name], random, story)
    return _text(files, agrees=random.random() < 0.8)


def _placed(text: str, folder: Path) -> dict[str, Any]:
    """Write the files of an input into a folder of their own."""
    asked: dict[str, Any] = json.loads(text)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, raw in asked["files"].items():
        (folder / name).write_bytes(bytes.fromhex(raw))
    return asked


def read_checkpoint(text: str, box: Box) -> object:
    """Find the newest whole one and load all of its tensors: those of the manifest's files, or none."""
    import torch

    from executor.training.manifest import MANIFEST, stored_file
    from executor.training.publish import find_checkpoint, load_whole

    folder = box.folder / "checkpoints" / "step-00000003"
    if _placed(text, folder)["agrees"]:
        manifest = json.loads((folder / MANIFEST).read_text())
        for entry in manifest["files"]:
            here = stored_file(folder / entry["name"])
            entry |= {"size_bytes": here.size_bytes, "sha256": here.sha256}
        (folder / MANIFEST).write_text(json.dumps(manifest))
    checkpoint = find_checkpoint(folder.parent, None)
    state = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    load_whole(state, checkpoint)
    return [checkpoint.manifest.step, {name: list(value.shape) for name, value in state.items()}]


# ── published weights ─────────────────────────────────────────────────────────────────────────────────────


@cache
def weight_files() -> dict[str, bytes]:
    """One state dict in both forms."""
    import torch
    from safetensors.torch import save

    state = {"model.norm.weight": torch.ones(8), "lm_head.weight": torch.zeros(4, 8)}
    saved = io.BytesIO()
    torch.save(state, saved)
    return {"a.safetensors": save(state), "a.bin": saved.getvalue()}


def make_weights(random: Random, story: list[str]) -> str:
    """Change the header of safetensors as a tree, or bytes of either form."""
    name, raw = random.choice(sorted(weight_files().items()))
    if name == "a.safetensors" and random.random() < 0.6:
        length = int.from_bytes(raw[:8], "little")
        header = json.dumps(mutated_tree(json.loads(raw[8 : 8 + length]), random, story)).encode()
        return _text({name: len(header).to_bytes(8, "little") + header + raw[8 + length :]})
    return _text({name: _changed_bytes(raw, random, story)})


def read_weights(text: str, box: Box) -> object:
    """Read all tensors of it."""
    from executor.model.pretrained import read_state_dict

    folder = box.folder / "weights"
    asked = _placed(text, folder)
    state = read_state_dict(folder / next(iter(asked["files"])))
    return {str(name): list(value.shape) for name, value in state.items()}


# ── tokenizers ────────────────────────────────────────────────────────────────────────────────────────────


@cache
def tokenizer_tree() -> Any:
    """A tokenizer of words and bytes, as its library writes it."""
    import tokenizers

    known = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<end>"))
    known.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], show_progress=False)
    known.train_from_iterator(["a b a b", "b a"], trainer)
    return json.loads(known.to_str())


def make_tokenizer(random: Random, story: list[str]) -> str:
    """Change its tree, or its text; and what says which token ends a document."""
    text = json.dumps(mutated_tree(tokenizer_tree(), random, story))
    text = mutated_text(text, random, story) if random.random() < 0.2 else text
    about = json.dumps(
        mutated_tree({"eos_token": "<end>"}, random, story)
        if random.random() < 0.3
        else {"eos_token": "<end>"}
    )
    raw = {"tokenizer.json": text, "tokenizer_config.json": about}
    return _text({name: value.encode("utf-8", errors="surrogatepass") for name, value in raw.items()})


def read_tokenizer(text: str, box: Box) -> object:
    """Open it and encode two documents."""
    from executor.data.tokenizer import open_tokenizer

    folder = box.folder / "tokenizer"
    _placed(text, folder)
    known = open_tokenizer(folder)
    return [len(tokens) for tokens in known.encode(["a b", ""])]


# ── a run's own words ─────────────────────────────────────────────────────────────────────────────────────

RUN: dict[str, Any] = {
    "run.json": {"folder": "/r", "plan_file": "/r/plan.json", "steps": 4, "checksums": {"/d.bin": "4:ab"}, "data": "/d.bin"},
    "status.json": {"state": "running", "step": 3, "what": "", "cause": "", "fix": ""},
    "texts.json": {},
}  # fmt: skip
LINES = [
    {"step": step, "loss": 2.0, "step_time_s": 0.1, "tokens_per_s": 10.0, "peak_memory_bytes": 1.0, "at_s": float(step)}
    for step in range(1, 12)
]  # fmt: skip


def make_run_folder(random: Random, story: list[str]) -> str:
    """Change one of its files as a tree or as text, or cut one."""
    files = {name: json.dumps(value) for name, value in RUN.items()}
    files["metrics.jsonl"] = "".join(json.dumps(row) + "\n" for row in LINES)
    name = random.choice(sorted(files))
    if name == "metrics.jsonl":
        rows = mutated_tree(LINES, random, story)
        files[name] = "".join(json.dumps(row) + "\n" for row in (rows if isinstance(rows, list) else [rows]))
        files[name] = mutated_text(files[name], random, story) if random.random() < 0.5 else files[name]
    else:
        text = json.dumps(mutated_tree(RUN[name], random, story))
        files[name] = mutated_text(text, random, story) if random.random() < 0.3 else text
    return _text({each: value.encode("utf-8", errors="surrogatepass") for each, value in files.items()})


def read_run_folder(text: str, box: Box) -> object:
    """Read all that a resumed run and the dashboard read."""
    from app.store.run_log import read_state, read_steps
    from app.store.run_metrics import RunMetrics
    from executor.bench.measured_run import steady_steps
    from executor.data.contents import kept_contents
    from executor.training.settings import read_settings, read_status
    from topology.base.files import open_lines

    folder = box.folder / "run"
    _placed(text, folder)
    steps, state = read_steps(folder), read_state(folder).state
    RunMetrics(folder).text()
    steady_steps(folder)
    with open_lines(folder / "metrics.jsonl") as lines:
        lines.write("")
    kept_contents(folder)
    read_settings(folder / "run.json")
    read_status(folder)
    return [len(steps), state]
