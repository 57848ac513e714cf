"""What clients have been told about families of jobs: a ledger without queues, heaps, rows or time.

A node is where its last confirmed change has left it: ``queued`` (also while delayed), ``parked``, ``active``,
``failed``, ``done`` or ``gone``. The rules are those of the wire: who waits for whom, and what a failure does upwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.flows import CONTINUE, FAIL_PARENT, IGNORE, REMOVE

MAX_STALLS = 3
WAITING = ("queued", "parked")
AT_START = "Job reached max attempts ({}) during startup recovery"
STALLED_AT_START = "Job stalled {} times (recovered at startup)"


@dataclass(eq=False)
class Node:
    id: str
    queue: str
    policies: tuple[str, ...] = ()
    parent: str | None = None
    depends_on: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    waits_for: set[str] = field(default_factory=set)
    max_attempts: int = 3
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    state: str = "queued"
    attempts: int = 0
    stalls: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    named_children: list[str] | None = None  # by its data


class Ledger:
    """Nodes by id, in the order of their pushes; ``finished`` are ids that completed and whose record went."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.finished: set[str] = set()
        self.coming: list[Node] = []  # pushes that wait for their commit

    def in_state(self, *states: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.state in states]

    def expect(self, *nodes: Node) -> None:
        """Jobs have been pushed, and will be there some time. What they wait for is decided now."""
        for node in nodes:
            node.waits_for = {need for need in node.depends_on if not self.is_done(need)}
            self.coming.append(node)

    def push(self, node: Node) -> None:
        """A new job, or a new life of an id that has ended; who waited for the old one waits for the new."""
        self.coming.remove(node)
        node.state = "parked" if node.waits_for else "queued"
        self.nodes.pop(node.id, None)
        self.finished.discard(node.id)
        self.nodes[node.id] = node

    def is_done(self, job_id: str) -> bool:
        node = self.nodes.get(job_id)
        return job_id in self.finished or (node is not None and node.state == "done")

    # ends

    def complete(self, job_id: str) -> None:
        node = self.nodes[job_id]
        node.state = "gone" if node.remove_on_complete else "done"
        node.failed, node.ignored = {}, {}
        if node.remove_on_complete:
            self.finished.add(job_id)
        for other in [*self.nodes.values(), *self.coming]:
            self.met(job_id, other)

    def fail(self, job_id: str, error: str, *, is_final: bool) -> None:
        node = self.nodes[job_id]
        node.attempts += 1
        if node.attempts < node.max_attempts and not is_final:
            node.state = "queued"
        else:
            self.bury(node, error, is_removed=node.remove_on_fail)

    def lose(self, job_id: str, at_max: str, at_stalls: str) -> None:
        """The worker of an active job is gone."""
        node = self.nodes[job_id]
        node.attempts += 1
        node.stalls += 1
        node.state = "queued"
        if node.attempts >= node.max_attempts:
            self.bury(node, at_max.format(node.max_attempts), is_removed=False)
        elif node.stalls >= MAX_STALLS:
            self.bury(node, at_stalls.format(node.stalls), is_removed=False)

    def bury(self, node: Node, error: str, *, is_removed: bool = False) -> None:
        self._end(node, "gone" if is_removed else "failed")
        self.tell_parent(node, error, {node.id})

    def remove(self, *nodes: Node) -> None:
        for node in nodes:
            self._end(node, "gone")

    @staticmethod
    def _end(node: Node, state: str) -> None:
        node.state, node.waits_for, node.failed, node.ignored = state, set(), {}, {}

    def tell_parent(self, child: Node, error: str, met: set[str]) -> None:
        """The policies: the first that is set decides, on a parent that has not begun."""
        parent = self.nodes.get(child.parent or "")
        if parent is None or parent.id in met or parent.state not in WAITING:
            return
        key = f"{child.queue}:{child.id}"
        if FAIL_PARENT in child.policies:
            self._end(parent, "failed")
            self.tell_parent(parent, f"Child job {child.id} failed: {error}", met | {parent.id})
        elif CONTINUE in child.policies:
            parent.failed[key] = error
            parent.waits_for, parent.state = set(), "queued"
        elif IGNORE in child.policies or REMOVE in child.policies:
            if IGNORE in child.policies:
                parent.ignored[key] = error
            self.let_go(child.id, parent)

    def let_go(self, child_id: str, parent: Node) -> None:
        if child_id in parent.depends_on:
            parent.depends_on.remove(child_id)
        self.met(child_id, parent)

    @staticmethod
    def met(child_id: str, parent: Node) -> None:
        """A node waits no longer for one of those it waits for; one that has parked itself may wait for nobody yet."""
        if child_id in parent.waits_for:
            parent.waits_for.discard(child_id)
            if parent.state == "parked" and not parent.waits_for:
                parent.state = "queued"

    def open_needs(self, node: Node) -> set[str]:
        """Those of its needs that may still complete by themselves: that are there and do not wait for it."""
        known = [self.nodes[need] for need in node.depends_on if need in self.nodes]
        waiters, found = {node.id}, True
        while found:
            others = [other.id for other in (*self.nodes.values(), *self.coming) if other.waits_for & waiters]
            found = not waiters.issuperset(others)
            waiters.update(others)
        return {need.id for need in known if need.state in (*WAITING, "active") and need.id not in waiters}

    def park(self, node: Node, needs: set[str]) -> None:
        """An active job has parked itself, to wait for *needs*; some may have completed since."""
        if node.state == "active":
            node.waits_for = {need for need in needs if not self.is_done(need)}
            node.state = "parked" if node.waits_for or not needs else "queued"

    # changes

    def link(self, child: Node, parent: Node) -> None:
        """Both as they were when that was asked for: a new life of an id is another node."""
        child.parent = parent.id
        if parent.state != "gone" and child.id not in parent.children:
            parent.children.append(child.id)
        if child.state == "failed":
            self.tell_parent(child, "Child job failed", {child.id})

    def adopt(self, child: Node, parent: Node) -> None:
        """A job has been pushed as the child of one that had not begun, and now waits for it, too."""
        self.push(child)
        parent.children = list(dict.fromkeys([*parent.children, child.id]))
        parent.depends_on = list(dict.fromkeys([*parent.depends_on, child.id]))
        parent.named_children = parent.children.copy()
        parent.waits_for.add(child.id)
        parent.state = "parked"

    def remove_dependency(self, child_id: str) -> None:
        child = self.nodes.get(child_id)
        if child is None or child.state == "gone":
            parents = [node for node in self.in_state(*WAITING) if child_id in node.depends_on]
        else:
            parents = [node for node in self.in_state(*WAITING) if node.id == child.parent]
        for parent in parents:
            self.let_go(child_id, parent)

    def unprocessed(self, parent: Node) -> list[Node]:
        """Its children that have not begun."""
        children = [child for i in parent.children if (child := self.nodes.get(i)) is not None and child is not parent]
        return [child for child in children if child.state in WAITING]

    def again(self, job_id: str) -> None:
        """RetryDlq, RetryCompleted: a new life that waits for nothing."""
        node = self.nodes[job_id]
        node.state, node.attempts, node.stalls = "queued", 0, 0

    def recover(self) -> None:
        """The process has been killed and started again; all that was active has lost its worker.

        Parents hear of it only when all are there, so a child that is back already may be failed by another.
        """
        dead: list[tuple[Node, str]] = []
        for node in self.in_state("active"):
            node.attempts += 1
            node.stalls += 1
            node.state = "queued"
            if node.attempts >= node.max_attempts:
                dead.append((node, AT_START.format(node.max_attempts)))
            elif node.stalls >= MAX_STALLS:
                dead.append((node, STALLED_AT_START.format(node.stalls)))
        for node, _ in dead:
            self._end(node, "failed")
        for node, error in dead:
            self.tell_parent(node, error, {node.id})
        named = {need for node in self.in_state("queued", "parked", "active") for need in node.depends_on}
        self.finished &= named
