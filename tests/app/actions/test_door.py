"""The door as a specification: which names, pages and tokens are let in; no server needed."""

import asyncio

import pytest

from app.actions.door import (
    MOST_HELD_BYTES,
    MOST_HELD_TRACES_BYTES,
    MOST_SESSIONS,
    MOST_SESSIONS_OF_ONE,
    Door,
    House,
    house_names,
    is_ours,
    require_long,
    token_for,
)
from topology.base.errors import InputError
from topology.base.units import MIB

KEY = "correct-horse-battery"
HERE = House(hosts=house_names("127.0.0.1", []))
SHARED = House(hosts=house_names("0.0.0.0", ["plans.example", "*.lab.example"]), token=KEY)  # noqa: S104 - a name


def asked(door, kind="http", *, path="/", query="", client="127.0.0.1", method="GET", **headers):
    """What a door sends for a request; `[]` when it let it in."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": kind, "path": path, "query_string": query.encode(), "client": (client, 1), "method": method,
        "server": ("127.0.0.1", 8501),
        "headers": [(name.encode(), value.encode()) for name, value in ({"host": "127.0.0.1:8501"} | headers).items()],
    }  # fmt: skip
    asyncio.run(door(scope, None, send))
    return sent


async def inside(scope, receive, send):
    """What stands behind the door."""


def door(house=HERE):
    return Door(inside, house)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8501", "localhost:9000", "[::1]:8501", "LOCALHOST.", "192.0.2.7", "127.0.0.1"]
)
def test_addresses_and_our_names_are_let_in(host):
    """A port may be forwarded, and an address cannot be rebound."""
    assert asked(door(), host=host) == []
    assert asked(door(), "websocket", host=host, origin=f"http://{host}") == []


@pytest.mark.parametrize(
    "host",
    ["evil.example:8501", "", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "@localhost@evil"],
)
def test_other_names_are_refused_whatever_origin_they_say(host):
    """DNS rebinding: the page's name stands for this machine, and both headers say that name."""
    assert asked(door(), host=host, origin=f"http://{host}")[0]["status"] == 403
    assert asked(door(), "websocket", host=host, origin=f"http://{host}")[0]["type"] == "websocket.close"


def test_a_wider_address_has_the_names_of_its_machine_and_those_allowed():
    """A star stands for every name below."""
    assert is_ours("plans.example", SHARED.hosts)
    assert is_ours("a.lab.example:1", SHARED.hosts)
    assert not is_ours("lab.example.evil", SHARED.hosts)
    assert not is_ours("plans.example", HERE.hosts)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000", "file://"])
def test_other_pages_are_refused(origin):
    """Those of another server on this machine too."""
    for kind in ("http", "websocket"):
        assert asked(door(), kind, origin=origin) != []
    assert asked(door(House(hosts=HERE.hosts, origins=frozenset({origin}))), origin=origin) == []


