"""Families of jobs, killed at every commit of their lives: whatever can finish does, whatever was confirmed is there.

Seeded clients push, link, fail, retry, cancel and empty at random. After every commit, and after every commit that the
file refuses, the file as it is then is copied; a new engine starts from the copy, and simple workers run it to its end.
Then the dead letters are asked back, then the dependencies that went for good are let go: at last nobody may be parked.

A failure names its seed and its commit; ``BUNQUEUE_FLOW_SEED`` runs one seed alone.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from typing import Any

import apsw
import msgpack
import pytest

from bunqueue_trio.engine.state import FactsNeededError, PendingChangeError
from bunqueue_trio.errors import CommandError, StorageError
from bunqueue_trio.storage import reads, writes
from tests.flows import POLICIES
from tests.storage.flow_ledger import WAITING, Ledger, Node
from tests.stored_engine import Stored

QUEUES = ("c", "p")
SHOWN = {
    "queued": ("waiting", "prioritized", "delayed"),
    "parked": ("waiting-children",),
    "done": ("completed",),
    "gone": ("unknown",),
}
LOST = "Connection lost while the job was active"
LOCK_MS = 3_600_000
STEPS = 45
MANY_IDS = 8  # ids are used again beyond that
Effect = Callable[[Ledger], object]


class Survivor(Stored):
    """A server started from a copy of the file."""

    def __init__(self, file: apsw.Connection, at: Stored) -> None:
        super().__init__()
        with self.file.backup("main", file, "main") as backup:
            backup.step()
        self.clock.advance(max(0.0, at.now.mono_ms - self.now.mono_ms))
        self.clock.skew(at.now.wall_ms - self.now.wall_ms)
        self.checks = False
        self.restart()
        self.commit_all()

    def commit_all(self) -> None:
        while self.engine.state.changes:
            self.commit()

    def run_to_the_end(self, ledger: Ledger) -> None:
        """Workers without faults, until nothing is ready and nothing becomes so."""
        idle = 0
        while idle < 2:
            idle += 1
            for queue in QUEUES:
                while (pulled := self.pull(queue, lockTtl=LOCK_MS)) is not None:
                    idle = 0
                    node = ledger.nodes[pulled[0]]
                    assert node.state == "queued", f"{node.id} was {node.state} and is delivered"
                    self.ack(*pulled, result=node.id)
                    ledger.complete(node.id)
            self.advance(120_000)
            self.commit_all()

    def agree(self, ledger: Ledger) -> None:
        """Every job is where the ledger says, and knows of its family what the ledger knows."""
        self.engine.check_invariants()
        for node in ledger.nodes.values():
            shown = self.ask_file("GetState", id=node.id).state
            assert shown in SHOWN.get(node.state, (node.state,)), node
            if node.state in WAITING:
                record = self.job(node.id).record
                assert sorted(record.depends_on) == sorted(node.depends_on), node.id
                assert list(record.children_ids) == node.children, node.id
                assert record.parent_id == node.parent, node.id
                assert record.attempts == node.attempts, node.id
                if node.named_children is not None:
                    assert msgpack.unpackb(record.data)["__childrenIds"] == node.named_children, node.id
                assert self.send("GetFailedChildrenValues", id=node.id).values == node.failed
                assert self.send("GetIgnoredChildrenFailures", id=node.id).values == node.ignored
            if node.state != "gone" and node.children:
                values = self.ask_file("GetChildrenValues", id=node.id).data["values"]
                kin = [ledger.nodes[child] for child in node.children if child in ledger.nodes]
                done = {f"{child.queue}:{child.id}" for child in kin if child.state == "done"}
                assert {key for key in values if ":" in key} == done, node.id
                assert all(bytes(values[key])[1:] == key.partition(":")[2].encode() for key in done), node.id

    def let_go_of_what_is_gone(self, ledger: Ledger) -> None:
        for node in ledger.in_state("parked"):
            for need in sorted(node.waits_for):
                if ledger.nodes[need].state == "gone" and need in node.waits_for:
                    self.ask_file("RemoveChildDependency", id=need)
                    ledger.remove_dependency(need)
            if node.state == "parked" and not node.waits_for:  # it has parked itself, and no child will ever come
                self.send("Cancel", id=node.id)
                ledger.remove(node)


class Family:
    """Clients and the server they talk to; what they have been told is in the ledger."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.server = Stored()
        self.server.auto_commit = False
        self.ledger = Ledger()
        self.in_file = Ledger()  # what the file must say
        self.leases: dict[str, str | None] = {}
        self.promised: list[Effect] = []  # take effect with the next commit
        self.commits = 0
        self.kills = 0
        self.number = 0
        self.no_stall_checks()
        self.flush()

    def close(self) -> None:
        self.server.file.close()

    # commits and kills

    def flush(self, *, is_refused: bool = False) -> None:
        """Commit what is open, boundary by boundary: the file is looked at after each, also after a refused one."""
        if not self.server.engine.state.changes:
            self.take_effect()  # of commands that had nothing to change
        while self.server.engine.state.changes:
            flight = self.server.take()
            self.commits += 1
            if is_refused:
                self.server.file.set_commit_hook(lambda: True)
                with pytest.raises(StorageError):
                    writes.apply_batch(self.server.file, flight.batch, ":memory:")
                self.server.file.set_commit_hook(None)
                self.server.crash(flight)
                self.promised.clear()
                self.ledger.coming.clear()
                is_refused = False
            else:
                self.server.land(flight)
                self.take_effect()
                self.leases = {i: token for i, token in self.leases.items() if self.ledger.nodes[i].state == "active"}
                self.in_file = copy.deepcopy(self.ledger)
            self.kill()

    def take_effect(self) -> None:
        for effect in self.promised:
            effect(self.ledger)
        self.promised.clear()

    def kill(self) -> None:
        """What would become of it, were it killed now."""
        self.kills += 1
        survivor, ledger = Survivor(self.server.file, self.server), copy.deepcopy(self.in_file)
        ledger.recover()
        try:
            survivor.agree(ledger)
            survivor.run_to_the_end(ledger)
            survivor.agree(ledger)
            for queue in QUEUES:
                survivor.send("RetryDlq", queue=queue)
            for node in ledger.in_state("failed"):
                ledger.again(node.id)
            survivor.run_to_the_end(ledger)
            while ledger.in_state("parked"):
                before = len(ledger.in_state("parked"))
                survivor.let_go_of_what_is_gone(ledger)
                survivor.run_to_the_end(ledger)
                survivor.agree(ledger)
                assert len(ledger.in_state("parked")) < before, ledger.in_state("parked")
            assert not ledger.in_state("queued", "active", "failed")
        finally:
            survivor.file.close()

    def crash(self) -> None:
        """Killed for good: go on with the server that starts from the file."""
        self.flush()
        self.server.restart()
        self.ledger.recover()
        self.leases.clear()
        self.flush()

    # commands

    def ask(self, cmd: str, **fields: Any) -> Any:
        """The reply, None for a refusal; what it meets on its way into the file is waited for."""
        for _ in range(3):
            try:
                return self.server.send(cmd, **fields)
            except PendingChangeError:
                self.flush()
            except FactsNeededError as needed:
                found = {job_id: reads.find_completed(self.server.file, job_id) for job_id in needed.ids}
                self.server.engine.find_facts(found)
            except CommandError:
                return None
        raise AssertionError(f"{cmd} {fields} is never answered")

    def tell(self, effect: Effect, cmd: str, **fields: Any) -> None:
        """A command that is confirmed with its commit."""
        reply = self.ask(cmd, **fields)
        self.server.engine.clear_facts()
        if reply is not None:
            self.promised.append(effect)

    def some(self, *states: str) -> Node | None:
        nodes = self.ledger.in_state(*states) if states else list(self.ledger.nodes.values())
        return self.chance.choice(nodes) if nodes else None

    def no_stall_checks(self) -> None:
        for queue in QUEUES:
            self.ask("SetStallConfig", queue=queue, config={"enabled": False})

    def new_node(self) -> tuple[Node, dict[str, Any]]:
        """A job with options at random, needing earlier ones in any state; and the options as PUSH has them."""
        chance = self.chance
        ended = [node.id for node in self.ledger.in_state("done", "gone", "failed")]
        self.number += 1
        job_id = chance.choice(ended) if ended and self.number > MANY_IDS else f"j{self.number}"
        needs = (
            [node.id for node in chance.choices(list(self.ledger.nodes.values()) or [], k=chance.randrange(4))]
            if (self.ledger.nodes)
            else []
        )
        needs = [need for need in dict.fromkeys(needs) if need != job_id]
        upper = self.some()
        node = Node(
            job_id,
            chance.choice(QUEUES),
            policies=tuple(chance.sample(POLICIES, chance.choice([0, 1, 1, 2]))),
            parent=chance.choice([None, None, "pending", None if upper is None else upper.id]),
            depends_on=needs,
            children=list(needs),
            max_attempts=chance.choice([1, 2, 3]),
            remove_on_complete=chance.random() < 0.25,
            remove_on_fail=chance.random() < 0.2,
        )
        fields: dict[str, Any] = dict.fromkeys(node.policies, True)
        fields |= {"parentId": node.parent, "dependsOn": needs, "childrenIds": needs, "maxAttempts": node.max_attempts}
        fields |= {"removeOnComplete": node.remove_on_complete, "removeOnFail": node.remove_on_fail, "backoff": 500}
        if chance.random() < 0.2:
            fields["delay"] = chance.choice([10, 30_000])
        if chance.random() < 0.2:
            fields["groupId"] = "g"
        if chance.random() < 0.2:
            fields["priority"] = chance.choice([-1, 1])
        return node, fields

    def push(self) -> None:
        node, fields = self.new_node()
        if any(child.parent == node.id for child in self.ledger.in_state("active")):
            self.flush()  # what a failure does to a parent is decided when it is reported, not when it has committed
        is_durable = self.chance.random() < 0.5
        reply = self.ask("PUSH", queue=node.queue, data={}, jobId=node.id, durable=is_durable, **fields)
        self.server.engine.clear_facts()
        old = self.ledger.nodes.get(node.id)
        if reply is None:
            unknown = [need for need in node.depends_on if not self.is_known(need)]
            assert unknown or self.closes_a_circle(node), node
        elif old is not None and old.state not in ("done", "gone", "failed"):
            return  # it has come back while the command waited
        else:
            self.ledger.expect(node)
            if is_durable:
                self.promised.append(lambda ledger: ledger.push(node))
            else:
                self.ledger.push(node)

    def is_known(self, job_id: str) -> bool:
        return self.ledger.is_done(job_id) or self.ledger.nodes[job_id].state != "gone"

    def closes_a_circle(self, node: Node) -> bool:
        """Whether a job that it depends on waits, over others, for the very id."""
        met: set[str] = set()
        open_ids = list(node.depends_on)
        while open_ids:
            job_id = open_ids.pop()
            if job_id == node.id:
                return True
            if job_id not in met and job_id in self.ledger.nodes:
                met.add(job_id)
                open_ids += self.ledger.nodes[job_id].waits_for
        return False

    def push_flow(self) -> None:
        """A child, a parent and its parent in one batch, in any order."""
        self.number += 3
        names = [f"j{self.number - n}" for n in range(3)]
        is_durable = self.chance.random() < 0.5
        nodes, jobs = [], []
        for name, needs, parent in zip(names, [[], names[:1], names[1:2]], [names[1], names[2], None], strict=True):
            policies = tuple(self.chance.sample(POLICIES, 1))
            node = Node(name, "c", policies, parent, list(needs), list(needs), max_attempts=self.chance.choice([1, 2]))
            nodes.append(node)
            fields = {"dependsOn": needs, "childrenIds": needs, "parentId": parent, "maxAttempts": node.max_attempts}
            jobs.append(
                {"customId": name, "data": {}, "durable": is_durable, **dict.fromkeys(policies, True), **fields}
            )
        self.chance.shuffle(jobs)
        assert self.ask("PUSHB", queue="c", jobs=jobs) is not None
        self.ledger.expect(*nodes)
        for node in nodes:
            if is_durable:
                self.promised.append(lambda ledger, node=node: ledger.push(node))
            else:
                self.ledger.push(node)

    def push_tree(self) -> None:
        """A tree of two levels with a chain in it by PUSHF; now and then with an id that is taken."""
        self.number += 4
        names = [f"j{self.number - n}" for n in range(4)]
        first, second, middle, top = names
        taken = self.some("queued", "parked", "active", "failed", "done") if self.chance.random() < 0.2 else None
        if taken is not None:
            first = taken.id
        shape = [(first, [], [], middle), (second, [first], [], middle)]
        shape += [(middle, [first, second], [first, second], top), (top, [middle], [middle], None)]
        nodes, jobs = [], []
        for name, needs, children, parent in shape:
            policies = () if parent is None else tuple(self.chance.sample(POLICIES, self.chance.choice([0, 1])))
            node = Node(name, self.chance.choice(QUEUES), policies, parent, list(needs), list(children))
            node.remove_on_complete = self.chance.random() < 0.2
            node.named_children = list(children) or None
            nodes.append(node)
        queues = {node.id: node.queue for node in nodes}
        for node in nodes:
            kin = {} if node.parent is None else {"__parentId": node.parent, "__parentQueue": queues[node.parent]}
            if node.children:
                kin["__childrenIds"] = node.children
            options = {"dependsOn": node.depends_on, "childrenIds": node.children, **dict.fromkeys(node.policies, True)}
            if node.parent is not None:
                options["parentId"] = node.parent
            options |= {"name": "n", "data": kin, "removeOnComplete": node.remove_on_complete, "backoff": 500}
            jobs.append({"id": node.id, "queue": node.queue, "input": options})
        reply = self.ask("PUSHF", jobs=jobs)
        self.server.engine.clear_facts()
        if reply is None:
            assert taken is not None
            return
        assert taken is None or taken.state == "gone"  # while the command waited
        assert [record.id for record in reply.data["jobs"]] == [node.id for node in nodes]
        self.ledger.expect(*nodes)
        for node in nodes:
            self.promised.append(lambda ledger, node=node: ledger.push(node))

    def adopt(self) -> None:
        """A child of a parent that is there already, whatever that one does."""
        if self.chance.random() < 0.5:
            self.flush()
        chosen = self.some(*WAITING) if self.chance.random() < 0.8 else self.some()
        if chosen is None:
            return
        node, fields = self.new_node()
        node.parent = fields["parentId"] = chosen.id
        kin = {"__parentId": chosen.id, "__parentQueue": chosen.queue}
        is_foreseeable = not self.promised
        reply = self.ask("PUSH", queue=node.queue, name="n", data=kin, jobId=node.id, **fields)
        self.server.engine.clear_facts()
        old, parent = self.ledger.nodes.get(node.id), self.ledger.nodes[chosen.id]
        if "groupId" in fields and fields.get("priority", 0) < 0:
            assert reply is None, node  # a named job, unlike those of `push`, has no priority below 0 in its group
        elif reply is None:
            unknown = [need for need in node.depends_on if not self.is_known(need)]
            is_refused = unknown or self.closes_a_circle(node) or parent.state not in WAITING or node.id == parent.id
            assert is_refused or self.leads_to(node, parent) or not is_foreseeable, (node, parent)
        elif old is None or old.state in ("done", "gone", "failed"):
            self.ledger.expect(node)
            self.promised.append(lambda ledger: ledger.adopt(node, parent))

    def leads_to(self, node: Node, parent: Node) -> bool:
        """Whether *node* would wait, over others, for *parent*."""
        probe = copy.copy(node)
        probe.id = parent.id
        return self.closes_a_circle(probe)

    def pull(self) -> None:
        queue = self.chance.choice(QUEUES)
        for _ in range(self.chance.choice([1, 1, 2])):
            try:
                pulled = self.server.pull(queue, lockTtl=LOCK_MS)
            except PendingChangeError:
                self.flush()
                continue
            if pulled is not None:
                node = self.ledger.nodes[pulled[0]]
                assert node.state == "queued", f"{node.id} was {node.state} and is delivered"
                node.state = "active"
                self.leases[node.id] = pulled[1]

    def finish(self) -> None:
        if not self.leases:
            return
        job_id = self.chance.choice(list(self.leases))
        how = self.chance.choice(["ack", "ack", "ackb", "fail", "fail", "final"])
        token = self.leases[job_id]

        def effect(ledger: Ledger) -> None:
            if ledger.nodes[job_id].state != "active":
                return  # it was moved before; what its old holder says of it changes nothing
            if how in ("ack", "ackb"):
                ledger.complete(job_id)
            else:
                ledger.fail(job_id, "e", is_final=how == "final")

        if how == "ack":
            self.tell(effect, "ACK", id=job_id, token=token, result=job_id)
        elif how == "ackb":
            self.tell(effect, "ACKB", ids=[job_id], tokens=[token], results=[job_id])
        else:
            self.tell(effect, "FAIL", id=job_id, token=token, error="e", unrecoverable=how == "final")

    def lose_connection(self) -> None:
        self.flush()
        lost = list(self.leases)
        self.server.disconnect(1)
        self.server.connect(1)
        for job_id in lost:
            self.ledger.lose(job_id, LOST, LOST)
        self.leases.clear()
        self.flush()

    def move(self) -> None:
        node = self.some("queued", "active")
        if node is None:
            return
        cmd = self.chance.choice(["MoveToWait", "MoveToDelayed", "ChangeDelay"])
        fields = {} if cmd == "MoveToWait" else {"delay": self.chance.choice([0, 5_000])}
        if self.ask(cmd, id=node.id, **fields) is None:
            return
        if node.state == "active":  # else it may be pulled on its way to where it is
            self.promised.append(lambda ledger: setattr(ledger.nodes[node.id], "state", "queued"))
        elif node.state == "failed":  # MoveToWait is RetryDlq to it
            self.promised.append(lambda ledger: ledger.again(node.id))

    def park(self) -> None:
        if not self.leases:
            return
        job_id = self.chance.choice(list(self.leases))
        needs: set[str] = set()
        self.tell(
            lambda ledger: ledger.park(ledger.nodes[job_id], needs),
            "MoveToWaitingChildren",
            id=job_id,
            token=self.leases[job_id],
        )
        needs |= self.ledger.open_needs(self.ledger.nodes[job_id])  # as they are when the move is let in

    def link(self) -> None:
        child, parent = self.some("queued", "parked", "active", "failed", "done"), self.some()
        if child is None or parent is None or child is parent:
            return
        self.ask("UpdateParent", childId=child.id, parentId=parent.id)
        self.server.engine.clear_facts()
        child, parent = self.ledger.nodes[child.id], self.ledger.nodes[parent.id]  # a push may have come first
        if child.state != "gone":  # which it may have become while the command waited
            self.promised.append(lambda ledger: ledger.link(child, parent))

    def discard(self) -> None:
        node = self.some("queued", "active")
        if node is not None:
            self.tell(lambda ledger: ledger.bury(ledger.nodes[node.id], "unknown error"), "Discard", id=node.id)

    def cancel(self) -> None:
        node = self.some(*WAITING)
        if node is not None:
            self.tell(lambda ledger: ledger.remove(node), "Cancel", id=node.id)

    def let_go(self) -> None:
        self.flush()  # whom it lets go depends on whether the child can be seen now
        node = self.some()
        if node is not None:
            self.tell(lambda ledger: ledger.remove_dependency(node.id), "RemoveChildDependency", id=node.id)
            self.flush(is_refused=self.chance.random() < 0.2)

    def remove_unprocessed(self) -> None:
        node = self.some("queued", "parked", "active", "failed", "done")
        if node is None:
            return
        self.ask("RemoveUnprocessedChildren", id=node.id)
        self.server.engine.clear_facts()
        if node.state != "gone":
            going = self.ledger.unprocessed(node)  # whatever comes under their ids before the commit
            self.promised.append(lambda ledger: ledger.remove(*going))

    def retry(self) -> None:
        self.flush()
        node = self.some("failed", "failed", "done")
        if node is None:
            return
        if node.state == "failed":
            self.tell(lambda ledger: ledger.again(node.id), "RetryDlq", queue=node.queue, jobId=node.id)
        else:
            self.tell(lambda ledger: ledger.again(node.id), "RetryCompleted", queue=node.queue, id=node.id)

    def empty(self) -> None:
        """Drain, PurgeDlq, Clean or Obliterate."""
        self.flush()
        queue, cmd = self.chance.choice(QUEUES), self.chance.choice(["Drain", "PurgeDlq", "Clean", "Obliterate"])
        fields = {"grace": 0} if cmd == "Clean" else {}
        states = {"PurgeDlq": ("failed",), "Obliterate": ("queued", "parked", "active", "failed", "done")}
        going = [node.id for node in self.ledger.in_state(*states.get(cmd, ("queued",))) if node.queue == queue]

        def effect(ledger: Ledger) -> None:
            named = {need for node in ledger.in_state("queued", "parked", "active") for need in node.depends_on}
            for job_id in going:
                if ledger.nodes[job_id].state == "done" and job_id in named:
                    ledger.finished.add(job_id)
                ledger.remove(ledger.nodes[job_id])

        self.tell(effect, cmd, queue=queue, **fields)
        self.flush()
        self.no_stall_checks()

    def let_time_pass(self) -> None:
        self.flush()
        self.server.advance(self.chance.choice([1, 600, 40_000]))

    def step(self) -> None:
        """One client does something; now and then a flush follows, or one that the file refuses."""
        often = [self.push] * 5 + [self.push_flow, self.push_tree, self.adopt, self.adopt] + [self.link] * 2
        often += [self.pull] * 7 + [self.finish] * 7
        seldom = [
            self.move,
            self.park,
            self.park,
            self.discard,
            self.cancel,
            self.let_go,
            self.remove_unprocessed,
            self.retry,
            self.retry,
        ]
        rare = [self.lose_connection, self.let_time_pass, self.let_time_pass, self.crash]
        if self.chance.random() < 0.02:
            rare = [self.empty]
        self.chance.choice(often + seldom + rare)()
        if self.chance.random() < 0.6:
            self.flush(is_refused=self.chance.random() < 0.15)


def live(seed: int) -> int:
    """A life of a family; returns how many times it was killed."""
    family = Family(seed)
    try:
        for _ in range(STEPS):
            family.step()
        family.flush()
    except BaseException as error:
        error.add_note(f"seed {seed}, commit {family.commits}; BUNQUEUE_FLOW_SEED={seed} runs it again")
        raise
    finally:
        family.close()
    return family.kills


def seeds(count: int, first: int = 0) -> range:
    chosen = os.environ.get("BUNQUEUE_FLOW_SEED")
    return range(first, first + count) if chosen is None else range(int(chosen), int(chosen) + 1)


def test_whatever_was_confirmed_survives_a_kill_at_any_commit() -> None:
    chosen = seeds(30)
    kills = sum(live(seed) for seed in chosen)

    assert kills > len(chosen)


@pytest.mark.long
def test_whatever_was_confirmed_survives_a_kill_at_any_commit_of_many_lives() -> None:
    chosen = seeds(150, first=1_000)
    kills = sum(live(seed) for seed in chosen)

    assert kills > len(chosen)
