"""Evidence in hand: a printed rate is a measurement, a job that ran fits, and what was assumed is doubted first."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from app.commands.audit.answer import fails
from app.reports.audit.report import audit_answer, audit_document
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.layout import layout_words
from planner.audit import audit as audit_module
from planner.audit.audit import Audit, audited, audited_texts
from planner.audit.environment import SLOW, set_variables
from planner.audit.job import audited_job
from planner.audit.logged_gpu import can_be, shown_gpu
from planner.audit.read import read_texts
from planner.audit.residual import Residual
from planner.formats.logs import measured_of
from planner.plan import Plan, PlanRequest
from planner.questions.flags import Flags
from planner.search.infeasible import Infeasible
from planner.search.search import search
from topology.base.errors import InputError
from topology.base.units import GIB
from topology.catalog import gpus

TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""
TITAN_SCRIPT = "torchrun --nnodes 1 --nproc_per_node 8 torchtitan/train.py --job.config_file titan.toml\n"
TITAN_LOG = "[rank0]:[titan] root - INFO - step: {step}  loss: 1.5  memory: 40.00GiB(50.0%)  {rate}\n"
SCRIPT = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu --untie-embeddings-and-output-weights \\
  --seq-length 2048 --micro-batch-size 1 --global-batch-size 128 --bf16 --vocab-size 32000 {more}
"""
RAN = "--use-distributed-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
LOG = (
    " iteration {step}/ 1000 | elapsed time per iteration (ms): {ms} | global batch size: {batch} | {more}\n"
)


