"""What the path of a queue or topic may look like; the same for the option `entity` and for the column."""

import re

BACKLOG_FOLDER = "x-servicebus-transfer"
"""Backlog queues are {primary}/x-servicebus-transfer/0, …/1, …"""

LONGEST_PATH = 260
AN_ENTITY = f"the name of a queue or topic, up to {LONGEST_PATH} letters, digits and . - _ ~ / (no backlog queue)"

_ENTITY = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._~/-]*[A-Za-z0-9_])?")


def is_entity_name(value: str) -> bool:
    """Whether an entity can have that name, and is none of the backlog queues, which only the library sends to."""
    return (
        len(value) <= LONGEST_PATH
        and _ENTITY.fullmatch(value) is not None
        and "//" not in value
        and f"/{BACKLOG_FOLDER}/" not in value
    )
