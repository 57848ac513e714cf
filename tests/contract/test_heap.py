"""Every collection of the server is either counted by `GET /heapstats` or has a reason to stay small. One that is new
fails here, until somebody has thought about what bounds it.

Source: R154, R272.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import bunqueue_trio
from bunqueue_trio.config import Config
from bunqueue_trio.engine.sizes import state_sizes
from bunqueue_trio.model.changes import Changes
from bunqueue_trio.model.grouping import PullGroup
from bunqueue_trio.server.heap import internal_sizes, own_types
from bunqueue_trio.server.live import Live
from bunqueue_trio.server.overviews import Overviews
from bunqueue_trio.server.webhooks.delivering import Deliveries
from bunqueue_trio.server.webhooks.registry import Webhooks
from bunqueue_trio.web.gate import Gate
from tests.server.fakes import QUEUE, Rig

PACKAGE = Path(bunqueue_trio.__file__).parent
KINDS = {"dict", "list", "set", "deque", "OrderedDict", "Counter", "defaultdict", "bytearray", "Letters"}

COUNTED = {
    "CronTable.by_name": ("state.crons.by_name", "crons"),
    "CronTable.due": ("state.crons.due", "cronsDue"),
    "CronTable.pending": ("state.crons.pending", "cronsPending"),
    "NamedGroups._by_id": ("queue.named_groups._by_id", "queue.namedGroups"),
    "NamedGroups._idle": ("queue.named_groups._idle", "queue.idle"),
    "NamedGroups._lines": ("queue.named_groups._lines", "queue.lines"),
    "NamedGroups._timed": ("queue.named_groups._timed", "queue.timed"),
    "GroupLine._heap": ("line._heap", "queue.standing"),
    "Group.aside": ("group.aside", "queue.aside"),
    "History._finished": ("state.history._finished", "finishedIds"),
    "History._jobs": ("state.history._jobs", "history"),
    "KeptResults._results": ("state.kept_results._results", "keptResults"),
    "Holdings.amending": ("state.amending", "amending"),
    "Holdings.awaited": ("state.awaited", "awaited"),
    "Holdings.connections": ("state.connections", "connections"),
    "Holdings.counted_out": ("state.counted_out", "countedOut"),
    "Holdings.dependents": ("state.dependents", "dependents"),
    "Holdings.due": ("state.due", "due"),
    "Holdings.ended": ("state.ended", "ended"),
    "Holdings.facts": ("state.facts", "facts"),
    "Holdings.held": ("state.held", "held"),
    "Holdings.jobs": ("state.jobs", "jobs"),
    "Holdings.kept_finished": ("state.kept_finished", "keptFinished"),
    "Holdings.letters_due": ("state.letters_due", "lettersDue"),
    "Holdings.old_results": ("state.old_results", "oldResults"),
    "Holdings.orderly": ("state.orderly", "orderly"),
    "Holdings.queues": ("state.queues", "queues"),
    "Holdings.removing": ("state.removing", "removing"),
    "Holdings.settings_in_flight": ("state.settings_in_flight", "settingsInFlight"),
    "Holdings.successors": ("state.successors", "successors"),
    "Holdings.timers": ("state.timers", "timers"),
    "Holdings.wakes": ("state.wakes", "wakes"),
    "Holdings.workers": ("state.workers", "workers"),
    "Holdings.workers_of": ("state.workers_of", "workersOf"),
    "JobLogs._lines": ("state.logs._lines", "logs"),
    "Block.jobs": ("queue.catalog.tail.jobs", "queue.listed"),
    "Catalog.blocks": ("queue.catalog.blocks", "queue.blocks"),
    "QueueState.delayed": ("queue.delayed", "queue.delayed"),
    "QueueState.groups": ("queue.groups", "queue.groups"),
    "QueueState.keys": ("queue.keys", "queue.keys"),
    "QueueState.letters": ("queue.letters", "queue.letters"),
    "QueueState.priorities": ("queue.priorities", "queue.priorities"),
    "QueueState.ready": ("queue.ready", "queue.ready"),
    "Waiting._by_key": ("broker.waiting._by_key", "pull.keys"),
    "Waiting._deadlines": ("broker.waiting._deadlines", "pull.deadlines"),
    "Waiting._lanes": ("broker.waiting._lanes", "pull.lanes"),
    "Ticket._settled": ("broker.ticket._settled", "absorbed"),
    "Ticket._waiting": ("broker.ticket._waiting", "promised"),
    "Ticket.turns": ("broker.ticket.turns", "turns"),
    "Events._audiences": ("events._audiences", "audiences"),
    "Events._followers": ("events._followers", "followers"),
    "Events._listeners": ("events._listeners", "listeners"),
    "Events._subscriptions": ("events._subscriptions", "subscriptions"),
    "QueueEvents._filled": ("events.queue_events._filled", "roomsFilled"),
    "QueueEvents._pieces": ("events.queue_events._pieces", "pieces"),
    "QueueEvents._rooms": ("events.queue_events._rooms", "rooms"),
    "QueueEvents._seats": ("events.queue_events._seats", "seats"),
    "_Room.frames": ("room.frames", "frames"),
    "Live._readers": ("live._readers", "readers"),
    "Live._sockets": ("live._sockets", "sockets"),
    "Pace._queue": ("live._pace._queue", "pace"),
    "Replay._kept": ("live._replay._kept", "replay"),
    "ClientThrottles._clients": ("gate._throttles._clients", "throttledClients"),
    "Webhooks._receivers": ("webhooks._receivers", "webhookEvents"),
    "Webhooks._webhooks": ("webhooks._webhooks", "webhooks"),
}
"""Where each is, and under which name it is counted."""

BOUNDED = {
    # what belongs to one connection, stream or webhook goes with it; these have limits of their own besides
    "FrameBuffer._pieces": "one frame",
    "Session._commands": "connection.MAX_BACKLOG",
    "Session._out": "one turn",
    "Session._parked": "waiting.MAX_PARKED",
    "Outbox._pending": "a budget of bytes",
    "Throttle._slices": "throttle.SLICES",
    "Subscriptions._patterns": "event_names.MAX_PATTERNS",
    "Subscription._buffer": "events.MAX_BUFFERED_EVENTS",
    "Reader._pieces": "a budget of bytes",
    "LiveSocket._out": "a budget of bytes",
    "Lane.waiting": "delivering.MAX_WAITING; its sum is counted as deliveries",
    "Webhook.events": "the kinds of events",
    "_Room.seats": "the sum of all is counted as seats",
    # what belongs to one job, queue or command
    "NamedGroup.ready": "swept when it has twice as many entries as jobs",
    "NamedGroup.reserved": "pushes that wait for their commit",
    "GroupLine._listed": "as many as its heap",
    "GroupSizes._come": "one command",
    "WallSearch._barren": "14 kinds of years",
    # what lasts for a turn, a flush, or the start
    "Adoption._open": "one flush",
    "Holdings._in_flight_ids": "one flush",
    "CronFiring._served": "replaced at each firing; the queues of live workers",
    "State.due": "the collection of Holdings, swept",
    "State.timers": "the collection of Holdings, swept",
    "Latencies._singles": "latencies.SINGLES_MAX",
    "Latencies.executed": "one turn",
    "Latencies.promised": "one turn",
    "QueueCounts._changed": "queues with events of the last moment",
    "Recovery._buried": "gone after the start",
    "Recovery._doubtful": "gone after the start",
    "Recovery._letter_ids": "gone after the start",
    "Recovery._rerun_ids": "gone after the start",
    "PlainDecoder._queues": "gone after the start",
    "Deliveries._early": "emptied when deliveries begin",
    # what has a fixed number of keys
    "Engine._handlers": "the commands",
    "Settling._steps": "the kinds of changes",
    "Broker.rooms": "the commands",
    "Latencies._by_kind": "the commands",
    "Monitoring.sized_rooms": "the rooms",
    "Monitoring.tallies": "the doors",
    "Tokens._roles": "the settings",
    "Gate._names": "the settings",
    "Gate._proxies": "the settings",
    "PathTable._patterns": "the routes",
    "ListStatement._texts": "a few sizes of lists",
    "_RowStatement._texts": "a few sizes of batches",
    "Ids._pool": "ids.DRAWS_PER_BLOCK",
    "Overviews._heap": "the names of heapstats",
    # what has a limit of its own
    "Chain._sealed": "log_keeper.MAX_SEALED",
    "GzipReader._blocks": "one part of an upload",
    "Patience._sockets": "the requests of one piece of work",
    "WalTail._waiting": "commits since the last checkpoint, before which they are taken out",
    "RepeatPatterns._known": "repeat_patterns.MAX_KNOWN",
    "SystemResolver._under_way": "dialing.MAX_LOOKUPS",
    "Alarms._full_since_mono_ms": "workers",
    "Alarms._long_queues": "queues",
    "IdleQueues._idle_since_mono_ms": "queues",
    "HttpDoor._streams": "counted as open.http",
}
"""What keeps each of the others small."""

BOUNDED_IN_MODULES = {
    "registry._NOBODY": "never filled",
    "field_schemas.ANY": "never filled",
    "tolerant.NOT_A_LIST": "never filled",
    "circles.NOTHING": "never filled",
    "fields.known_queues": "fields._KNOWN_QUEUES_MAX",
    "decoding._SOUND": "decoding._SOUND_MAX",
    "paths._held": "the files this process has open",
}


class Anything:
    """Passes for an entry of any collection."""

    def __init__(self) -> None:
        self.aside: list[Any] = []
        self.frames: list[Any] = []
        self.jobs: list[Any] = []
        self.size = 0

    def __len__(self) -> int:
        return 1


def is_collection(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return name_of(value.func) in KINDS
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)


def name_of(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return str(getattr(node, "id", getattr(node, "attr", "")))


def assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None, str]]:
    """Target, value, and name of the type."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            yield node.target, node.value, name_of(node.annotation)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from ((*pair, "") for pair in zip(target.elts, node.value.elts, strict=True))
                else:
                    yield target, node.value, ""


