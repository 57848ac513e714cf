"""Fixtures: a real server process, a client of it, and small file systems."""

from tests.process import client as client
from tests.process import server as server
from tests.process import start_server as start_server
from tests.tiny_disk import mount_disk as mount_disk
