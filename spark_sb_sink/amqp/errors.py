"""What can go wrong between a value and its AMQP bytes.

ValueError
└── CodecError
    ├── UnencodableValueError        a value that AMQP, or Service Bus, cannot carry
    ├── MalformedMessageError        bytes that are not an AMQP 1.0 value or message
    └── EnvelopeError
        ├── UnwrappableMessageError  a message that cannot take the envelope: a bad message
        └── UnrestorableMessageError a message in a backlog queue that cannot be moved to an entity
"""


class CodecError(ValueError):
    """Base of all errors of the codec and the envelope."""


class UnencodableValueError(CodecError):
    """A value that AMQP cannot carry; the text names the value's type and what is possible instead."""


class MalformedMessageError(CodecError):
    """Bytes that are not what AMQP 1.0 asks for at this place."""

    def __init__(self, offset: int, expected: str, found: str) -> None:
        super().__init__(f"malformed AMQP at byte {offset}: expected {expected}, found {found}")
        self.offset = offset
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[type["MalformedMessageError"], tuple[int, str, str]]:
        # Errors travel between Spark's processes; the default would pickle the text as the only argument.
        return type(self), (self.offset, self.expected, self.found)


class EnvelopeError(CodecError):
    """Base of the errors of the envelope."""


class UnwrappableMessageError(EnvelopeError):
    """The message cannot take the envelope, on any backlog queue: it is a bad message."""


class UnrestorableMessageError(EnvelopeError):
    """The message in the backlog queue can never be moved; the text is the reason it is dead-lettered with."""