@pytest.fixture(autouse=True)
def _searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is searched once for all tests: its best plan is always the same."""
    monkeypatch.setattr(audit_module, "search", _search)


def _search(request: PlanRequest, cal: Calibration, *, or_tight: bool = True) -> Plan | Infeasible:
    """The search, by what is asked."""
    key = repr((request, or_tight))
    if key not in _FOUND:
        _FOUND[key] = search(request, cal, or_tight=or_tight)
    return _FOUND[key]


_FOUND: dict[str, Plan | Infeasible] = {}


def log_of(seconds: float, *, batch: int = 128, more: str = "") -> str:
    """Three steps of a Megatron-LM log."""
    lines = (LOG.format(step=step, ms=1e3 * seconds, batch=batch, more=more) for step in (1, 2, 3))
    return "using world size: 16, data-parallel size: 16\n" + "".join(lines)


def audit(texts: dict[str, str], **flags: str) -> Audit:
    """The audit of texts with flags."""
    return audited(read_texts(texts), Flags(**flags), load_calibration())


def titan_log(rate: str) -> str:
    """Three steps of a torchtitan log."""
    return "".join(TITAN_LOG.format(step=step, rate=rate) for step in (10, 20, 30))


def test_a_rate_is_a_measurement_through_whatever_door_the_job_came() -> None:
    """GPUs of a flag and GPUs of a script: the same step, the same distance, and it is called measured."""
    texts = {"titan.toml": TITAN, "run.log": titan_log("tps: 1,786  tflops: 103.4")}
    flag = audit(texts, gpu="h100-sxm", gpus="8")
    script = audit({**texts, "run.sh": TITAN_SCRIPT}, gpu="h100-sxm")
    assert flag.measured_step_s == pytest.approx(8192 / 1786)
    assert (flag.measured_step_s, flag.slower_by) == (script.measured_step_s, script.slower_by)
    assert flag.basis == "measured"
    assert audit({"titan.toml": TITAN}, gpu="h100-sxm", gpus="8").basis == "predicted"
    rows = dict(pair for section in audit_answer(flag).sections for pair in getattr(section, "pairs", ()))
    assert "measured against predicted" in rows["distance"]
    assert "from 1,786 tokens/s per GPU" in rows["measured"]
    assert audit_document(flag)["basis"] == "measured"


@pytest.mark.parametrize(
    "rate", ["tps: 1,000  mfu: 5 %", "wps: 1,000  mfu: 5 %", "tps: 1,000", "tflops: 51.5  mfu: 5 %"]
)
def test_a_rate_that_says_how_fast_is_never_left_out(rate: str) -> None:
    """In tokens or in operations: the step of 8,192 tokens on each of eight GPUs."""
    found = audit({"titan.toml": TITAN, "run.log": titan_log(rate)}, gpu="h100-sxm", gpus="8")
    assert found.measured_step_s == pytest.approx(8.192, rel=0.1)


def test_what_a_step_and_its_rate_mean_together_is_read() -> None:
    """Tokens a second, a step and a batch are a length; it is derived, and stands among the facts."""
    said = "average overall token/sec : 69662.4 | average token/sec/GPU : 8707.8"
    reading = read_texts({"run.log": log_of(15.088, batch=256, more=said)})
    fact = reading.facts.by_field["job.sequence_length"]
    assert (fact.value, fact.how) == (4096 + 64 * round((69662.4 * 15.088 / 256 - 4096) / 64), "derived")


def test_tokens_that_no_gpu_computes_are_a_finding_and_no_distance() -> None:
    """372 TFLOP/s of a 7B model on a GPU of 312: it is not this job, and is not compared."""
    said = "average token/sec/GPU : 8707.8"
    log = log_of(15.088 / 2, more=said).replace("world size: 16, data-parallel size: 16", "world size: 8")
    found = audit({"run.log": log}, model="llama-2-7b", gpu="a100-sxm-80gb", sequence_length="4096")
    assert [finding.rule for finding in found.findings if finding.kind == "measured"] == ["pace"]
    assert "tokens/s per GPU are" in next(f.message for f in found.findings if f.rule == "pace")
    assert found.slower_by is None


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("memory", ["", "max allocated: 9000.0"])
def test_a_job_that_ran_fits_whatever_is_predicted(memory: str) -> None:
    """Full states on a GPU of 40 GB do not fit by any prediction, and the log shows steps."""
    alone = audit({"run.sh": SCRIPT.format(more="")}, gpu="a100-sxm-40gb")
    assert (alone.fits, fails(alone, None)) == (False, True)
    ran = audit({"run.sh": SCRIPT.format(more=""), "run.log": log_of(9.0, more=memory)}, gpu="a100-sxm-40gb")
    assert (ran.fits, fails(ran, None)) == (True, False)
    assert ran.memory is not None
    assert (ran.memory.basis, ran.memory.chance) == ("measured", 0.0)
    assert audit_document(ran)["verdict"]["word"] == "fits"


def test_chances_of_oom_are_judged_at_the_level_of_a_printed_peak() -> None:
    """Half of what is predicted is half for its neighbours too; a peak that is of no such job moves nothing."""
    script = SCRIPT.format(more=RAN)
    alone = audit({"run.sh": script}, gpu="a100-sxm-40gb")
    assert alone.predicted is not None
    mib = alone.predicted.peak_memory_bytes / 2**20
    widest = (alone.predicted.memory_upper_bytes / alone.predicted.peak_memory_bytes) ** 2
    for ratio, level in (
        (0.98 * widest, 0.98 * widest),
        (1 / widest / 0.98, 1 / widest / 0.98),
        (1.1 * widest, 1.0),
    ):
        log = log_of(9.0, more=f"max allocated: {ratio * mib}")
        found = audit({"run.sh": script, "run.log": log}, gpu="a100-sxm-40gb")
        assert found.memory_level == pytest.approx(level, rel=1e-3)
        assert found.best is not None
        chance = found.best.estimate.out_of_memory_chance
        assert chance < 0.05 or found.best.estimate.peak_memory_bytes <= found.predicted.peak_memory_bytes  # type: ignore[union-attr]


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_log_that_ran_out_of_memory_is_evidence_too() -> None:
    """Whatever is predicted: the line is named, and the exit code follows."""
    text = log_of(9.0) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    found = audit({"run.sh": SCRIPT.format(more=RAN), "run.log": text}, gpu="h100-sxm")
    assert (found.fits, fails(found, None)) == (False, True)
    assert "line 5" in found.evidence[0]


def test_a_peak_beyond_the_gpu_says_that_it_is_another() -> None:
    """Of a GPU that is named it is a finding; of one that is assumed another is taken that holds the peak."""
    texts = {"run.sh": SCRIPT.format(more=RAN), "run.log": log_of(9.0, more="max allocated: 140000.0")}
    named, guessed = audit(texts, gpu="h100-sxm"), audit(texts)
    assert [finding.rule for finding in named.findings if finding.rule == "printed-peak"]
    assert any("GPUs are h200-sxm: the log prints a peak of" in doubt for doubt in guessed.doubts)


@pytest.mark.parametrize("gpu", ["v100-sxm-32gb", "a100-sxm-80gb", "b200-sxm"])
def test_an_assumed_gpu_is_doubted_first_and_the_one_that_fits_is_named(gpu: str) -> None:
    """The step of another GPU, and nobody says which it was: that one is among those named, with its band."""
    script = SCRIPT.format(more=RAN).replace("--bf16", "--fp16").replace("--num-layers 32", "--num-layers 16")
    there = audit({"run.sh": script}, gpu=gpu)
    assert there.predicted is not None
    found = audit({"run.sh": script, "run.log": log_of(there.predicted.step_time_s)})
    assert found.residual is not None
    if found.residual.is_explained:
        pytest.skip(f"the assumed GPU is as fast as {gpu} here")
    assert found.residual.refutes
    assert gpu in [one.value for one in found.residual.candidates]
    answer = audit_answer(found)
    assert found.doubted[0] in getattr(answer.sections[0], "lines", ())[0]
    assert "is assumed; with " in found.residual.words[0]
    assert (found.slower_by, found.changes) == (None, ())


SHARES = (
    "[rank0]:[titan] root - INFO - step: {step}  loss: 8.0  memory: {used:.2f}GiB({share:.2f}%)  tps: 893  "
    "tflops: {rate:.2f}  mfu: {mfu:.2f}%\n"
)


@pytest.mark.parametrize(
    ("gpu", "of"), [("h100-sxm", 79.1), ("a100-sxm-40gb", 39.5), ("h200-sxm", 139.8), ("mi300x", 191.7)]
)
def test_a_log_that_prints_shares_of_its_gpu_says_which_it_is(gpu: str, of: float) -> None:
    """A peak over its share is the GPU's memory, a rate over its MFU the GPU's peak; no other is suspected."""
    peak = gpus()[gpu].peak("bf16") / 1e12
    numbers = {"used": 0.77 * of, "share": 77.0, "rate": 0.416 * peak, "mfu": 41.6}
    log = measured_of("".join(SHARES.format(step=10 * step, **numbers) for step in (1, 2, 3)))[0]
    assert log.gpu_memory_bytes == pytest.approx(of * GIB, rel=1e-3)
    assert log.gpu_peak_flop_per_s == pytest.approx(peak * 1e12, rel=1e-3)
    assert shown_gpu(log, "h100-sxm") == gpu
    alike = {name for name, each in gpus().items() if can_be(each, log, gpus()["h100-sxm"])}
    assert gpu in alike
    assert all(abs(gpus()[name].peak("bf16") / 1e12 / peak - 1) <= 0.03 for name in alike)


MAXTEXT_LINE = (
    "completed step: {step}, seconds: 4.121, TFLOP/s/device: 250.1, Tokens/s/device: 3975.3, loss: 10.2\n"
)
OF_SEVERAL = "step: {step}  loss: 1.5  tps: 1,786\n"


@pytest.mark.parametrize(
    ("line", "engine"), [(SHARES, "torchtitan"), (MAXTEXT_LINE, "MaxText"), (OF_SEVERAL, "shell variables")]
)
def test_a_step_that_one_engine_prints_so_names_it(line: str, engine: str) -> None:
    """No launch file is there, and none of its sentences; what several print names nobody."""
    numbers = {"used": 61.2, "share": 77.3, "rate": 412.1, "mfu": 41.6}
    log = "".join(line.format(step=10 * step, **numbers) for step in (1, 2, 3))
    assert read_texts({"run.log": log}).family.name == engine


MANIFEST = """name: ft
resources:
  accelerators: A100-80GB:8
