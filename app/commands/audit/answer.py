"""From the flags of `plan audit` to its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from app.errors import BAD_INPUT, FAILED_AUDIT
from app.reports.answer import Answer, note
from app.reports.audit.report import audit_answer
from app.reports.audit.server import server_answer
from app.terminal.progress import waiting
from costmodel.accuracy.anchor import Anchor
from costmodel.accuracy.kept_anchors import remember
from costmodel.calibration.bench_files import MOST_BYTES as RESULT_BYTES
from planner.audit.audit import Audit, audited, calibration_of, stack_level_of_log
from planner.audit.legal import is_illegal
from planner.audit.read import MOST_BYTES, Reading, read_texts, text_of
from planner.audit.serving.load import LOAD_WORDS, is_result
from planner.audit.serving.texts import judged, with_own_load
from planner.questions.flags import Flags, ServeFlags
from planner.serving.plan import ServingPlan, is_serving_plan, serving_from_json
from topology.base.counts import parse_share
from topology.base.errors import InputError
from topology.base.files import read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuestion:
    """The flags of one call; see `app.commands.audit`."""

    files: tuple[str, ...]
    texts: Mapping[str, str] = field(default_factory=dict)
    """Of those that are no file: what was piped, or a command that was typed."""
    env: tuple[str, ...] = ()
    fail_above: str | None = None
    anchor: str | None = None
    load: ServeFlags = field(default_factory=ServeFlags)

    def text(self, path: str, most_bytes: int = int(MOST_BYTES)) -> str:
        """The text of one of the files."""
        return self.texts[path] if path in self.texts else read_text(path, most_bytes)

    def text_with_note(self, path: str) -> tuple[str, str]:
        """The text of one of the files, and what of it was left out."""
        return (self.texts[path], "") if path in self.texts else text_of(path)


def audit_answer_of(question: AuditQuestion, flags: Flags) -> Answer:
    """Read the files, judge them, and tell it."""
    limit = parse_share(question.fail_above, "--fail-above") if question.fail_above else None
    given, results = _variables(question.env), _results(question)
    names, planned = _apart(_without(question.files, results), question)
    if planned is not None and not results:
        question, flags = _as_planned(question, flags, planned)
    texts = {name: question.text_with_note(name.partition("::")[0]) for name in names}
    reading = read_texts({name: text for name, (text, _) in texts.items()}, given)
    reading.doubts.extend(words for _, words in texts.values() if words)
    if reading.family.serves:
        return _server_answer(question, flags, reading, results, given, limit)
    _refuse_load(question, results)
    with waiting("auditing"):
        audit = audited(reading, flags, calibration_of(reading, flags))
    answer = audit_answer(audit)
    if question.anchor is not None:
        note(_kept(audit, question.anchor))
    return replace(answer, exit_code=FAILED_AUDIT) if fails(audit, limit) else answer


_OF_FLEETS = ("plan.json", "loadtest.sh")
"""Files of a folder that `plan serve --save-dir` writes, which say the load that a server is for."""


def _apart(names: Sequence[str], question: AuditQuestion) -> tuple[tuple[str, ...], ServingPlan | None]:
    """The names without a plan of `plan serve` beside them, and that plan: it says a load and GPUs."""
    plans = {
        name: text
        for name in names
        if name.endswith(".json") and is_serving_plan(text := question.text(name, RESULT_BYTES))
    }
    others = tuple(name for name in names if name not in plans)
    if len(plans) != 1 or not others:
        return tuple(names), None
    ((name, text),) = plans.items()
    return others, serving_from_json(text, name)


def _as_planned(question: AuditQuestion, flags: Flags, plan: ServingPlan) -> tuple[AuditQuestion, Flags]:
    """The question with the load of a plan and its GPUs, where nobody said others."""
    load = with_own_load(plan, question.load)
    if load is not question.load:
        note("the load, its limits and the kind of GPU are those of the plan beside the files")
    kinds = dict.fromkeys(pool.layout.gpus or (plan.request.gpu,) for _, pool in plan.pools)
    kind = plan.request.gpu if len(kinds) == 1 and not flags.cluster else None
    return replace(question, load=load), replace(flags, gpu=flags.gpu or kind)


def loads_beside(question: AuditQuestion) -> str:
    """Files beside a named one that say its load and were not named; "" where a load is said."""
    load = question.load
    if load.rate or load.concurrency or load.trace is not None:
        return ""
    named = {Path(name).name for name in question.files}
    folders = dict.fromkeys(Path(name).parent for name in question.files if name not in question.texts)
    lying = [
        name for folder in folders for name in _OF_FLEETS if name not in named and (folder / name).is_file()
    ]
    return ", ".join(dict.fromkeys(lying))


def _server_answer(
    question: AuditQuestion,
    flags: Flags,
    reading: Reading,
    results: Mapping[str, str],
    given: Mapping[str, str],
    limit: float | None,
) -> Answer:
    """Judge a server, and tell it."""
    if question.anchor is not None:
        raise InputError(
            what="the level of a server is not kept by an audit",
            cause=f"--anchor {question.anchor} beside a file that serves",
            fix=f"plan calibrate --serving BENCH.json --name {question.anchor}",
        )
    _refuse_training(flags)
    if not results and (lying := loads_beside(question)):
        note(f"beside it {lying}: named, too, that says the load (plan audit the whole folder)")
    texts = {path: question.text_with_note(path)[0] for path in reading.kinds}  # of long logs their ends
    with waiting("auditing"):
        audit = judged(
            reading,
            texts,
            results,
            question.load,
            given,
            model=flags.model,
            gpu=flags.gpu,
            cluster=flags.cluster,
        )
    _refuse_other_gpus(flags, audit.num_gpus)
    behind = limit is not None and audit.behind_by is not None and audit.behind_by > limit
    answer = server_answer(audit)
    if audit.fits is False or behind:
        return replace(answer, exit_code=FAILED_AUDIT)
    return answer if audit.answers_anything else replace(answer, exit_code=BAD_INPUT)


def _refuse_training(flags: Flags) -> None:
    """Refuse what is said of a training job beside a server."""
    of_server = ("model", "gpu", "gpus", "cluster")
    values = [name for name, value in asdict(flags).items() if value and name not in of_server]
    if values:
        raise InputError(
            what="these files start a server, which trains nothing",
            cause=f"{', '.join(values)}: of a training job",
            fix="say --model, --gpu or --cluster and the load (--rate or --concurrency, --input) alone",
        )


def _refuse_other_gpus(flags: Flags, taken: int | None) -> None:
    """Refuse a number of GPUs that is not the one that the files start a server on."""
    if flags.gpus is None or taken is None or flags.gpus.strip() == str(taken):
        return
    raise InputError(
        what=f"the server is started on {taken} GPU{'s' * (taken > 1)}",
        cause=f"--gpus {flags.gpus}, yet the degrees of the files take {taken}",
        fix=f"leave --gpus out, or change the degrees of the files; plan serve --gpus {flags.gpus} looks for "
        "the best server of those",
    )


def _results(question: AuditQuestion) -> dict[str, str]:
    """What benchmark clients wrote, of these files."""
    texts = {
        path: question.text(path, RESULT_BYTES)
        for path in question.files
        if path.endswith((".json", ".jsonl"))
    }
    return {path: text for path, text in texts.items() if is_result(path, text)}


def _without(files: Sequence[str], results: Mapping[str, str]) -> tuple[str, ...]:
    """Files that say how a job is started."""
    left = tuple(path for path in files if path not in results)
    if files and not left:
        raise InputError(
            what="a measurement alone is no server",
            cause=f"{', '.join(results)}: what a benchmark client wrote",
            fix="name the script that starts the server too, or plan accuracy and plan calibrate for runs",
        )
    return left


def _refuse_load(question: AuditQuestion, results: Mapping[str, str]) -> None:
    """Refuse a load of requests beside a training job."""
    values = [word for word, name in LOAD_WORDS.items() if getattr(question.load, name)]
    if values or results:
        raise InputError(
            what="these files start no server",
            cause=f"{', '.join((*values, *results))}: a load of requests",
            fix="leave it out, or name the script that serves",
        )


def _variables(settings: tuple[str, ...]) -> dict[str, str]:
    """Variables of the environment."""
    variables: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            cause, fix = "it needs a name and a value", "write for example --env NNODES=4"
            raise InputError(f"--env {setting} is no variable", cause, fix)
        variables[name] = value
    return variables


def fails(audit: Audit, limit: float | None) -> bool:
    """Whether a job is to be stopped: it is illegal, does not fit, or is too slow where a limit was given."""
    too_slow = limit is not None and audit.slower_by is not None and audit.slower_by > limit
    return is_illegal(audit.findings) or audit.fits is False or too_slow


def _kept(audit: Audit, name: str) -> str:
    """Keep the level that a log gives its engine; says so."""
    path = remember(Anchor(name=name, levels=(stack_level_of_log(audit, ""),)), name)
    return f"kept as {name} in {path}: plan --anchor {name}"
