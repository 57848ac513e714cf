"""A server that nobody listens to makes no events: proven by counting what is made.

Source: design, "The hot path"; D-045.
"""

import ast
import random
from collections import Counter
from pathlib import Path

import pytest
import trio

import bunqueue_trio
from bunqueue_trio.config import Config
from bunqueue_trio.engine import happenings
from bunqueue_trio.ids import Ids
from bunqueue_trio.server import broker
from bunqueue_trio.server.webhooks import registry
from tests.engine_harness import SECRET
from tests.server.fakes import Rig, settle_down
from tests.server.http import Http
from tests.server.webhook_fakes import Hooks

MAKERS = {"engine/happenings.py", "server/broker.py", "server/live.py", "server/webhooks/registry.py"}
KINDS = {
    *("pushed", "duplicated", "pulled", "completed", "failed", "retried", "progress", "delayed", "waiting", "removed"),
    *("stalled", "paused", "resumed"),
    *("job:waiting-children", "job:dependencies-resolved", "job:deduplicated", "flow:failed", "flow:completed"),
    *("worker:connected", "worker:heartbeat", "worker:disconnected", "worker:removed-stale"),
    *("webhook:added", "webhook:enabled", "webhook:disabled", "webhook:removed"),
    *("queue:created", "queue:removed", "queue:paused", "queue:resumed", "queue:drained", "queue:cleaned"),
    *("queue:obliterated", "batch:pushed", "batch:pulled", "memory:compacted", "auth:failed", "ratelimit:hit"),
    *("job:promoted", "job:discarded", "job:data-updated", "job:priority-changed", "job:delay-changed"),
    *("job:moved-to-delayed", "job:timeout", "job:lock-expired", "job:stalled", "job:expired"),
    *("dlq:added", "dlq:retried", "dlq:retry-all", "dlq:purged", "dlq:auto-retried", "dlq:expired"),
    *("ratelimit:set", "ratelimit:cleared", "ratelimit:rejected"),
    *("concurrency:set", "concurrency:cleared", "concurrency:rejected"),
    *("config:stall-changed", "config:dlq-changed"),
    *("cron:created", "cron:updated", "cron:fired", "cron:deleted"),
}


@pytest.fixture
def made(monkeypatch) -> Counter:
    """How many events of each kind have been made."""
    counts: Counter[str] = Counter()

    def counting(record):
        def make(kind, *args, **more):
            counts[kind] += 1
            return record(kind, *args, **more)

        return make

    monkeypatch.setattr(happenings, "JobEvent", counting(happenings.JobEvent))
    monkeypatch.setattr(happenings, "SystemEvent", counting(happenings.SystemEvent))
    monkeypatch.setattr(broker, "SystemEvent", counting(broker.SystemEvent))
    monkeypatch.setattr(registry, "SystemEvent", counting(registry.SystemEvent))
    return counts


def modules():
    root = Path(bunqueue_trio.__file__).parent
    return [(str(path.relative_to(root)), path.read_text()) for path in root.rglob("*.py")]


def test_events_are_made_in_few_modules_only():
    """So that counting there is counting all."""
    makers = set()
    for name, source in modules():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("JobEvent", "SystemEvent"):
                makers.add(name)

    assert makers == MAKERS


