"""Real client libraries against the gateway; every promise is counted at the upstream."""

import hashlib
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
import requests

import stub as upstream
from conftest import TENANTS, UPSTREAM_CREDENTIAL, Gateway
from running import eventually

TIMEOUT_S = 30


# --- the openai client through the openai adapter -------------------------------------------------------------------


def openai_client(gateway: Gateway, mount: str, sent: list[str] | None = None) -> openai.OpenAI:
    """A client with its own defaults, retries included; `sent` gets the path of every request that goes out."""
    hooks = {"request": [lambda request: sent.append(request.url.path)]} if sent is not None else {}
    return openai.OpenAI(
        api_key=gateway.key_of("dev_1"),
        base_url=f"{gateway.url}/{mount}/v1",
        timeout=TIMEOUT_S,
        http_client=openai.DefaultHttpxClient(event_hooks=hooks),
    )


def test_a_chat_answer_arrives_as_the_upstream_sent_it(gateway: Gateway) -> None:
    with openai_client(gateway, "models") as client:
        answer = client.chat.completions.with_raw_response.create(
            model="small", messages=[{"role": "user", "content": "plain chat"}]
        )

    assert answer.content == upstream.CHAT_ANSWER
    assert answer.parse().choices[0].message.content == "hello ✓"
    assert "x-negative-cache" not in answer.headers
    (call,) = gateway.upstream.calls_with(b"plain chat")
    assert call.path == "/v1/chat/completions"
    assert call.headers["authorization"] == UPSTREAM_CREDENTIAL


def test_a_stream_arrives_event_by_event(gateway: Gateway) -> None:
    words = []
    gateway.upstream.go_on.clear()
    with openai_client(gateway, "models") as client:
        for event in client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "streamed chat"}], stream=True
        ):
            # Only now does the upstream send the rest.
            gateway.upstream.go_on.set()
            words.append(event.choices[0].delta.content)

    assert words == [*upstream.STREAM_WORDS, None]
    assert gateway.upstream.stream_was_released[-1], "the first event was held back until the stream ended"
    assert len(gateway.upstream.calls_with(b"streamed chat")) == 1


def test_a_stream_arrives_byte_for_byte(gateway: Gateway) -> None:
    gateway.upstream.go_on.set()
    answer = httpx.post(
        f"{gateway.url}/models/v1/chat/completions",
        headers={"Authorization": f"Bearer {gateway.key_of('dev_2')}"},
        json={"model": "small", "messages": [], "stream": True},
        timeout=TIMEOUT_S,
    )

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.content == b"".join(upstream.STREAM_EVENTS)


def test_embeddings_arrive_as_the_upstream_sent_them(gateway: Gateway) -> None:
    with openai_client(gateway, "models") as client:
        default = client.embeddings.create(model="small", input="embed in base64")
        floats = client.embeddings.create(model="small", input="embed in floats", encoding_format="float")

    assert default.data[0].embedding == upstream.EMBEDDING
    assert floats.data[0].embedding == upstream.EMBEDDING
    assert len(gateway.upstream.calls_with(b"embed in ")) == 2


def test_a_refused_chat_is_not_remembered_where_the_memory_is_off(gateway: Gateway) -> None:
    with openai_client(gateway, "models") as client:
        for _ in range(2):
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(
                    model="refuse-400", messages=[{"role": "user", "content": "unguarded refusal"}]
                )
            assert refused.value.response.content == upstream.REFUSAL
            assert "x-negative-cache" not in refused.value.response.headers

    assert len(gateway.upstream.calls_with(b"unguarded refusal")) == 2


# --- the openai client on a guarded route ---------------------------------------------------------------------------


