"""Watches the frames that come in for what proton's Python side does not tell: message formats and grants of credit.

A batch differs from a message by the `message-format` of its transfer alone; and proton's flow event comes for many
reasons, of which only a flow frame that gives credit is a client's receive. So both are read off the wire.
"""

import contextlib
import struct
from collections import deque

from spark_sb_sink.broker import sections

BATCH_FORMAT = 0x80013700
_HEAD = 1024
_U32 = struct.Struct(">I")
_ATTACH, _FLOW, _TRANSFER, _DETACH, _END = 0x12, 0x13, 0x14, 0x16, 0x17
_WATCHED = frozenset({_ATTACH, _FLOW, _TRANSFER, _DETACH, _END})


class FrameWatcher:
    """Fed the same bytes as proton; tells for each link, by name, its deliveries' formats in order, and its grants."""

    def __init__(self) -> None:
        self._rest = b""
        self._skip = 0
        self._names: dict[tuple[int, int], str] = {}
        self._within: set[tuple[int, int]] = set()
        self._formats: dict[str, deque[int]] = {}
        self._grants: dict[str, int] = {}

    def next_format(self, link_name: str) -> int:
        """The format of the next whole delivery of that link, 0 if it gave none."""
        formats = self._formats.get(link_name)
        return formats.popleft() if formats else 0

    def take_grants(self, link_name: str) -> int:
        """How many flow frames have given that link credit since this was last asked; those that drain it are none."""
        return self._grants.pop(link_name, 0)

    def forget(self, link_name: str) -> None:
        self._formats.pop(link_name, None)
        self._grants.pop(link_name, None)

    def feed(self, data: bytes) -> None:
        if self._skip:
            if self._skip >= len(data):
                self._skip -= len(data)
                return
            data = data[self._skip :]
            self._skip = 0
        if self._rest:
            data = self._rest + data
        pos, end = 0, len(data)
        while end - pos >= 8:
            if data[pos : pos + 4] == b"AMQP":
                pos += 8
                continue
            size = _U32.unpack_from(data, pos)[0]
            head = min(size, _HEAD)
            if size < 8 or end - pos < head:
                break
            if data[pos + 5] == 0:
                # proton reads the same bytes and closes the connection for them
                with contextlib.suppress(sections.MalformedError, IndexError, struct.error):
                    self._frame(data[pos : pos + head])
            pos += size
        if pos > end:
            self._skip, pos = pos - end, end
        self._rest = data[pos:]

    def _frame(self, frame: bytes) -> None:
        at = frame[4] * 4
        if frame[at : at + 2] != b"\x00\x53" or frame[at + 2] not in _WATCHED:
            return
        channel = int.from_bytes(frame[6:8], "big")
        kind = frame[at + 2]
        if kind == _END:
            for key in [key for key in self._names if key[0] == channel]:
                self._drop(key)
            return
        # Only the first fields are wanted, and the frame may be cut off behind them: so no check of the list's size.
        count, pos = sections.items(frame, at + 3)
        if kind == _ATTACH:
            name = sections.scalar(frame, pos)
            pos = sections.skip(frame, pos)
            handle = sections.scalar(frame, pos)
            self._names[channel, handle] = name
            self._within.discard((channel, handle))
            return
        if kind == _DETACH:
            self._drop((channel, sections.scalar(frame, pos)))
            return
        wanted = 9 if kind == _FLOW else 6
        values = []
        for _ in range(min(count, wanted)):
            values.append(sections.scalar(frame, pos))
            pos = sections.skip(frame, pos)
        values += [None] * (wanted - len(values))
        if kind == _FLOW:
            handle, credit, drain = values[4], values[6], values[8]
            flowing = self._names.get((channel, handle)) if handle is not None else None
            if flowing is not None and credit and not drain:
                self._grants[flowing] = self._grants.get(flowing, 0) + 1
            return
        handle, _, _, message_format, _, more = values
        key = (channel, handle)
        if key not in self._within:
            name = self._names.get(key, "")
            self._formats.setdefault(name, deque()).append(message_format or 0)
        if more:
            self._within.add(key)
        else:
            self._within.discard(key)

    def _drop(self, key: tuple[int, int]) -> None:
        self._names.pop(key, None)
        self._within.discard(key)
