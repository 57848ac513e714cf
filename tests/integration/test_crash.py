"""Kills at awkward moments: what was confirmed stays confirmed. Source: persistence 9; design, "What ok means"."""

from __future__ import annotations

import threading

import pytest

from tests.process import Client, ServerProcess


@pytest.mark.slow
def test_a_kill_right_after_the_reply_undoes_nothing_that_was_promised(server: ServerProcess) -> None:
    for number in range(5):
        ids = [f"{number}-{letter}" for letter in "abcd"]
        with server.connect() as client:
            client.ok("PUSHB", queue=f"q{number}", jobs=[{"data": 1, "customId": i, "backoff": 60_000} for i in ids])
            pulled = client.ok("PULLB", queue=f"q{number}", count=3, owner="w", lockTtl=60_000)
            tokens = pulled["tokens"]
            client.ok("ACKB", ids=ids[:1], tokens=tokens[:1], results=["kept"])
            client.ok("FAIL", id=ids[1], token=tokens[1], error="again", stack=["here"])
            client.ok("FAIL", id=ids[2], token=tokens[2], unrecoverable=True)
            client.ok("Cancel", id=ids[3])
            client.ok("Pause", queue=f"q{number}")
            durable = client.ok("PUSH", queue=f"q{number}", data=2, durable=True)["id"]
            server.kill()
        server.start()
        with server.connect() as client:
            states = [client.state(job_id) for job_id in [*ids, durable]]
            assert states == ["completed", "delayed", "failed", "unknown", "waiting"]
            assert client.ok("GetResult", id=ids[0])["result"] == "kept"
            job = client.ok("GetJob", id=ids[1])["job"]
            assert (job["attempts"], job["stacktrace"]) == (1, ["here"])
            assert client.ok("IsPaused", queue=f"q{number}")["paused"] is True
    server.assert_no_faults()


@pytest.mark.slow
def test_kills_in_the_middle_of_a_stream_of_commands_keep_every_confirmation(server: ServerProcess) -> None:
    pushed: set[str] = set()
    acked: set[str] = set()
    for number in range(5):
        confirmed = threading.Event()

        def stream(number: int = number, confirmed: threading.Event = confirmed) -> None:
            with server.connect() as client:
                try:
                    for batch in range(1_000):
                        ids = [f"{number}-{batch}-{i}" for i in range(10)]
                        jobs = [{"data": 1, "customId": job_id, "durable": True} for job_id in ids]
                        pushed.update(client.ok("PUSHB", queue="q", jobs=jobs)["ids"])
                        pulled = client.ok("PULLB", queue="q", count=5, owner="w", lockTtl=60_000)
                        done = [job["id"] for job in pulled["jobs"]]
                        client.ok("ACKB", ids=done, tokens=pulled["tokens"])
                        assert not acked & set(done)
                        acked.update(done)
                        if batch == 5 * number + 3:
                            confirmed.set()
                except OSError:
                    confirmed.set()

        streaming = threading.Thread(target=stream)
        streaming.start()
        assert confirmed.wait(60)
        server.kill()
        streaming.join()
        server.start()
    with server.connect() as client:
        replies = client.call_many([{"cmd": "GetState", "id": job_id} for job_id in sorted(pushed)])
        states = {reply["id"]: reply["state"] for reply in replies}
        counted = client.ok("Metrics", queue="q", type="completed")["data"]
    assert counted["meta"]["count"] == sum(counted["data"]) == list(states.values()).count("completed")
    assert acked <= pushed
    assert {states[job_id] for job_id in acked} == {"completed"}
    assert "unknown" not in states.values()
    server.assert_no_faults()


@pytest.mark.slow
def test_an_ack_that_is_confirmed_counts_although_its_pull_was_never_written(server: ServerProcess) -> None:
    """The pull is written with the next flush: a kill within its 10 ms leaves the job waiting, but its worker goes on.

    What the worker then confirms with the token that it got may not be answered ok and forgotten.
    """
    unwritten = 0
    for number in range(5):
        job_id = f"j{number}"
        with server.connect() as client:
            client.ok("PUSH", queue="q", data=1, jobId=job_id, durable=True)
            token = client.ok("PULL", queue="q", owner="w", lockTtl=60_000)["token"]
            server.kill()
        server.start()
        with server.connect() as client:
            unwritten += client.ok("GetJob", id=job_id)["job"]["attempts"] == 0
            assert confirms(client, job_id, token)
            assert client.state(job_id) == "completed"
            assert client.ok("GetResult", id=job_id)["result"] == "done"
            assert client.ok("PULL", queue="q", owner="w", timeout=200)["job"] is None
    assert unwritten
    server.assert_no_faults()


def confirms(client: Client, job_id: str, token: str) -> bool:
    return client.call("ACK", id=job_id, token=token, result="done")["ok"] is True