def test_a_replayed_400_is_sent_once(gateway: Gateway) -> None:
    sent: list[str] = []
    with openai_client(gateway, "guarded", sent) as client:
        for cached in [None, "HIT"]:
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(
                    model="refuse-400", messages=[{"role": "user", "content": "refused where it is remembered"}]
                )
            assert refused.value.response.headers.get("x-negative-cache") == cached
            assert refused.value.response.content == upstream.REFUSAL
    assert refused.value.response.headers["x-should-retry"] == "false"

    assert len(sent) == 2
    assert len(gateway.upstream.calls_with(b"refused where it is remembered")) == 1


def test_a_client_that_retries_409_stops_at_the_replay(gateway: Gateway) -> None:
    """The client retries a live 409 by itself; the replay that it then gets tells it to stop, in spite of the status."""
    sent: list[str] = []
    with openai_client(gateway, "guarded", sent) as client:
        for _ in range(2):
            with pytest.raises(openai.ConflictError) as refused:
                client.chat.completions.create(
                    model="refuse-409", messages=[{"role": "user", "content": "conflicting refusal"}]
                )
            assert refused.value.response.headers["x-negative-cache"] == "HIT"

    assert len(sent) == 3, "live, its retry, and one for the second call"
    assert len(gateway.upstream.calls_with(b"conflicting refusal")) == 1


# --- uploads by other clients ---------------------------------------------------------------------------------------


