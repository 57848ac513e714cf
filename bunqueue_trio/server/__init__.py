"""The Trio layer: connections, timers, the writer thread. It carries; no queue rule lives here."""
