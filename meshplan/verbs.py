"""The verbs of the library on training plans; each answers with a value, or raises an `InputError`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.kernels.saved import calibration_for
from planner.analysis.diff import PlanDiff
from planner.analysis.diff import diff as compared
from planner.analysis.explain import Explanation
from planner.analysis.explain import explain as explained
from planner.analysis.ladder import Knob, Ladder, climbed, names_layout, with_best
from planner.analysis.sweep import Point, points_of, run_points, with_efficiency
from planner.plan import Plan, PlanRequest, from_json, write_plans_with
from planner.questions.flags import Flags
from planner.questions.traced import of_a_module, of_samples
from planner.questions.training import MOST_GPUS
from planner.questions.words import (
    GridWords,
    JobWords,
    Model,
    SearchWords,
    flags_of,
    request_of,
    require_known,
    understood,
)
from planner.rules.verdict import illegal, require_room
from planner.search.given_layout import plan_of_layout
from planner.search.infeasible import Infeasible, no_plan
from planner.search.search import search
from planner.search.verified import verified
from topology.base.counts import parse_count
from topology.base.files import read_text

if TYPE_CHECKING:
    from executor.validation.report import ValidationReport
    from planner.diagnose.beside import SideEvidence
    from planner.diagnose.diagnosis import Diagnosis

__all__ = [
    "Plan",
    "PlanRequest",
    "diagnose",
    "diff",
    "estimate",
    "explain",
    "ladder",
    "plan",
    "plan_module",
    "sweep",
    "validate",
]


def _markdown(plan: Plan) -> str:
    """A plan as text; what writes it is imported when a notebook asks."""
    from app.reports.notebook import markdown

    return markdown(plan)


def _html(plan: Plan) -> str:
    """A plan as a page, likewise."""
    from app.reports.notebook import html

    return html(plan)


write_plans_with(markdown=_markdown, html=_html)


def plan(model: Model | PlanRequest, **words: Unpack[SearchWords]) -> Plan:
    """The best plan for a training job, as `plan train` finds it, with the proof that nothing is better.

    With `tokens` it has a campaign: when the run is finished. Where published failures make that impossible
    it has none; where a file of one's own does, that is an error.

    >>> plan("8b", gpus=8, seq="4k", set={"layout.tp": 2}, top=1).layout.tp
    2

    Args:
        model: a name, the path of a config.json, a value; or a whole request, without words.
        words: see `planner.questions.words.SearchWords`.

    Raises:
        NoFeasiblePlanError: there is none; its `answer` is the `Infeasible` that says why and what helps.
        InputError: a word is not understood.
    """
    require_known(words, SearchWords)
    return _with_campaign(request_of(model, _of_a_step(words), SearchWords), words)


def plan_module(module: Any, example_inputs: Any, *, name: str = "", **words: Unpack[SearchWords]) -> Plan:
    """The best plan for training a torch module, as `plan --module` finds it. Needs the extra `run` (torch).

    The module is copied without its weights and run once forward, in this process and on no device.

    Args:
        module: a `torch.nn.Module` on any device; it is not changed.
        example_inputs: the tensors of its `forward`, the batch first, or their sizes as text
            (``"8x3x224x224"``, ``"8x128:long"``); microbatches of the plan may be larger or smaller.
        name: what to call the model; by default its class.
        words: see `planner.questions.words.SearchWords`; `batch` counts samples.

    Raises:
        NoFeasiblePlanError: there is none; its `answer` is the `Infeasible` that says why and what helps.
        InputError: it cannot be traced, with the line of its code; or a word is not understood.
    """
    from app.extras import require_torch
    from costmodel.ops.module_spec import spec_of_module

    require_torch("meshplan.plan_module")
    from executor.tracing.trace import trace_given

    require_known(words, SearchWords)
    given = _of_a_step(words)
    table = trace_given(module, example_inputs, name=name)
    model = spec_of_module(table)
    asked = of_samples(of_a_module(flags_of(model, given, SearchWords)), table)
    return _with_campaign(understood(model, asked, given), words)


def estimate(model: Model | PlanRequest, **words: Unpack[JobWords]) -> Plan:
    """What one given layout costs, as `plan estimate` writes it; also of one that does not fit.

    Args:
        model: as for `plan`.
        words: see `planner.questions.words.JobWords`; `layout` or `set` say what is known of the layout.

    Raises:
        NoFeasiblePlanError: it breaks a rule; its `answer` is the tuple of violations.
    """
    request = request_of(model, dict(words), JobWords)
    result = plan_of_layout(request, calibration_for(request.cluster))
    if isinstance(result, tuple):
        raise illegal(result)
    return result


def explain(plan: Plan | str | Path) -> Explanation:
    """What binds a plan, why the runner-up lost, which single change would help most.

    Args:
        plan: a plan, or the path of one that `plan --json` wrote.
    """
    result = _read(plan)
    return explained(result, calibration_for(result.request.cluster))


def sweep(model: Model, **words: Unpack[GridWords]) -> list[Point]:
    """The best plan at every point of a grid; points without one say why.

    Args:
        model: as for `plan`.
        words: see `planner.questions.words.GridWords`; `[point.row() for point in …]` is a table for pandas.
    """
    given = dict(words)
    points = points_of(flags_of(model, given, GridWords))
    return list(with_efficiency(run_points((understood(model, point, given) for point in points), _search)))


def ladder(model: Model, *, knob: Knob = "length", **words: Unpack[JobWords]) -> Ladder:
    """How far one knob goes before a layout no longer fits, and the switches that take it further.

    >>> ladder("8b", gpus=8, seq="4k", batch=64, set={"layout.zero_stage": 1}, knob="gpus").knob
    'gpus'

    Args:
        model: as for `plan`.
        knob: ``length``, ``microbatch``, ``rank`` (of an adapter), or ``gpus`` (fewer of them).
        words: see `planner.questions.words.JobWords`; `layout` or `set` say what is known of the layout.

    Raises:
        InputError: a word is not understood, or there is no adapter whose rank could grow.
    """
    given = dict(words)

    def priced(flags: Flags) -> Plan:
        request = understood(model, flags, given)
        answer = plan_of_layout(request, calibration_for(request.cluster))
        if isinstance(answer, tuple):
            raise illegal(answer)
        return answer

    flags = flags_of(model, given, JobWords)
    climb = climbed(flags, knob, priced)
    if given.get("layout") is not None or names_layout(flags) or climb.refused:
        return climb
    request = understood(model, flags, given)
    best = search(request, calibration_for(request.cluster))
    return with_best(climb, flags, best, priced) if isinstance(best, Plan) else climb


def diff(first: Plan | str | Path, second: Plan | str | Path) -> PlanDiff:
    """What two plans chose differently, and every estimated quantity of both."""
    return compared(_read(first), _read(second))


def diagnose(
    *files: str | Path, step: int | None = None, model: Model | None = None, **words: Unpack[JobWords]
) -> Diagnosis | SideEvidence:
    """Say where the time of recorded steps went, as `plan diagnose` does.

    Without a trace it is what the other records explain: who hangs, who is slow, what memory lacks.

    Args:
        files: Traces of one or many ranks, with the script, plan or log of the job among them.
        step: The one step that is looked at, by its number.
        model: As for `plan`, where no file says it.
        words: What is said of the job beside its files.
    """
    from app.analysis.diagnose import DiagnoseQuestion, diagnosis_of

    flags = Flags() if model is None else flags_of(model, dict(words), JobWords)
    return diagnosis_of(DiagnoseQuestion(files=tuple(map(Path, files)), step=step), flags)[0]


def validate(plan: Plan | str | Path) -> ValidationReport:
    """Check a plan on this machine: one verdict on each claim. Needs the extra `run` (torch)."""
    from app.actions.planned_checks import planned_checks
    from app.extras import require_torch

    room = require_room(_read(plan))
    require_torch("meshplan.validate")
    from executor.validation.validate import validate as checked

    return checked(room, planned_checks(room), lambda _begun: None)


OF_A_CAMPAIGN = ("failures", "min_gpus")
"""Words of a search that the run to its last token reads, and no step."""


def _of_a_step(words: Mapping[str, Any]) -> dict[str, Any]:
    """Words without those of the campaign."""
    return {name: value for name, value in words.items() if name not in OF_A_CAMPAIGN}


def _with_campaign(request: PlanRequest, words: Mapping[str, Any]) -> Plan:
    """The best plan of a request, and its campaign where it has tokens."""
    failures, least = (words.get(name) for name in OF_A_CAMPAIGN)
    min_gpus = None if least is None else parse_count(str(least), "min_gpus", largest=MOST_GPUS)
    by_date = words.get("objective") == "date"
    if failures is not None or min_gpus is not None or by_date:
        from planner.campaign.finish import in_world

        request = in_world(request, failures, min_gpus=min_gpus, by_date=by_date)
    answer = _search(request)
    if isinstance(answer, Infeasible):
        raise no_plan(answer)
    if failures is None and min_gpus is None and answer.request.job.total_tokens is None:
        return answer
    from planner.campaign.finish import finished

    return finished(answer, failures, min_gpus=min_gpus, by_date=by_date)


def _search(request: PlanRequest) -> Plan | Infeasible:
    """Search under the shipped tables and what was measured on this cluster."""
    return search(request, calibration_for(request.cluster))


def _read(plan: Plan | str | Path) -> Plan:
    """A plan itself, or the one in a file, which is verified."""
    return (
        plan if isinstance(plan, Plan) else verified(from_json(read_text(Path(plan)), str(plan)), str(plan))
    )
