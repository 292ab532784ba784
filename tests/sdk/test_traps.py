"""What client libraries make of refusals and of replays. The oracle is the upstream's own log.

Which test holds which trap (`traps` are the tests here, `wire` is tests/promises/, `rules` is crates/config/tests/it/):

| trap | held by |
|---|---|
| a replay has no `Retry-After`, and an answer with it is not remembered | traps: `azure`; wire: `rule_04_*`, `rule_28_*` |
| a replay says `x-should-retry: false`; an answer with `true` is not remembered | traps: `retry_by_header`; wire: `rule_04_*` |
| 409 is retried by clients: never remembered by a profile, never the gateway's own | traps: `conflict`; wire: `sdk_traps` |
| replays are the service's JSON; a proxy's HTML 413 is not remembered | traps: `html`; wire: `profiles`, `sdk_traps` |
| identity headers stay behind, the content type does not | traps: `identity`; wire: `rule_28_*` |
| coded bodies are judged decoded and replayed coded | traps: `coded`; wire: `sdk_traps`; rules: `bodies_are_decoded_*` |
| AWS names in a header, in JSON or in CBOR | wire: `sdk_traps`; rules: `names_of_aws_errors_*` |
| codes that are numbers here and strings there | wire: `sdk_traps`; rules: `codes_are_compared_as_text` |
| flat and wrapped bodies of one service | wire: `sdk_traps` |
| `failed` and `Failed` | wire: `sdk_traps`; rules: `polls_that_failed_*`, `every_item_must_be_content` |
| several errors in one answer: all must be content | wire: `sdk_traps`; rules: `every_leaf_must_be_content` |
| an echo of the document makes a body too large to keep | wire: `reduced_bodies` |
| what heals by itself: 401, 403, 404, models and accounts | wire: `rf_12_*`, `profiles` |
| other URL, credential, tier, generation or rules | wire: `whatever_the_verdict_depended_on_*` |
"""

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import anthropic
import brotli
import httpx
import openai
import pytest
from azure.ai.documentintelligence import DocumentIntelligenceClient
from azure.ai.documentintelligence.models import AnalyzeDocumentRequest
from azure.ai.formrecognizer import DocumentAnalysisClient
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError

from conftest import UPSTREAM_CREDENTIAL, Gateway
from stub import Answer

TIMEOUT_S = 30
# What clients send of one call: the first and their retries.
AZURE_SENDS = 4
OPENAI_SENDS = 3

IDENTITY = {
    "set-cookie": "session=secret",
    "openai-organization": "org-of-the-first-caller",
    "openai-processing-ms": "12",
    "request-id": "req-1",
    "x-request-id": "req-1",
    "apim-request-id": "req-1",
    "cf-ray": "8f00-VIE",
    "x-ms-request-id": "req-1",
    "x-ms-region": "West Europe",
    "x-envoy-upstream-service-time": "7",
    "ms-azure-ai-errorcode": "InvalidRequest",
    "anthropic-organization-id": "org-of-the-first-caller",
}


def refusal(body: object, status: int = 400, **headers: str) -> Answer:
    fields = {"content-type": "application/json; charset=utf-8"}
    return Answer(status, json.dumps(body).encode(), fields | {k.replace("_", "-"): v for k, v in headers.items()})


def azure_error(inner: str) -> dict:
    return {"error": {"code": "InvalidRequest", "message": "m", "innererror": {"code": inner, "message": "i"}}}


@dataclass
class Sends:
    """What went out of a client and came back, send by send."""

    statuses: list[int] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def add(self, status: int, headers: object) -> None:
        self.statuses.append(status)
        self.headers.append({str(name).lower(): str(value) for name, value in dict(headers).items()})

    @property
    def replays(self) -> int:
        return sum(headers.get("x-negative-cache") == "HIT" for headers in self.headers)


# --- one call of each client -----------------------------------------------------------------------------------------
# Each takes a text that becomes part of the body, and returns the error that the library raised.


def by_document_intelligence(gateway: Gateway, text: str, sends: Sends) -> HttpResponseError:
    with DocumentIntelligenceClient(f"{gateway.url}/di", AzureKeyCredential(gateway.key_of("dev_1"))) as client:
        with pytest.raises(HttpResponseError) as refused:
            client.begin_analyze_document(
                "prebuilt-read",
                b"%PDF-1.7 " + text.encode(),
                raw_response_hook=lambda seen: sends.add(seen.http_response.status_code, seen.http_response.headers),
            )
    return refused.value


def by_form_recognizer(gateway: Gateway, text: str, sends: Sends) -> HttpResponseError:
    with DocumentAnalysisClient(f"{gateway.url}/di", AzureKeyCredential(gateway.key_of("dev_1"))) as client:
        with pytest.raises(HttpResponseError) as refused:
            client.begin_analyze_document(
                "prebuilt-read",
                b"%PDF-1.7 " + text.encode(),
                raw_response_hook=lambda seen: sends.add(seen.http_response.status_code, seen.http_response.headers),
            )
    return refused.value


