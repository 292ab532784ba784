"""The clients of Document Intelligence through the facade: v4.0, v3.1 and v2.1. The oracle is the service's own log."""

import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest
from azure.ai.documentintelligence import DocumentIntelligenceClient
from azure.ai.documentintelligence.models import AnalyzeDocumentRequest
from azure.ai.formrecognizer import DocumentAnalysisClient, FormRecognizerClient
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.polling import LROPoller

import document_intelligence
from balancer import Balancer
from conftest import AZURE
from document_intelligence import Fate, Service, fault
from running import UPSTREAM_CREDENTIAL, Gateway, eventually, free_ports, start

Facade = Gateway[Service]
GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# The clients' default is 1 s at least.
POLLING_S = 0.05
PATIENCE_S = 30


@dataclass
class Sends:
    """What a client got, answer by answer."""

    statuses: list[int]
    headers: list[dict[str, str]]

    def __call__(self, seen: object) -> None:
        self.statuses.append(seen.http_response.status_code)
        self.headers.append({name.lower(): value for name, value in seen.http_response.headers.items()})

    @property
    def replays(self) -> list[bool]:
        return [headers.get("x-negative-cache") == "HIT" for headers in self.headers]


def sends() -> Sends:
    return Sends([], [])


@dataclass
class Version:
    """A client, and how its version of the service words things."""

    name: str
    client: type
    by_bytes: Callable[..., LROPoller]
    by_url: Callable[..., LROPoller]
    text: Callable[[object], str]
    refusal: dict

    def __str__(self) -> str:
        return self.name

    def open(self, gateway: Facade, tenant: str = "dev_1", url: str | None = None) -> object:
        key = AzureKeyCredential(gateway.key_of(tenant))
        return self.client(url or gateway.url, key, polling_interval=POLLING_S)

    def begin(
        self, gateway: Facade, text: str, tenant: str = "dev_1", url: str | None = None, **more: object
    ) -> LROPoller:
        """Submits a document, with a client of its own, which the poller keeps."""
        return self.by_bytes(self.open(gateway, tenant, url), b"%PDF-1.7 " + text.encode(), **more)


V4 = Version(
    "v4.0",
    DocumentIntelligenceClient,
    lambda client, document, **more: client.begin_analyze_document("prebuilt-read", document, **more),
    lambda client, url: client.begin_analyze_document("prebuilt-read", AnalyzeDocumentRequest(url_source=url)),
    lambda result: result.content,
    fault("InvalidContent"),
)
V3 = Version(
    "v3.1",
    DocumentAnalysisClient,
    lambda client, document, **more: client.begin_analyze_document("prebuilt-read", document, **more),
    lambda client, url: client.begin_analyze_document_from_url("prebuilt-read", url),
    lambda result: result.content,
    fault("InvalidContent"),
)
V2 = Version(
    "v2.1",
    FormRecognizerClient,
    lambda client, document, **more: client.begin_recognize_content(document, **more),
    lambda client, url: client.begin_recognize_content_from_url(url),
    lambda result: result[0].lines[0].text,
    {"code": "InvalidImage", "message": "The image is none."},
)
ALL = pytest.mark.parametrize("version", [V4, V3, V2], ids=str)
# v2.1 has no code for it that is a verdict on the document.
FAILS_AT_POLL = pytest.mark.parametrize("version", [V4, V3], ids=str)


def remembered(gateway: Facade) -> int:
    answer = httpx.get(f"{gateway.admin_url}/admin/v1/refusals", params={"limit": 1000}, timeout=PATIENCE_S)
    return len(answer.json()["items"])


def failure_of(poller: LROPoller) -> HttpResponseError:
    with pytest.raises(HttpResponseError) as failed:
        poller.result(PATIENCE_S)
    return failed.value


def codes(error: HttpResponseError) -> tuple[str, str]:
    return error.error.code, error.error.innererror["code"]


def assert_no_operation(error: HttpResponseError) -> None:
    assert (error.status_code, error.error.code) == (404, "OPERATION_NOT_FOUND")
    assert error.error.message