def collections_in(source: str) -> set[str]:
    """``Class.attribute`` of each collection that a class of *source* gives to itself."""
    found = set()
    for kind in ast.walk(ast.parse(source)):
        if isinstance(kind, ast.ClassDef):
            for target, value, type_name in assignments(kind):
                is_own = isinstance(target, ast.Attribute) and name_of(target.value) == "self"
                if is_own and (type_name in KINDS or is_collection(value)):
                    found.add(f"{kind.name}.{name_of(target)}")
    return found


def test_every_collection_is_counted_or_has_a_bound():
    found = set().union(*(collections_in(path.read_text()) for path in PACKAGE.rglob("*.py")))

    assert found - COUNTED.keys() - BOUNDED.keys() == set(), "what bounds these, and does heapstats show them?"
    assert COUNTED.keys() | BOUNDED.keys() == found, "these are no more"
    assert not COUNTED.keys() & BOUNDED.keys()


def test_a_collection_is_recognised_however_it_is_made():
    source = """
class Room:
    def __init__(self):
        self.a: dict[str, int] = make()
        self.b, self.c = [], deque()
        self.d = {x for x in y}
        self.e = collections.OrderedDict()
        self.f = 1
        other.g = []
        h = []
"""
    assert collections_in(source) == {"Room.a", "Room.b", "Room.c", "Room.d", "Room.e"}


