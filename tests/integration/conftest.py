"""Fixtures: a real server process, and a client of it."""

from tests.process import client as client
from tests.process import server as server
from tests.process import start_server as start_server
