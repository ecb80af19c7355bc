"""`plan audit`: what it prints, its document, its exit codes, the anchor it keeps, and how long it takes."""

import json
import re
from pathlib import Path

import pytest
import yaml

from app.cli import run
from app.reports.answer import Answer, Table, render
from app.reports.audit.facts import facts_table
from planner.audit.read import read_files

ROOT = Path(__file__).parents[2]
FILES = ROOT / "tests" / "unit" / "planner" / "audit" / "files"
SCRIPT = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py --num-layers {layers} --hidden-size {hidden} \\
  --ffn-hidden-size {width} --num-attention-heads {heads} --group-query-attention --num-query-groups 8 --swiglu \\
  --seq-length 8192 --micro-batch-size 1 --global-batch-size {batch} --bf16 --vocab-size 128256 \\
  --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm --position-embedding-type rope \\
  --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --sequence-parallel {more}
"""
SMALL = {"layers": 32, "hidden": 4096, "width": 14336, "heads": 32}
DISTRIBUTED = "--use-distributed-optimizer"
UNEVEN = "--pipeline-model-parallel-layout 'Ettttttt|(tttttttt|)*14tttttttL'"
"""126 layers on 16 stages."""
LLAMA_70B = {"layers": 80, "hidden": 8192, "width": 28672, "heads": 64}
LLAMA_405B = {"layers": 126, "hidden": 16384, "width": 53248, "heads": 128}


def script(tmp_path: Path, *, nodes=1, batch=64, tp=2, pp=1, more="", **sizes: int) -> str:
    path = tmp_path / "run.sh"
    text = SCRIPT.format(nodes=nodes, batch=batch, tp=tp, pp=pp, more=more, **(sizes or SMALL))
    path.write_text(text, encoding="utf-8")
    return str(path)


def document(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict:
    assert run(["audit", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_document_has_what_the_file_states_and_nothing_else(capsys):
    found = document(capsys, str(FILES / "megatron_moe.sh"))
    assert found["layout"] == {
        "microbatch_size": 1, "tp": 1, "pp": 4, "ep": 8, "sequence_parallel": True, "zero_stage": 1, "dp": 8,
    }  # fmt: skip
    assert found["job"] == {"sequence_length": 4096, "global_batch_size": 256, "precision": "bf16"}
    assert found["cluster"] == {"num_gpus": 32}
    assert {"findings", "changes", "measured", "predicted", "best", "assumed"} <= found.keys()
    assert "cp" not in found["layout"]


def test_the_document_has_every_part_that_programs_read(capsys, tmp_path):
    """Of a job that is priced, with a log beside it."""
    log = tmp_path / "run.log"
    step = " iteration {n}/ 9 | elapsed time per iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 300.0 |\n"
    log.write_text(
        "".join(step.format(n=n, ms=ms) for n, ms in enumerate((29000, 19000, 19000))), encoding="utf-8"
    )
    found = document(capsys, script(tmp_path, tp=8, more=DISTRIBUTED), str(log), "--gpu", "h100-sxm")
    assert {"tp", "pp", "dp", "microbatch_size", "zero_stage"} <= found["layout"].keys()
    assert found["job"].keys() == {"global_batch_size", "sequence_length", "precision"}
    assert {"num_layers", "hidden_size", "num_attention_heads"} <= found["model"].keys()
    assert found["measured"] == {"step_time_s": 19.0, "steps": 2, "tflops_per_gpu": 300.0}
    predicted = found["predicted"]
    assert predicted["lower_s"] < predicted["step_time_s"] < predicted["upper_s"]
    assert predicted["error"] == pytest.approx(predicted["step_time_s"] / 19.0 - 1)
    assert found["best"]["status"] == "proven"
    assert found["slower_by"] == pytest.approx(19.0 / found["best"]["step_time_s"] - 1)
    assert (found["basis"], found["verdict"]["basis"], found["fits"]) == ("measured", "measured", True)
    assert found["residual"]["open_s"] == pytest.approx(19.0 - predicted["step_time_s"])
    gains = [change["seconds_gained"] for change in found["changes"] if not change["whole"]]
    assert gains == sorted(gains, reverse=True)
    assert all(change["set"] or change["remove"] for change in found["changes"])
    assert {finding["kind"] for finding in found["findings"]} <= {"illegal", "contradiction", "slow"}


def test_a_log_alone_has_no_layout_that_it_does_not_print(capsys, tmp_path):
    log = tmp_path / "run.log"
    log.write_text(" iteration 1/ 9 | elapsed time per iteration (ms): 4000.0 |\n" * 3, encoding="utf-8")
    found = document(capsys, str(log))
    assert (found["layout"], found["job"], found["model"]) == ({}, {}, {})
    assert found["measured"] == {"step_time_s": 4.0, "steps": 2}
    assert (found["predicted"], found["best"], found["changes"]) == (None, None, [])


def test_what_no_profile_prices_is_no_illegal_job(capsys, tmp_path):
    """The engine may have what the profile that lends its prices has not."""
    path = tmp_path / "moe.sh"
    text = (FILES / "megatron_moe.sh").read_text(encoding="utf-8")
    text = text.replace("--tensor-model-parallel-size 1", "--tensor-model-parallel-size 4")
    text = text.replace(
        "--expert-model-parallel-size 8", "--expert-model-parallel-size 4 --expert-tensor-parallel-size 2"
    )
    path.write_text(text, encoding="utf-8")
    found = document(capsys, str(path), "--gpu", "h100-sxm", "--fail-above", "15%")
    kinds = {finding["kind"] for finding in found["findings"]}
    assert "unpriced" in kinds
    assert "illegal" not in kinds
    assert found["predicted"] is None


@pytest.mark.parametrize("columns", [80, 110])
def test_the_table_is_no_wider_than_the_screen(capsys, tmp_path, monkeypatch, columns):
    """Off a terminal too; a path or a flag that is longer than its column stays whole."""
    monkeypatch.setenv("COLUMNS", str(columns))
    more = f"{DISTRIBUTED} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    assert run(["audit", script(tmp_path, tp=8, more=more), "--gpu", "h100-sxm"]) == 0
    text = capsys.readouterr().out
    changes = text.partition("Changes\n")[2].partition("\n\n")[0]
    assert "--recompute-granularity" in changes.partition("without")[2]
    assert max(map(len, text.split("\n"))) <= columns


def test_a_serving_file_gives_its_layout(capsys):
    found = document(capsys, str(FILES / "vllm_page.md"))
    assert (found["engine"], found["layout"]) == ("vLLM", {"dp": 8, "ep": 8})
    assert found["server"]["layout"] == "dp8·ep8"


def test_the_table_names_places_changes_and_what_was_assumed(capsys, tmp_path):
    assert run(["audit", script(tmp_path, tp=8)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  tp +8 +6  tensor-model-parallel-size$", text, re.MULTILINE)
    for word in ("predicted", "best", "Changes", "--tensor-model-parallel-size", "give --gpu"):
        assert word in text


def test_variables_of_the_environment_are_given_by_name(capsys):
    found = document(capsys, str(FILES / "titan_wrapper.sh"), "--env", "GPU_TYPE=h100")
    assert (found["layout"]["ep"], found["layout"]["dp"]) == (64, 128)


def test_beyond_the_limit_the_exit_code_is_4(capsys, tmp_path):
    slow = script(tmp_path, tp=8, more=DISTRIBUTED)
    assert document(capsys, slow, "--gpu", "h100-sxm", "--fail-above", "15%", code=4)["slower_by"] > 0.15
    document(capsys, slow, "--gpu", "h100-sxm", "--fail-above", "99%")


def test_a_job_that_will_not_fit_leaves_with_4(capsys, tmp_path):
    found = document(capsys, script(tmp_path, tp=1, pp=1, **LLAMA_70B), "--gpu", "h100-sxm", code=4)
    assert found["fits"] is False


@pytest.mark.parametrize("limit", [(), ("--fail-above", "15%")])
def test_an_illegal_job_leaves_with_4_whatever_limit_is_given(capsys, tmp_path, limit):
    """It never starts."""
    found = document(capsys, script(tmp_path, batch=63), *limit, code=4)
    assert [finding["rule"] for finding in found["findings"] if finding["kind"] == "illegal"]


@pytest.mark.parametrize(
    "words",
    [["nosuch.sh"], ["--env", "A"], ["--fail-above", "much"], [], ["/dev/zero"]],
    ids=lambda words: " ".join(words) or "nothing",
)
def test_wrong_input_is_answered_in_three_lines(capsys, words, tmp_path):
    file = [script(tmp_path)] if words and words[0].startswith("-") else []
    assert run(["audit", *file, *words]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.strip().split("\n")[-3:]] == [
        "error",
        "cause",
        "help",
    ]


def test_a_log_keeps_an_anchor_that_plans_take(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MESHPLAN_DATA", str(tmp_path / "data"))
    step = " iteration {n}/ 9 | elapsed time per iteration (ms): {ms} | global batch size: 64 |\n"
    log = tmp_path / "run.log"
    log.write_text(
        "".join(step.format(n=n, ms=ms) for n, ms in enumerate((29000, 19000, 19000))), encoding="utf-8"
    )
    found = document(
        capsys, script(tmp_path, more=DISTRIBUTED), str(log), "--gpu", "h100-sxm", "--anchor", "mine"
    )
    assert found["measured"]["step_time_s"] == 19.0
    words = ["estimate", "--model", "8b", "--gpus", "8", "--anchor", "mine", "--set", "layout.tp=2", "--json"]
    assert run(words) == 0
    level = json.loads(capsys.readouterr().out)["request"]["anchor"]["level"]
    ratio = 19.0 / found["predicted"]["step_time_s"]
    assert min(1, ratio) < level < max(1, ratio)


def test_a_file_without_a_measurement_keeps_no_anchor(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MESHPLAN_DATA", str(tmp_path / "data"))
    assert run(["audit", script(tmp_path), "--gpu", "h100-sxm", "--anchor", "mine"]) == 2
    assert "no step time was measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "nodes", "batch", "tp", "pp", "more", "code"),
    [(LLAMA_70B, 4, 512, 8, 4, "", 0), (LLAMA_405B, 2048, 2048, 8, 16, UNEVEN, 4)],
    ids=["70B on 32", "405B on 16384"],
)
def test_an_audit_searches_too(capsys, tmp_path, sizes, nodes, batch, tp, pp, more, code):
    """The best of the same engine and cluster is proven; `benchmarks/run.py` says how long it takes."""
    words = f"{DISTRIBUTED} {more}"
    path = script(tmp_path, nodes=nodes, batch=batch, tp=tp, pp=pp, more=words, **sizes)
    found = document(capsys, path, "--gpu", "h100-sxm", code=code)
    assert found["best"]["status"] == "proven"
    assert found["predicted"]
    assert found["changes"]


@pytest.mark.parametrize("name", [".github/actions/audit/action.yml", ".pre-commit-hooks.yaml"])
def test_what_runs_it_elsewhere_gives_flags_that_it_has(capsys, name):
    """The action and the hook are written by hand; the command knows every flag in them."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert yaml.safe_load(text)
    given = set(re.findall(r"(?<![\w-])--(?:fail|gpus?|cluster|model|format|output)[a-z-]*", text))
    assert run(["audit", "--help"]) == 0
    assert given
    assert given <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


