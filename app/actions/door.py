"""Who may come in to the dashboard: the Host and Origin of every request, a token where others can reach it.

`Door` stands before everything that Streamlit serves, websockets too. A page of somebody else that makes its
own name stand for this machine (DNS rebinding) says that name as Host, so only names of ours are answered; an
address cannot be rebound. What comes from another page says so in Origin.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from app.requests.upload_sizes import MOST_UPLOAD_MIB
from topology.base.errors import InputError
from topology.base.units import MIB

TOKEN: Final = "token"  # noqa: S105 - the name of a parameter
SHORTEST_TOKEN: Final = 16
MOST_SESSIONS: Final = 128
MOST_SESSIONS_OF_ONE: Final = MOST_SESSIONS // 2
MOST_HELD_BYTES: Final = 32 * MIB
"""Uploads of one session that the server keeps, of files no larger than a description."""
MOST_HELD_TRACES_BYTES: Final = 256 * MIB
"""All uploads of one session, where the next is larger than a description."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What the door goes by: our names, pages that may call us, what opens it, sizes of a session's files."""

    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()
    token: str | None = None
    held_files: Callable[[str], Sequence[int]] = field(default=lambda _session: ())


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRefusal:
    """An HTTP status and the sentence that goes with it."""

    status: int
    reason: str


