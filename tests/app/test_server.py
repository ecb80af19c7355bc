"""`plan dash` as a process: what it asks, who it answers, what wins over its settings, what it takes in."""

import http.client
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.actions.dash import SETTINGS
from app.actions.door import MOST_HELD_BYTES
from app.requests.upload_sizes import MOST_TRACE_MIB, MOST_UPLOAD_MIB
from benchmarks.bench_dashboard import processor_s, server_of
from topology.base.units import MIB

pytest.importorskip("streamlit")
websockets = pytest.importorskip("websockets")

ROOT = Path(__file__).parents[2]
KEY = "correct-horse-battery"
STARTUP_S, ANSWER_S = 90, 5.0
UPGRADE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol": "streamlit",
}  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def asked(port: int, path: str = "/", method: str = "GET", body: bytes = b"", **headers: str):
    """Status, headers and body of one request, whose headers are exactly those given."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in (
            {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(body))} | headers
        ).items():
            line.putheader(name.replace("_", "-"), value)
        line.endheaders(body)
        answer = line.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read() if answer.status != 101 else b""
    finally:
        line.close()


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def dash(
    home: Path, *words: str, terminal: bool = False, **variables: str
) -> Iterator[tuple[int, int, list[str]]]:
    """Port, process and what it has said, of a dashboard that a new user starts, once its page answers."""
    home.mkdir(exist_ok=True)
    port = free_port()
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("STREAMLIT_", "MESHPLAN_"))
    }
    environment = {
        **kept,
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "BROWSER": "true",
        "DISPLAY": ":99",
        **variables,
    }
    ours, theirs = pty.openpty() if terminal else os.pipe()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "app", "dash", "--port", str(port), *words],
        env=environment, cwd=home, stdin=theirs if terminal else subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        start_new_session=True,
    ) as command:  # fmt: skip
        os.close(theirs)
        said: list[str] = []
        try:
            deadline = time.monotonic() + STARTUP_S
            while True:
                if select.select([ours], [], [], 0.05)[0]:
                    said.append(os.read(ours, 65536).decode())
                assert command.poll() is None, "".join(said)
                assert time.monotonic() < deadline, "".join(said)
                try:
                    asked(port)
                    break
                except OSError:
                    continue
            yield port, command.pid, said
        finally:
            command.send_signal(signal.SIGTERM)
            command.wait(30)
            os.close(ours)


@pytest.fixture(scope="module")
def port(tmp_path_factory) -> Iterator[int]:
    """A dashboard as anybody starts it."""
    with dash(tmp_path_factory.mktemp("home")) as (number, _, _):
        yield number


@pytest.mark.parametrize("terminal", [True, False])
def test_the_first_start_of_a_new_user_asks_nothing(tmp_path, terminal):
    """A page within 5 s of processor time (other work does not count), one line, nothing written at home.

    Nor is anything run that lies in the working directory under a name that the server imports.
    """
    for name in ("app", "planner", "streamlit"):
        (tmp_path / "home" / name).mkdir(parents=True)
        (tmp_path / "home" / name / "__init__.py").write_text("raise SystemExit('somebody else ran')")
    with dash(tmp_path / "home", terminal=terminal) as (port, command, said):
        used_s = processor_s(command) + processor_s(server_of(command))
        assert asked(port)[0] == 200
    assert re.fullmatch(r"dashboard at http://127\.0\.0\.1:\d+ \(Ctrl-C stops it\)\r?\n", "".join(said))
    assert used_s <= ANSWER_S
    assert not (tmp_path / "home" / ".streamlit").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent was killed")
def test_a_killed_command_leaves_no_server(tmp_path):
    """Nothing answers once `plan dash` is gone, however it went."""
    with dash(tmp_path / "home") as (port, command, _):
        os.kill(command, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while answers(port) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not answers(port)


def test_a_page_that_rebinds_its_name_to_this_machine_is_refused(port):
    """Host and Origin agree with each other and with nothing of ours; neither page, file nor socket is given."""
    evil = {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}
    for path in ("/", "/_stcore/health", "/_stcore/host-config", "/static/index.js"):
        assert asked(port, path, **evil)[0] == 403
    assert asked(port, "/_stcore/stream", **UPGRADE, **evil)[0] == 403
    assert asked(port, "/_stcore/stream", **UPGRADE, Origin="http://evil.example")[0] == 403
    assert asked(port, "/_stcore/stream", **UPGRADE, Origin="http://localhost:3000")[0] == 403
    assert asked(port, "/_stcore/stream", **UPGRADE, Origin=f"http://127.0.0.1:{port}")[0] == 101


def test_without_the_token_there_is_no_page(tmp_path):
    """With it there is one, and it is not said again by who was given it."""
    with dash(tmp_path / "home", MESHPLAN_TOKEN=KEY) as (port, _, said):
        assert asked(port)[0] == 401
        assert asked(port, "/_stcore/stream", **UPGRADE)[0] == 403
        status, headers, _ = asked(port, f"/?gpus=8&token={KEY}")
        assert (status, headers["location"]) == (303, "/?gpus=8")
        cookie = headers["set-cookie"].split(";")[0]
        assert asked(port, headers["location"], Cookie=cookie)[0] == 200
        assert asked(port, "/_stcore/stream", **UPGRADE, Cookie=cookie)[0] == 101
    assert KEY not in "".join(said)


@contextmanager
def uploader(port: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Session of a page, and the headers that its uploads need."""
    from streamlit.proto.BackMsg_pb2 import BackMsg
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
    from websockets.sync.client import connect

    xsrf = asked(port, "/_stcore/health")[1]["set-cookie"].split(";")[0]
    address, ours = f"ws://127.0.0.1:{port}/_stcore/stream", f"http://127.0.0.1:{port}"
    with connect(address, subprotocols=["streamlit"], origin=ours, max_size=None) as line:
        question, answer = BackMsg(), ForwardMsg()
        question.rerun_script.query_string = ""
        line.send(question.SerializeToString())
        while answer.WhichOneof("type") != "new_session":
            answer.ParseFromString(line.recv())
        session = answer.new_session.initialize.session_id
        yield session, {"Cookie": xsrf, "X-Xsrftoken": xsrf.partition("=")[2]}