num_nodes: 2
run: |
  torchrun --nnodes 2 --nproc_per_node 8 \\
    -m axolotl.cli.train ax_fft.yml
"""


def test_a_manifest_whose_command_is_handed_a_configuration_asks_for_it_as_a_script_does() -> None:
    """Its own keys are those of machines alone."""
    script = "torchrun --nnodes 2 --nproc_per_node 8 -m axolotl.cli.train ax_fft.yml\n"
    for name, text in (("sky.yaml", MANIFEST), ("run.sh", script)):
        job = audited_job(read_texts({name: text}), Flags())
        assert job.missing == ("a job of an engine that is known: name ax_fft.yml too",)


def test_a_log_that_shows_no_figure_leads_to_no_other_maker() -> None:
    """Its steps alone are like those of many."""
    log = measured_of(log_of(9.0))[0]
    assert shown_gpu(log, "h100-sxm") == ""
    assert not can_be(gpus()["mi350x"], log, gpus()["h100-sxm"])
    assert can_be(gpus()["b200-sxm"], log, gpus()["h100-sxm"])


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_gpu_that_the_user_named_is_not_doubted() -> None:
    """Nothing is assumed: the rest is explained by no flag, in seconds."""
    script = SCRIPT.format(more=RAN)
    plain = audit({"run.sh": script}, gpu="h100-sxm")
    assert plain.predicted is not None
    slow = audit({"run.sh": script, "run.log": log_of(3 * plain.predicted.step_time_s)}, gpu="h100-sxm")
    assert slow.residual is not None
    assert slow.residual.candidates == ()
    assert slow.residual.open_s == pytest.approx(2 * plain.predicted.step_time_s)
    assert "are explained by none of your flags" in slow.residual.words[-1]
    inside = audit({"run.sh": script, "run.log": log_of(plain.predicted.step_time_s)}, gpu="h100-sxm")
    assert inside.residual is not None
    assert inside.residual.words == (inside.residual.words[0],)
    assert "nothing is left to explain" in inside.residual.words[0]


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_variable_that_slows_a_job_is_the_first_suspect() -> None:
    """It is a finding, and what no flag explains points to it."""
    script = SCRIPT.format(more=RAN)
    plain = audit({"run.sh": script}, gpu="h100-sxm")
    assert plain.predicted is not None
    texts = {
        "run.sh": "export NCCL_P2P_DISABLE=1\n" + script,
        "run.log": log_of(3 * plain.predicted.step_time_s),
    }
    found = audit(texts, gpu="h100-sxm")
    assert "nccl-p2p-disable" in {finding.rule for finding in found.findings if finding.kind == "slow"}
    assert found.residual is not None
    assert "NCCL_P2P_DISABLE is 1 may be the cause" in found.residual.words[-1]


FORMS = (
    "export {name}={value}", "{name}={value} torchrun x.py", 'export {name}="{value}"', "export {name}=${{X:-{value}}}",
    "#SBATCH --export=ALL,{name}={value}", "mpirun -x {name}={value} python x.py", 'os.environ["{name}"] = "{value}"',
    "env:\n- name: {name}\n  value: '{value}'", "  {name}: '{value}'", 'environment = {{"{name}": "{value}"}}',
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("variable", SLOW, ids=lambda one: one.name)
def test_a_variable_is_seen_in_every_form_in_which_files_set_it(variable: object, form: str) -> None:
    """Scripts, schedulers, launchers, programs and manifests; a comment and what is unset again are nothing."""
    name, value = variable.name, variable.values[0]  # type: ignore[attr-defined]
    text = form.format(name=name, value=value)
    assert str(set_variables(text, "x")[name].value).lower() == value
    assert set_variables("\n".join(f"# {line}" for line in text.split("\n")), "x") == {}
    assert set_variables(f"{text}\nunset {name}", "x") == {}


@pytest.mark.parametrize("value", ["0", "false"])
def test_a_variable_that_is_off_is_no_finding(value: str) -> None:
    """NCCL_P2P_DISABLE=0 disables nothing."""
    text = f"export NCCL_P2P_DISABLE={value}\n" + SCRIPT.format(more=RAN)
    assert not [
        one for one in audit({"run.sh": text}, gpu="h100-sxm").findings if one.rule.startswith("nccl")
    ]


@pytest.mark.usefixtures("searched_in_nightly")
def test_the_network_of_one_node_is_not_slowed_down() -> None:
    """NCCL_IB_DISABLE matters between nodes alone."""
    both = [
        audit(
            {"run.sh": f"export NCCL_IB_DISABLE=1\n{SCRIPT.format(more=RAN).replace('--nnodes 2', nodes)}"},
            gpu="h100-sxm",
        )
        for nodes in ("--nnodes 1", "--nnodes 2")
    ]
    assert [any(f.rule == "nccl-ib-disable" for f in one.findings) for one in both] == [False, True]


@pytest.mark.usefixtures("searched_in_nightly")
def test_does_not_fit_needs_all_that_decides_it_stated() -> None:
    """The GPU that nobody named may be a larger one: the job may not fit, and no exit code says more."""
    texts = {"run.sh": SCRIPT.format(more="")}
    named, guessed = audit(texts, gpu="a100-sxm-40gb"), audit(texts)
    assert (named.fits, fails(named, None)) == (False, True)
    assert guessed.memory is not None
    assert guessed.memory.word != "does not fit"
    assert not fails(guessed, None)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("gpu", "fails_with"), [("a100-sxm-40gb", True), ("h100-sxm", False)])
def test_a_vocabulary_that_nobody_states_is_at_least_that_of_bytes(gpu: str, fails_with: bool) -> None:
    """States that fill a GPU without any embedding do not fit; where its size would decide, it is not settled."""
    words = SCRIPT.format(more="").replace("--vocab-size 32000", "")
    found = audit({"run.sh": words}, gpu=gpu)
    assert found.memory is not None
    assert any("vocabulary" in one for one in found.memory.why) or found.memory.word != "not settled"
    assert fails(found, None) is fails_with or found.memory.word == "does not fit"
    lean = audit({"run.sh": words.replace("--num-layers 32", "--num-layers 4")}, gpu=gpu)
    assert not fails(lean, None)


@pytest.mark.usefixtures("searched_in_nightly")
def test_an_illegal_job_fails_without_a_limit() -> None:
    """It never starts; a variable that may be set elsewhere is no such thing."""
    illegal = audit({"run.sh": SCRIPT.format(more="--tensor-model-parallel-size 3")}, gpu="h100-sxm")
    assert fails(illegal, None)
    text = SCRIPT.format(more=f"--tensor-model-parallel-size 2 {RAN}").partition("\n")[2]
    elsewhere = audit({"run.sh": text}, gpu="h100-sxm")
    assert [one.kind for one in elsewhere.findings if one.rule == "cuda-connections"] == ["open"]
    assert not fails(elsewhere, None)


@pytest.mark.parametrize("name", ["train.log", "slurm-7.out"])
def test_a_log_without_a_step_is_told_which_forms_are_known(name: str) -> None:
    """It is never a broken configuration; beside a launch file it is a doubt."""
    text = "[rank0]: {hello: world\n1: [rank0]: key: value: x\n"
    with pytest.raises(InputError, match="no line of a step was recognised") as refused:
        read_texts({name: text})
    assert "torchtitan" in refused.value.cause
    beside = read_texts({name: text, "run.sh": SCRIPT.format(more=RAN)})
    assert any("no line of a step was recognised" in doubt for doubt in beside.doubts)


@pytest.mark.usefixtures("searched_in_nightly")
def test_what_the_question_beside_says_is_assumed() -> None:
    """On a page the question's GPU is nobody's word of this job."""
    script = SCRIPT.format(more=RAN)
    there = audit({"run.sh": script}, gpu="a100-sxm-80gb")
    assert there.predicted is not None
    texts = {"run.sh": script, "run.log": log_of(there.predicted.step_time_s)}
    found = audited_texts(texts, Flags(gpu="h100-sxm", gpus="16", model="70b", sequence_length="2048"))
    assert found.residual is not None
    assert "a100-sxm-80gb" in [one.value for one in found.residual.candidates]


def test_the_best_says_what_its_proof_is_worth() -> None:
    """Measured runs of its engine on its generation, beside the word proven."""
    found = audit({"run.sh": SCRIPT.format(more=RAN)}, gpu="h100-sxm")
    rows = dict(pair for section in audit_answer(found).sections for pair in getattr(section, "pairs", ()))
    assert "measured run" in rows["evidence"]
    assert "both predicted" in rows["distance"]


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("factor", "blames"), [(0.75, "prediction"), (0.1, "another job")])
def test_a_step_is_blamed_on_its_log_only_far_outside_the_band(factor: float, blames: str) -> None:
    """A band holds 80 % of the measurements: one near it says that the prediction is off."""
    estimate = replace(
        audit({"run.sh": SCRIPT.format(more=RAN)}, gpu="h100-sxm").predicted,
        step_time_s=1.0,
        lower_s=0.8,
        upper_s=1.25,
    )
    (words,) = Residual(measured_s=factor, predicted=estimate).words
    assert blames in words


@pytest.mark.parametrize("level", [1.0, 1.1])
@pytest.mark.parametrize("more", ["", "--attention-dropout 0.0 --hidden-dropout 0.0"])
def test_a_certificate_is_of_the_room_and_the_formats_beside_it(level: float, more: str) -> None:
    """A best plan that was searched in other room or formats says so wherever it says proven."""
    script = {"run.sh": SCRIPT.format(more=f"--tensor-model-parallel-size 2 {RAN} {more}")}
    alone = audit(script, gpu="h100-sxm")
    assert alone.predicted is not None
    peak = level * alone.predicted.peak_memory_bytes / 2**20
    found = audit(script | {"train.log": log_of(9.0, more=f"max allocated: {peak}")}, gpu="h100-sxm")
    best, proof = found.best, found.proof
    assert best is not None
    free = best.request.memory_headroom
    said = re.search(r"leave ([0-9.]+) % of memory free", proof)
    assert (said is None) is (free is None) is (level == 1)
    if said is not None and free is not None:
        assert float(said[1]) / 100 == pytest.approx(free, abs=5e-4)
    assert ("priced in the file's" in proof) is (not more)  # whose dropout is 0.1
    assert ("where it takes" in proof) is (free is not None and not more)  # the room is of those formats
    assert proof.startswith(best.optimality.status)
    (times,) = (section for section in audit_answer(found).sections if section.title == "Times")
    assert dict(times.pairs)["best"].endswith(proof)
    assert audit_document(found)["best"]["proof"] == proof


def test_a_best_plan_without_words_of_its_engine_is_no_change_to_set() -> None:
    """Its layout is named, and that nobody here knows how the engine is told it: tensor ranks of the Trainer."""
    script = """torchrun --nproc_per_node 8 --nnodes 2 train.py --model_name_or_path meta-llama/Meta-Llama-3-70B --bf16 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --max_seq_length 10240 \\
    --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer
