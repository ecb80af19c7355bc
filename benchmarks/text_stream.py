"""How fast one rank tokenizes and packs text, what it holds, and how long it takes to find its place again.

`python benchmarks/text_stream.py [--megabytes 100]` writes one corpus in every form, reads it as rank 0 of
two does (sequences of 4,096 tokens, 16 a batch), and prints a row for each form:

- tokens given in a second of CPU; a rank on a GPU asks for 10,000 to 20,000 a second;
- tokens that were encoded for each one given: what is above 1 is thrown away, or encoded by two ranks;
- memory that the process grew by;
- seconds of CPU from opening the corpus to the first batch, at the beginning and from saved places;
- the median wait of a step that asks for 20,000 tokens a second while a thread reads ahead.
"""

import argparse
import gzip
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import ipc, parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from executor.data.ahead import Ahead
from executor.data.contents import look_through
from executor.data.source import TextReading
from executor.data.stream import TextStream
from executor.data.tokenizer import Tokenizer as OurTokenizer
from executor.data.tokenizer import open_tokenizer
from topology.base.units import KIB, MB, MIB

SEQUENCE, BATCH, RANKS, VOCABULARY = 4096, 16, 2, 16_000
ASKED_TOKENS_PER_S = 20_000
STEPS_TIMED = 20
FILES = 8


def texts(megabytes: float, seed: int) -> list[str]:
    """Documents of 50 to 2,000 words, of which few are often used: words of 2 to 12 letters."""
    random = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = np.array(["".join(random.choice(letters, size)) for size in random.integers(2, 13, 20_000)])
    found, total = [], 0
    while total < megabytes * MB:
        ranks = np.minimum(random.zipf(1.2, random.integers(50, 2000)) - 1, len(words) - 1)
        found.append(" ".join(words[ranks]))
        total += len(found[-1])
    return found


def write_tokenizer(folder: Path, some: list[str]) -> None:
    """A byte-level BPE, as most models have."""
    known = Tokenizer(models.BPE())
    known.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    known.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    known.train_from_iterator(some, trainer)
    known.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')


def write_lines(path: Path, some: list[str]) -> None:
    """JSON lines."""
    path.with_suffix(".jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))


def write_groups(path: Path, some: list[str]) -> None:
    """Parquet in groups of 1,000 rows, as datasets are published."""
    parquet.write_table(pa.table({"text": some}), path.with_suffix(".parquet"), row_group_size=1000)


def write_one_group(path: Path, some: list[str]) -> None:
    """Parquet in one group, as pyarrow writes a million rows."""
    parquet.write_table(pa.table({"text": some}), path.with_suffix(".parquet"))


def write_arrow(path: Path, some: list[str]) -> None:
    """Arrow as `save_to_disk` writes it."""
    table = pa.table({"text": some})
    with ipc.new_stream(path.with_suffix(".arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=1000)


def write_compressed(path: Path, some: list[str]) -> None:
    """JSON lines by gzip."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in some)
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(lines.encode(), 6))


def write_zstandard(path: Path, some: list[str]) -> None:
    """JSON lines by Zstandard."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in some)
    with pa.CompressedOutputStream(str(path.with_suffix(".jsonl.zst")), "zstd") as out:
        out.write(lines.encode())


FORMS: dict[str, Callable[[Path, list[str]], None]] = {
    "JSON lines": write_lines,
    "JSON lines, gzip": write_compressed,
    "JSON lines, Zstandard": write_zstandard,
    "Parquet, groups of 1,000 rows": write_groups,
    "Parquet, one group a file": write_one_group,
    "Arrow": write_arrow,
    "`datasets`, Parquet, groups of 1,000 rows": write_groups,
    "`datasets`, JSON lines": write_lines,
}


def most_held() -> float:
    """Most memory that this process has held, in bytes."""
    said = Path("/proc/self/status").read_text()
    return float(said.split("VmHWM:")[1].split()[0]) * KIB


def samples_of(step: int) -> range:
    """What rank 0 computes."""
    return range(step * BATCH, step * BATCH + BATCH // RANKS)


def row(form: str, folder: Path, tokenizer: Path, steps: int) -> str:
    """Read a corpus as one rank does; the table's row."""
    name = f"hf:{folder}:default:train" if "datasets" in form else str(folder)
    encoded, plain = [], OurTokenizer.encode

    def counted(self: OurTokenizer, some: list[str]) -> list[np.ndarray]:
        found = plain(self, some)
        encoded.extend(len(one) for one in found)
        return found

    OurTokenizer.encode = counted  # type: ignore[method-assign,assignment]
    texts_read = TextReading(tokenizer=str(tokenizer), global_batch_size=BATCH)

    def opened() -> TextStream:
        return TextStream(
            name,
            look_through(name, field="text", lanes=BATCH),
            open_tokenizer(Path(texts_read.tokenizer)),
            sequence_length=SEQUENCE,
            global_batch_size=BATCH,
            seed=0,
        )

    open_tokenizer(tokenizer)  # what a process has in memory before any text
    before = most_held()
    began = time.process_time()
    source = opened()
    first = [source.sample(index) for index in samples_of(0)]
    first_s = time.process_time() - began
    began_cpu = time.process_time()
    for step in range(1, steps):
        for index in samples_of(step):
            source.sample(index)
    cpu_s = time.process_time() - began_cpu
    given = steps * len(first) * SEQUENCE
    share = sum(encoded) / given
    grown = (most_held() - before) / MIB
    table = source.places([steps] * source.lanes)
    began = time.process_time()
    again = opened()
    again.resume(table.tolist())
    for index in samples_of(steps):
        again.sample(index)
    resumed_s = time.process_time() - began
    reader, waits = Ahead(opened(), samples_of), []
    for step in range(min(STEPS_TIMED, steps)):
        began = time.perf_counter()
        for index in samples_of(step):
            reader.sample(index)
        waits.append(time.perf_counter() - began)
        time.sleep(len(first) * SEQUENCE / ASKED_TOKENS_PER_S)
    reader.close()
    rate = given / steps * (steps - 1) / cpu_s
    wait_ms = 1000 * statistics.median(waits[1:])
    return (
        f"| {form} | {rate:,.0f} | {share:.2f} | {grown:.0f} MiB | {first_s:.1f} s | {resumed_s:.1f} s "
        f"| {wait_ms:.1f} ms |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=100.0)
    megabytes = parser.parse_args().megabytes
    some = texts(megabytes, 0)
    print("| form | tokens/s of CPU | encoded for each given | memory | first batch | resumed | wait |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(folder, some[:300])
        tokens = sum(len(one) for one in open_tokenizer(folder).encode(some[:200])) / 200 * len(some)
        steps = max(4, int(tokens / SEQUENCE / BATCH * 0.8))
        for number, (form, write) in enumerate(FORMS.items()):
            made = folder / str(number)
            made.mkdir()
            for part in range(FILES):
                write(made / f"train-{part}", some[part::FILES])
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.apply(row, (form, made, folder, steps)), flush=True)


if __name__ == "__main__":
    main()
