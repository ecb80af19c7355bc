"""A hub of this machine: what `huggingface_hub` and `datasets` ask for, answered from folders.

A dataset ORG/NAME is a folder with one folder for each of its commits, and a file `main` that names one of
these. The forms of answers are those of the hub's API (huggingface.co/docs/hub/api, read 2026-11-25).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

API = re.compile(r"/api/datasets/([\w-]+/[\w-]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?")
FILE = re.compile(r"/datasets/([\w-]+/[\w-]+)/resolve/([^/]+)/(.*)")


class Hub(BaseHTTPRequestHandler):
    """Answers one request; datasets whose name ends with `gated` want a token."""

    protocol_version = "HTTP/1.1"
    root: Path
    asked: list[str]

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def answer(self, body: bytes, code: int = 200, **headers: str) -> None:
        """Send bytes."""
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def told(self, value: object, code: int = 200, **headers: str) -> None:
        """Send JSON."""
        self.answer(json.dumps(value).encode(), code, Content_Type="application/json", **headers)

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_POST(self) -> None:
        """Answer a question about some paths."""
        self.do_GET(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def do_GET(self, body: str = "") -> None:
        """Answer about a dataset, or send one of its files."""
        self.asked.append(f"{self.command} {self.path}")
        path = unquote(urlsplit(self.path).path)
        api, file = API.fullmatch(path), FILE.fullmatch(path)
        found = api or file
        if found is None or not (self.root / found[1]).is_dir():
            return self.told({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        if found[1].endswith("gated") and "Authorization" not in self.headers:
            return self.told({"error": "gated"}, 401, X_Error_Code="GatedRepo")
        revision = (api[3] if api else found[2]) or "main"
        commit = (self.root / found[1] / "main").read_text() if revision == "main" else revision
        folder = self.root / found[1] / commit
        if not folder.is_dir():
            return self.told({"error": "Invalid rev"}, 404, X_Error_Code="RevisionNotFound")
        if file:
            return self.file(folder / file[3], commit)
        if found[2] == "tree":
            inside = folder / (found[4] or "")
            if not inside.is_dir():
                return self.told({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")
            deep = "recursive=true" in self.path.lower()
            return self.told([entry(folder, one) for one in sorted(inside.glob("**/*" if deep else "*"))])
        if found[2] == "paths-info":
            wanted = [folder / unquote(one.removeprefix("paths=")) for one in body.split("&")]
            return self.told([entry(folder, one) for one in wanted if one.exists()])
        files = [{"rfilename": str(one.relative_to(folder))} for one in folder.rglob("*") if one.is_file()]
        return self.told({"id": found[1], "sha": commit, "tags": [], "siblings": files})

    def file(self, path: Path, commit: str) -> None:
        """Send a file, or the part of it that is asked for."""
        if not path.is_file():
            return self.told(
                {"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit
            )
        raw = path.read_bytes()
        about = {"ETag": f'"{hashlib.sha256(raw).hexdigest()}"', "X_Repo_Commit": commit}
        part = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if part is None:
            return self.answer(raw, Accept_Ranges="bytes", **about)
        first, last = int(part[1]), int(part[2] or len(raw) - 1)
        piece = raw[first : last + 1]
        said = f"bytes {first}-{first + len(piece) - 1}/{len(raw)}"
        return self.answer(piece, 206, Content_Range=said, **about)


def entry(folder: Path, path: Path) -> dict[str, object]:
    """What the hub says of a file or folder."""
    name = str(path.relative_to(folder))
    kind, size = ("directory", 0) if path.is_dir() else ("file", path.stat().st_size)
    return {"type": kind, "path": name, "oid": hashlib.sha1(name.encode()).hexdigest(), "size": size}  # noqa: S324


@contextlib.contextmanager
def served(root: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub of these folders, and what it is asked."""
    asked: list[str] = []
    handler = type("Served", (Hub,), {"root": root, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
