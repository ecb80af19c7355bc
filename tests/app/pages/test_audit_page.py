"""The audit page: what `plan audit` says of dropped files, and nothing else of this machine."""

import json
import re
import sys
from pathlib import Path

import pytest

from app.reports.audit.report import audit_document
from app.requests.links import pack
from app.requests.uploads import read_anchor_upload, read_texts_upload
from planner.audit.audit import audited, audited_texts, calibration_of
from planner.audit.read import read_files
from planner.questions.flags import Flags
from tests.app.page_reading import SMALL, words
from topology.base.errors import InputError

FILES = Path(__file__).parents[2] / "unit" / "planner" / "audit" / "files"
LOG = FILES / "megatron.log"
REST = Flags(model="llama-3.1-8b", gpus="8", gpu="h100-sxm", sequence_length="8192")


def dropped(*paths: Path) -> list[tuple[str, bytes]]:
    """Files as a browser sends them."""
    return [(path.name, path.read_bytes()) for path in paths]


@pytest.mark.parametrize("name", ["megatron.log", "megatron_case.sh"])
def test_a_dropped_file_is_audited_as_the_command_line_audits_it(name):
    """The same document, but for the folder in names."""
    path = FILES / name
    reading = read_files([str(path)])
    flags = Flags(gpu=None if len(reading.gpus) == 1 else REST.gpu)
    typed = json.dumps(audit_document(audited(reading, flags, calibration_of(reading, flags))), default=str)
    sent = json.dumps(audit_document(audited_texts(read_texts_upload(dropped(path)), REST)), default=str)
    assert json.loads(sent) == json.loads(typed.replace(f"{FILES}/", ""))


SEEN = ("open", "os.listdir", "os.scandir", "subprocess.Popen", "os.system", "socket.connect")
NAMED = ("/etc/", "secrets", ".ssh", "evil")
HOSTILE = b"""#!/bin/bash
source /etc/passwd
. ../../secrets.env
export MODEL=/etc/shadow
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 \\
  --tokenizer-model /etc/passwd --yaml-cfg /etc/hosts --load $(cat /etc/passwd) --config-dir ~/.ssh
"""


def test_a_dropped_file_makes_the_server_open_nothing_that_it_names():
    """Scripts that source, load and substitute are read as text alone; what cannot be told is said."""
    opened, watching = [], [True]
    sys.addaudithook(lambda event, args: opened.append(str(args)) if watching and event in SEEN else None)
    found = audited_texts(read_texts_upload([("../../etc/evil::2.sh", HOSTILE)]), REST)
    watching.clear()
    assert [what for what in opened if any(name in what for name in NAMED)] == []
    assert found.predicted is not None
    assert list(found.reading.kinds) == ["evil__2.sh"]


def test_two_files_of_one_name_are_refused():
    """Else one would silently stand for both."""
    with pytest.raises(InputError, match="two files"):
        read_texts_upload([("a/run.sh", b"x"), ("b/run.sh", b"y")])


def test_a_dropped_log_narrows_the_band(open_page):
    """The question is planned with the level that the log gives its stack, and says how the band moves."""
    anchor = read_anchor_upload(dropped(LOG), REST)
    page = open_page("what_if", **SMALL, anchor="uploaded runs or log", anchor_spec=pack(anchor))
    assert "error:" not in words(page)
    assert "With 1 measured step the 80 % band is" in words(page)
    command = next(code.value for code in page.code if code.value.startswith("plan "))
    assert "--anchor measured" in command
    bare, anchored = (found_band(words(open_page("what_if", **SMALL))), found_band(words(page)))
    assert anchored < bare


def found_band(text: str) -> float:
    """Width of the sentence's 80 % band over its upper end."""
    low, high = re.search(r"s a step \(([\d.]+) – ([\d.]+) s\)", text).groups()
    return (float(high) - float(low)) / float(high)


def test_runs_of_another_stack_are_refused(open_page):
    """A level of Megatron-LM says nothing of torchtitan."""
    anchor = read_anchor_upload(dropped(LOG), REST)
    page = open_page(
        "what_if", **SMALL, stack="torchtitan", anchor="uploaded runs or log", anchor_spec=pack(anchor)
    )
    assert "these runs say nothing about torchtitan" in words(page)
    assert not page.metric


def test_the_page_waits_for_files(open_page):
    """Nothing is wrong before somebody has dropped one."""
    page = open_page("audit", **SMALL)
    assert "Drop a script" in words(page)
    assert "error:" not in words(page)


def test_a_dropped_server_is_audited_under_the_load_that_is_typed(open_page):
    """As `plan audit` says it; a load that cannot be read is refused."""
    page = open_page("audit", **SMALL)
    page.text_input(key="audit_load").set_value("--concurrency 64 --input 1000 --output-tokens 200")
    script = b"vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 16"
    page.file_uploader(key="audit_files").upload("serve.sh", script).run()
    assert "serve.sh: a server of vLLM" in words(page)
    assert "error:" not in words(page)
    page.text_input(key="audit_load").set_value("64").run()
    assert "is no load of a server" in words(page)


def test_an_empty_page_audits_its_example(open_page):
    """The launch files of a job that tensor parallelism splits too far: the best plan is another."""
    page = open_page("audit", model="llama-3.1-8b", gpus="8")
    page.toggle(key="audit_example").set_value(True)
    page.run()
    assert "How far is it from the best?" in words(page)
    assert not page.error
