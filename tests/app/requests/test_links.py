"""A question survives every spelling, flags and a command line; damaged links and hostile uploads are refused."""

import base64
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.requests.links import (
    MOST_UNPACKED_BYTES,
    apply_change,
    pack,
    unpack,
)
from app.requests.uploads import MOST_BYTES, read_cluster_upload, read_model_upload, read_plan_upload
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from planner.plan import PlanRequest
from planner.questions.flags import Flags, command_line
from planner.questions.training import understand
from tests.counts import tries
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.spec import ClusterSpec

WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12
)
FLAGS = st.builds(
    Flags, model=st.none() | WORDS, gpus=st.none() | WORDS, precision=st.none() | WORDS,
    settings=st.lists(WORDS, max_size=3).map(tuple),
)  # fmt: skip


@given(FLAGS)
@settings(max_examples=tries(20, 60), deadline=None)
def test_the_command_line_quotes_what_a_shell_would_read(flags):
    """Splitting the command as a shell does gives the flags back."""
    import shlex

    words = shlex.split(command_line(flags))
    assert words[0] == "plan"
    assert len(words) == 1 + 2 * sum(
        v is not None for v in (flags.model, flags.gpus, flags.precision)
    ) + 2 * len(flags.settings)


def test_the_command_gives_exactly_the_request_of_the_widgets():
    """Flags → command line → flags → the same request."""
    import shlex

    from app.requests.links import flags_of_words

    flags = Flags(
        model="llama-3.1-8b",
        gpus="16",
        gpu="a100-sxm-80gb",
        settings=("layout.tp=4", "cluster.usd_per_gpu_hour=2"),
    )
    again = flags_of_words(shlex.split(command_line(flags))[1:])
    assert understand(again).request == understand(flags).request


@pytest.mark.parametrize(
    "spec", [model("deepseek-v3"), default_cluster("h100-sxm", 64).spec, model("gemma-2-9b")]
)
def test_a_spec_survives_the_url(spec):
    """Packed specs unpack to themselves and are short enough for a URL."""
    text = pack(spec)
    assert unpack(text, type(spec)) == spec
    assert len(text) < 2000


def test_a_whole_question_survives_the_url():
    """A baseline is a packed request."""
    request = understand(Flags(model="8b", gpus="8", settings=("tp=2",))).request
    assert unpack(pack(request), PlanRequest) == request


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "%%%",
        "AAAA" * 5000,
        base64.urlsafe_b64encode(zlib.compress(b"{}")).decode(),
        base64.b64encode(b"\xff" * 64).decode(),
    ],
)
def test_a_damaged_link_is_refused(text):
    """Truncated, invented or oversized text is an InputError, never a traceback."""
    with pytest.raises(InputError):
        unpack(text, ModelSpec)


def test_a_link_cannot_unpack_into_more_than_its_limit():
    """A compression bomb stops at the limit and is then no JSON."""
    bomb = base64.urlsafe_b64encode(
        zlib.compress(b'["' + b"a" * (50 * MOST_UNPACKED_BYTES) + b'"]', 9)
    ).decode()
    with pytest.raises(InputError):
        unpack(bomb, ClusterSpec)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("--gpus 64", Flags(gpus="64", gpu="h100-sxm", settings=("layout.tp=8", "layout.pp=4"))),
        ("--gpu h200-sxm", Flags(gpus="8", gpu="h200-sxm", settings=("layout.tp=8", "layout.pp=4"))),
        ("--set layout.tp=4", Flags(gpus="8", gpu="h100-sxm", settings=("layout.pp=4", "layout.tp=4"))),
        ("drop --set layout.pp", Flags(gpus="8", gpu="h100-sxm", settings=("layout.tp=8",))),
        ("drop --set", Flags(gpus="8", gpu="h100-sxm", settings=())),
        ("--sequence-length 4096", Flags(gpus="8", gpu="h100-sxm", sequence_length="4096", settings=("layout.tp=8", "layout.pp=4"))),
    ],
)  # fmt: skip
def test_a_proposed_change_is_applied_to_the_flags(change, expected):
    """Changes are worded as flags to add or settings to drop."""
    assert (
        apply_change(Flags(gpus="8", gpu="h100-sxm", settings=("layout.tp=8", "layout.pp=4")), change)
        == expected
    )


BAD_UPLOADS = [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"a": NaN}', b"x" * (MOST_BYTES + 1)]


@pytest.mark.parametrize("content", BAD_UPLOADS, ids=range(len(BAD_UPLOADS)))
@pytest.mark.parametrize("read", [read_model_upload, read_cluster_upload, read_plan_upload])
def test_a_bad_upload_is_the_error_of_the_command_line(read, content):
    """Malformed, binary, deep or large files are refused by name, without the path of a temporary file."""
    with pytest.raises(InputError) as caught:
        read("<img src=x onerror=alert(1)>.json", content)
    assert "/tmp" not in str(caught.value)


def test_an_uploaded_name_is_never_a_path(tmp_path):
    """A hostile file name reaches no file system."""
    with pytest.raises(InputError):
        read_cluster_upload("../../etc/passwd", b"[[nodes]]")
    assert list(tmp_path.iterdir()) == []
