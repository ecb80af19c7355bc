"""No count is another one: a list is refused at every door, a suffix is said, tokens are sayable."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

import meshplan
from app.cli import COMMANDS, build_app
from app.flags.job import FLAGS
from app.flags.serve import SERVE_FLAGS
from planner.questions.flags import FLAG_OF_FIELD, Flags, ServeFlags
from planner.questions.phases import read_phases
from planner.questions.serving.understand import understand_serving
from planner.questions.training import understand
from planner.questions.words import CountWord
from tests.cli.commands import plan
from tests.counts import tries
from topology.base.errors import InputError

ROOT = Path(__file__).parents[2]
LISTS = ("32,64", "32 64", "1,6", "256,512", "8;16", "[32, 64]", "0,032", "1,024,2,048")
BASE: dict[str, tuple[str, ...]] = {
    "serve": ("--model", "8b", "--gpu", "h100-sxm"),
    "bench": (),
}
"""What a command needs beside a count to read it."""
TRAINING = ("--model", "8b", "--gpus", "8")
BESIDE = {"--adapters": ("--adapter", "lora:r=16"), "--spare": ("--rate", "1/s"), "--budget": ()}


def options() -> Iterator[tuple[str, str, bool]]:
    """Every option of every command that counts something: command, flag, whether lists are its own."""
    for name in COMMANDS:
        command: Any = typer.main.get_command(build_app(name))
        command = getattr(command, "commands", {}).get(name, command)
        for option in command.params:
            if not option.opts[0].startswith("-"):
                continue
            kind = option.type_descriptor.annotation
            if kind is int or option.metavar == "N":
                swept = name == "sweep" and option.name in ("gpus", "sequence_length", "global_batch_size")
                yield name, option.opts[0], swept


COUNTED = tuple(options())
"""Options that count."""
NUMERIC = tuple((name, flag) for name, flag, swept in COUNTED if not swept)


def test_the_options_that_count_are_found() -> None:
    """Every flag that `parse_count` reads anywhere is among them, so none is left out of the tests below."""
    read = set()
    for folder in ("app", "planner"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "parse_count" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "").startswith("parse_count"):
                    read |= {part.value for part in node.args if isinstance(part, ast.Constant)}
    flags = {flag for _, flag, _ in COUNTED}
    assert {flag for flag in read if str(flag).startswith("--")} <= flags
    assert {"--gpus", "--sequence-length", "--global-batch-size", "--tokens", "--top"} <= flags


@pytest.mark.parametrize(("command", "flag"), NUMERIC, ids=str)
def test_a_list_is_refused_by_every_option_that_counts(command: str, flag: str) -> None:
    """Exit code 2 and three lines that name the flag, before anything is planned or written.

    The next option has the next lists, so that the suite refuses each of them at many.
    """
    words = {"serve": BASE["serve"], "memory": ("--model", "8b")}.get(
        command, TRAINING if _takes_job(command) else ()
    )
    apart = tries(4, 1)
    for text in LISTS[NUMERIC.index((command, flag)) % apart :: apart]:
        given = [word for pair in _pairs(words) if pair[0] != flag for word in pair]
        done = plan(command, *given, *BESIDE.get(flag, ()), flag, text)
        assert done.returncode == 2, (text, done.stdout[:200])
        lines = done.stderr.strip().splitlines()[-3:]
        assert [line.partition(":")[0] for line in lines] == ["error", "cause", "help"], done.stderr
        assert flag in done.stderr or text in done.stderr


def _takes_job(command: str) -> bool:
    return command in ("train", "estimate", "explain", "sweep", "run")


def _pairs(words: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize("field", ["gpus", "sequence_length", "global_batch_size"])
@pytest.mark.parametrize("text", ["32,64", "256,512", "8, 16", "8 16"])
def test_the_help_of_a_list_is_the_command_that_means_it(field: str, text: str) -> None:
    """The command has every other word of the question, and is understood by the sweep."""
    from planner.analysis.sweep import points_of

    asked = {"model": "8b", "gpus": "8", field: text}
    with pytest.raises(InputError, match="is a list") as refused:
        understand(Flags(settings=("layout.tp=2",), **asked))
    words, listed = refused.value.fix.split(), ",".join(text.replace(",", " ").split())
    assert words[:2] == ["plan", "sweep"]
    assert words[words.index(FLAG_OF_FIELD[field]) + 1] == listed
    assert "--set layout.tp=2" in refused.value.fix
    swept = points_of(Flags(**{**asked, field: listed}))
    assert [getattr(point, field) for point in swept] == listed.split(",")


def test_the_help_of_a_number_with_a_space_in_it_is_that_number() -> None:
    """A group with a leading zero is no count, so that `1 024` is no list either."""
    with pytest.raises(InputError, match="is a list") as refused:
        understand(Flags(model="8b", gpus="1 024"))
    assert refused.value.fix == "give --gpus 1024"


FIELDS = [
    *((Flags, field.name) for field in fields(Flags) if field.name in FLAGS),
    *((ServeFlags, field.name) for field in fields(ServeFlags) if field.name in SERVE_FLAGS),
]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_no_word_of_a_question_takes_a_number_with_its_commas_dropped(kind: Any, field: str) -> None:
    """For every field: what is read as 3264 is refused as 32,64. Links and files come through the same door."""
    if field in ("trace", "settings"):
        return
    base = {"model": "8b", "gpus": "8", **({"rate": "1/s", "gpu": "h100-sxm"} if kind is ServeFlags else {})}
    base |= {"adapters": {"adapter": "lora:r=16"}, "draft_tokens": {}}.get(field, {})
    read = understand if kind is Flags else understand_serving

    def value(text: str) -> object:
        try:
            asked = read(kind(**{**base, field: text}))
        except InputError:
            return None
        return asked.request if kind is Flags else asked.requests

    joined, listed = value("1664"), value("16,64")
    assert listed is None or listed != joined


@pytest.mark.parametrize("word", ["gpus", "seq", "batch", "tokens", "top"])
@pytest.mark.parametrize("value", [[32, 64], (256, 512), range(8, 10), "32,64", "256,512", {"a": 1}])
def test_a_list_is_refused_by_every_word_of_the_library(word: str, value: object) -> None:
    """As a list and as text."""
    with pytest.raises(InputError) as refused:
        meshplan.plan("8b", **{"gpus": 8, word: value})
    assert word in str(refused.value) or "--" in str(refused.value)
    if isinstance(value, str) and word in ("gpus", "seq", "batch"):
        assert refused.value.fix == f'write meshplan.sweep(…, {word}="{value}")'


def test_the_words_that_count_are_all_tested() -> None:
    """The words above are those that the library says are counts."""
    from planner.questions.words import SearchWords

    counted = {word for word, kind in SearchWords.__annotations__.items() if "CountWord" in str(kind)}
    assert counted == {"gpus", "seq", "batch", "tokens", "top"}
    assert CountWord == int | str


def test_a_sweep_of_the_library_takes_lists() -> None:
    """A list is what a sweep is for."""
    from planner.analysis.sweep import points_of
    from planner.questions.words import GridWords, flags_of

    points = points_of(flags_of("8b", {"gpus": [512, 768], "batch": [256, 512]}, GridWords))
    assert [(point.gpus, point.global_batch_size) for point in points] == [
        ("512", "256"), ("512", "512"), ("768", "256"), ("768", "512"),
    ]  # fmt: skip


def test_a_list_in_a_file_of_phases_is_refused(tmp_path: Path) -> None:
    """Counts of a file are read as those of flags."""
    for key, text in (("tokens", "1T,2T"), ("sequence_length", "4k,8k"), ("global_batch_size", "256,512")):
        path = tmp_path / f"{key}.toml"
        entry = {"name": "a", "tokens": "1T", key: text}
        path.write_text(
            "[[phases]]\n" + "".join(f'{name} = "{said}"\n' for name, said in entry.items()), encoding="utf-8"
        )
        with pytest.raises(InputError, match="list"):
            read_phases(path, Flags(model="8b", gpus="8"))


@pytest.mark.parametrize(
    "setting",
    ["layout.tp=2,4", "layout.tp=1,6", "job.global_batch_size=256,512", "job.sequence_length=4096,8192",
     "cluster.count=1,2", "cluster.gpus_per_node=4,8", "job.mtp_layers=1,2", "model.num_layers=8,16"],
)  # fmt: skip
def test_a_list_in_a_setting_is_refused(setting: str) -> None:
    """No field that counts takes two numbers."""
    with pytest.raises(InputError):
        understand(Flags(model="8b", gpus="8", settings=(setting,)))


def request(**words: str) -> Any:
    """What flags are understood as."""
    return understand(Flags(model="70b", **{"gpus": "32", **words}))


def test_sixteen_k_gpus_are_counted_as_a_length_of_8k_is() -> None:
    """One k for every size, and a note that says the number."""
    asked = request(gpus="16k", sequence_length="8k", global_batch_size="2k", tokens="15T")
    job = asked.request.job
    assert asked.request.cluster.num_gpus == 16384
    assert (job.sequence_length, job.global_batch_size, job.total_tokens) == (8192, 2048, 15 * 10**12)
    for note in ("--gpus 16k is 16,384 GPUs", "--global-batch-size 2k is 2,048 sequences",
                 "--sequence-length 8k is 8,192 tokens", "--tokens 15T is 15,000,000,000,000 tokens"):  # fmt: skip
        assert note in asked.notes
    assert not [note for note in request(sequence_length="8192").notes if "8,192" in note]


@pytest.mark.parametrize(("length", "sequences"), [("8k", 512), ("4k", 1024), ("32k", 128)])
def test_a_batch_may_be_counted_in_tokens(length: str, sequences: int) -> None:
    """4Mtok are 4 · 2²⁰ tokens, whole sequences of every length that is a power of two."""
    asked = request(sequence_length=length, global_batch_size="4Mtok")
    assert asked.request.job.global_batch_size == sequences
    assert f"--global-batch-size 4Mtok is {sequences:,} sequences" in asked.notes


def test_tokens_that_are_no_whole_sequences_are_refused_with_the_nearest() -> None:
    """Both neighbours are offered, and both are taken."""
    with pytest.raises(InputError, match="no whole number of sequences") as refused:
        request(global_batch_size="4000000tok")
    offers = re.findall(r"--global-batch-size (\d+)", refused.value.fix)
    assert offers == ["488", "489"]


@pytest.mark.parametrize("text", ["4M", "1M", "1..4M", "0.5m"])
def test_millions_of_sequences_are_doubted(text: str) -> None:
    """What is meant by 4M is tokens: the way to say so, and the digits of the other, are offered."""
    done = plan("--model", "70b", "--gpus", "32", "-b", text)
    assert done.returncode == 2
    assert f"{text.partition('..')[2] or text}tok" in done.stderr


@pytest.mark.parametrize("command", ["train", "estimate", "sweep"])
def test_tokens_below_one_step_are_refused(command: str) -> None:
    """Fifteen tokens are no run: 15T and 15B are offered."""
    done = plan(command, "--model", "70b", "--gpus", "32", "--tokens", "15")
    assert done.returncode == 2
    assert "--tokens 15T or --tokens 15B" in done.stderr


def test_tokens_of_one_step_are_a_run() -> None:
    """The limit is a step, neither more nor less."""
    assert request(tokens="4194304").request.job.total_tokens == 512 * 8192
    with pytest.raises(InputError, match="first step"):
        request(tokens="4194303")


def test_a_step_of_more_than_an_hour_is_said_with_its_batch() -> None:
    """The batch that was written may have been tokens; a usual step says nothing."""
    words = {"gpus": 8, "layout": {"tp": 8}}
    long = meshplan.estimate("8b", batch=4_000_000, **words)
    assert long.estimate.step_time_s > 3600
    assert [line for line in long.estimate.assumptions if "4,000,000 sequences" in line and "Mtok" in line]
    usual = meshplan.estimate("8b", batch=512, **words)
    assert not [line for line in usual.estimate.assumptions if "doubted" in line]


@pytest.mark.parametrize(
    ("layout", "tp"),
    [({"tp": 4}, 4), ({"layout.tp": 4}, 4), ({"tp": "4"}, 4), ({"tp": 4.0}, 4), ({"tp": 4, "pp": None}, 4)],
)
def test_a_layout_may_be_a_table_of_its_fields(layout: dict[str, object], tp: int) -> None:
    """As numbers or as text, with or without the group."""
    assert meshplan.estimate("8b", gpus=8.0, layout=layout).layout.tp == tp


@pytest.mark.parametrize("verb", [meshplan.plan, meshplan.estimate, meshplan.sweep, meshplan.serve])
@pytest.mark.parametrize(
    "layout", [5, "tp=8", [("tp", 8)], {"tq": 8}, {"tp": []}, {"tp": "four"}, {5: 8}, object()]
)
def test_what_is_no_layout_is_an_error_of_three_lines(verb: Any, layout: object) -> None:
    """Never a bare TypeError."""
    with pytest.raises(InputError):
        verb("8b", gpus=8, layout=layout)


@pytest.mark.parametrize("verb", [meshplan.plan, meshplan.estimate, meshplan.sweep, meshplan.serve])
def test_a_degree_as_a_word_names_the_layout(verb: Any) -> None:
    """`tp=8` is answered with the call that means it."""
    with pytest.raises(InputError, match=re.escape('layout={"tp": 8}')):
        verb("8b", gpus=8, tp=8)


WORDS = sorted({"gpus", "gpu", "cluster", "seq", "batch", "precision", "adapter", "tokens", "deadline", "job",
                "stack", "engine", "layout", "set", "anchor", "offload", "without", "objective", "top",
                "memory_headroom", "failures", "min_gpus", "recompute_modules", "expert_load"})  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "value", [object(), {"a": 1}, [[1]], b"8", 3 + 4j, lambda: 8], ids=lambda v: type(v).__name__
)
def test_no_value_of_a_word_ends_in_a_bare_error(word: str, value: object) -> None:
    """Three lines for what a word does not take."""
    with pytest.raises(InputError):
        meshplan.plan("8b", **{"gpus": 8, "tokens": "1T", word: value})
