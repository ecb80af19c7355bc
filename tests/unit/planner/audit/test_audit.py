"""What an audit finds, predicts and proposes."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from app.commands.audit.answer import fails
from app.reports.audit.report import audit_document
from costmodel.kernels.tables import load_calibration
from costmodel.memory.fit import FITS_BELOW, fit_of
from costmodel.training.bands import tie_ratio
from planner.audit.audit import Audit, audited
from planner.audit.findings import findings_of
from planner.audit.job import audited_job
from planner.audit.read import read_files, read_texts
from planner.plan import FREE, problem_of
from planner.questions.flags import Flags
from planner.rules.check import check
from tests.counts import cases_of_run

FILES = Path(__file__).parent / "files"
SMALL = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py --num-layers {layers} --hidden-size 4096 \\
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu \\
  --seq-length 4096 --micro-batch-size 1 --global-batch-size {batch} --bf16 --vocab-size 128256 \\
  --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} {more}
"""


def audit_of(path: Path, **flags: str) -> Audit:
    return audited(read_files([str(path)]), Flags(**flags), load_calibration())


def small(tmp_path: Path, *, nodes=1, layers=32, batch=64, tp=1, pp=1, more="", **flags: str) -> Audit:
    path = tmp_path / "run.sh"
    path.write_text(
        SMALL.format(nodes=nodes, layers=layers, batch=batch, tp=tp, pp=pp, more=more), encoding="utf-8"
    )
    return audit_of(path, **{"gpu": "h100-sxm", **flags})


def rules(found: Audit, kind: str) -> set[str]:
    return {finding.rule for finding in found.findings if finding.kind == kind}


@pytest.fixture(scope="module")
def recomputing(tmp_path_factory) -> Audit:
    """An 8B job that recomputes everything, splits tensors it need not, and shards nothing."""
    more = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    return small(tmp_path_factory.mktemp("audit"), tp=8, more=more)


def test_a_slow_job_is_told_its_distance_and_the_way_to_the_best(recomputing):
    assert recomputing.best is not None
    assert recomputing.predicted is not None
    assert recomputing.best.optimality.status == "proven"
    assert recomputing.slower_by == pytest.approx(
        recomputing.predicted.step_time_s / recomputing.best.estimate.step_time_s - 1
    )
    whole = recomputing.changes[0]
    assert whole.whole
    assert whole.step_time_s == recomputing.best.estimate.step_time_s
    assert "--recompute-granularity" in {word for change in recomputing.changes for word in change.remove}


def test_every_change_gains_what_it_says_and_is_legal(recomputing):
    gains = [change.seconds_gained for change in recomputing.changes if not change.whole]
    assert gains == sorted(gains, reverse=True)
    assert gains
    problem = replace(problem_of(recomputing.job.request, load_calibration()), engine=FREE)
    for change in recomputing.changes:
        assert change.step_time_s == pytest.approx(recomputing.predicted.step_time_s - change.seconds_gained)
        changed = replace(recomputing.job.layout, **dict(change.fields))
        broken = check(problem, changed)
        assert broken == ()


def test_the_whole_change_written_into_the_file_leads_to_the_best(recomputing, tmp_path):
    """The words are the file's own: with them in it, nothing is left to gain."""
    words = recomputing.changes[0].set
    found = small(tmp_path, tp=8, more=" ".join(words))
    assert found.job.layout == recomputing.best.layout
    assert found.slower_by == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("change", "kind", "rule"),
    [
        ({"tp": 8, "pp": 16}, "illegal", "gpus"),
        ({"layers": 30, "pp": 4}, "illegal", "layers"),
        ({"more": "--expert-model-parallel-size 16 --num-experts 16"}, "illegal", "expert-block"),
        ({"batch": 63}, "illegal", "batch"),
        ({"tp": 5, "nodes": 5}, "illegal", "heads"),
        ({"tp": 16, "nodes": 2, "batch": 64}, "slow", "tp-across-nodes"),
        ({"more": "--sequence-parallel"}, "contradiction", "sequence-parallel"),
        ({"more": "--fp16"}, "illegal", "precision"),
        ({"pp": 8, "batch": 4}, "slow", "bubble"),
        ({}, "slow", "no-distributed-optimizer"),
        ({"more": "--use-distributed-optimizer"}, "slow", "no-overlap"),
    ],
)
@pytest.mark.usefixtures("searched_in_nightly")
def test_what_is_wrong_is_found_by_its_rule(tmp_path, change, kind, rule):
    assert rule in rules(small(tmp_path, **change), kind)


