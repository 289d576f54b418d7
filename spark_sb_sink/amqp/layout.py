"""Where an AMQP value ends, without decoding it; lists and maps cut into the bytes of their elements and joined again.

This is what lets a message be changed in one place and forwarded byte for byte in all others.
"""

from collections.abc import Sequence

from spark_sb_sink.amqp.errors import MalformedMessageError, UnencodableValueError

NULL = b"\x40"
MAX_DEPTH = 64
"""Nesting beyond this is refused both ways, as the service's own SDKs do: it bounds recursion."""

_DESCRIBED, _SIZE8, _SIZE32, _INVALID = -1, -2, -3, -4

_LAYOUT = [_INVALID] * 256
"""For each constructor: how many bytes follow it, or how to find out."""
_LAYOUT[0x00] = _DESCRIBED
for _width, _codes in (
    (0, (0x40, 0x41, 0x42, 0x43, 0x44, 0x45)),
    (1, (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56)),
    (2, (0x60, 0x61)),
    (4, (0x70, 0x71, 0x72, 0x73, 0x74)),
    (8, (0x80, 0x81, 0x82, 0x83, 0x84)),
    (16, (0x94, 0x98)),
    (_SIZE8, (0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0)),
    (_SIZE32, (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0)),
):
    for _code in _codes:
        _LAYOUT[_code] = _width


def value_end(data: bytes, start: int, limit: int) -> int:
    """The offset just after the value that starts at `start`; it must end at or before `limit`."""
    position = start
    pending = 1
    while pending:
        if position >= limit:
            raise MalformedMessageError(position, "a value", "the end")
        layout = _LAYOUT[data[position]]
        position += 1
        if layout >= 0:
            position += layout
        elif layout == _SIZE8:
            # A missing size byte reads as the limit being passed, checked below.
            position += 1 + (data[position] if position < limit else 0)
        elif layout == _SIZE32:
            position += 4 + int.from_bytes(data[position : position + 4], "big")
        elif layout == _DESCRIBED:
            pending += 2
            if pending > 2 * MAX_DEPTH:
                raise MalformedMessageError(start, f"at most {MAX_DEPTH} levels of nesting", "more")
        else:
            raise MalformedMessageError(position - 1, "an AMQP type", f"the code 0x{data[position - 1]:02x}")
        if position > limit:
            raise MalformedMessageError(
                start, "a value within its bounds", f"one that ends {position - limit} bytes on"
            )
        pending -= 1
    return position


def body_end(data: bytes, code: int, position: int, limit: int) -> int:
    """As `value_end`, for a value whose constructor stands elsewhere: an element of an array. Never a described one."""
    layout = _LAYOUT[code]
    if layout == _SIZE8:
        end = position + 1 + (data[position] if position < limit else 0)
    elif layout == _SIZE32:
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
    else:
        end = position + layout
    if end > limit:
        raise MalformedMessageError(position, "a value within its bounds", f"one that ends {end - limit} bytes on")
    return end


def compound_body(data: bytes, code: int, position: int, end: int) -> tuple[int, int]:
    """Of the list, map or array whose size stands at `position`: where its elements start, and how many it claims."""
    if code == 0x45:
        return position, 0
    wide = code in (0xD0, 0xD1, 0xF0)
    first = position + (8 if wide else 2)
    if first > end:
        raise MalformedMessageError(position, "a size and a count", "the end")
    return first, (int.from_bytes(data[position + 4 : first], "big") if wide else data[position + 1])


def cut(data: bytes, start: int, end: int) -> list[bytes]:
    """The elements of the list between `start` and `end`, each as its bytes; of a map, keys and values by turns."""
    position, count = compound_body(data, data[start], start + 1, end)
    if count > end - position:
        # Each element takes a byte at least; a hostile count ends here, before anything is stored for it.
        raise MalformedMessageError(start, f"room for {count} elements", f"{end - position} bytes")
    pieces = []
    for _ in range(count):
        # As `value_end`, which does all but the usual forms and raises what is to be raised.
        layout = _LAYOUT[data[position]] if position < end else _INVALID
        if layout >= 0:
            after = position + 1 + layout
        elif layout == _SIZE8 and position + 1 < end:
            after = position + 2 + data[position + 1]
        else:
            after = value_end(data, position, end)
        if after > end:
            value_end(data, position, end)
        pieces.append(data[position:after])
        position = after
    if position != end:
        raise MalformedMessageError(position, f"the end after {count} elements", f"{end - position} more bytes")
    return pieces


def cut_map(data: bytes, start: int, end: int) -> list[tuple[bytes, bytes]]:
    """The pairs of the map between `start` and `end`, each key and each value as its bytes."""
    pieces = cut(data, start, end)
    if len(pieces) % 2:
        raise MalformedMessageError(start, "a map of keys with values", f"{len(pieces)} elements")
    return list(zip(pieces[::2], pieces[1::2], strict=True))


def join_list(pieces: Sequence[bytes]) -> bytes:
    """A list of encoded elements, in the shortest form."""
    return b"\x45" if not pieces else _compound(0xC0, 0xD0, b"".join(pieces), len(pieces))


def join_map(content: bytes, count: int) -> bytes:
    """A map of encoded keys and values, `count` of both together, in the shortest form."""
    return _compound(0xC1, 0xD1, content, count)


def _compound(small: int, large: int, content: bytes, count: int) -> bytes:
    size = len(content)
    if size < 255 and count <= 255:
        return bytes((small, size + 1, count)) + content
    return bytes((large,)) + wide_size(size + 4) + wide_size(count) + content


def wide_size(size: int) -> bytes:
    """A size of four bytes."""
    if size > 0xFFFF_FFFF:
        raise UnencodableValueError(f"AMQP carries up to 4 GiB in one value, not {size} bytes")
    return size.to_bytes(4, "big")
