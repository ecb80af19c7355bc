"""Training data from outside: the index of a Megatron dataset, and blends by their words.

An input is JSON: the index's bytes in hexadecimal, and what `--data` says.
"""

from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

import numpy as np

from tests.property.fuzz.mutate import hostile_value, mutated_text
from tests.property.fuzz.surface import Box

TOKENS = 64
SAMPLES = 6
INDEX = struct.pack("<9sQBQQ2i2q3q", b"MMIDIDX\0\0", 1, 8, 2, 3, 40, 24, 0, 80, 0, 1, 2)
"""Two sequences of 40 and 24 tokens of two bytes, as Megatron's preprocessing writes them."""
FIELDS = {"version": (9, "<Q"), "type": (17, "<B"), "sequences": (18, "<Q"), "marks": (26, "<Q"),
          "length": (34, "<i"), "place": (42, "<q"), "second place": (50, "<q")}  # fmt: skip
BLENDS = ("set.idx", "set.bin", "0.7=set.idx,0.3=set.bin", "1=set.idx", "3=set.idx,1=synthetic")


def _text(index: bytes, data: str) -> str:
    return json.dumps({"index": index.hex(), "data": data})


CORPUS = (
    _text(INDEX, "set.idx"),
    _text(b"", "set.idx"),
    _text(INDEX[:20], "0.5=set.idx,0.5=synthetic"),
    _text(INDEX, "0=set.idx,1=synthetic"),
    _text(INDEX, "999999.999999=set.idx,0.000001=synthetic"),
    _text(INDEX, "1=,1=set.idx"),
    _text(INDEX, "1=1=set.idx"),
    _text(INDEX, "set\0.idx"),
    _text(INDEX, "1=" + "a" * 5000),
    _text(INDEX, "a" * 5000 + ".bin"),
)


def make_data(random: Random, story: list[str]) -> str:
    """Change a field, a byte or the length of the index, or the words of the blend."""
    index, data = bytearray(INDEX), random.choice(BLENDS)
    kind = random.choice(("field", "byte", "cut", "more", "words"))
    if kind == "field":
        name = random.choice([*FIELDS])
        at, form = FIELDS[name]
        bits = 8 * struct.calcsize(form)
        value = random.choice(
            (0, 1, 2, 1 << (bits - 2), (1 << bits) - 1, 1 << (bits - 1), random.getrandbits(bits))
        )
        index[at : at + bits // 8] = value.to_bytes(bits // 8, "little")
        story.append(f"{name} = {value}")
    elif kind == "byte":
        index[random.randrange(len(index))] = random.randrange(256)
    elif kind == "cut":
        del index[random.randrange(len(index)) :]
    elif kind == "more":
        index += random.randbytes(random.randrange(1, 64))
    else:
        data = (
            mutated_text(data, random, story) if random.random() < 0.7 else f"{hostile_value(random)}={data}"
        )
    story.append(f"{kind} of {data[:80]}")
    return _text(bytes(index), data)


def read_data(text: str, box: Box) -> object:
    """Open what is said from the worker's folder and read samples: each is whole and within the vocabulary."""
    from executor.data.blend import blend_parts
    from executor.data.source import open_source

    asked: dict[str, Any] = json.loads(text)
    (box.folder / "set.idx").write_bytes(bytes.fromhex(asked["index"]))
    np.arange(TOKENS, dtype="<u2").tofile(box.folder / "set.bin")
    parts = blend_parts(asked["data"]) or ((1, asked["data"]),)
    if any("/" in name for _, name in parts):
        return None  # a file outside of the box: only the words were asked
    named = [f"{weight}={name if name == 'synthetic' else box.folder / name}" for weight, name in parts]
    source = open_source(",".join(named), vocab_size=TOKENS, sequence_length=8, seed=1)
    samples = [source.sample(index) for index in range(SAMPLES)]
    if any(len(sample) != 9 or sample.min() < 0 or sample.max() >= TOKENS for sample in samples):
        raise AssertionError("a sample is not whole, or has tokens beyond the vocabulary")
    return [sample.tolist() for sample in samples]
