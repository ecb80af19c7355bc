"""Audit: a job that already runs, by its launch files and logs: what is wrong, and what would be faster."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from app.figures.measured.audited import run_beside_best
from app.figures.memory import estimate_bars
from app.pages.base.carried import add
from app.pages.base.choices import require_all_read, text_box
from app.pages.base.frame import (
    MOST_CACHED_PLANS,
    asked,
    draw,
    guarded,
    plain,
    planned_answer,
)
from app.pages.base.sections import show_section
from app.pages.question.anchor import anchor_with
from app.pages.question.bar import job_question
from app.reports.answer import Section
from app.reports.audit.report import audit_answer
from app.reports.audit.server import server_answer
from app.reports.layout_words import layer_words
from app.requests.upload_sizes import MOST_UPLOAD_MIB
from app.requests.uploads import ANCHOR_LOG, read_texts_upload
from costmodel.layout import layout_words
from planner.audit.audit import Audit, audited_texts, stack_level_of_log
from planner.audit.serving.audit import ServingAudit
from planner.audit.serving.load import LOAD_WORDS
from planner.audit.serving.texts import audited_server_texts
from planner.launch.bundle import bundle
from planner.plan import Plan
from planner.pricing import capacity_of_fullest
from planner.questions.flags import Flags, ServeFlags
from planner.questions.training import understand
from topology.base.errors import InputError
from topology.builders import build


@guarded
def render() -> None:
    """Draw the page."""
    question = job_question()
    require_all_read()
    st.subheader("A job that already runs", anchor=False)
    files = st.file_uploader(
        "Its launch files, configurations and logs: nothing of them is run, no file that they name is opened",
        accept_multiple_files=True, key="audit_files", max_upload_size=MOST_UPLOAD_MIB,
    )  # fmt: skip
    text = text_box(
        st, "Variables that a script reads", "", "audit_env", max_chars=200, placeholder="NNODES=4 GPUS=8",
        help="As they would be set where the job starts, with spaces between.",
    )  # fmt: skip
    load = text_box(
        st, "The load of a server", "", "audit_load", max_chars=200,
        placeholder="--concurrency 64 --input 2000 --output-tokens 300 --ttft 2s",
        help="Of files that serve, where neither a benchmark's result nor a client's command is among them: "
        "--rate or --concurrency, --input, --output-tokens, --ttft and --tpot as plan audit takes them.",
    )  # fmt: skip
    if not files:
        st.info(
            "Drop a script, a configuration or a log of Megatron-LM, torchtitan, DeepSpeed, Accelerate, NeMo "
            "and others, or of a server of vLLM, SGLang or TensorRT-LLM with what a benchmark client wrote. "
            "What they do not say is taken from the question above, and named below.",
        )
        if st.toggle("Audit an example", key="audit_example"):
            st.caption("Launch files of llama-3.1-8b on 8 GPUs for Megatron, with tensor parallelism 8.")
            show_audit(audit_of(example_files(), question.flags, ""))
        return
    sent = tuple((file.name, file.getvalue()) for file in files)
    served = server_audit_of(sent, question.flags, text, load)
    if served is not None:
        show_server(served)
        return
    show_audit(audit_of(sent, question.flags, text))


@st.cache_data(max_entries=1, show_spinner="Writing an example")  # type: ignore[untyped-decorator]
def example_files() -> tuple[tuple[str, bytes], ...]:
    """Launch files of a job that is split more than it needs."""
    flags = Flags(model="llama-3.1-8b", gpus="8", settings=("layout.tp=8",))
    plan = planned_answer(understand(flags).request)
    if not isinstance(plan, Plan):
        return ()
    files, _ = asked(bundle, plan, "megatron", "torchrun")
    return tuple((name, text.encode()) for name, text in files.items() if name.endswith(".sh"))


@st.cache_data(max_entries=MOST_CACHED_PLANS, show_spinner="Reading the job, and planning it anew")  # type: ignore[untyped-decorator]
def audit_of(files: Sequence[tuple[str, bytes]], flags: Flags, variables: str) -> Audit:
    """The audit of uploaded files; made once."""
    audit: Audit = asked(audited_texts, read_texts_upload(files), flags, variables_of(variables))
    return audit


@st.cache_data(max_entries=MOST_CACHED_PLANS, show_spinner="Reading the server, and planning it anew")  # type: ignore[untyped-decorator]
def server_audit_of(
    files: Sequence[tuple[str, bytes]], flags: Flags, variables: str, load: str
) -> ServingAudit | None:
    """The audit of uploaded files that serve; None where they do not."""
    texts = read_texts_upload(files)
    audit: ServingAudit | None = asked(
        audited_server_texts, texts, load_of(load), variables_of(variables), gpu=flags.gpu
    )
    return audit


def load_of(text: str) -> ServeFlags:
    """The load of a server, as it is typed.

    >>> load_of("--concurrency 64 --input 2000").input_tokens
    '2000'
    """
    words = text.split()
    result: dict[str, str] = {}
    for flag, value in itertools.zip_longest(words[::2], words[1::2]):
        name = LOAD_WORDS.get(flag)
        if name is None or value is None:
            cause, fix = f"{flag} is none of {', '.join(LOAD_WORDS)} with a value", "write --concurrency 64"
            raise InputError(f"{text[:40]} is no load of a server", cause, fix)
        result[name] = value
    return replace(ServeFlags(), **result)  # type: ignore[arg-type]  # all of them are texts


def variables_of(text: str) -> dict[str, str]:
    """Variables of the environment, as they are typed.

    >>> variables_of("NNODES=4 TP=8")
    {'NNODES': '4', 'TP': '8'}
    """
    variables = {}
    for setting in text.split():
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            cause, fix = "it needs a name and a value", "write for example NNODES=4"
            raise InputError(f"{setting} is no variable", cause, fix)
        variables[name] = value
    return variables


def show_server(audit: ServingAudit) -> None:
    """Draw everything that `plan audit` says of a server."""
    answer = server_answer(audit)
    st.markdown(f"**{plain(answer.headline)}**")
    if audit.fits is False:
        st.warning("As its files have it, the server holds no request.", icon=":material/warning:")
    for section in answer.sections:
        show_section(section)


def show_audit(audit: Audit) -> None:
    """Draw what it takes, what it should take, and everything that `plan audit` says."""
    answer = audit_answer(audit)
    st.markdown(f"**{plain(answer.headline)}**")
    if audit.memory is not None and not audit.fits:
        st.warning(f"Memory, as its files have it: {plain(audit.memory.words)}.", icon=":material/warning:")
    if audit.predicted is not None or audit.best is not None:
        st.markdown("#### How far is it from the best?")
        draw(run_beside_best(audit), "audit_time")
        show_memory(audit)
        show_offers(audit)
    for section in by_weight(answer.sections):
        show_section(section)
        if section.title == "Changes":
            show_whole_change(audit)


def show_whole_change(audit: Audit) -> None:
    """All settings of the best plan, in full: a table cuts them off."""
    whole = next((change for change in audit.changes if change.whole), None)
    if whole is not None and whole.set:
        st.caption("All of it, to copy:")
        st.code(" ".join(whole.set), language=None, wrap_lines=True)
    if whole is not None and whole.remove:
        st.caption("What to take out of the files first:")
        st.code("\n".join(whole.remove), language=None, wrap_lines=True)


def by_weight(sections: Sequence[Section]) -> list[Section]:
    """The summary, what to change, then what is wrong; what was read comes last."""
    summary, *others = sections
    order = (
        "Times",
        "Measured beside predicted",
        "Changes",
        "Wrong or slow",
        "Taken for granted",
    )
    others.sort(key=lambda item: order.index(item.title) if item.title in order else len(order))
    return [summary, *others]


def show_memory(audit: Audit) -> None:
    """The layout of the files beside the best, by the memory of their stages."""
    left, right = st.columns(2, gap="medium")
    if audit.predicted is not None and audit.job.request is not None and audit.job.layout is not None:
        with left:
            st.markdown("#### As it runs")
            st.caption(plain(layout_words(audit.job.layout)))
            capacity = build(audit.job.request.cluster).gpu.memory_bytes
            draw(estimate_bars(audit.predicted, capacity), "audit_now")
    if audit.best is not None and not audit.best.kind_of_stage:
        with right:
            st.markdown("#### The best plan")
            st.caption(plain(layout_words(audit.best.layout)))
            capacity, estimate = capacity_of_fullest(audit.best), audit.best.estimate
            layers = layer_words(audit.best.layers_of_stage, audit.best.layout)
            draw(estimate_bars(estimate, capacity, layers), "audit_best")


def show_offers(audit: Audit) -> None:
    """What to do with it here."""
    row = st.container(horizontal=True)
    if audit.best is not None:
        row.button(
            "Add the best plan to compare", on_click=add, args=("with", audit.best.request),
            icon=":material/compare_arrows:",
        )  # fmt: skip
    if audit.measured_step_s is not None and audit.predicted is not None:
        try:
            level = stack_level_of_log(audit, ANCHOR_LOG)
        except InputError as error:
            st.caption(plain(f"Its step anchors nothing: {error.what}, {error.cause}."))
            return
        row.button(
            "Plan with what it measured", on_click=anchor_with, args=(level,), icon=":material/speed:",
            help="Plans of its software stack are drawn to the measured step, and their band narrows.",
        )  # fmt: skip