SERVER = "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 16\n"
CLIENT = "vllm bench serve --random-input-len 1000 --random-output-len 200 --max-concurrency 64\n"


def test_a_server_is_judged_under_what_its_client_measured(capsys, tmp_path):
    """Its document has the load, the measurement, the prediction, the best and what to set."""
    (tmp_path / "serve.sh").write_text(SERVER, encoding="utf-8")
    figures = {
        "backend": "vllm", "completed": 640, "total_input_tokens": 640_000, "total_output_tokens": 128_000,
        "request_throughput": 8.0, "mean_ttft_ms": 500.0, "mean_tpot_ms": 20.0, "max_concurrency": 64,
    }  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(figures), encoding="utf-8")
    files = (str(tmp_path / "serve.sh"), str(tmp_path / "bench.json"))
    found = document(capsys, *files)
    (load,) = found["loads"]
    assert found["engine"] == "vLLM"
    assert (
        found["server"] | {"num_gpus": 1, "max_batch": 16, "layout": "tp1", "weights": "bf16"}
        == found["server"]
    )
    assert load["measured"]["mean_tpot_s"] == 0.02
    assert load["predicted"]["requests_per_s"] < load["best"]["requests_per_s"]
    assert any(change["set"] == ["without --max-num-seqs"] for change in load["changes"])
    assert found["behind_by"] == load["behind_by"] > 0.5
    document(capsys, *files, "--fail-above", "20%", code=4)