"""
    found = audit({"run.sh": script}, gpu="h200-sxm")
    (whole,) = (change for change in found.changes if change.whole)
    assert not whole.set
    assert not whole.remove
    assert found.best is not None
    (table,) = (section for section in audit_answer(found).sections if section.title == "Changes")
    (row,) = (row for row in table.rows if row[3] == "all")
    assert row[4].startswith(f"{layout_words(found.best.layout)}: how ")
    assert row[4].endswith(" is told it is not known here")


def test_a_trainer_is_told_a_whole_plan_that_keeps_its_batch() -> None:
    """A microbatch of two without accumulation: six sequences a step, as before."""
    script = """deepspeed --num_gpus 3 src/train_bash.py --deepspeed z3.json --stage sft --do_train \\
    --model_name_or_path meta-llama/Meta-Llama-3-8B-Instruct --template default --finetuning_type lora \\
    --lora_target q_proj,v_proj --cutoff_len 1024 --per_device_train_batch_size 1 \\
    --gradient_accumulation_steps 2 --fp16
"""
    ds = '{"fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}'
    found = audit({"run.sh": script, "z3.json": ds}, gpu="a100-sxm-80gb")
    (whole,) = (change for change in found.changes if change.whole)
    assert {"--per_device_train_batch_size 2", "--gradient_accumulation_steps 1"} <= set(whole.set)
    assert "zero_optimization.stage: 0" in whole.set


NAMED_GPU = "# 2 nodes of 8 x A100-SXM4-80GB\n"


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_slow_log_is_not_blamed_on_a_gpu_that_its_file_names() -> None:
    """What joins the nodes is: an A100 that a comment names is no workstation card, nor any other GPU."""
    script = NAMED_GPU + SCRIPT.format(more=RAN)
    plain = audit({"run.sh": script})
    assert plain.predicted is not None
    found = audit({"run.sh": script, "run.log": log_of(4 * plain.predicted.step_time_s)})
    assert found.residual is not None
    assert (found.residual.candidates, found.residual.unstated) == ((), ())
    assert "none of your flags" in found.residual.words[0]


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_log_that_says_nothing_of_its_gpu_is_of_no_number_of_workstations() -> None:
    """Nodes whose GPUs are assumed to be joined: no card of PCIe alone is named, and the GPU is doubted."""
    script = SCRIPT.format(more=RAN)
    plain = audit({"run.sh": script})
    assert plain.predicted is not None
    found = audit({"run.sh": script, "run.log": log_of(4 * plain.predicted.step_time_s)})
    assert found.residual is not None
    assert all(one.is_linked for one in found.residual.candidates)
    assert "the GPU (h100-sxm)" in found.residual.words[0]


@pytest.mark.usefixtures("searched_in_nightly")
def test_nothing_follows_from_a_first_step_that_is_longer() -> None:
    """It compiles and allocates; a later one alone is a measurement."""
    script, line = SCRIPT.format(more=RAN), LOG.format(step="{step}", ms=3e4, batch=128, more="")
    first, later = (audit({"run.sh": script, "run.log": line.format(step=step)}) for step in (1, 9))
    assert first.residual is not None
    assert later.residual is not None
    assert (first.residual.says_nothing, later.residual.says_nothing) == (True, False)
    assert (first.slower_by, first.residual.candidates, first.doubted) == (None, (), ())
    assert "warms up" in first.residual.words[0]


OVER_TCP = "n1:7:9 [0] NCCL INFO Using network Socket\n"


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("nodes", "says"), [("--nnodes 2", True), ("--nnodes 1", False)])
def test_a_log_whose_nodes_are_joined_by_sockets_says_so_first(nodes: str, says: bool) -> None:
    """Of one node NCCL prints the same line, and exchanges nothing over it."""
    script = NAMED_GPU.replace("2 nodes of ", "") + SCRIPT.format(more=RAN).replace("--nnodes 2", nodes)
    found = audit({"run.sh": script, "run.log": OVER_TCP + log_of(30.0).partition("\n")[2]})
    assert ("tcp-between-nodes" in {finding.rule for finding in found.findings}) == says
    assert found.residual is not None
    assert ("NCCL over TCP may be the cause" in " ".join(found.residual.words)) == says


WIDE = "using torch.float32 for parameters ...\n"


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("written", "printed", "wide"),
    [
        ("", "", True),
        ("", WIDE, True),
        ("", WIDE.replace("float32", "bfloat16"), False),
        ("--bf16", "", False),
        ("--fp16", "", False),
        ("$MORE", "", False),
        ("$MORE", WIDE, True),
    ],
)
def test_megatron_trains_in_fp32_where_nobody_asks_for_less(written: str, printed: str, wide: bool) -> None:
    """It is what slows the job down; of a command that is not whole the log decides."""
    script = SCRIPT.format(more=RAN).replace("--bf16", written)
    texts = {"run.sh": script, "run.log": printed + log_of(90.0)}
    found = audit(texts, gpu="a100-sxm-80gb")
    named = [finding for finding in found.findings if finding.rule == "full-precision"]
    assert bool(named) is wide
    assert found.residual is not None
    assert ("fp32 may be the cause" in found.residual.words[-1]) is wide
    assert [finding.fix for finding in named] == ["--bf16"] * wide
    if wide and not printed:
        alone = audit({"run.sh": script}, gpu="a100-sxm-80gb").memory
        assert alone is not None
        assert (alone.word, alone.fits) == ("not settled", None)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("gpu", "slow", "open_words"),
    [("rtx-4090", False, ""), ("a100-sxm-80gb", True, ""), ("", True, "not on GeForce cards")],
)
def test_peers_that_are_none_lose_nothing_without_each_other(gpu: str, slow: bool, open_words: str) -> None:
    """GeForce cards write into no other's memory: accelerate asks for what an A100 loses by."""
    text = "export NCCL_P2P_DISABLE=1\n" + SCRIPT.format(more=RAN).replace("--nnodes 2", "--nnodes 1")
    found = audit({"run.sh": text}, **({"gpu": gpu} if gpu else {}))
    named = [one for one in found.findings if one.rule == "nccl-p2p-disable"]
    assert bool(named) is slow
    assert all(open_words in one.fix for one in named)
    assert all(("GeForce" in one.fix) == bool(open_words) for one in named)


