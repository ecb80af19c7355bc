"""`plan serve`: answers, errors in three lines, exit codes."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import plan


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `plan serve`."""
    return plan("serve", *arguments, "--full")


def test_a_plan_is_printed_with_its_latencies_costs_and_commands(tmp_path: Path) -> None:
    """The sections a person reads, and a manifest on the side."""
    manifest = tmp_path / "fleet.yaml"
    done = serve(
        "--model", "8b", "--gpus", "2", "--gpu", "h100-sxm", "--input", "1000", "--output", "200", "--ttft", "1s",
        "--tpot", "30ms", "--weights", "bf16", "--mode", "aggregated", "--manifest", str(manifest),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in (
        "time to first token",
        "band (80 %)",
        "per million input",
        "vllm serve",
        "Runners-up",
        "bound by",
    ):
        assert words in done.stdout
    assert 'kind: "Deployment"' in manifest.read_text()


def test_what_limits_cost_is_a_table() -> None:
    """Steps that change the answer are rows, the others a note."""
    done = serve(
        "--model", "8b", "--gpu", "h100-sxm", "--rate", "140/s", "--input", "1000", "--output", "100",
        "--ttft", "300ms", "--tpot", "9ms", "--sensitivity", "--weights", "bf16", "--mode", "aggregated",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = done.stdout.partition("Sensitivity to limits")[2].partition("Runners-up")[0]
    assert "time per output token 12 ms instead of 9 ms" in table
    assert "an hour" in table


def test_the_frontier_is_a_table_and_a_key_of_the_document() -> None:
    """Tokens a second of a GPU against those of a user."""
    words = (
        "--model",
        "8b",
        "--gpu",
        "h100-sxm",
        "--gpus",
        "1",
        "--tpot",
        "10ms",
        "--weights",
        "bf16",
        "--pareto",
    )
    done = serve(*words)
    assert done.returncode == 0, done.stderr
    assert "Pareto frontier of h100-sxm" in done.stdout
    first, *_, last = json.loads(serve(*words, "--json").stdout)["frontier"]
    assert first["tokens_per_s_per_user"] > last["tokens_per_s_per_user"]
    assert first["tokens_per_s_per_gpu"] < last["tokens_per_s_per_gpu"]


def test_a_day_and_a_comparison_are_two_questions() -> None:
    """Neither flag is dropped in silence."""
    done = serve("--model", "8b", "--gpus", "1", "--autoscale", "--pareto")
    assert done.returncode == 2
    assert "leave out --autoscale or --pareto" in done.stderr


def test_json_is_one_document_with_units_in_its_keys() -> None:
    """What a program reads."""
    done = serve(
        "--model", "8b", "--gpus", "1", "--input", "500", "--output", "100", "--concurrency", "8", "--json"
    )
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["estimate"]["ttft"]["p99_s"] > 0
    assert document["optimality"]["status"] == "proven"
    degrees = {"tp": 1, "pp": 1, "attention_dp": 1, "ep": 1, "dcp": 1}
    assert document["decode"]["layout"] == {**degrees, "layers": [], "gpus": []}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--model", "70b", "--gpus", "8", "--ttft", "10ms"), 1, "bounds that no layout is below"),
        (("--model", "70b", "--gpus", "8", "--ttft", "1000"), 2, "write --ttft 1000ms, or --ttft 1000s"),
        (("--model", "70b", "--gpus", "8", "--tpot", "5."), 2, "--tpot 5. has no unit"),
        (("--model", "405b", "--gpus", "2"), 1, "does not fit"),
        (
            ("--model", "8b", "--gpus", "1", "--rate", "900/s", "--mode", "aggregated", "--weights", "bf16"),
            1,
            "they serve",
        ),
        (("--model", "70b", "--gpus", "8", "--rate", "0/s"), 2, "positive rate"),
        (("--model", "70b", "--gpus", "8", "--rate", "-3/s"), 2, "rate"),
        (
            ("--model", "70b", "--gpus", "8", "--gpu", "v100-sxm-32gb", "--weights", "fp8"),
            2,
            "cannot serve fp8",
        ),
        (("--model", "70b", "--gpus", "8", "--input", "200000"), 2, "longer than the model's context"),
        (
            ("--model", "70b", "--gpus", "8", "--trace", "no-such-file.csv"),
            2,
            "no-such-file.csv does not exist",
        ),
        (("--model", "70b", "--gpus", "8", "--rate", "1e18"), 2, "request_rate_per_s = 1e+18"),
        (("--model", "70b", "--gpus", "8", "--rate", "1/s", "--concurrency", "4"), 2, "two loads"),
        (("--model", "70b", "--gpus", "8", "--weights", "fp3"), 2, "unknown --weights"),
        (("--model", "70b", "--gpus", "8", "--autoscale"), 2, "--trace is missing"),
        (("--model", "70b", "--gpus", "8", "--start-up", "3min"), 2, "add --autoscale"),
        (("--model", "70b", "--router", "prefix-aware", "--pareto"), 2, "name no blocks"),
        (("--model", "70b", "--kv-offload", "200GB", "--rehearse"), 2, "leave --rehearse out"),
        (("--model", "70b", "--gpus", "8", "--acceptance", "0.7"), 2, "--draft-tokens is missing"),
        (("--model", "70b", "--draft-tokens", "3", "--drafter", "mtp"), 2, "no layer that predicts"),
        (("--model", "70b", "--draft-tokens", "3", "--drafter", "qwen3-0.6b"), 2, "its vocabulary has"),
        (("--model", "70b", "--draft-tokens", "3", "--engine", "trtllm"), 2, "TensorRT-LLM is given no"),
        (("--gpus", "8"), 2, "no model was named"),
    ],
)
def test_a_wrong_question_is_answered_in_three_lines(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    """What, the numbers, and the change that fixes it; nothing on stdout."""
    done = serve(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note:") and " …" not in line]
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "help"]
    assert words in done.stderr


def test_a_day_without_a_trace_is_refused_before_any_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no search changes is not waited for."""
    monkeypatch.setattr("planner.analysis.serving.fleets.find_fleet", None)
    done = serve("--model", "70b", "--gpus", "8", "--autoscale")
    assert done.returncode == 2
    assert "--trace is missing" in done.stderr


def test_a_day_is_followed_by_replicas(tmp_path: Path) -> None:
    """Policies side by side, and the hours of one of them."""
    trace = tmp_path / "day.csv"
    rows = [f"{second},400,50" for second in range(0, 14_400, 2)] + [
        f"{14_400 + n / 4},400,50" for n in range(14_400)
    ]
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    done = serve(
        "--model",
        "8b",
        "--gpus",
        "8",
        "--gpu",
        "h100-sxm",
        "--trace",
        str(trace),
        "--ttft",
        "2s",
        "--autoscale",
    )
    assert done.returncode == 0, done.stderr
    assert "fixed at the peak" in done.stdout
    assert "Hour by hour" in done.stdout


def test_a_precision_that_a_gpu_lacks_is_listed_with_its_reason() -> None:
    """Of two kinds one has no eight-bit floats: the other serves, and the table says why the first does not."""
    done = serve(
        "--model",
        "8b",
        "--gpu",
        "a100-sxm-80gb,h100-sxm",
        "--weights",
        "fp8",
        "--rate",
        "1/s",
        "--engine",
        "trtllm",
    )
    assert done.returncode == 0, done.stderr
    assert "a100-sxm-80gb cannot serve fp8 weights" in " ".join(done.stdout.split())


def test_a_trace_of_one_request_has_no_rate(tmp_path: Path) -> None:
    """One arrival spans no time."""
    trace = tmp_path / "one.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n")
    done = serve("--model", "8b", "--gpus", "1", "--trace", str(trace))
    assert done.returncode != 0
    assert "all arrivals are at one moment (rows: 1)" in done.stderr
    assert "inf" not in done.stderr


def test_commands_are_printed_on_one_line_each() -> None:
    """A command that wraps cannot be copied: what is printed is what the document says, whatever the width."""
    question = (
        "--model", "8b", "--gpus", "2", "--gpu", "h100-sxm", "--mode", "disaggregated", "--weights", "bf16", "--input",
        "4000", "--set", "layout.tp=1",
    )  # fmt: skip
    printed = serve(*question)
    told = json.loads(serve(*question, "--json").stdout)["commands"]
    lines = [line.strip() for line in printed.stdout.splitlines()]
    servers = [name for name in told if name.startswith("serve (")]
    assert {name.split()[1].strip("()") for name in servers} == {"prefill", "decode"}
    for name in (*servers, "router", "benchmark"):
        assert len(told[name]) > 110
        assert any(line.endswith(f" {told[name]}") for line in lines)


def test_a_folder_may_hold_folders(tmp_path: Path) -> None:
    """A model repository of Triton is one of them."""
    question = (
        "--model",
        "8b",
        "--gpus",
        "1",
        "--gpu",
        "h100-sxm",
        "--engine",
        "trtllm",
        "--mode",
        "aggregated",
    )
    done = serve(*question, "--deploy", "triton", "--save-dir", str(tmp_path / "fleet"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fleet" / "triton-models" / "tensorrt_llm" / "1" / "model.yaml").is_file()


def test_a_folder_that_starts_the_fleet_is_written_into_an_empty_one(tmp_path: Path) -> None:
    """Scripts, load test and README; a second time the files of the first are not mixed with."""
    question = (
        "--model", "8b", "--gpus", "2", "--gpu", "h100-sxm", "--input", "500", "--output", "50",
        "--weights", "bf16", "--mode", "aggregated",
    )  # fmt: skip
    folder = tmp_path / "fleet"
    assert serve(*question, "--save-dir", str(folder)).returncode == 0
    assert {"node0.sh", "loadtest.sh", "README.md", "plan.json", "kubernetes.yaml"} <= {
        path.name for path in folder.iterdir()
    }
    assert "--dataset-path lengths.csv" in (folder / "loadtest.sh").read_text(encoding="utf-8")
    rows = [row.split(",") for row in (folder / "lengths.csv").read_text(encoding="utf-8").splitlines()[1:]]
    means = [sum(int(row[column]) for row in rows) / len(rows) for column in (2, 3)]
    assert (len(rows), {row[1] for row in rows}) == (1000, {"GPT-4"})  # the rows that vLLM's reader takes
    assert means == [pytest.approx(500, rel=0.02), pytest.approx(50, rel=0.02)]
    again = serve(*question, "--save-dir", str(folder))
    assert again.returncode == 2
    assert "there are files in it" in again.stderr


@pytest.mark.parametrize(
    ("words", "longest"),
    [
        (
            (
                "--model",
                "70b",
                "--gpus",
                "2",
                "--rate",
                "1/s",
                "--input",
                "100000",
                "--output-tokens",
                "1000",
            ),
            "129,",
        ),
        (
            ("--model", "deepseek-v3", "--gpus", "8", "--weights", "bf16", "--rate", "1/s"),
            "8,012 + 844 tokens",
        ),
    ],
)
def test_what_does_not_fit_says_so_and_names_the_length(words: tuple[str, ...], longest: str) -> None:
    """Never what to leave out that nobody gave; the tail of the lengths is beside their mean."""
    answer = plan("serve", "--gpu", "h100-sxm", *words)
    assert answer.returncode == 1
    assert "does not fit on" in answer.stderr
    assert longest in answer.stderr
    assert "(one in a hundred; the mean is " in answer.stderr
    assert "--set" not in answer.stderr


def test_json_says_whether_the_server_starts_as_its_log_does() -> None:
    """The same keys of a plan and of a refusal for want of memory."""
    load = ("--gpu", "h100-sxm", "--concurrency", "4", "--input", "1000", "--output-tokens", "100", "--json")
    done = serve("--model", "8b", "--weights", "bf16", "--gpus", "1", *load)
    document = json.loads(done.stdout)
    assert document["starts"] is True
    assert document["weights_gib_per_gpu"] == pytest.approx(14.96, rel=0.015)  # 8.03 B parameters in bf16
    assert document["longest_context"] <= document["kv_cache_tokens"]
    assert document["max_concurrency"] >= 1
    done = serve("--model", "405b", "--weights", "fp8", "--gpus", "4", *load)
    refused = json.loads(done.stdout)
    assert done.returncode == 1
    assert refused["starts"] is False
    assert "does not fit" in refused["why"]


def test_a_given_server_is_predicted_under_a_trace(tmp_path: Path) -> None:
    """`plan serve --predict` and `plan audit --trace` tell the same, and a load is asked for."""
    script, trace = tmp_path / "serve.sh", tmp_path / "trace.csv"
    script.write_text("vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 16\n")
    rows = [f"{i / 10},1000,50" for i in range(20)]
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    load = ("--gpu", "h100-sxm", "--trace", str(trace), "--json")
    predicted = json.loads(plan("serve", "--predict", str(script), *load).stdout)["loads"][0]["predicted"]
    audited = json.loads(plan("audit", str(script), *load).stdout)["loads"][0]["predicted"]
    assert predicted == audited
    assert predicted["ttft"]["p50_s"] <= predicted["ttft"]["p99_s"]
    refused = plan("serve", "--predict", str(script))
    assert refused.returncode == 2
    assert "no load to predict under" in refused.stderr
