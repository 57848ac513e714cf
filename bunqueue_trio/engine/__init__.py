"""The queue's rules, and nothing else: pure, synchronous, no clock, no randomness, no I/O.

Commands come in with the moment they happen at; replies, dirty records and queues to wake go out.
"""
