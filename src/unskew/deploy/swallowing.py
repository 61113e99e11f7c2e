"""How much of an answer a site's connection takes: whoever speaks in the server's place must not fill the site's memory."""

# pyright: reportMissingImports=false
# Flower, which brings httpx, lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

from collections.abc import Iterator

import httpx

MOST_ANSWER = 16 << 20
"""Bytes of one answer; the longest honest ones are a piece of 8 MB, and a list of pieces."""


class TooLong(Exception):
    """An answer that is longer than any of the server's."""


class _Counted(httpx.SyncByteStream):
    """The bytes of an answer as they come, up to the bound."""

    def __init__(self, stream: httpx.SyncByteStream):
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        taken = 0
        for piece in self._stream:
            taken += len(piece)
            if taken > MOST_ANSWER:
                raise TooLong
            yield piece

    def close(self) -> None:
        self._stream.close()


def bounded(response: httpx.Response) -> None:
    """A hook for a client, before it reads an answer. Raises TooLong, then or while it reads.

    Nothing is unpacked either: a few bytes that are compressed can stand for gigabytes.
    """
    stream = response.stream
    assert isinstance(stream, httpx.SyncByteStream)
    response.headers.pop("content-encoding", None)
    response.stream = _Counted(stream)
