"""Synchronous SQLite: rows and transactions. No policy, no clock, no Trio."""
