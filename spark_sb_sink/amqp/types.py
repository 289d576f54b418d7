"""The AMQP types that Python has no type of its own for, as small frozen wrappers.

A value decoded and encoded again keeps its AMQP type and its value. Python's own types stand for one AMQP type each:
None null, bool boolean, int int (long where it does not fit 32 bits), float double, str string, bytes binary,
UUID uuid, aware datetime timestamp, list and tuple list, dict map. Knows nothing of bytes on the wire.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import ClassVar, TypeAlias
from uuid import UUID

from spark_sb_sink.amqp.errors import UnencodableValueError

UINT_MAX = 0xFFFF_FFFF
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def timestamp_ms(moment: datetime) -> int:
    """Milliseconds since 1970, rounded down. A time without a zone is refused: it could mean any of 26 hours."""
    if moment.tzinfo is None:
        raise UnencodableValueError(f"a timestamp needs a time zone; {moment.isoformat()} has none")
    return (moment - _EPOCH) // _MILLISECOND


@dataclass(frozen=True, slots=True)
class _Whole:
    """A whole number of a fixed width; a number out of its range is refused when it is made, not when it is sent."""

    value: int
    low: ClassVar[int]
    high: ClassVar[int]

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not self.low <= self.value <= self.high:
            name = type(self).__name__.lower()
            raise UnencodableValueError(
                f"{name} takes whole numbers from {self.low} to {self.high}, not {self.value!r}"
            )


class UByte(_Whole):
    __slots__ = ()
    low, high = 0, 0xFF


class UShort(_Whole):
    __slots__ = ()
    low, high = 0, 0xFFFF


class UInt(_Whole):
    __slots__ = ()
    low, high = 0, UINT_MAX


class ULong(_Whole):
    __slots__ = ()
    low, high = 0, 2**64 - 1


class Byte(_Whole):
    __slots__ = ()
    low, high = -(2**7), 2**7 - 1


class Short(_Whole):
    __slots__ = ()
    low, high = -(2**15), 2**15 - 1


class Long(_Whole):
    __slots__ = ()
    low, high = LONG_MIN, LONG_MAX


class Timestamp(_Whole):
    """Milliseconds since 1970: AMQP's range is wider than datetime's."""

    __slots__ = ()
    low, high = LONG_MIN, LONG_MAX


@dataclass(frozen=True, slots=True)
class Float:
    """A 32-bit float; rounded to 32 bits when it is made, so that equal means equal on the wire."""

    value: float

    def __post_init__(self) -> None:
        try:
            rounded: float = struct.unpack(">f", struct.pack(">f", self.value))[0]
        except (OverflowError, struct.error, TypeError) as error:
            raise UnencodableValueError(f"float takes a number that 32 bits can hold, not {self.value!r}") from error
        object.__setattr__(self, "value", rounded)


@dataclass(frozen=True, slots=True)
class _Opaque:
    """A decimal as its IEEE 754 bytes: passed on, never computed with."""

    raw: bytes
    width: ClassVar[int]

    def __post_init__(self) -> None:
        if not isinstance(self.raw, bytes) or len(self.raw) != self.width:
            raise UnencodableValueError(f"{type(self).__name__.lower()} takes {self.width} bytes, not {self.raw!r}")


class Decimal32(_Opaque):
    __slots__ = ()
    width = 4


class Decimal64(_Opaque):
    __slots__ = ()
    width = 8


class Decimal128(_Opaque):
    __slots__ = ()
    width = 16


@dataclass(frozen=True, slots=True)
class Char:
    """One Unicode character."""

    value: str

    def __post_init__(self) -> None:
        if not isinstance(self.value, str) or len(self.value) != 1 or "\ud800" <= self.value <= "\udfff":
            raise UnencodableValueError(f"char takes one Unicode character, not {self.value!r}")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name from a constrained domain: ASCII only."""

    value: str

    def __post_init__(self) -> None:
        if not isinstance(self.value, str) or not self.value.isascii():
            raise UnencodableValueError(f"symbol takes ASCII text, not {self.value!r}")


@dataclass(frozen=True, slots=True)
class Map:
    """A map as its pairs: AMQP keeps their order, and tells the keys 1, 1.0 and true apart, which a dict does not."""

    pairs: tuple[tuple["Value", "Value"], ...] = ()

    def get(self, name: str) -> "Value":
        """The value under that name, as a string or as a symbol; None where there is none."""
        symbol = Symbol(name) if name.isascii() else None
        for key, value in self.pairs:
            if key == name or (symbol is not None and key == symbol):
                return value
        return None


class ElementType(IntEnum):
    """The types that elements of an array can have; the number is the constructor they are written with."""

    NULL = 0x40
    BOOLEAN = 0x56
    UBYTE = 0x50
    USHORT = 0x60
    UINT = 0x70
    ULONG = 0x80
    BYTE = 0x51
    SHORT = 0x61
    INT = 0x71
    LONG = 0x81
    FLOAT = 0x72
    DOUBLE = 0x82
    DECIMAL32 = 0x74
    DECIMAL64 = 0x84
    DECIMAL128 = 0x94
    CHAR = 0x73
    TIMESTAMP = 0x83
    UUID = 0x98
    BINARY = 0xB0
    STRING = 0xB1
    SYMBOL = 0xB3
    LIST = 0xD0
    MAP = 0xD1
    ARRAY = 0xF0


@dataclass(frozen=True, slots=True)
class Array:
    """Elements of one type, which an empty array has too; `descriptors` are those that all elements share."""

    of: ElementType
    items: tuple["Value", ...] = ()
    descriptors: tuple["Value", ...] = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor that says what it means, such as .NET's `com.microsoft:timespan` over a long."""

    descriptor: "Value"
    value: "Value"


Wrapper: TypeAlias = (
    UByte
    | UShort
    | UInt
    | ULong
    | Byte
    | Short
    | Long
    | Float
    | Decimal32
    | Decimal64
    | Decimal128
    | Char
    | Timestamp
    | Symbol
    | Map
    | Array
    | Described
)
Value: TypeAlias = (
    bool | int | float | str | bytes | UUID | datetime | Wrapper | Sequence["Value"] | Mapping["Value", "Value"] | None
)