def test_a_server_is_judged_under_the_load_of_the_client_that_a_script_starts(capsys, tmp_path):
    (tmp_path / "serve.sh").write_text(SERVER + CLIENT, encoding="utf-8")
    (load,) = document(capsys, str(tmp_path / "serve.sh"))["loads"]
    assert (load["concurrency"], load["input_tokens"], load["output_tokens"]) == ("64", "1000", "200")
    assert run(["audit", str(tmp_path / "serve.sh")]) == 0
    assert "48 of 64 requests" in capsys.readouterr().out
    (load,) = document(capsys, str(tmp_path / "serve.sh"), "--rate", "2/s", "--ttft", "1s")["loads"]
    assert (load["rate"], load["concurrency"], load["said"]) == ("2/s", None, "as asked")


def test_the_gpus_of_a_server_may_be_given_too(capsys, tmp_path):
    """Its degrees say how many it takes; the same number beside them is no contradiction."""
    (tmp_path / "serve.sh").write_text(f"{SERVER.strip()} --tensor-parallel-size 2", encoding="utf-8")
    found = document(capsys, str(tmp_path / "serve.sh"), "--gpu", "h100-sxm", "--gpus", "2")
    assert found["server"]["num_gpus"] == 2


@pytest.mark.parametrize(
    ("text", "words", "what"),
    [
        (SERVER, ["--sequence-length", "4096"], "these files start a server"),
        (SERVER, ["--gpus", "8"], "the server is started on 1 GPU\n"),
        (SERVER, ["--rate", "2/s", "--anchor", "mine"], "the level of a server is not kept"),
        (SERVER, ["--rate", "2/s", "--concurrency", "3"], "two loads were given"),
        (SERVER, ["--rate", "2/s", "--output", "500"], "--output 500 of an audit is a file"),
        ("torchrun t.py --num-layers 2 --tensor-model-parallel-size 2", ["--rate", "2/s"], "start no server"),
    ],
)
def test_words_of_the_other_kind_of_job_are_refused(capsys, tmp_path, text, words, what):
    (tmp_path / "run.sh").write_text(text, encoding="utf-8")
    assert run(["audit", str(tmp_path / "run.sh"), *words]) == 2
    assert what in capsys.readouterr().err


