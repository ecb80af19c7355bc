"""Where a user's data are kept: in a folder that the environment names as an absolute path, or nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from costmodel.accuracy.kept_anchors import anchor_folder, kept_anchors
from costmodel.kernels.saved import measurement_folder, saved_measurements
from tests.guard import GUARD, Guard, real_folders
from topology.base.errors import DamagedFileWarning, InputError
from topology.base.user_folder import user_data_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the variables are those of POSIX systems")
ROOT = Path(__file__).parents[4]
NO_HOMES = ("", "here", "~", "~root", "a/b", "./x", " /tmp", "\n/tmp", "[")
"""Values that are no absolute path."""


@pytest.mark.parametrize("data", [None, *NO_HOMES])
@pytest.mark.parametrize("home", [None, *NO_HOMES])
def test_without_an_absolute_home_there_is_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str | None, data: str | None
) -> None:
    """Nothing is read, above all not the folder that the password database knows; writing is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MESHPLAN_DATA", raising=False)
    for name, value in (("HOME", home), ("XDG_DATA_HOME", data)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert (user_data_folder(), kept_anchors()) == (None, ())
    if home or data:
        with pytest.warns(DamagedFileWarning, match="no absolute path"):
            assert saved_measurements() == ()
    else:
        assert saved_measurements() == ()
    for folder in (measurement_folder, anchor_folder):
        with pytest.raises(InputError, match="there is no folder to keep your data in"):
            folder()
    assert list(tmp_path.iterdir()) == []


def test_the_first_absolute_variable_names_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """XDG_DATA_HOME before HOME; a relative one is passed over, as its specification says."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert user_data_folder() == tmp_path / "data" / "meshplan"
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    folder = user_data_folder()
    assert folder is not None
    assert folder.is_relative_to(tmp_path / "home")


def test_a_plan_is_made_without_a_home() -> None:
    """It is said that measurements are not read, the answer is that of the tables."""
    kept = {name: value for name, value in os.environ.items() if name != "XDG_DATA_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "app", "--model", "llama-3.2-1b", "--gpus", "1", "--json"],
        cwd=ROOT, env={**kept, "HOME": "here"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr.count("note: measurements of `plan bench` are not read: ") == 1
    assert "HOME is 'here': no absolute path" in done.stderr


def test_the_suite_sees_a_test_that_opens_the_users_files(tmp_path: Path) -> None:
    """A seeded violation: reading, listing or making something below a guarded folder is heard."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("mine")
    guard = Guard([f"{tmp_path}/data/"], [f"{tmp_path}/data/venv/"])
    assert (tmp_path / "data" / "file").read_text() == "mine"
    assert guard.taken() == [str(tmp_path / "data" / "file")]
    list((tmp_path / "data").iterdir())
    (tmp_path / "data" / "new").mkdir()
    assert guard.taken() == [str(tmp_path / "data"), str(tmp_path / "data" / "new")]
    (tmp_path / "data" / "venv").mkdir()
    (tmp_path / "other").write_text("not guarded")
    assert guard.taken() == []


def test_a_test_that_opens_the_users_files_fails(tmp_path: Path) -> None:
    """The same in a run of its own, whose user has measured; with another HOME in force."""
    kept = tmp_path / ".local" / "share" / "meshplan" / "measurements"
    kept.mkdir(parents=True)
    (kept / "mine.json").write_text("[]")
    case = tmp_path / "test_seeded.py"
    case.write_text(
        "import os, pathlib, pytest\n"
        f"FOLDER = pathlib.Path({str(kept)!r})\n"
        "@pytest.mark.parametrize('home', ['here', '/nowhere'])\n"
        "def test_seeded(home, monkeypatch):\n"
        "    monkeypatch.setenv('HOME', home)\n"
        "    (FOLDER / 'mine.json').read_text()\n"
        "def test_of_the_product(monkeypatch):\n"
        "    from costmodel.kernels.saved import saved_measurements\n"
        "    assert saved_measurements() == ()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GUARDED_FOLDERS"}
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        environment.pop(name, None)
    words = [
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "tests.guard",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, *words, str(case)],
        cwd=ROOT, env={**environment, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "2 failed, 1 passed" in done.stdout
    assert done.stdout.count("the real user's files were opened: ") >= 2


def test_the_real_users_folders_are_guarded_here() -> None:
    """The suite itself runs under the guard, and starts processes with folders of its own."""
    assert GUARD.folders
    assert set(real_folders({"HOME": "/home/x", "XDG_CACHE_HOME": "/c"})) >= {
        "/home/x/.local/share/",
        "/home/x/.config/",
        "/c/",
    }
    assert not os.environ["XDG_DATA_HOME"].startswith(GUARD.folders)
