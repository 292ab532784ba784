"""A Document Intelligence service that counts: v4.0, v3.1 and v2.1 on a free port of the loopback address.

What becomes of a document is said by a marker in the body of its submit. Nothing said: it is analyzed.
"""

import json
import re
import threading
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stub import Call

OPERATION = re.compile(r"/analyzeResults/([^/?]+)([^?]*)", re.IGNORECASE)
TIMES = {"createdDateTime": "2026-03-01T10:00:00Z", "lastUpdatedDateTime": "2026-03-01T10:00:01Z"}
# Longest wait of a test for a call.
PATIENCE_S = 20


def fault(inner: str, code: str = "InvalidRequest") -> dict:
    """An error as v3 and v4 word it."""
    return {"code": code, "message": f"It is {code}.", "innererror": {"code": inner, "message": f"It is {inner} é."}}


@dataclass
class Fate:
    """What becomes of a document."""

    refused: dict | None = None
    failed: dict | None = None
    # Polls say `running` until this is set.
    ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.ended.set()


@dataclass
class Operation:
    text: str
    fate: Fate
    is_v2: bool


@dataclass
class Service:
    """What arrived so far, and what is answered."""

    calls: list[Call] = field(default_factory=list)
    fates: dict[bytes, Fate] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    base_url: str = ""

    def on(self, marker: bytes, fate: Fate) -> Fate:
        """From now on, this becomes of documents whose submits hold `marker`."""
        with self.changed:
            self.fates[marker] = fate
        return fate

    def submits(self, marker: bytes) -> list[Call]:
        with self.changed:
            return [call for call in self.calls if call.method == "POST" and marker in call.body]

    def polls(self, marker: bytes) -> list[Call]:
        """The polls of operations whose submits held `marker`."""
        with self.changed:
            return self._polls(marker)

    def wait_for_poll(self, marker: bytes, count: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self._polls(marker)) >= count, PATIENCE_S), "no poll came"

    def forget_operations(self) -> None:
        """As the service does when their time is up."""
        with self.changed:
            self.operations.clear()

    def _polls(self, marker: bytes) -> list[Call]:
        return [call for call in self.calls if call.method == "GET" and marker in call.body]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        self._note(body)
        if not self.path.partition("?")[0].endswith(("analyze")):
            self._json(404, {"error": fault("ResourceNotFound", "NotFound")})
            return
        with self.service.changed:
            fate = next((fate for marker, fate in self.service.fates.items() if marker in body), Fate())
        if fate.refused is not None:
            self._json(400, {"error": fate.refused})
            return
        path, _, query = self.path.partition("?")
        operation = str(uuid.uuid4())
        version = next((f"?{item}" for item in query.split("&") if item.startswith("api-version=")), "")
        with self.service.changed:
            text = body.decode(errors="replace")
            self.service.operations[operation] = Operation(text, fate, "/v2.1/" in path)
        resource = re.sub("[:/]analyze$", "", path)
        self._write(
            202,
            b"",
            {
                "operation-location": f"{self.service.base_url}{resource}/analyzeResults/{operation}{version}",
                "apim-request-id": str(uuid.uuid4()),
            },
        )

    def do_GET(self) -> None:
        operation, part = self._operation()
        # A poll belongs to the submit of its operation.
        self._note(operation.text.encode() if operation else b"")
        if operation is None:
            self._json(404, {"error": fault("OperationNotFound", "NotFound")})
        elif part:
            kind = "application/pdf" if part == "/pdf" else "image/png"
            self._write(200, f"{part} of {operation.text}".encode(), {"content-type": kind})
        elif not operation.fate.ended.is_set():
            self._json(200, {"status": "running", **TIMES}, {"retry-after": "1"})
        elif operation.fate.failed is None:
            self._json(200, {"status": "succeeded", **TIMES, "analyzeResult": _result(operation)})
        elif operation.is_v2:
            result = {"version": "2.1.0", "readResults": [], "errors": [operation.fate.failed]}
            self._json(200, {"status": "failed", **TIMES, "analyzeResult": result})
        else:
            self._json(200, {"status": "failed", **TIMES, "error": operation.fate.failed})

    def do_DELETE(self) -> None:
        self._note(b"")
        found = OPERATION.search(self.path)
        with self.service.changed:
            removed = self.service.operations.pop(found[1], None) if found else None
        if removed:
            self._write(204, b"", {})
        else:
            self._json(404, {"error": fault("OperationNotFound", "NotFound")})

    def _operation(self) -> tuple[Operation | None, str]:
        found = OPERATION.search(self.path)
        with self.service.changed:
            return (self.service.operations.get(found[1]), found[2]) if found else (None, "")

    def _note(self, body: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.service.changed:
            self.service.calls.append(Call(self.command, self.path, headers, body))
            self.service.changed.notify_all()

    def _json(self, status: int, body: dict, more: dict[str, str] | None = None) -> None:
        headers = {"content-type": "application/json; charset=utf-8", "apim-request-id": str(uuid.uuid4())}
        self._write(status, json.dumps(body, ensure_ascii=False).encode(), headers | (more or {}))

    def _write(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The default writes a line per request to standard error."""


def _result(operation: Operation) -> dict:
    if operation.is_v2:
        line = {"text": operation.text, "boundingBox": [0, 0, 1, 0, 1, 1, 0, 1], "words": []}
        page = {"page": 1, "angle": 0, "width": 8.5, "height": 11, "unit": "inch", "lines": [line]}
        return {"version": "2.1.0", "readResults": [page], "pageResults": []}
    return {
        "apiVersion": "2024-11-30",
        "modelId": "prebuilt-read",
        "stringIndexType": "textElements",
        "content": operation.text,
        "pages": [],
        "styles": [],
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def start() -> tuple[Service, ThreadingHTTPServer]:
    """Starts one; the caller shuts the server down."""
    service = Service()
    handler = type("Handler", (_Handler,), {"service": service})
    server = _Server(("127.0.0.1", 0), handler)
    service.base_url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, name="document intelligence", daemon=True).start()
    return service, server