@dataclass
class Answer:
    """An answer in a form that all clients share; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


# Each client writes its own boundary. `Accept` is a part of the key, and urllib sends none by itself: it is set for all.
def upload_with_httpx(url: str, headers: dict[str, str], document: bytes) -> Answer:
    files = {"file": ("scan.pdf", document, "application/pdf")}
    answer = httpx.post(url, headers=headers, files=files, timeout=TIMEOUT_S)
    return Answer(answer.status_code, dict(answer.headers), answer.content)


def upload_with_requests(url: str, headers: dict[str, str], document: bytes) -> Answer:
    files = {"file": ("scan.pdf", document, "application/pdf")}
    answer = requests.post(url, headers=headers, files=files, timeout=TIMEOUT_S)
    return Answer(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, answer.content)


def upload_with_urllib(url: str, headers: dict[str, str], document: bytes) -> Answer:
    boundary = "boundary-of-a-hand-made-form"
    body = b"".join(
        [
            f"--{boundary}\r\n".encode(),
            b'Content-Disposition: form-data; name="file"; filename="scan.pdf"\r\n',
            b"Content-Type: application/pdf\r\n\r\n",
            document,
            f"\r\n--{boundary}--\r\n".encode(),
        ]
    )
    headers = {**headers, "Content-Type": f"multipart/form-data; boundary={boundary}"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())


UPLOADS: list[Callable[[str, dict[str, str], bytes], Answer]] = [
    upload_with_httpx,
    upload_with_requests,
    upload_with_urllib,
]


def test_three_clients_of_three_tenants_make_one_upstream_call(gateway: Gateway) -> None:
    document = b"%PDF-1.7 three tenants " + upstream.BROKEN + bytes(range(256)) * 64
    answers = [
        upload(
            f"{gateway.url}/documents/classify",
            {"Authorization": f"Bearer {gateway.key_of(tenant)}", "Accept": "*/*"},
            document,
        )
        for tenant, upload in zip(TENANTS, UPLOADS, strict=True)
    ]

    (call,) = gateway.upstream.calls_with(b"three tenants")
    assert document in call.body
    assert call.headers["authorization"] == UPSTREAM_CREDENTIAL

    live, *replays = answers
    assert "x-negative-cache" not in live.headers
    for answer in answers:
        assert answer.status == 400
        assert answer.body == upstream.REFUSAL
        assert answer.headers["content-type"] == upstream.REFUSAL_TYPE
    for replay in replays:
        assert replay.headers["x-negative-cache"] == "HIT"
        assert replay.headers["x-should-retry"] == "false"
        assert replay.headers["cache-status"].startswith("nevertwice; hit; ttl=")
        assert "set-cookie" not in replay.headers
        assert replay.headers.get("x-request-id") != "upstream-1"

    fingerprint = replays[0].headers["x-negative-cache-entry"]
    assert replays[1].headers["x-negative-cache-entry"] == fingerprint
    assert_told_to_the_operator(gateway, fingerprint, document)


def assert_told_to_the_operator(gateway: Gateway, fingerprint: str, document: bytes) -> None:
    """Replay counts and audit lines are written in batches: they may be a second behind."""
    digest = hashlib.sha256(document).hexdigest()

    def entry() -> dict | None:
        answer = httpx.get(f"{gateway.admin_url}/admin/v1/refusals", params={"document": digest}, timeout=TIMEOUT_S)
        return next((item for item in answer.json()["items"] if item["replays"] == 2), None)

    found = eventually(entry)
    assert found["fingerprint"] == fingerprint
    assert found["document_sha256"] == digest
    assert found["status"] == 400

    events = eventually(lambda: at_least(3, gateway.audit(upstream="documents", status=400)))
    live, *replays = sorted(events, key=lambda event: TENANTS.index(event["tenant"]))
    assert live["code"] == "HTTP_400"
    assert live["upstream_ms"] > 0
    assert [event["tenant"] for event in [live, *replays]] == TENANTS
    for event in replays:
        assert (event["code"], event["upstream_ms"], event["cache_hit"]) == ("REFUSED_HTTP_400", 0, True)


def at_least(count: int, events: list[dict]) -> list[dict] | None:
    return events if len(events) >= count else None


@pytest.mark.parametrize("upload", UPLOADS, ids=lambda upload: upload.__name__)
def test_a_good_document_goes_up_every_time(
    gateway: Gateway, upload: Callable[[str, dict[str, str], bytes], Answer]
) -> None:
    marker = f"good by {upload.__name__}".encode()
    for _ in range(2):
        headers = {"Authorization": f"Bearer {gateway.key_of('dev_1')}"}
        answer = upload(f"{gateway.url}/documents/classify", headers, b"%PDF-1.7 " + marker)
        assert (answer.status, answer.body) == (200, upstream.ACCEPTED)

    assert len(gateway.upstream.calls_with(marker)) == 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_that_expects_100_continue_uploads_2_mib(gateway: Gateway, tmp_path: Path) -> None:
    document = b"%PDF-1.7 expects a word first " + bytes(range(256)) * (2 * 1024 * 1024 // 256)
    (tmp_path / "document.pdf").write_bytes(document)
    # curl would send the body without the word after 60 s; the whole transfer has 30.
    done = subprocess.run(
        [
            *["curl", "--silent", "--show-error", "--verbose", "--http1.1", "--noproxy", "*"],
            *["--max-time", "30", "--expect100-timeout", "60", "--header", "Expect: 100-continue"],
            *["--header", f"Authorization: Bearer {gateway.key_of('dev_1')}"],
            *["--header", "Content-Type: application/pdf", "--data-binary", "@document.pdf"],
            f"{gateway.url}/documents/classify",
        ],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )

    talk = done.stderr.decode(errors="replace")
    assert done.returncode == 0, talk
    assert done.stdout == upstream.ACCEPTED
    assert talk.count("< HTTP/1.1 100 ") == 1, talk
    (call,) = gateway.upstream.calls_with(b"expects a word first")
    assert call.sha256 == hashlib.sha256(document).hexdigest()


def test_an_own_answer_is_told_apart_from_the_upstreams(gateway: Gateway) -> None:
    answer = requests.post(
        f"{gateway.url}/documents/classify",
        headers={"Authorization": "Bearer nobody"},
        data=b"%PDF-1.7 unknown key",
        timeout=TIMEOUT_S,
    )

    assert answer.status_code == 401
    assert answer.headers["X-Gateway-Error"] == "UNAUTHENTICATED"
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert json.loads(answer.content)["code"] == "UNAUTHENTICATED"
    assert gateway.upstream.calls_with(b"unknown key") == []
