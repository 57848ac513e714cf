"""Seeds that once failed, with what they found.

A seed means the same story only as long as the simulation draws the same numbers; so whatever a seed has found gets a
test of its own beside the fix, and stays here for as long as it still leads there.
"""

SEEDS: dict[int, str] = {
    84: "a job that completed while a durable push took its unique key was written back as one that waits",
}
