"""Text that a run tokenizes on its way: files of lines, tables and texts, by their bytes.

An input is JSON: the file's name, its bytes in hexadecimal, and the field that is asked for.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from tests.property.fuzz.surface import Box

WORDS = ("a", "b", "<end>")
TEXTS = ("a b a b", "", "b a", "a " * 40)
SAMPLES, SEQUENCE, BATCH = 12, 8, 4


def _input(name: str, raw: bytes, field: str = "text") -> str:
    return json.dumps({"name": name, "raw": raw.hex(), "field": field})


def lines(texts: tuple[str, ...] = TEXTS) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@cache
def files() -> dict[str, bytes]:
    """One corpus in every form."""
    import pyarrow as pa
    from pyarrow import ipc, parquet

    table, found = pa.table({"text": list(TEXTS)}), {"a.jsonl": lines(), "a.txt": " ".join(TEXTS).encode()}
    for name, write in (
        ("a.parquet", lambda out: parquet.write_table(table, out, row_group_size=3)),
        ("stream.arrow", lambda out: ipc.new_stream(out, table.schema)),
        ("file.arrow", lambda out: ipc.new_file(out, table.schema)),
    ):
        out = io.BytesIO()
        written = write(out)
        if written is not None:
            with written:
                written.write_table(table, max_chunksize=2)
        found[name] = out.getvalue()
    for name in ("a.jsonl", "a.txt"):
        found[f"{name}.gz"] = gzip.compress(found[name])
        found[f"{name}.zst"] = pa.compress(found[name], codec="zstd", asbytes=True)
    return found


@cache
def bomb(byte: bytes, blocks: int = 200) -> bytes:
    """A gzip file of so many MiB of one byte, in one member (RFC 1952): one deflate block, repeated."""
    content, checksum = byte * 2**20, 0
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = deflate.compress(content) + deflate.flush(zlib.Z_FULL_FLUSH)
    for _ in range(blocks):
        checksum = zlib.crc32(content, checksum)
    header, trailer = b"\x1f\x8b\x08" + bytes(5) + b"\x02\xff", struct.pack("<LL", checksum, blocks * 2**20)
    return header + block * blocks + deflate.flush() + trailer


CORPUS = (
    _input("a.jsonl", b""),
    _input("a.jsonl", b"\n\n\n"),
    _input("a.jsonl", lines()[:-3]),
    _input("a.jsonl", b'{"text": "\\ud800"}\n'),
    _input("a.jsonl", b'{"text": "\xff"}\n'),
    _input("a.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n"),
    _input("a.jsonl", b'{"text": 1e999}\n'),
    _input("a.jsonl", b'{"text": "a"}\r\n{"text": "b"}'),
    _input("a.jsonl", lines(("",) * 50)),
    _input("a.jsonl.gz", b""),
    _input("a.jsonl.gz", bomb(b"\n")),
    _input("a.jsonl.gz", bomb(b"a")),
    _input("a.txt.gz", bomb(b"a")),
    _input("a.jsonl.zst", lines()),
    _input("a.txt", b""),
    _input("a.txt", b"\xff"),
    _input("a.parquet", b"PAR1PAR1"),
    _input("a.arrow", b"ARROW1\0\0"),
    _input("a.jsonl", lines(), "\0"),
)


def make_text(random: Random, story: list[str]) -> str:
    """Change bytes of a file, cut it, or ask for another field."""
    name, raw = random.choice([*files().items()])
    changed = bytearray(raw)
    kind = random.choice(("byte", "byte", "cut", "more", "twice", "field"))
    if kind == "byte":
        for _ in range(random.randrange(1, 4)):
            changed[random.randrange(len(changed))] = random.randrange(256)
    elif kind == "cut":
        del changed[random.randrange(len(changed)) :]
    elif kind == "more":
        changed += random.randbytes(random.randrange(1, 64))
    elif kind == "twice":
        at = random.randrange(len(changed))
        changed[at:at] = changed[at : at + random.randrange(1, 64)]
    story.append(f"{kind} of {name}")
    return _input(name, bytes(changed), random.choice(("", "id", "te\nxt")) if kind == "field" else "text")


def read_text(text: str, box: Box) -> object:
    """Open the file as a run would and read samples: whole, of the vocabulary, and the same once more."""
    from executor.data.source import TextReading, open_source

    asked: dict[str, Any] = json.loads(text)
    path = box.folder / Path(asked["name"]).name
    path.write_bytes(bytes.fromhex(asked["raw"]))
    reading = TextReading(
        tokenizer=str(tokenizer(box)), global_batch_size=BATCH, field=asked["field"], end=len(WORDS)
    )

    def samples(numbers: range) -> list[list[int]]:
        source = open_source(
            str(path), vocab_size=len(WORDS) + 1, sequence_length=SEQUENCE, seed=1, texts=reading
        )
        return [source.sample(number).tolist() for number in numbers]

    try:
        found = samples(range(SAMPLES))
        if found[-2:] != samples(range(SAMPLES - 2, SAMPLES)):
            raise AssertionError("a sample is another one the second time")
    finally:
        path.unlink()
    if any(len(one) != SEQUENCE + 1 or not 0 <= min(one) <= max(one) <= len(WORDS) for one in found):
        raise AssertionError("a sample is not whole, or has tokens beyond the vocabulary")
    return list(islice(found, 2))


def tokenizer(box: Box) -> Path:
    """A tokenizer of a few words, in the box."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = box.folder / "tokenizer.json"
    if not path.exists():
        ids = {word: number for number, word in enumerate(("<unk>", *WORDS))}
        known = Tokenizer(models.WordLevel(ids, "<unk>"))
        known.pre_tokenizer = pre_tokenizers.Whitespace()
        known.save(str(path))
    return path
