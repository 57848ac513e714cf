"""Groups of protocol 2: jobs with a ``groupId`` and without names of their own, one at a time."""

from bunqueue_trio.engine.heaps import Entry
from bunqueue_trio.model.job import Job


class Group:
    """Jobs of one ``groupId`` without names of their own: at most one is active, and then nothing else of the group.

    Those met while the group is busy wait aside, in their order.
    """

    __slots__ = ("active", "aside")

    def __init__(self) -> None:
        self.active: Job | None = None
        self.aside: list[Entry] = []
