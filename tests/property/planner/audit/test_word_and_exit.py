"""The word *illegal* and exit code 4 say one thing: on random files of every engine, some of them broken."""

import json
from itertools import islice
from random import Random

import pytest

from app.commands.audit.answer import AuditQuestion, audit_answer_of
from app.errors import FAILED_AUDIT
from planner.questions.flags import Flags
from tests.counts import tries
from tests.property.planner.audit.launch_files import launch_files

BREAKING = (
    "", "--tensor-model-parallel-size 3", "--pipeline-model-parallel-size 5", "--tp-comm-overlap",
    "--fp8-format e4m3 --fp8-recipe mxfp8", "--bf16 --fp16", "--expert-model-parallel-size 7",
    "--context-parallel-size 2", "--use-torch-fsdp2",
)  # fmt: skip
"""Words of Megatron-LM that are wrong for many a job, or for none."""
VARIABLES = ("", "CUDA_DEVICE_MAX_CONNECTIONS=1", "CUDA_DEVICE_MAX_CONNECTIONS=8")


@pytest.mark.parametrize("engine", ["megatron", "torchtitan", "deepspeed"])
def test_illegal_is_said_exactly_where_the_exit_code_says_it(engine, tmp_path):
    """What may be illegal and is not settled has another word; 4 without the word is of memory."""
    r, seen = Random(f"words {engine}"), set()
    for number, one in enumerate(islice(launch_files(engine, "words"), tries(6, 12))):
        paths = []
        for name, text in one.texts.items():
            path = tmp_path / f"{number}-{name.rpartition('/')[2]}"
            more = f" {r.choice(BREAKING)}" if engine == "megatron" else ""
            path.write_text(text.rstrip() + more + "\n", encoding="utf-8")
            paths.append(str(path))
        flags = Flags(
            gpus=r.choice((None, "8", "24")), gpu=r.choice((None, "h100-sxm", "gb200")), model="llama-3.1-8b"
        )
        variable = r.choice(VARIABLES)
        question = AuditQuestion(files=tuple(paths), env=(variable,) if variable else ())
        answer = audit_answer_of(question, flags)
        document = json.loads(answer.document())
        illegal = any(finding["kind"] == "illegal" for finding in document["findings"])
        stopped = illegal or document["fits"] is False
        assert (answer.exit_code == FAILED_AUDIT) is stopped, (one.texts, document["findings"])
        seen.add(illegal)
    if engine == "megatron":
        assert seen == {True, False}
