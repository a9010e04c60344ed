"""What a power cut may leave of what no sync had made durable: the policies of the engine disk.

In a module of its own, for the command's options name them; `disk_model` carries them out.
"""

from enum import StrEnum


class Policy(StrEnum):
    """What becomes of everything that is pending."""

    KEEP = "keep"  #: all of it is on the disk
    DROP = "drop"  #: none of it
    SUBSET = "subset"  #: each write by a coin; names up to a random one
    TORN = "torn"  #: each 512-byte sector by a coin; names up to a random one
    METADATA = "metadata"  #: data is there; names, sizes and truncations may be missing
    LATE = "late"  #: only the newest of it, from a random one on; no names
    FILES = "files"  #: each file by a coin, all of it or nothing; names up to a random one