TRAYS = (
    "# {gpu}\nsrun --nodes={nodes} --ntasks-per-node=4 --gpus-per-node=4 python pretrain_gpt.py {sizes} --bf16 "
    "--seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size {tp}\n"
)
SIZED = "--num-layers 32 --hidden-size 8192 --num-attention-heads 128 --vocab-size 32000"


@pytest.mark.parametrize("sizes", [SIZED, ""])
@pytest.mark.parametrize(
    ("gpu", "tp", "nodes", "crosses"),
    [
        ("GB200 NVL72", 8, 16, False), ("GB200 NVL72", 64, 16, False), ("GB200 NVL72", 128, 32, True),
        ("A100-SXM4-40GB", 8, 16, True), ("A100-SXM4-40GB", 4, 16, False),
    ],
)  # fmt: skip
def test_tensor_ranks_cross_nodes_where_nothing_joins_these(tmp_path, gpu, tp, nodes, crosses, sizes):
    """A rack of trays is one domain of NVLink, whether or not the model is known."""
    reading = read_texts({"run.sh": TRAYS.format(gpu=gpu, nodes=nodes, tp=tp, sizes=sizes)})
    found = findings_of(reading, audited_job(reading, Flags()), None)
    assert any(finding.rule == "tp-across-nodes" for finding in found) is crosses