def by_openai(gateway: Gateway, text: str, sends: Sends) -> openai.APIStatusError:
    hooks = {"response": [lambda answer: sends.add(answer.status_code, answer.headers)]}
    with openai.OpenAI(
        api_key=gateway.key_of("dev_1"),
        base_url=f"{gateway.url}/openai/v1",
        timeout=TIMEOUT_S,
        http_client=openai.DefaultHttpxClient(event_hooks=hooks),
    ) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(model="small", messages=[{"role": "user", "content": text}])
    return refused.value


def by_anthropic(gateway: Gateway, text: str, sends: Sends) -> anthropic.APIStatusError:
    hooks = {"response": [lambda answer: sends.add(answer.status_code, answer.headers)]}
    with anthropic.Anthropic(
        api_key=gateway.key_of("dev_1"),
        base_url=f"{gateway.url}/anthropic",
        timeout=TIMEOUT_S,
        http_client=anthropic.DefaultHttpxClient(event_hooks=hooks),
    ) as client:
        with pytest.raises(anthropic.APIStatusError) as refused:
            client.messages.create(model="small", max_tokens=5, messages=[{"role": "user", "content": text}])
    return refused.value


@dataclass
class Client:
    """A client, a refusal of its service that is a verdict on the document, and what its error says of it."""

    call: Callable[[Gateway, str, Sends], Exception]
    verdict: object
    says: str

    def __str__(self) -> str:
        return self.call.__name__.removeprefix("by_")


