"""A port that nobody listens on."""

import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    """A free port of this machine."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])