MENTION = "# 8 x NVIDIA H100 80GB\n"


@pytest.mark.parametrize(
    ("gib", "gpu"), [(79.1, "h100-sxm"), (95.0, "h100-sxm-96gb-hbm2e"), (12.0, "h100-sxm")]
)
def test_a_figure_that_the_log_prints_holds_over_a_mention(gib: float, gpu: str) -> None:
    """It is of the GPU itself; a card of that generation is taken first, and the mention where none is."""
    lines = (
        f"[titan] root - INFO - step: {step}  loss: 8.0  memory: {0.8 * gib:.2f}GiB(80.00%)  tps: 893\n"
        for step in (10, 20, 30)
    )
    reading = read_texts({"titan.toml": MENTION + TITAN, "run.log": "".join(lines)})
    request = audited_job(reading, Flags(gpus="8")).request
    assert request is not None
    assert request.cluster.nodes[0].gpu == gpu


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. GPU 0 has a total capacity of {gib} GiB of which 1 GiB is free.\n"


@pytest.mark.parametrize(
    ("gib", "gpu"), [("79.11", "h100-sxm"), ("139.8", "h200-sxm"), ("1.2.3", "h100-sxm")]
)
def test_an_allocation_that_fails_says_what_its_gpu_has(gib: str, gpu: str) -> None:
    """Where no file names one."""
    reading = read_texts({"titan.toml": TITAN, "run.log": OUT_OF_MEMORY.format(gib=gib)})
    request = audited_job(reading, Flags(gpus="8")).request
    assert request is not None
    assert request.cluster.nodes[0].gpu == gpu