INVALID_CONTENT = azure_error("InvalidContent")
CONTEXT_LENGTH = {
    "error": {
        "message": "too many tokens for this model",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}
TOO_LONG = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens"}}

DI = Client(by_document_intelligence, INVALID_CONTENT, "InvalidContent")
FORMS = Client(by_form_recognizer, INVALID_CONTENT, "InvalidContent")
OPENAI = Client(by_openai, CONTEXT_LENGTH, "too many tokens for this model")
ANTHROPIC = Client(by_anthropic, TOO_LONG, "prompt is too long")

ALL = pytest.mark.parametrize("client", [DI, FORMS, OPENAI, ANTHROPIC], ids=str)
AZURE = pytest.mark.parametrize("client", [DI, FORMS], ids=str)
CHAT = pytest.mark.parametrize("client", [OPENAI, ANTHROPIC], ids=str)


def calls(gateway: Gateway, text: str) -> int:
    return len(gateway.upstream.calls_with(text.encode()))


def remembered(gateway: Gateway) -> int:
    answer = httpx.get(f"{gateway.admin_url}/admin/v1/refusals", params={"limit": 1000}, timeout=TIMEOUT_S)
    return len(answer.json()["items"])


# --- the traps -------------------------------------------------------------------------------------------------------


@ALL
def test_a_verdict_goes_up_once_and_its_replay_is_sent_once_without_identity(gateway: Gateway, client: Client) -> None:
    text = f"identity {client}"
    gateway.upstream.answer(text.encode(), refusal(client.verdict, **IDENTITY))
    live, replay = Sends(), Sends()
    errors = [client.call(gateway, text, sends) for sends in (live, replay)]

    assert (live.statuses, replay.statuses) == ([400], [400])
    assert (live.replays, replay.replays) == (0, 1)
    assert calls(gateway, text) == 1
    for name, value in IDENTITY.items():
        assert live.headers[0][name] == value, "the first caller gets what the upstream said"
        assert replay.headers[0].get(name) != value, name
    (kept,) = replay.headers
    assert "retry-after" not in kept
    assert kept["x-should-retry"] == "false"
    assert kept["content-type"] == "application/json; charset=utf-8"
    assert not [name for name in kept if name.startswith(("x-ms-", "openai-", "anthropic-", "cf-", "apim-"))]
    # The library reads the replay as it read the refusal.
    assert [type(error) for error in errors] == [type(errors[0])] * 2
    assert str(errors[0]) == str(errors[1])


def test_azure_names_the_inner_code_of_a_replay(gateway: Gateway) -> None:
    text = "azure inner code"
    gateway.upstream.answer(text.encode(), refusal(INVALID_CONTENT))
    for replays in [0, 1]:
        sends = Sends()
        error = by_document_intelligence(gateway, text, sends)
        assert (error.status_code, error.error.code) == (400, "InvalidRequest")
        assert error.error.innererror["code"] == "InvalidContent"
        assert sends.replays == replays

    (call,) = gateway.upstream.calls_with(text.encode())
    path, _, query = call.path.partition("?")
    assert path == "/documentintelligence/documentModels/prebuilt-read:analyze"
    assert "api-version=2024-11-30" in query
    assert call.headers["ocp-apim-subscription-key"] == UPSTREAM_CREDENTIAL
    # It differs with every send, and is not in the key: it does not go up.
    assert "x-ms-client-request-id" not in call.headers


def test_azure_base64_is_remembered_and_a_url_is_not(gateway: Gateway) -> None:
    document = b"%PDF-1.7 sent in JSON"
    url = "https://documents.example/sent-by-reference.pdf"
    for request, marker, goes_up in [
        (AnalyzeDocumentRequest(bytes_source=document), base64.b64encode(document), 1),
        (AnalyzeDocumentRequest(url_source=url), url.encode(), 2),
    ]:
        gateway.upstream.answer(marker, refusal(INVALID_CONTENT))
        with DocumentIntelligenceClient(f"{gateway.url}/di", AzureKeyCredential(gateway.key_of("dev_1"))) as client:
            for _ in range(2):
                with pytest.raises(HttpResponseError):
                    client.begin_analyze_document("prebuilt-read", request)
        assert len(gateway.upstream.calls_with(marker)) == goes_up, marker


@AZURE
def test_azure_sends_a_400_with_retry_after_four_times_and_none_is_remembered(gateway: Gateway, client: Client) -> None:
    text = f"azure retry-after {client}"
    before = remembered(gateway)
    gateway.upstream.answer(text.encode(), refusal(client.verdict, retry_after="1"))
    sends = Sends()
    client.call(gateway, text, sends)

    assert sends.statuses == [400] * AZURE_SENDS
    assert sends.replays == 0
    assert calls(gateway, text) == AZURE_SENDS
    assert remembered(gateway) == before
    # The same document is a verdict as soon as the answer says nothing of time.
    gateway.upstream.answer(text.encode(), refusal(client.verdict))
    for replays in [0, 1]:
        sends = Sends()
        client.call(gateway, text, sends)
        assert (sends.statuses, sends.replays) == ([400], replays)
    assert calls(gateway, text) == AZURE_SENDS + 1


@CHAT
def test_retry_by_header_is_obeyed_and_never_remembered(gateway: Gateway, client: Client) -> None:
    text = f"should retry {client}"
    before = remembered(gateway)
    gateway.upstream.answer(text.encode(), refusal(client.verdict, x_should_retry="true"))
    sends = Sends()
    client.call(gateway, text, sends)

    assert sends.statuses == [400] * OPENAI_SENDS
    assert sends.replays == 0
    assert calls(gateway, text) == OPENAI_SENDS
    assert remembered(gateway) == before


@CHAT
def test_a_conflict_is_retried_and_never_remembered(gateway: Gateway, client: Client) -> None:
    """With 409 among the statuses that the operator allows, and with a body that is a verdict under another status."""
    text = f"conflict {client}"
    before = remembered(gateway)
    gateway.upstream.answer(text.encode(), refusal(client.verdict, status=409))
    sends = Sends()
    client.call(gateway, text, sends)

    assert sends.statuses == [409] * OPENAI_SENDS
    assert sends.replays == 0
    assert calls(gateway, text) == OPENAI_SENDS
    assert remembered(gateway) == before


PAGE = b"<html><head><title>413 Request Entity Too Large</title></head><body>nginx</body></html>"


def html(gateway: Gateway, text: str) -> None:
    gateway.upstream.answer(text.encode(), Answer(413, PAGE, {"content-type": "text/html", "server": "nginx"}))


@pytest.mark.parametrize("client", [FORMS, OPENAI, ANTHROPIC], ids=str)
def test_an_html_page_of_a_proxy_comes_live_and_is_not_remembered(gateway: Gateway, client: Client) -> None:
    text = f"html {client}"
    html(gateway, text)
    for _ in range(2):
        sends = Sends()
        client.call(gateway, text, sends)
        assert (sends.statuses, sends.replays) == ([413], 0)
    assert calls(gateway, text) == 2


def test_an_html_page_breaks_azure_document_intelligence_only_as_long_as_it_is_live(gateway: Gateway) -> None:
    """The library reads every refusal as JSON: a page that was replayed would break it for a day."""
    text = "html document intelligence"
    html(gateway, text)
    with DocumentIntelligenceClient(f"{gateway.url}/di", AzureKeyCredential(gateway.key_of("dev_1"))) as client:
        for _ in range(2):
            with pytest.raises(json.JSONDecodeError):
                client.begin_analyze_document("prebuilt-read", b"%PDF " + text.encode())
    assert calls(gateway, text) == 2
    # The proxy's limit is raised, and the service speaks for itself.
    gateway.upstream.answer(text.encode(), refusal(INVALID_CONTENT))
    for replays in [0, 1]:
        sends = Sends()
        by_document_intelligence(gateway, text, sends)
        assert sends.replays == replays


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
}


@ALL
@pytest.mark.parametrize("coding", CODINGS)
def test_a_coded_refusal_is_judged_decoded_replayed_coded_and_read(
    gateway: Gateway, client: Client, coding: str
) -> None:
    text = f"coded {coding} {client}"
    plain = refusal(client.verdict, content_encoding=coding)
    coded = CODINGS[coding](plain.body)
    gateway.upstream.answer(text.encode(), Answer(400, coded, plain.headers))
    said = []
    for replays in [0, 1]:
        sends = Sends()
        said.append(str(client.call(gateway, text, sends)))
        assert (sends.statuses, sends.replays) == ([400], replays)
        (headers,) = sends.headers
        assert headers["content-encoding"] == coding
        assert headers["content-length"] == str(len(coded))
    assert said[0] == said[1]
    assert client.says in said[1], "the library read the body"
    assert calls(gateway, text) == 1
