"""The message ids of rows that bring none: by content, never by position, so that a replay in another order is safe.

An id is a 128-bit hash over query, batch, call of the sink, partition, entity and the whole message, and from the
second on also the occurrence number among identical messages of the partition. Knows nothing of rows and columns.

Memory: to count occurrences, the digest of each message that was given an id here is kept until the partition ends,
about 110 bytes for each (measured): 110 MB for a million rows. Whatever bounded that would forget a count, and then
give two identical messages one id, or a message another id in a replay. Rows that bring their id cost nothing here.
"""

from collections.abc import Callable
from hashlib import blake2b

DIGEST_SIZE = 16


def _field(text: str) -> bytes:
    # With its length in front, so that no two lists of texts join to the same bytes.
    raw = text.encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "big") + raw


class IdMaker:
    """The ids of one partition of one micro-batch; not to be shared by two tries of it, nor by two threads."""

    def __init__(self, query_id: str, batch_id: int | str, partition_id: int, call: int = 0) -> None:
        """`call`: which call of a sink it is within the micro-batch; the first counts as none."""
        start = b"".join(_field(str(part)) for part in (query_id, batch_id, partition_id))
        self._base = blake2b(start, digest_size=DIGEST_SIZE, salt=call.to_bytes(blake2b.SALT_SIZE, "big"))
        self._seen: dict[bytes, int] = {}

    def for_entity(self, entity: str) -> Callable[[bytes], str]:
        """What gives messages for that entity their ids, from their bytes without id, creation and expiry time."""
        base = self._base.copy()
        base.update(_field(entity))
        seen, copy = self._seen, base.copy

        def derive(message: bytes) -> str:
            state = copy()
            state.update(message)
            digest = state.digest()
            occurrence = seen.get(digest, 0) + 1
            seen[digest] = occurrence
            return digest.hex() if occurrence == 1 else f"{digest.hex()}-{occurrence}"

        return derive