def test_a_server_without_a_load_is_judged_at_the_most_that_it_carries(capsys, tmp_path):
    """As a plan without a rate is; the rate that is named is one that it carries."""
    (tmp_path / "serve.sh").write_text(SERVER, encoding="utf-8")
    found = document(capsys, str(tmp_path / "serve.sh"))
    (load,) = found["loads"]
    carried = load["predicted"]["requests_per_s"]
    assert 0.99 * carried <= float(load["rate"].removesuffix("/s")) <= carried
    assert found["missing"] == []
    assert any(note.startswith("no load is said: requests of 2000 + 300 tokens") for note in found["assumed"])


def test_a_load_that_nobody_says_is_one_that_the_server_takes(capsys, tmp_path):
    """Neither its mean nor its longest request is beyond what the server is limited to."""
    for limit in (512, 4096):
        (tmp_path / "serve.sh").write_text(f"{SERVER.strip()} --max-model-len {limit}\n", encoding="utf-8")
        (load,) = document(capsys, str(tmp_path / "serve.sh"))["loads"]
        assert not any("are refused" in finding["message"] for finding in load["findings"])


def test_a_bare_number_is_no_file_to_write_to(capsys, tmp_path, monkeypatch):
    """`plan serve --output 500` are tokens; here the mistake is told in three lines, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    Path("serve.sh").write_text(SERVER, encoding="utf-8")
    for flag in ("--output", "-o"):
        assert run(["audit", "serve.sh", "--rate", "2/s", flag, "500"]) == 2
        told = capsys.readouterr().err.strip().splitlines()
        assert len(told) == 3
        assert "--output-tokens 500" in told[2]
    assert not Path("500").exists()
    assert run(["audit", "serve.sh", "--rate", "2/s", "--output-tokens", "200", "--output", "500.txt"]) == 0
    assert "+ 200 tokens" in Path("500.txt").read_text(encoding="utf-8")


def test_the_memory_share_of_sglang_that_nobody_said_is_told(capsys, tmp_path):
    """It computes one, which is told with the memory; unless the server has its own."""
    command = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --attention-backend fa3"
    for more, said in (("", True), (" --mem-fraction-static 0.8", False)):
        (tmp_path / "serve.sh").write_text(command + more, encoding="utf-8")
        assert run(["audit", str(tmp_path / "serve.sh"), "--gpu", "h100-sxm", "--concurrency", "8"]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert ("--mem-fraction-static" in told.partition("Taken for granted")[2]) is said
        assert ("of 0.83 of its memory" in told) is said


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "8b", "--gpus", "8"],
        ["estimate", "--model", "8b", "--gpus", "8", "--set", "layout.tp=8"],
        ["serve", "--model", "8b", "--gpus", "1", "--concurrency", "4"],
    ],
)
def test_a_plan_of_ours_is_no_job_of_another_engine(capsys, tmp_path, words):
    """Whatever command wrote it: refused with what checks it, never judged as Megatron's configuration."""
    path = tmp_path / "answer.json"
    assert run([*words, "--json", "--output", str(path)]) == 0
    capsys.readouterr()
    assert run(["audit", str(path)]) == 2
    said = capsys.readouterr().err
    assert "is a plan of " in said
    assert ("plan serve --predict" if words[0] == "serve" else "plan verify") in said


