"""The limits of a session in AgentCore Memory.

"Format" stands for the record format that LittleGhost for Ruby and this store share, "AWS" for the API model and the quotas of Bedrock
AgentCore. Characters are Unicode code points, bytes are those of UTF-8.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CHUNK_CHARS",
    "MAX_CHECKPOINT_BYTES",
    "MAX_CHUNKS",
    "MAX_EVENT_BYTES",
    "MAX_GENERATION_BYTES",
    "MAX_GENERATION_EVENTS",
    "MAX_GENERATION_ITEMS",
    "MAX_ID_CHARS",
    "MAX_ITEMS",
    "MAX_ITEM_CHARS",
    "MAX_LINK_CHARS",
    "MAX_MESSAGES",
    "MAX_MESSAGE_BYTES",
    "MAX_NESTING",
    "MAX_REQUEST_BYTES",
    "MAX_REVISION",
    "PAGE_EVENTS",
]

MAX_ITEM_CHARS: Final = 100_000
"""Characters in the text of one item. AWS: ContentTextString."""

CHUNK_CHARS: Final = 90_000
"""Characters of a message's JSON in one chunk, where it does not fit one item. Format."""

MAX_CHUNKS: Final = 10_000
"""Chunks of one message. Format."""

MAX_ITEMS: Final = 100
"""Items in one event. AWS: PayloadTypeList."""

MAX_EVENT_BYTES: Final = 10 * 1024 * 1024
"""Bytes of the texts of one event together. Format, after the quota of AWS."""

MAX_REQUEST_BYTES: Final = 10_000_000
"""Bytes in the body of one CreateEvent. AWS says 10 MB for an event and not how it counts; the body, in which each character beyond
ASCII takes 6 bytes or 12, is the most that it can mean."""

MAX_MESSAGES: Final = 10_000
"""Messages of one session. Format."""

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one message as JSON, with its place in the session. Format."""

MAX_GENERATION_BYTES: Final = 128 * 1024 * 1024
"""Bytes of the texts of all items of one generation. Format."""

MAX_GENERATION_EVENTS: Final = 10_000
"""Message events of one generation. Format."""

MAX_GENERATION_ITEMS: Final = 25_000
"""Items of one generation. Format."""

MAX_CHECKPOINT_BYTES: Final = 1024 * 1024
"""Bytes of one checkpoint as JSON, of which state and metadata are nearly all. Format."""

MAX_NESTING: Final = 100
"""Levels of lists and objects in a checkpoint or a message, their own included. Format: the JSON library of Ruby."""

MAX_REVISION: Final = 2**63 - 1
"""The last revision. Format."""

MAX_ID_CHARS: Final = 256
"""Characters in the id of a generation or a commit. Format, and AWS: MetadataValue."""

MAX_LINK_CHARS: Final = 256
"""Characters in a value of the metadata of an event. AWS: MetadataValue."""

PAGE_EVENTS: Final = 100
"""Events in one page of a list. AWS: MaxResults."""