# --- good documents --------------------------------------------------------------------------------------------------


@ALL
def test_a_good_document_is_read(azure: Facade, version: Version) -> None:
    text = f"good {version}"
    fate = azure.upstream.on(text.encode(), Fate())
    fate.ended.clear()
    seen = sends()
    poller = version.begin(azure, text, raw_response_hook=seen)
    azure.upstream.wait_for_poll(text.encode())
    fate.ended.set()
    assert text in version.text(poller.result(PATIENCE_S))

    (submit,) = azure.upstream.submits(text.encode())
    assert submit.headers["ocp-apim-subscription-key"] == UPSTREAM_CREDENTIAL
    assert submit.body == b"%PDF-1.7 " + text.encode()
    for poll in azure.upstream.polls(text.encode()):
        assert poll.headers["ocp-apim-subscription-key"] == UPSTREAM_CREDENTIAL
    # The client was sent nowhere else.
    location = next(headers["operation-location"] for headers in seen.headers if "operation-location" in headers)
    assert location.startswith(f"{azure.url}/")
    assert GUID.search(location)
    assert azure.upstream.base_url not in str(seen.headers)
    assert not any(seen.replays)


def test_parts_of_a_result_are_read_and_it_is_deleted(azure: Facade) -> None:
    text = "good with figures"
    with V4.open(azure) as client:
        poller = V4.begin(azure, text, output=["pdf", "figures"], pages="1-2", locale="de-AT")
        poller.result(PATIENCE_S)
        (submit,) = azure.upstream.submits(text.encode())
        query = submit.path.partition("?")[2].split("&")
        assert sorted(query) == ["api-version=2024-11-30", "locale=de-AT", "output=pdf,figures", "pages=1-2"]
        operation = poller.details["operation_id"]
        assert GUID.fullmatch(operation)
        pdf = b"".join(client.get_analyze_result_pdf("prebuilt-read", operation))
        assert pdf.startswith(b"/pdf of ") and text.encode() in pdf
        figure = b"".join(client.get_analyze_result_figure("prebuilt-read", operation, "1.1"))
        assert figure.startswith(b"/figures/1.1 of ")
        client.delete_analyze_result("prebuilt-read", operation)
        with pytest.raises(ResourceNotFoundError):
            client.get_analyze_result_pdf("prebuilt-read", operation)


# --- refusals --------------------------------------------------------------------------------------------------------


@ALL
def test_di_07_a_refusal_at_the_submit_and_its_replay_are_read_alike(azure: Facade, version: Version) -> None:
    text = f"refused at the submit {version}"
    azure.upstream.on(text.encode(), Fate(refused=version.refusal))
    errors = []
    for replay in [False, True]:
        seen = sends()
        with pytest.raises(HttpResponseError) as refused:
            version.begin(azure, text, raw_response_hook=seen)
        assert (seen.statuses, seen.replays) == ([400], [replay]), "one HTTP call"
        assert "operation-location" not in seen.headers[0]
        errors.append(refused.value)
    assert [type(error) for error in errors] == [type(errors[0])] * 2
    assert str(errors[0]) == str(errors[1])
    for error in errors:
        assert (error.status_code, error.error.code) == (400, version.refusal["code"])
        if "innererror" in version.refusal:
            assert codes(error) == ("InvalidRequest", "InvalidContent")
    assert len(azure.upstream.submits(text.encode())) == 1


