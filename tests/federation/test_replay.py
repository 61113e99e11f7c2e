"""A site answers a request once, whatever becomes of the file that says which it has answered."""

from __future__ import annotations

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import UsageError
from unskew.federation.site.run_folder import RunFolder


@pytest.mark.parametrize("content", [b"", b"-1", b"1e9", b"\xff", b"12 ", b"7\n"])
def test_the_guard_against_replays_does_not_begin_anew_with_a_damaged_file(tmp_path, content):
    """R9: an empty file was taken for "nothing answered yet", so old requests would have been answered
    again."""
    folder = RunFolder.of(tmp_path, "s0", "r1")
    folder.check_new(5)
    for old in (4, 5, None, "6"):
        with pytest.raises(UsageError, match="E307 the request is older"):
            folder.check_new(old)
    (folder.path / "serial").write_bytes(content)
    with pytest.raises(
        UsageError, match=r"E307 which requests of the run were answered .*serial\), .*; start a new run"
    ):
        folder.check_new(6)