def test_uploads_are_small_few_and_of_our_own_page(port):
    """64 MiB a file, 32 MiB of small files a session; none for a session that is not, from another page, or without the page's secret."""
    form = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f.csv"\r\n\r\n%b\r\n--x--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=x"}

    with uploader(port) as (session, secret):

        def put(size: int, name: str, whose: str = session, **headers: str) -> int:
            path, content = f"/_stcore/upload_file/{whose}/{name}", form % (b"a" * size)
            return asked(port, path, "PUT", content, **kind, **headers)[0]

        assert put(10, "a", **secret, Origin="http://evil.example") == 403
        assert put(10, "a") == 403
        assert put(10, "a", whose="nobody", **secret) == 400
        assert put(3 * MIB, "trace", **secret) == 204
        assert put(10, "a", **secret | {"Content-Length": f"{MOST_TRACE_MIB * MIB + 1}"}) == 413
        size = MOST_UPLOAD_MIB * MIB - len(form)  # Streamlit counts the form too
        room = -(-MOST_HELD_BYTES // size)
        answers = [put(size, f"{n}", **secret) for n in range(room + 1)]
        assert answers == [204] * room + [413]


def told(home: Path, *typed: str, **variables: str) -> dict[str, object]:
    """What Streamlit goes by in a new process."""
    names = sorted([*SETTINGS, "server.enableStaticServing"])
    code = (
        f"import json, sys; from app.dashboard import settled_options; from streamlit import config; settled_options(sys.argv[1:])\n"
        f"print(json.dumps({{name: config.get_option(name) for name in {names!r}}}))"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMLIT_")}
    done = subprocess.run(
        [sys.executable, "-c", code, *typed], capture_output=True, text=True, check=True, cwd=home,
        env={**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), **variables},
    )  # fmt: skip
    assert done.stderr == ""
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_what_is_typed_wins_over_variables_these_over_files_those_over_ours(tmp_path):
    """Ports by all four; a setting that is ours alone stays."""
    assert told(tmp_path) == {**SETTINGS, "server.enableStaticServing": False}
    (tmp_path / ".streamlit").mkdir()
    (tmp_path / ".streamlit" / "config.toml").write_text(
        "[server]\nport = 7001\nmaxUploadSize = 5\n[browser]\ngatherUsageStats = true\n"
    )
    files = {"server.port": 7001, "server.maxUploadSize": 5, "browser.gatherUsageStats": True}
    assert told(tmp_path) == {**told_by_us(), **files}
    variables = {"STREAMLIT_SERVER_PORT": "7002", "STREAMLIT_SERVER_ADDRESS": "127.0.0.3"}
    said = {**told_by_us(), **files, "server.port": 7002, "server.address": "127.0.0.3"}
    assert told(tmp_path, **variables) == said
    assert told(tmp_path, "--server.port", "7003", **variables) == {**said, "server.port": 7003}


def told_by_us() -> dict[str, object]:
    return {**SETTINGS, "server.enableStaticServing": False}


def test_what_warms_the_server_up_loads_no_torch_and_leaves_little_to_collect():
    """Streamlit collects garbage after every answer: of what was loaded later it would look through all."""
    script = (
        "import gc, sys\n"
        "from app.dashboard import warm_up\n"
        "import app.actions.workers as pool\n"
        "pool.Workers.call = lambda self, visitor, function, *words: None\n"
        "warm_up()\n"
        "loaded = set(sys.modules)\n"
        "from app.pages import accuracy, audit, campaign, compare, diagnose, executor, serving, topology, what_if\n"
        "later = sorted(name for name in set(sys.modules) - loaded)\n"
        "sys.stdout.write(f\"{'torch' in sys.modules} {later} {len(gc.get_objects()) < 20_000}\")\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert told.stdout == "False [] True"
