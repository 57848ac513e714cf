"""PUSHF: a whole flow in one command."""

from typing import Any

from msgspec import Raw, Struct, field

from bunqueue_trio.model.commands.base import ABSENT, Command
from bunqueue_trio.model.commands.working import PushOptions


class FlowInput(PushOptions):
    """The options of one job of a flow; those of PUSH. ``customId`` may only repeat the job's id."""

    custom_id: Any = None


class FlowEntry(Struct, rename="camel", gc=False):
    """One job of a flow, under an id that the client has made.

    The checks set, whatever came over the wire, what the job's data say of its kin: ``named_parent`` is a pair, the id
    and the queue of the parent, each None where there is no such text; ``named_children`` is the list of the ids of its
    children, None where it is no list of texts. Data of jobs without kin are not looked at.
    """

    id: Any = None
    queue: Any = None
    input: FlowInput | None = None
    named_parent: Any = field(name="(namedParent)", default=None)
    named_children: Any = field(name="(namedChildren)", default=None)


class FlowPlan(Struct, gc=False):
    """The jobs of a flow as far as they are known to be good.

    ``fault`` is why the frame holds no jobs at all. ``size_bytes`` is the length of the jobs on the wire, their data in
    the form in which they are kept. ``is_checked``: each job has been looked at by itself, and is normalised;
    ``is_sound``: they have been looked at together, too.
    """

    jobs: list[FlowEntry]
    size_bytes: int = 0
    fault: str | None = None
    is_checked: bool = False
    is_sound: bool = False


class PushFlow(Command, tag="PUSHF"):
    """Queue the jobs of a flow, all or none. ``plan`` is made of ``jobs`` by the codec."""

    jobs: Raw = ABSENT
    plan: Any = field(name="(plan)", default=None)