@FAILS_AT_POLL
def test_a_refusal_at_the_poll_and_its_replay_are_read_alike(azure: Facade, version: Version) -> None:
    text = f"refused at the poll {version}"
    azure.upstream.on(text.encode(), Fate(failed=fault("InvalidContent")))
    errors, locations = [], []
    for replay in [False, True, True]:
        seen = sends()
        poller = version.begin(azure, text, raw_response_hook=seen)
        errors.append(failure_of(poller))
        assert seen.statuses == [202, 200]
        assert seen.replays == [replay] * 2
        locations.append(seen.headers[0]["operation-location"])
    assert [type(error) for error in errors] == [type(errors[0])] * 3
    for error in errors:
        assert (error.status_code, codes(error)) == (200, ("InvalidRequest", "InvalidContent"))
        assert "It is InvalidContent é." in str(error.error.innererror)
        assert str(error) == str(errors[0])
    assert len(set(locations)) == 3, "each submit has an operation of its own"
    assert len(azure.upstream.submits(text.encode())) == 1
    assert len(azure.upstream.polls(text.encode())) == 1


@ALL
def test_a_transient_failure_at_the_poll_is_never_remembered(azure: Facade, version: Version) -> None:
    text = f"transient {version}"
    before = remembered(azure)
    code = "3013" if version is V2 else "InternalServerError"
    azure.upstream.on(text.encode(), Fate(failed={"code": code, "message": "An unexpected error occurred."}))
    for goes_up in [1, 2]:
        seen = sends()
        failure_of(version.begin(azure, text, raw_response_hook=seen))
        assert not any(seen.replays)
        assert len(azure.upstream.submits(text.encode())) == goes_up
    # It passes.
    azure.upstream.on(text.encode(), Fate())
    assert text in version.text(version.begin(azure, text).result(PATIENCE_S))
    assert remembered(azure) == before


@ALL
@pytest.mark.parametrize("at", ["submit", "poll"])
def test_a_refused_url_is_never_remembered(azure: Facade, version: Version, at: str) -> None:
    url = f"https://documents.example/{version}-{at}.pdf"
    before = remembered(azure)
    # Even where the code speaks of the bytes: they may be others tomorrow.
    fate = Fate(refused=version.refusal) if at == "submit" else Fate(failed=version.refusal)
    azure.upstream.on(url.encode(), fate)
    with version.open(azure) as client:
        for goes_up in [1, 2]:
            with pytest.raises(HttpResponseError):
                version.by_url(client, url).result(PATIENCE_S)
            assert len(azure.upstream.submits(url.encode())) == goes_up
    assert remembered(azure) == before


# --- operations that are not there -----------------------------------------------------------------------------------


@ALL
def test_another_tenants_operation_is_none(azure: Facade, version: Version) -> None:
    """A poller can be given to another process as a token; one of another tenant gets nothing for it."""
    text = f"of the first tenant {version}"
    fate = azure.upstream.on(text.encode(), Fate())
    fate.ended.clear()
    poller = version.begin(azure, text)
    azure.upstream.wait_for_poll(text.encode())
    token = poller.continuation_token()
    polls = len(azure.upstream.polls(text.encode()))
    assert_no_operation(failure_of(version.begin(azure, text, "dev_2", continuation_token=token)))
    fate.ended.set()
    # Its own tenant goes on with it.
    assert text in version.text(version.begin(azure, text, continuation_token=token).result(PATIENCE_S))
    assert text in version.text(poller.result(PATIENCE_S))
    assert len(azure.upstream.submits(text.encode())) == 1
    assert len(azure.upstream.polls(text.encode())) <= polls + 3


@FAILS_AT_POLL
def test_another_tenants_replay_is_none(azure: Facade, version: Version) -> None:
    text = f"replayed to the first tenant {version}"
    azure.upstream.on(text.encode(), Fate(failed=fault("InvalidContent")))
    failure_of(version.begin(azure, text))
    token = version.begin(azure, text).continuation_token()
    assert_no_operation(failure_of(version.begin(azure, text, "dev_2", continuation_token=token)))
    assert codes(failure_of(version.begin(azure, text, continuation_token=token)))[1] == "InvalidContent"


def test_an_operation_that_nobody_has_is_none(azure: Facade) -> None:
    calls = len(azure.upstream.calls)
    with V4.open(azure) as client:
        for ask in [client.get_analyze_result_pdf, client.delete_analyze_result]:
            with pytest.raises(ResourceNotFoundError) as refused:
                ask("prebuilt-read", "11111111-2222-4333-8444-555555555555")
            assert_no_operation(refused.value)
    assert len(azure.upstream.calls) == calls