@pytest.mark.parametrize("name", ["titan_page.md", "verl_fsdp.sh", "bigscience.slurm", "mlperf_amd.sh"])
def test_what_was_read_fits_a_screen_with_whole_words(name: str) -> None:
    """Eighty columns; a word is cut nowhere, and stands in the file's words or in ours."""
    reading = read_files([str(FILES / name)])
    facts = [fact for fact in reading.facts.by_field.values() if not fact.name.startswith("said.")]
    table = facts_table(reading, facts)
    text = render(Answer(headline="", sections=(table,), document=str, records=()), "table", width=80)
    assert max(map(len, text.splitlines())) <= 80
    known = {word for fact in facts for word in (*fact.source.split(), *str(fact.value).split(), fact.word)}
    shown = {word for row in table.rows for word in row[-1].split()}
    assert {word for word in shown - known - {"…"} if not word.endswith(":")} == set()


def test_a_word_without_room_has_a_line_of_its_own() -> None:
    """Beneath the row that it is of."""
    flag = "--num-virtual-stages-per-pipeline-rank 8"
    table = Table(
        title="", columns=("a", "set"), rows=(("x" * 40, flag), ("y", "--tp 8")), align="ll", wraps=(1,)
    )
    text = render(Answer(headline="", sections=(table,), document=str, records=()), "table", width=70)
    lines = [line.strip() for line in text.splitlines()]
    assert lines[lines.index("x" * 40) + 1] == flag
    assert max(map(len, text.splitlines())) <= 70