WATCHDOG = (
    "[rank3]:[E301 1:2:3 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=2, NumelOut=2, Timeout(ms)=600000) ran for 600020 milliseconds "
    "before timing out.\n"
)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("steps", "when"), [("", "before its first step"), (log_of(9.0), "after its steps")])
def test_a_collective_that_timed_out_is_said_first(steps: str, when: str) -> None:
    """Which one, of which rank and for how long, with its line; nothing hung where none is printed."""
    script = SCRIPT.format(more=RAN)
    found = audit({"run.sh": script, "run.log": f"training ...\n{steps}{WATCHDOG}"}, gpu="h100-sxm")
    line = 2 + steps.count("\n")
    assert f"it hung {when}: rank 3 waited 600 s for ALLREDUCE 41 (line {line} of the log)" in found.hang
    assert getattr(audit_answer(found).sections[0], "lines", ())[0] == found.hang
    assert audit({"run.sh": script, "run.log": log_of(9.0)}, gpu="h100-sxm").hang == ""


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("value", "nodes", "settings", "idle"),
    [
        ("mlx5_0", 2, (), True), ("=mlx5_0:1,mlx5_1:1", 2, (), True), ("mlx5", 2, (), False),
        ("^mlx5_0", 2, (), False), (",".join(f"mlx5_{at}" for at in range(8)), 2, (), False),
        ("mlx5_0", 1, (), False), ("mlx5_bond_0", 2, (), False),
        ("mlx5_0", 2, ("cluster.nics_per_node=1",), False),
    ],
)  # fmt: skip
def test_nics_that_are_left_idle_are_counted(
    value: str, nodes: int, settings: tuple[str, ...], idle: bool
) -> None:
    """One of eight slows every node down; who has one says so, and is priced with it."""
    script = SCRIPT.format(more=RAN).replace("--nnodes 2", f"--nnodes {nodes}")
    flags = Flags(gpu="h100-sxm", settings=settings)
    found = audited(
        read_texts({"run.sh": f"export NCCL_IB_HCA={value}\n{script}"}), flags, load_calibration()
    )
    assert ("fewer-nics" in {finding.rule for finding in found.findings}) is idle