@ALL
def test_an_operation_that_the_service_forgot_is_none(azure: Facade, version: Version) -> None:
    text = f"expired {version}"
    fate = azure.upstream.on(text.encode(), Fate())
    fate.ended.clear()
    poller = version.begin(azure, text)
    azure.upstream.wait_for_poll(text.encode())
    azure.upstream.forget_operations()
    error = failure_of(poller)
    assert (error.status_code, bool(error.error.code)) == (404, True)


# --- restarts and fleets ---------------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("ends", ["well", "badly"])
def test_a_gateway_that_dies_in_mid_poll_loses_no_operation(azure: Facade, version: Version, ends: str) -> None:
    text = f"restart {version} {ends}"
    fate = azure.upstream.on(text.encode(), Fate(failed=version.refusal if ends == "badly" else None))
    fate.ended.clear()
    poller = version.begin(azure, text)
    azure.upstream.wait_for_poll(text.encode())
    azure.kill()
    assert azure.spawn() is None
    fate.ended.set()
    if ends == "well":
        assert text in version.text(poller.result(PATIENCE_S))
    else:
        assert failure_of(poller).status_code == 200
        if version is not V2:
            assert codes(failure_of(version.begin(azure, text)))[1] == "InvalidContent"
    assert len(azure.upstream.submits(text.encode())) == 1


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Facade, Facade, Balancer]]:
    """Two gateways on one Redis, behind one address: submits go to the first, all else to the second."""
    service, server = document_intelligence.start()
    folder = tmp_path_factory.mktemp("redis")
    port, _ = free_ports()
    redis = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
        stdout=subprocess.DEVNULL,
    )
    balancer = Balancer()
    gateways: list[Facade] = []
    try:
        _wait_for(port)
        # The budgets are for machines that do nothing else.
        store = f'redis: {{{{ url: "redis://127.0.0.1:{port}", read_ms: 2000, write_ms: 2000 }}}}'
        config = f"public_base_url: {balancer.url}\n" + AZURE.replace("STORE", store)
        gateways += [start(config, service, tmp_path_factory, upstream=service.base_url) for _ in range(2)]
        balancer.submits_to, balancer.polls_to = (gateway.url for gateway in gateways)
        yield gateways[0], gateways[1], balancer
    finally:
        for gateway in gateways:
            gateway.stop()
        balancer.close()
        server.shutdown()
        redis.kill()
        redis.wait()


def _wait_for(port: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until, "Redis does not answer"
            time.sleep(0.05)


@ALL
def test_a_poll_at_another_replica_finds_the_operation(
    fleet: tuple[Facade, Facade, Balancer], version: Version
) -> None:
    submits, polls, balancer = fleet
    text = f"over two replicas {version}"
    poller = version.begin(submits, text, url=balancer.url)
    assert text in version.text(poller.result(PATIENCE_S))
    assert len(submits.upstream.submits(text.encode())) == 1
    # The client's polls, and the gateway's own looks come later.
    assert eventually(lambda: polls.audit(method="GET") or None)
    assert submits.audit(method="GET") == []


@FAILS_AT_POLL
def test_what_one_replica_learned_at_the_poll_all_know(
    fleet: tuple[Facade, Facade, Balancer], version: Version
) -> None:
    submits, polls, balancer = fleet
    text = f"failing over two replicas {version}"
    submits.upstream.on(text.encode(), Fate(failed=fault("InvalidContent")))
    # Learned by the second, which polls; then told by the first, and by the second.
    for url in [balancer.url, balancer.url, polls.url]:
        error = failure_of(version.begin(submits, text, url=url))
        assert (error.status_code, codes(error)) == (200, ("InvalidRequest", "InvalidContent"))
    assert len(submits.upstream.submits(text.encode())) == 1
    assert len(submits.upstream.polls(text.encode())) == 1