def is_empty_collection(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return name_of(value.func) in KINDS and not value.args
    return isinstance(value, ast.Dict | ast.List) and not ast.unparse(value).strip("[]{}")


def test_a_module_holds_no_collection_without_a_bound():
    """An empty one at the top of a module is filled later, by whatever passes."""
    found = {
        f"{path.stem}.{name_of(node.targets[0] if isinstance(node, ast.Assign) else node.target)}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_empty_collection(node.value)
    }
    assert found == BOUNDED_IN_MODULES.keys()


async def rooms_of(rig: Rig) -> dict[str, Any]:
    """The objects that have collections, by the names that `COUNTED` uses."""
    rig.call("PUSH", queue=QUEUE, data=1, groupId="g", name="n")
    rig.talker().say("SubscribeEvents", queue=QUEUE)
    broker, config = rig.broker, Config()
    queue = rig.engine.state.queues[QUEUE]
    group = queue.group("plain")
    line = queue.with_groups()._line(PullGroup())
    deliveries = Deliveries(None, rig.clock, max_tries=1, retry_delay_ms=1)  # type: ignore[arg-type]
    webhooks = Webhooks(rig.engine.state.ids, rig.clock, deliveries, broker.events, allows_internal=True)  # type: ignore[arg-type]
    live = Live(broker, config, str, None)  # type: ignore[arg-type]
    gate = Gate(config, broker)
    broker.monitoring.sized_rooms += [webhooks.sizes, gate.sizes]
    room = broker.events.queue_events._rooms[QUEUE]
    broker.events.queue_events._filled.append(room)
    names = {"broker": broker, "state": rig.engine.state, "queue": queue, "group": group, "line": line}
    return {**names, "events": broker.events, "live": live, "webhooks": webhooks, "gate": gate, "room": room}


def put(collection: Any, entry: Any) -> None:
    if isinstance(collection, set):
        collection.add(entry)
    elif isinstance(collection, dict):
        dict.__setitem__(collection, entry, entry)
    else:
        collection.append(entry)


@pytest.mark.parametrize("name", COUNTED)
async def test_what_is_counted_is_the_collection_itself(name):
    path, shown_as = COUNTED[name]
    rig = Rig()
    rooms = await rooms_of(rig)
    first, *rest = path.split(".")
    before = (await internal_sizes(rig.broker))[shown_as]

    if path == "state.queues":
        rig.engine.state.queue("another")
    else:
        put(reduce(getattr, rest, rooms[first]), Anything())

    assert (await internal_sizes(rig.broker))[shown_as] == before + 1


@pytest.mark.parametrize("field", Changes.__struct_fields__)
async def test_changes_that_wait_for_the_file_are_counted(field):
    rig = Rig()
    collection = getattr(rig.engine.state.changes, field)
    if isinstance(collection, bool | int):
        return
    before = state_sizes(rig.engine.state)["changes"]

    put(collection, Anything())

    assert state_sizes(rig.engine.state)["changes"] == before + 1
    rig.engine.state.set_in_flight(rig.engine.state.changes)
    assert state_sizes(rig.engine.state)["changesInFlight"] == before + 1


async def test_heapstats_shows_the_sizes_and_our_types(autojump_clock):
    rig = Rig()
    talkers = [rig.talker() for _ in range(3)]

    shown = await Overviews(rig.broker).heap()

    assert shown["internals"] == await internal_sizes(rig.broker)
    assert shown["ownTypes"]["Session"] >= len(talkers)
    assert "dict" not in shown["ownTypes"]


def test_types_of_one_name_are_counted_together():
    mine, other = (type("Job", (), {"__module__": module}) for module in ("bunqueue_trio.a", "bunqueue_trio.b"))
    foreign = type("Job", (), {"__module__": "bunqueue_trio_not"})

    assert own_types({mine: 2, other: 3, foreign: 5, dict: 7}) == {"Job": 5}
