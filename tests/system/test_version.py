"""A run says which unskew made it: the version, and of a checkout the commit and whether it was changed."""

from __future__ import annotations

import subprocess

from unskew import __version__
from unskew.version import revision


def git(at, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(
        ["git", *who, "-C", str(at), *words], check=True, capture_output=True, text=True
    ).stdout


def test_a_checkout_tells_its_commit_and_changed_sources(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    assert revision(tmp_path) == __version__
    git(tmp_path, "init", "-q")
    revision.cache_clear()
    assert revision(tmp_path) == __version__  # no commit yet
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "notes.txt").write_text("beside the sources")
    revision.cache_clear()
    clean = f"{__version__}+{git(tmp_path, 'rev-parse', '--short', 'HEAD').strip()}"
    assert revision(tmp_path) == clean
    (tmp_path / "src" / "a.py").write_text("2")
    revision.cache_clear()
    assert revision(tmp_path) == clean + ".changed"


def test_a_users_repository_around_an_installed_unskew_is_not_taken_for_ours(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "theirs")
    inside = tmp_path / ".venv" / "lib" / "python3.11"
    inside.mkdir(parents=True)
    assert revision(inside) == __version__