class Door:
    """ASGI middleware that lets in what `refusal` has nothing against."""

    def __init__(self, app: Application, house: House) -> None:
        """Stand before an application."""
        self._app = app
        self._house = house
        self._sessions: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, refuse, or take the token out of the address and keep it as a cookie."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        result = refusal(scope, self._house) or self._too_many(scope)
        if result:
            await _refuse(scope, send, result)
        elif scope["type"] == "http" and self._house.token is not None and TOKEN in dict(_pairs(scope)):
            await _keep_token(scope, send, self._house.token)
        elif scope["type"] == "websocket":
            await self._session(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _too_many(self, scope: Scope) -> HttpRefusal | None:
        """Refuse a session beyond those that this server has room for."""
        if scope["type"] != "websocket":
            return None
        if self._sessions.total() < MOST_SESSIONS and self._sessions[_client(scope)] < MOST_SESSIONS_OF_ONE:
            return None
        return HttpRefusal(status=503, reason="too many sessions are open: close a page of this dashboard")

    async def _session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count a session for as long as it lasts."""
        visitor = Counter([_client(scope)])
        self._sessions += visitor
        try:
            await self._app(scope, receive, send)
        finally:
            self._sessions -= visitor


def house_names(address: str, allowed: Sequence[str]) -> frozenset[str]:
    """Names under which a server that listens on an address may be asked for."""
    names = {"localhost", address, *allowed}
    if not is_loopback(address):
        names |= {socket.gethostname(), socket.getfqdn()}
    return frozenset(name.strip().lower().rstrip(".") for name in names)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if address == "localhost":
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def token_for(address: str, given: str | None) -> str | None:
    """What opens a dashboard on an address: what was given; where others reach it, else a random one."""
    return given or (None if is_loopback(address) else secrets.token_urlsafe(32))


def require_long(token: str) -> str:
    """Refuse a token that can be guessed, or that a URL or a cookie would change."""
    if len(token) < SHORTEST_TOKEN or not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError(
            what="this token protects nothing",
            cause=f"of {len(token)} characters; asked are {SHORTEST_TOKEN} or more of ASCII without spaces",
            fix="leave it out: a random one is printed",
        )
    return token


def refusal(scope: Scope, house: House) -> HttpRefusal | None:
    """Why a request is not answered; None when it is."""
    hosts = _header(scope, "host")
    if len(hosts) != 1 or not is_ours(hosts[0], house.hosts):
        return HttpRefusal(
            status=403, reason="not a name of this dashboard: add it to STREAMLIT_SERVER_ALLOWED_HOSTS"
        )
    for origin in _header(scope, "origin"):
        if urlsplit(origin).netloc.lower() != hosts[0].lower() and not house.origins & {origin, "*"}:
            return HttpRefusal(status=403, reason="asked by a page that is not this dashboard's")
    if house.token is not None and not knows_token(scope, house.token):
        return HttpRefusal(
            status=401,
            reason=f"add ?{TOKEN}=… to the address: the token was printed where the dashboard was started",
        )
    if scope.get("method") == "PUT" and not _has_room(scope, house):
        return HttpRefusal(status=413, reason="this page holds too many uploads: load it again")
    return None


def is_ours(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header names this server, by an address or a name; `*.` stands for every name below.

    >>> is_ours("127.0.0.1:8501", frozenset()), is_ours("evil.example:8501", frozenset({"localhost"}))
    (True, False)
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    try:
        ip_address(name)
    except ValueError:
        return bool(name) and bool(names & {name, "*"} or any(
            entry.startswith("*.") and name.endswith(entry[1:]) for entry in names
        ))  # fmt: skip
    return True


def knows_token(scope: Scope, token: str) -> bool:
    """Whether a request carries the token, in its query or as the cookie that `_keep_token` set."""
    text = dict(_pairs(scope)).get(TOKEN)
    if text is not None and scope["type"] == "http":
        return _same(text, token)
    cookies: SimpleCookie = SimpleCookie()
    for line in _header(scope, "cookie"):
        try:
            cookies.load(line)
        except CookieError:
            continue
    kept = cookies.get(_cookie_name(scope))
    return kept is not None and _same(kept.value, _cookie_value(token))


def _same(text: str, known: str) -> bool:
    """Compare in a time that does not tell how much of it is right."""
    return hmac.compare_digest(text.encode("utf-8", "replace"), known.encode())


def _cookie_name(scope: Scope) -> str:
    """One for every port: cookies know hosts only."""
    return f"meshplan_{(scope.get('server') or ('', 0))[1]}"


def _cookie_value(token: str) -> str:
    """What a browser keeps is not the token, so that it cannot be passed on as one."""
    return hashlib.sha256(f"meshplan dashboard {token}".encode()).hexdigest()


def _has_room(scope: Scope, house: House) -> bool:
    """Whether the session of an upload's path may send as much as the request says; True of other paths.

    Small files are counted alone. A larger one counts with all files: a request may say more than it sends.
    """
    parts = scope["path"].rsplit("/", 3)
    if len(parts) != 4 or parts[1] != "upload_file":
        return True
    sizes, most = house.held_files(parts[2]), MOST_UPLOAD_MIB * MIB
    length = "".join(_header(scope, "content-length"))
    if length.isdecimal() and int(length) <= most:
        return sum(size for size in sizes if size <= most) < MOST_HELD_BYTES
    return sum(sizes) < MOST_HELD_TRACES_BYTES


def _header(scope: Scope, name: str) -> list[str]:
    """All values of a header; ASGI writes names in small letters."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name.encode()]


def _pairs(scope: Scope) -> list[tuple[str, str]]:
    """The query of a request."""
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _client(scope: Scope) -> str:
    """The address that a request came from."""
    return str((scope.get("client") or ("",))[0])


async def _refuse(scope: Scope, send: Send, result: HttpRefusal) -> None:
    """Answer with the sentence; a websocket is closed before it was opened, which browsers see as 403."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": result.reason})
        return
    await _answer(
        send, result.status, [(b"content-type", b"text/plain; charset=utf-8")], f"{result.reason}\n"
    )


async def _keep_token(scope: Scope, send: Send, token: str) -> None:
    """Set the cookie, and go to the same address without the token, which would else be in shared links."""
    rest = [pair for pair in _pairs(scope) if pair[0] != TOKEN]
    place = "/" + quote(scope["path"].lstrip("/\\")) + (f"?{urlencode(rest)}" if rest else "")
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    cookie = f"{_cookie_name(scope)}={_cookie_value(token)}; Path=/; HttpOnly; SameSite=Lax{secure}"
    await _answer(send, 303, [(b"location", place.encode()), (b"set-cookie", cookie.encode())], "")


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], text: str) -> None:
    """Send a whole HTTP answer that nobody keeps."""
    headers = [*headers, (b"cache-control", b"no-store"), (b"content-length", b"%d" % len(text.encode()))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