@pytest.mark.usefixtures("searched_in_nightly")
def test_the_variable_that_megatron_asks_for_is_open_until_it_is_said(tmp_path):
    """A shell may set it, and Blackwell does not ask: it is illegal only where both are known."""
    path = tmp_path / "run.sh"
    text = SMALL.format(nodes=1, layers=32, batch=64, tp=2, pp=1, more="--sequence-parallel")
    bare = text.replace("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "")
    other = text.replace("CONNECTIONS=1", "CONNECTIONS=8")
    in_line = f"srun --export=ALL,CUDA_DEVICE_MAX_CONNECTIONS=1 {bare}"
    for words, flags, kind in (
        (text, {}, None), (in_line, {}, None), (bare, {}, "open"), (bare, {"gpu": "h100-sxm"}, "open"),
        (other, {}, "open"), (other, {"gpu": "h100-sxm"}, "illegal"), (other, {"gpu": "gb200"}, None),
    ):  # fmt: skip
        path.write_text(words, encoding="utf-8")
        audit = audit_of(path, **flags)
        found = [one.kind for one in audit.findings if one.rule == "cuda-connections"]
        assert found == ([] if kind is None else [kind]), (words, flags)
        assert fails(audit, None) is (kind == "illegal")
        assert (audit.predicted is None) is (kind == "illegal")


def test_what_an_assumed_gpu_cannot_do_is_not_illegal(tmp_path):
    """Nobody said H100: mxfp8 runs on a later one. What no GPU runs is illegal all the same."""
    eight_bits = "--fp8-format e4m3 --fp8-recipe mxfp8"
    path = tmp_path / "run.sh"
    for more, flags, kind in (
        (eight_bits, {}, "unpriced"), (eight_bits, {"gpu": "h100-sxm"}, "illegal"),
        ("--num-layers-per-virtual-pipeline-stage 3 --pipeline-model-parallel-size 2", {}, "illegal"),
    ):  # fmt: skip
        path.write_text(SMALL.format(nodes=1, layers=32, batch=64, tp=1, pp=1, more=more), encoding="utf-8")
        audit = audit_of(path, **flags)
        assert kind in {one.kind for one in audit.findings}
        assert fails(audit, None) is (kind == "illegal")


def test_megatron_fsdp_wants_the_variable_unset(tmp_path):
    path = tmp_path / "run.sh"
    more = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
    text = SMALL.format(nodes=1, layers=32, batch=64, tp=1, pp=1, more=more)
    path.write_text(text, encoding="utf-8")
    assert "cuda-connections" in rules(audit_of(path), "illegal")
    path.write_text(text.replace("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", ""), encoding="utf-8")
    assert "cuda-connections" not in rules(audit_of(path), "illegal")


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_word_in_another_engines_spelling_is_passed_over(tmp_path):
    """NeMo 1 writes norms and activations in small letters."""
    path = tmp_path / "c.yaml"
    path.write_text(
        "trainer: {num_nodes: 1, devices: 8}\nmodel:\n  encoder_seq_length: 2048\n  num_layers: 32\n  hidden_size: 4096\n"
        "  num_attention_heads: 32\n  normalization: rmsnorm\n  tensor_model_parallel_size: 2\n"
        "  pipeline_model_parallel_size: 1\n  global_batch_size: 64\n  micro_batch_size: 1\n",
        encoding="utf-8",
    )
    assert audit_of(path, gpu="h100-sxm").predicted is not None


def test_limits_of_an_engine_that_only_lends_its_prices_are_no_fault_of_the_job():
    found = audit_of(FILES / "verl_fsdp.sh", gpu="h100-sxm")
    assert rules(found, "illegal") == set()
    assert found.predicted is None


def test_an_illegal_job_is_not_predicted(tmp_path):
    found = small(tmp_path, layers=30, pp=4)
    assert found.predicted is None
    assert found.slower_by is None


def test_a_job_that_does_not_fit_says_so_and_what_would(tmp_path):
    found = small(tmp_path, layers=80)
    assert found.fits is False
    budget = problem_of(found.job.request, load_calibration()).memory_budget_bytes
    assert all(change.peak_memory_bytes <= budget for change in found.changes)
    assert found.changes[0].whole


STEP = " iteration {n}/ 9 | elapsed time per iteration (ms): {ms} | global batch size: 64 |\n"


DEPTHS = tuple(product((8, 16, 24, 32, 40), (False, True)))
"""Layers of a job, and whether its log shows steps."""


@pytest.mark.parametrize(
    ("layers", "runs"), cases_of_run(DEPTHS, [case for case in DEPTHS if (case[0] // 8) % 2 == case[1]])
)
def test_what_is_proposed_fits_or_is_no_tighter_than_the_job_that_runs(tmp_path, layers, runs):
    """A log of steps proves that the job runs: then its own chance of OOM is one that may be kept."""
    script, log = tmp_path / "run.sh", tmp_path / "run.log"
    script.write_text(SMALL.format(nodes=1, layers=layers, batch=64, tp=1, pp=1, more=""), encoding="utf-8")
    log.write_text("".join(STEP.format(n=n, ms=90_000.0) for n in range(1, 6)), encoding="utf-8")
    files = [str(script), *([str(log)] if runs else [])]
    found = audited(read_files(files), Flags(gpu="h100-sxm"), load_calibration())
    most = max(FITS_BELOW, found.predicted.out_of_memory_chance if runs else 0.0)
    assert found.changes
    assert all(change.out_of_memory_chance <= most for change in found.changes)
    assert found.best.estimate.out_of_memory_chance <= most
    document = audit_document(found)
    chances = [document, document["predicted"], document["best"], *document["changes"]]
    assert all(0 <= one["out_of_memory_chance"] <= 1 for one in chances)
    assert document["predicted"]["fit"] == fit_of(document["predicted"]["out_of_memory_chance"])


def test_a_gain_that_the_model_cannot_tell_is_called_a_tie(recomputing, tmp_path):
    """A change of less than the tie ratio is a tie, and so is a distance within it."""
    for change in recomputing.changes:
        assert change.tied == (
            1 / tie_ratio() <= recomputing.predicted.step_time_s / change.step_time_s <= tie_ratio()
        )
    assert recomputing.tied == (recomputing.slower_by <= tie_ratio() - 1)
    best = recomputing.best.estimate
    for step_s, tied in (
        (best.upper_s * 0.99, True),
        (best.upper_s * 1.01, False),
        (best.lower_s * 0.99, False),
    ):
        assert replace(recomputing, measured_step_s=step_s).tied == tied


def test_a_log_and_its_script_give_the_error_of_the_prediction(tmp_path):
    log = tmp_path / "run.log"
    step = " iteration {n}/ 9 | elapsed time per iteration (ms): {ms} | global batch size: 64 | throughput per GPU (TFLOP/s/GPU): {rate} |\n"
    log.write_text(
        "".join(step.format(n=n, ms=ms, rate=300) for n, ms in enumerate((9000.0, 3000.0, 3100.0))),
        encoding="utf-8",
    )
    script = tmp_path / "run.sh"
    script.write_text(
        SMALL.format(nodes=1, layers=32, batch=64, tp=2, pp=1, more="--sequence-parallel"), encoding="utf-8"
    )
    found = audited(read_files([str(script), str(log)]), Flags(gpu="h100-sxm"), load_calibration())
    assert found.measured_step_s == pytest.approx(3.05)
    assert found.slower_by == pytest.approx(3.05 / found.best.estimate.step_time_s - 1)


def test_a_rate_that_no_gpu_reaches_is_doubted(tmp_path):
    log = tmp_path / "run.log"
    log.write_text(
        " iteration 1/ 9 | elapsed time per iteration (ms): 9000.0 | throughput per GPU (TFLOP/s/GPU): 875.2 |\n",
        encoding="utf-8",
    )
    assert rules(audit_of(log), "measured") == {"rate"}


WITHOUT_MODEL = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --sequence-parallel --bf16 \\
  --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --micro-batch-size 1 --global-batch-size 32
"""


@pytest.fixture
def without_model(tmp_path) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(WITHOUT_MODEL, encoding="utf-8")
    return path


def test_without_a_model_an_audit_says_which_flag_is_missing(without_model):
    found = audit_of(without_model)
    assert found.predicted is None
    assert "--model" in found.job.missing


@pytest.mark.usefixtures("searched_in_nightly")
def test_flags_hold_over_what_a_file_leaves_open(without_model):
    found = audit_of(without_model, model="qwen3-30b-a3b", sequence_length="4096", gpu="h200-sxm")
    assert found.job.request.model.name == "qwen3-30b-a3b"
    assert found.job.request.cluster.nodes[0].gpu == "h200-sxm"
    assert found.job.layout.tp == 4


FINE_TUNED = """\
model_name_or_path: meta-llama/Llama-3.1-8B
cutoff_len: 2048
per_device_train_batch_size: 1
"""


@pytest.mark.usefixtures("searched_in_nightly")
def test_an_adapter_is_priced_as_one_and_an_offload_on_the_host(tmp_path):
    path = tmp_path / "tune.yaml"
    path.write_text(f"{FINE_TUNED}finetuning_type: full\n", encoding="utf-8")
    whole = audit_of(path, gpus="8", gpu="h100-sxm")
    path.write_text(f"{FINE_TUNED}finetuning_type: lora\nlora_rank: 16\n", encoding="utf-8")
    adapted = audit_of(path, gpus="8", gpu="h100-sxm")
    assert adapted.job.request.job.adapter.words == "lora:r=16,targets=attention+mlp"
    assert adapted.predicted.peak_memory_bytes < 0.5 * whole.predicted.peak_memory_bytes
    path.write_text(f"{FINE_TUNED}finetuning_type: full\ndeepspeed: ds_z3_offload.json\n", encoding="utf-8")
    offloaded = tmp_path / "z3.json"
    state = '"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}'
    offloaded.write_text(f'{{"zero_optimization": {{{state}}}}}', encoding="utf-8")
    found = audited(
        read_files([str(path), str(offloaded)]), Flags(gpus="8", gpu="h100-sxm"), load_calibration()
    )
    assert found.job.layout.zero_stage == 3
    assert found.job.request.job.offload.words == "parameters"
    assert found.predicted.peak_memory_bytes < 0.5 * whole.predicted.peak_memory_bytes


def test_modules_of_further_tokens_are_read_and_priced(tmp_path):
    """One module makes the last stage dearer; what uniform recomputation does to it is said, not priced."""
    more = "--position-embedding-type rope --recompute-granularity full --recompute-method uniform "
    more += "--recompute-num-layers 1"
    without = small(tmp_path, nodes=2, pp=4, more=more)
    found = small(tmp_path, nodes=2, pp=4, more=f"{more} --mtp-num-layers 1")
    assert found.job.request is not None
    assert found.job.request.job.mtp_layers == 1
    assert found.predicted.step_time_s > 1.05 * without.predicted.step_time_s
    assert [text for text in found.job.assumed if "MTP" in text] == [
        "modules that predict further tokens (MTP) are priced as kept, not recomputed"
    ]
    counted = [one.set for one in found.changes if any("--recompute-num-layers " in word for word in one.set)]
    assert counted
    assert all("--recompute-method block" in words for words in counted)
