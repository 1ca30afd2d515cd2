"""An execute that is sent twice with the same key runs once, whatever happens in between."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from http_service import Service, Start


def send(
    service: Service, kernel: str, code: str, key: str, *, client: httpx.Client | None = None
) -> dict[str, Any]:
    reply = (client or service.http).post(
        f"/kernels/{kernel}/execute", json={"code": code}, headers={"idempotency-key": key}
    )
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()
    return result


def test_the_same_key_runs_once_and_answers_the_same(service: Service) -> None:
    service.execute("once", "n = 0")
    first = send(service, "once", "n += 1\nn", "a")
    second = send(service, "once", "n += 1\nn", "a")
    assert first == second
    assert first["return_value"] == "1"
    assert send(service, "once", "n += 1\nn", "b")["return_value"] == "2"


def test_concurrent_duplicates_join_the_first(service: Service) -> None:
    service.execute("joined", "n = 0")
    code = "import time; time.sleep(0.2)\nn += 1\nn"
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda _: send(service, "joined", code, "k"), range(10)))
    assert {result["execution_id"] for result in results} == {results[0]["execution_id"]}
    assert service.execute("joined", "n")["return_value"] == "1"


def test_another_body_under_the_same_key_is_refused(service: Service) -> None:
    service.execute("other", "n = 0")
    send(service, "other", "n += 1", "k")
    reply = service.http.post(
        "/kernels/other/execute", json={"code": "n += 5"}, headers={"idempotency-key": "k"}
    )
    assert (reply.status_code, reply.json()["error"]) == (422, "KeyReused")
    assert service.execute("other", "n")["return_value"] == "1"


def test_a_key_means_one_kernel(service: Service) -> None:
    for name in ("this", "that"):
        service.execute(name, "n = 0")
        assert send(service, name, "n += 1\nn", "shared")["return_value"] == "1"


def test_it_survives_a_rewind(service: Service) -> None:
    service.execute("rewound", "n = 0")
    service.http.post("/kernels/rewound/checkpoint", json={"label": "zero"})
    first = send(service, "rewound", "n += 1\nn", "k")
    service.http.post("/kernels/rewound/rewind", json={"checkpoint": "zero"})
    assert send(service, "rewound", "n += 1\nn", "k") == first
    assert service.execute("rewound", "n")["return_value"] == "0"


def test_it_survives_a_restart_of_the_service(shared_start: Start, service: Service) -> None:
    before = shared_start()
    service.execute("survivor", "n = 0")
    first = send(before, "survivor", "n += 1\nn", "k")
    assert before.stop() == 0
    after = shared_start()
    assert send(after, "survivor", "n += 1\nn", "k") == first
    assert after.execute("survivor", "n")["return_value"] == "1"


def test_a_stream_with_the_same_key_is_told_again(service: Service) -> None:
    service.execute("streamed", "n = 0")
    replies = [
        service.http.post(
            "/kernels/streamed/execute",
            json={"code": "n += 1\nprint('n is', n)"},
            headers={"idempotency-key": "k", "accept": "text/event-stream"},
        )
        for _ in range(2)
    ]
    assert replies[0].headers["x-execution-id"] == replies[1].headers["x-execution-id"]
    for reply in replies:
        assert "event: result" in reply.text
        assert reply.text.count("n is") >= 1
    assert service.execute("streamed", "n")["return_value"] == "1"


def test_a_stream_with_the_same_key_is_told_the_id_that_the_first_chose(service: Service) -> None:
    service.execute("chosen", "n = 0")
    headers = {"idempotency-key": "c"}
    body = {"code": "n += 1\nprint('n is', n)"}
    first = service.http.post(
        "/kernels/chosen/execute", json={**body, "execution_id": "mine"}, headers=headers
    )
    assert first.json()["execution_id"] == "mine"
    twin = service.http.post(
        "/kernels/chosen/execute", json=body, headers={**headers, "accept": "text/event-stream"}
    )
    assert twin.headers["x-execution-id"] == "mine"
    assert '"execution_id":"mine"' in twin.text.partition("event: stream")[0]
    # One that was refused ran nothing, so its id is free, and so is the key.
    late = {**body, "expect_epoch": 9, "execution_id": "never"}
    refused = service.http.post(
        "/kernels/chosen/execute", json=late, headers={"idempotency-key": "d"}
    )
    assert refused.status_code == 409
    again = service.http.post(
        "/kernels/chosen/execute",
        json={**body, "execution_id": "other"},
        headers={"idempotency-key": "d"},
    )
    assert again.json()["execution_id"] == "other"
