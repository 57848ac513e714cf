"""What everybody needs who uses the server of a simulation."""

from __future__ import annotations

from typing import Any

from tests.simulation.machine import PENDING, REFUSED
from tests.simulation.model import Fact, World
from tests.simulation.node import Connection
from tests.simulation.simulation import Simulation

QUEUES = ("a", "a", "a", "b")
CUSTOM_IDS = ("c1", "c2", "c3")
CONNECTIONS_MAX = 3


class Actor:
    """Decides by the chance of the seed."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.chance = simulation.chance

    def queue(self) -> str:
        return self.chance.choice(QUEUES)

    def connection(self) -> Connection:
        """One of those that are open, or a new one."""
        connections = self.sim.connections
        if not connections or (len(connections) < CONNECTIONS_MAX and self.chance.random() < 0.2):
            return self.sim.connect()
        return self.chance.choice(connections)

    def some(self, *states: str) -> Fact | None:
        """A job in one of these states, busy or not."""
        found = [fact for fact in self.sim.world.jobs.values() if fact.state in states]
        return self.chance.choice(found) if found else None

    def told(self, reply: Any) -> str:
        """What the sender of the last command knows."""
        return str(reply) if reply is REFUSED or reply is PENDING else "promised" if self.sim.waits else "ok"

    def is_promised(self, reply: Any) -> bool:
        return reply is not PENDING and reply is not REFUSED and self.sim.waits


def nothing(world: World) -> None:
    """The commit brings nothing that the model looks at."""