def test_without_the_token_nothing_is_answered():
    """Pages, files, sockets; with a wrong one neither."""
    for kind in ("http", "websocket"):
        for path in ("/", "/_stcore/health", "/static/x.js"):
            for query in ("", "token=", "token=wrong-token-of-some-length", f"tokens={KEY}"):
                assert asked(door(SHARED), kind, path=path, query=query) != []
    assert asked(door(SHARED))[0]["status"] == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address():
    """Shared links hold the question and not the token; the cookie opens what the address did, on this port only."""
    start = asked(door(SHARED), path="/topology", query=f"gpus=8&token={KEY}&model=a%26b")[0]
    headers = dict(start["headers"])
    assert (start["status"], headers[b"location"]) == (303, b"/topology?gpus=8&model=a%26b")
    cookie, *rules = headers[b"set-cookie"].decode().split("; ")
    assert KEY not in cookie
    assert {"HttpOnly", "SameSite=Lax"} <= set(rules)
    for kind in ("http", "websocket"):
        assert asked(door(SHARED), kind, cookie=f"theme=dark; {cookie}") == []
        assert asked(door(SHARED), kind, cookie=cookie.replace("8501", "8502")) != []
        assert asked(door(SHARED), kind, cookie=cookie[:-1]) != []
    assert asked(door(SHARED), cookie=cookie, host="evil.example")[0]["status"] == 403


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.7", "node-7", ""])  # noqa: S104 - names
def test_an_address_that_others_reach_has_a_token(address):
    """A random one unless one is given; none where only this machine can ask."""
    first, second = token_for(address, None), token_for(address, None)
    assert first != second
    assert require_long(first) == first
    assert token_for(address, KEY) == token_for("127.0.0.1", KEY) == KEY
    assert [token_for(near, None) for near in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [None] * 4


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "/a\r\nSet-Cookie: x=1"])
def test_the_token_leads_nowhere_else(path):
    """The address it is taken from may hold anything."""
    location = dict(asked(door(SHARED), path=path, query=f"token={KEY}")[0]["headers"])[b"location"]
    assert location.startswith(b"/")
    assert location[1:2] not in (b"/", b"\\")
    assert b"\r" not in location


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "sixteen letters ü", "with a space in it"])
def test_a_token_that_protects_nothing_is_refused(token):
    """Short ones can be guessed."""
    with pytest.raises(InputError, match="protects nothing"):
        require_long(token)


def test_uploads_of_a_session_are_bounded():
    """What one session holds is the limit of that session, and of nobody else."""
    held = {"one": [MIB] * (MOST_HELD_BYTES // MIB)}
    full = door(House(hosts=HERE.hosts, held_files=lambda session: held.get(session, [])))
    small = {"content-length": f"{MIB}"}
    assert asked(full, path="/_stcore/upload_file/one/file", method="PUT", **small)[0]["status"] == 413
    assert asked(full, path="/_stcore/upload_file/two/file", method="PUT") == []
    assert asked(full, path="/_stcore/upload_file/one/file", method="DELETE") == []


@pytest.mark.parametrize("length", [f"{3 * MIB}", "", "-1", "1e3"])
def test_traces_have_a_room_of_their_own(length):
    """A file of 3 MiB, or of a length that nobody knows: beside many small ones, not beside 256 MiB of any."""
    held = {"small": [MIB] * (MOST_HELD_BYTES // MIB), "full": [MIB] * (MOST_HELD_TRACES_BYTES // MIB)}
    house = door(House(hosts=HERE.hosts, held_files=lambda session: held[session]))
    words = {"method": "PUT", "content-length": length}
    assert asked(house, path="/_stcore/upload_file/small/file", **words) == []
    assert asked(house, path="/_stcore/upload_file/full/file", **words)[0]["status"] == 413


def test_sessions_are_bounded_and_one_visitor_leaves_room():
    """Half of them are left for others; those that end make room."""

    async def crowd():
        leave = asyncio.Event()

        async def stay(scope, receive, send):
            await leave.wait()

        house = Door(stay, HERE)
        refused: list[str] = []

        async def visit(client):
            async def send(message):
                refused.append(client)

            await house({"type": "websocket", "path": "/", "query_string": b"", "client": (client, 1),
                         "headers": [(b"host", b"localhost")]}, None, send)  # fmt: skip

        staying = [asyncio.create_task(visit("hog")) for _ in range(MOST_SESSIONS)]
        staying += [asyncio.create_task(visit(f"guest {n}")) for n in range(MOST_SESSIONS)]
        await asyncio.sleep(0)
        leave.set()
        await asyncio.gather(*staying)
        assert refused.count("hog") == MOST_SESSIONS - MOST_SESSIONS_OF_ONE
        assert len(refused) == MOST_SESSIONS
        await visit("hog")
        assert len(refused) == MOST_SESSIONS
        assert not house._sessions

    asyncio.run(crowd())
