"""Rooms of settings, of which `config` is made: each with its fields, their defaults, and its rows of the table.

A record can have one base only, so the rooms stand on one another: limits, watching, backups, and `Config` on top.
"""