class Story:
    """All that can happen to jobs, workers and webhooks, in chapters; each has queues of its own."""

    def __init__(self, rig: Rig, hooks: Hooks, number: str) -> None:
        self._rig = rig
        self._hooks = hooks
        self._number = number

    async def do(self, cmd, **fields):
        """A command of a client that stays; its reply."""
        talker = self._rig.talker()
        talker.say(cmd, **fields)
        await settle_down()
        [reply] = talker.replies
        assert reply["ok"], reply
        return reply

    async def push(self, queue, **fields):
        return (await self.do("PUSH", queue=queue, data=1, **fields))["id"]

    async def pull(self, queue, **fields):
        reply = await self.do("PULL", queue=queue, owner="w", **fields)
        return {"id": reply["job"]["id"], "token": reply["token"]}

    async def tell(self) -> None:
        chapters = (self.flows, self.failures, self.moves, self.stalls, self.operators, self.limits, self.dead_letters)
        for chapter in (*chapters, self.crons, self.strangers, self.others):
            await chapter(f"{chapter.__name__}{self._number}")

    async def flows(self, queue) -> None:
        parent = f"parent of {queue}"
        child = await self.push(queue, uniqueKey="k", parentId=parent)
        await self.push(queue, uniqueKey="k")
        await self.push(f"{queue}-parents", jobId=parent, dependsOn=[child], childrenIds=[child])
        await self.do("PUSHB", queue=queue, jobs=[{"data": 1}, {"data": 2, "durable": True}])
        lease = await self.pull(queue)
        await self.do("Progress", id=child, progress=4)
        await self.do("ACK", result=1, **lease)

    async def failures(self, queue) -> None:
        await self.push(queue, maxAttempts=2, backoff=1, parentId="nobody")
        for _ in range(2):
            await self.do("FAIL", error="x", **await self.pull(queue))
            await trio.sleep(0.1)

    async def moves(self, queue) -> None:
        for command, fields in (("MoveToDelayed", {"delay": 1_000}), ("MoveToWait", {})):
            job_id = await self.push(queue)
            await self.pull(queue)
            await self.do(command, id=job_id, **fields)
            await self.do("Cancel", id=job_id)

    async def stalls(self, queue) -> None:
        await self.push(queue, stallTimeout=1_000)
        await self.pull(queue)
        await trio.sleep(30)

    async def operators(self, queue) -> None:
        job_id = await self.push(queue, delay=60_000)
        await self.do("ChangeDelay", id=job_id, delay=50_000)
        await self.do("Promote", id=job_id)
        await self.do("ChangePriority", id=job_id, priority=2)
        await self.do("Update", id=job_id, data=2)
        await self.push(queue)
        assert (await self.do("PULLB", queue=queue, count=2))["jobs"]
        await self.push(queue)
        await self.do("Clean", queue=queue, grace=0)
        await self.push(queue)
        await self.do("Drain", queue=queue)
        await self.push(queue, ttl=1)
        await trio.sleep(0.1)
        await self.do("PULL", queue=queue)
        await self.push(queue, timeout=100)
        await self.pull(queue)
        await trio.sleep(1)
        await self.do("Obliterate", queue=queue)
        await self.push(queue)
        await self.pull(queue, lockTtl=100)
        await trio.sleep(5)
        await self.do("CompactMemory")

    async def limits(self, queue) -> None:
        for config, value in (("SetStallConfig", {"maxStalls": 5}), ("SetDlqConfig", {"maxEntries": 5})):
            await self.do(config, queue=queue, config=value)
        await self.do("PUSHB", queue=queue, jobs=[{"data": 1}] * 3)
        await self.do("SetConcurrency", queue=queue, limit=1)
        await self.pull(queue)
        await self.do("PULL", queue=queue)
        await self.do("ClearConcurrency", queue=queue)
        await self.do("RateLimit", queue=queue, limit=1)
        await self.pull(queue)
        await self.do("PULL", queue=queue)
        await self.do("RateLimitClear", queue=queue)

    async def dead_letters(self, queue) -> None:
        policy = {"autoRetry": True, "autoRetryInterval": 1_000, "maxAutoRetries": 1, "maxAge": 20_000}
        await self.do("SetDlqConfig", queue=queue, config=policy)
        job_id = await self.push(queue)
        await self.do("Discard", id=job_id)
        await self.do("RetryDlq", queue=queue, jobId=job_id)
        await self.do("Discard", id=job_id)
        await self.do("RetryDlq", queue=queue)
        await self.do("Discard", id=job_id)
        await self.do("PurgeDlq", queue=queue)
        job_id = await self.push(queue)
        await self.do("Discard", id=job_id)
        await trio.sleep(5)  # it comes back by itself
        await self.do("Discard", id=job_id)
        await trio.sleep(30)

    async def crons(self, queue) -> None:
        name = f"cron of {queue}"
        for _ in range(2):
            await self.do("Cron", name=name, queue=queue, repeatEvery=1_000)
        await trio.sleep(2.5)
        await self.do("CronDelete", name=name)

    async def strangers(self, queue) -> None:
        config = Config(auth_tokens=("token",), rate_limit_max_requests=1)
        talker = self._rig.talker(config)
        talker.segment({"cmd": "Auth", "token": "wrong"}, {"cmd": "Ping"})

    async def others(self, queue) -> None:
        await self.do("Pause", queue=queue)
        await self.do("Resume", queue=queue)
        for worker_id in ("gone", "silent"):
            await self.do("RegisterWorker", name="w", workerId=worker_id)
        await self.do("Heartbeat", id="gone")
        await self.do("UnregisterWorker", workerId="gone")
        await trio.sleep(160)
        webhook_id = self._hooks.add("http://example.com/", [])
        for is_enabled in (False, True):
            await self.do("SetWebhookEnabled", id=webhook_id, enabled=is_enabled)
        await self.do("RemoveWebhook", webhookId=webhook_id)
        await Http(self._rig).reply("POST", "/gc")


async def test_nothing_is_made_while_nobody_listens(rig: Rig, made: Counter, autojump_clock):
    hooks = Hooks(Ids(SECRET, random.Random(2)), events=rig.broker.events)
    rig.broker.rooms.update(hooks.webhooks.handlers)

    await Story(rig, hooks, "1").tell()
    assert made == {}

    with rig.broker.events.subscribe(max_events=10_000):
        await Story(rig, hooks, "2").tell()
    assert set(made) == KINDS  # else the story would prove little
    before = made.total()

    await Story(rig, hooks, "3").tell()  # whoever listened has left
    assert made.total() == before


async def test_a_subscriber_that_was_cut_off_has_nothing_made_for_it(rig: Rig, made: Counter, autojump_clock):
    with rig.broker.events.subscribe(max_events=2):
        for n in range(5):
            rig.push(f"j{n}")

    assert made == {"queue:created": 1, "pushed": 2}  # two fit, and the third was one too many
    assert rig.broker.events.cut_off_count == 1


async def test_a_webhook_that_is_switched_off_or_asks_for_nothing_has_nothing_made(rig: Rig, made, autojump_clock):
    hooks = Hooks(Ids(SECRET, random.Random(2)), events=rig.broker.events)
    rig.broker.rooms.update(hooks.webhooks.handlers)
    webhook_id = hooks.add("http://example.com/", ["job.pushed"])
    hooks.add("http://example.com/", [])
    rig.push("a")
    assert made["pushed"] == 1

    rig.call("SetWebhookEnabled", id=webhook_id, enabled=False)
    rig.push("b")

    assert made["pushed"] == 1
    assert rig.engine.state.events is None
