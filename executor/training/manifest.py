"""What a checkpoint says of itself: its files with sizes and SHA-256, and who vouches for them.

The checksums tell damage. Only a signature tells tampering: an HMAC-SHA256 over the manifest, by a key that
lies elsewhere (``--run-key FILE``).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from topology.base.decode import read_json, structure, unstructure
from topology.base.errors import InputError
from topology.base.files import open_regular

MANIFEST = "manifest.json"
LEAST_KEY_BYTES, MOST_KEY_BYTES = 16, 4096
_BLOCK_BYTES = 1 << 20
_NAME = re.compile(r"step-(\d+)$")
_FILE = re.compile(r"\.metadata|__\d+_\d+\.distcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a checkpoint."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds: training had finished `step` steps and consumed `samples` sequences.

    `places` says where texts that are tokenized on the way go on, lane by lane (`executor.data.stream`).
    """

    step: int
    samples: int
    files: tuple[StoredFile, ...]
    torch_version: str
    places: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    signature: str = ""


def folder_of_step(root: Path, step: int) -> Path:
    """Folder of the checkpoint after `step` steps."""
    return root / f"step-{step:08d}"


def steps_on_disk(root: Path) -> list[int]:
    """Steps with a complete checkpoint folder, newest first."""
    matches = [_NAME.match(path.name) for path in root.iterdir()] if root.is_dir() else []
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def stored_file(path: Path) -> StoredFile:
    """Size and checksum of a file."""
    total = hashlib.sha256()
    with open_regular(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            total.update(block)
    return StoredFile(name=path.name, size_bytes=path.stat().st_size, sha256=total.hexdigest())


def read_manifest(folder: Path) -> Manifest | None:
    """Manifest of a checkpoint, None if it is missing, damaged, or names other files than a checkpoint's."""
    path = folder / MANIFEST
    try:
        manifest = structure(read_json(path), Manifest, str(path))
    except (OSError, ValueError, InputError):
        return None
    counted = manifest.step >= 0 and manifest.samples >= 0
    return manifest if counted and all(_FILE.fullmatch(stored.name) for stored in manifest.files) else None


def intact(folder: Path, files: tuple[StoredFile, ...]) -> bool:
    """Whether files are there with the size and checksum they were written with."""
    try:
        return all(_is_whole(folder / stored.name, stored) for stored in files)
    except OSError:
        return False


def require_one_whole(root: Path, loaded: Manifest | None, damaged: tuple[int, ...]) -> None:
    """Refuse to begin anew over checkpoints that are all damaged: what is left of them would be replaced."""
    if damaged and loaded is None:
        raise InputError(
            what=f"no checkpoint of {root} is whole",
            cause=f"damaged: {', '.join(str(folder_of_step(root, step)) for step in damaged)}",
            fix="put one back from a copy, or begin anew: with another --run-dir, or without these folders",
        )


def _is_whole(path: Path, stored: StoredFile) -> bool:
    """Whether one file is: its size first, as a pipe or a device never ends."""
    return path.is_file() and path.stat().st_size == stored.size_bytes and stored_file(path) == stored


# ── signatures ────────────────────────────────────────────────────────────────────────────────────────────


def read_key(path: str | None) -> bytes | None:
    """Key of a run, None when there is none."""
    if path is None:
        return None
    try:
        if not Path(path).is_file():
            raise InputError(what=f"the run key {path} is no file", cause="--run-key", fix=_MAKE_A_KEY)
        with open_regular(path) as stream:
            key = stream.read(MOST_KEY_BYTES + 1).strip()
    except OSError as error:
        raise InputError(
            what=f"the run key {path} cannot be read", cause=error.strerror or str(error), fix=_MAKE_A_KEY
        ) from error
    if not LEAST_KEY_BYTES <= len(key) <= MOST_KEY_BYTES:
        raise InputError(
            what=f"the run key {path} is too short or too long",
            cause=f"{len(key)} bytes, expected {LEAST_KEY_BYTES} to {MOST_KEY_BYTES}",
            fix=_MAKE_A_KEY,
        )
    return key


_MAKE_A_KEY = "make one: (umask 077; openssl rand -hex 32 > FILE), kept outside of the run's folder"


def signed(manifest: Manifest, key: bytes | None) -> Manifest:
    """Sign a manifest; as it is without a key."""
    return manifest if key is None else replace(manifest, signature=_signature(manifest, key))


def require_signed(manifest: Manifest, key: bytes | None, folder: Path) -> None:
    """Refuse a checkpoint that the key does not vouch for, and a signed one when there is no key to ask."""
    if key is None and not manifest.signature:
        return
    if key is None:
        cause, fix = (
            "it is signed, and no key was given",
            "give the key that it was written with: --run-key FILE",
        )
    elif not manifest.signature:
        cause, fix = "it is not signed", "resume without --run-key if you trust it, or give another --run-dir"
    elif not hmac.compare_digest(manifest.signature.encode(), _signature(manifest, key).encode()):
        cause, fix = (
            "its signature is of another key or another manifest",
            "give the key of this run: --run-key FILE",
        )
    else:
        return
    raise InputError(what=f"the checkpoint {folder} is not vouched for", cause=cause, fix=fix)


def _signature(manifest: Manifest, key: bytes) -> str:
    """HMAC-SHA256 over everything else in a manifest."""
    value = unstructure(replace(manifest, signature=""))
    if not manifest.places:
        del value["places"]  # signed before there were any
    text = json.dumps(value, sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
