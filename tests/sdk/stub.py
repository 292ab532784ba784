"""An upstream that counts: a model and a document service on a free port of the loopback address."""

import base64
import hashlib
import json
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# A document that holds this is refused by `/classify`.
BROKEN = b"%BROKEN%"
# Longest wait, in seconds, of a stream for `Stub.go_on`.
STREAM_WAIT_S = 20

REFUSAL = b'{"error": {"code": "InvalidContent",  "message": "not a document: \xc3\xa9"}}\n'
REFUSAL_TYPE = "application/json; charset=utf-8"
ACCEPTED = b'{"label": "invoice"}'

CHAT_ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"small",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"hello \xe2\x9c\x93"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'
)
STREAM_WORDS = ["one ", "two ", "three ✓"]
EMBEDDING = [0.25, -1.5, 3.0]


def _stream_event(delta: dict, finish: str | None = None) -> bytes:
    event = {
        "id": "chatcmpl-2",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "small",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


STREAM_EVENTS = [
    *[_stream_event({"content": word}) for word in STREAM_WORDS],
    b": a comment, and a line that ends in CR LF\r\n\r\n",
    _stream_event({}, "stop"),
    b"data: [DONE]\n\n",
]


@dataclass
class Call:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


@dataclass
class Answer:
    """An answer that a test has ready."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


@dataclass
class Stub:
    """What arrived so far, what is answered, and the gate that holds back the rest of a stream."""

    calls: list[Call] = field(default_factory=list)
    answers: dict[bytes, Answer] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    go_on: threading.Event = field(default_factory=threading.Event)
    stream_was_released: list[bool] = field(default_factory=list)
    base_url: str = ""

    def calls_with(self, marker: bytes) -> list[Call]:
        """The calls whose bodies hold `marker`: those of one test."""
        with self.lock:
            return [call for call in self.calls if marker in call.body]

    def answer(self, marker: bytes, answer: Answer) -> None:
        """From now on, requests whose bodies hold `marker` are answered like this, on any path."""
        with self.lock:
            self.answers[marker] = answer

    def answer_to(self, body: bytes) -> Answer | None:
        with self.lock:
            return next((answer for marker, answer in self.answers.items() if marker in body), None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: Stub

    def do_POST(self) -> None:
        body = self._read_body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.stub.lock:
            self.stub.calls.append(Call(self.command, self.path, headers, body))
        if ready := self.stub.answer_to(body):
            self._write(ready.status, ready.body, ready.headers)
            return
        match self.path:
            case "/classify":
                self._classify(body)
            case "/v1/chat/completions":
                self._chat(json.loads(body))
            case "/v1/embeddings":
                self._embed(json.loads(body))
            case _:
                self._answer(404, b"{}")

    def _classify(self, body: bytes) -> None:
        if BROKEN in body:
            self._answer(400, REFUSAL, REFUSAL_TYPE)
        else:
            self._answer(200, ACCEPTED)

    def _chat(self, request: dict) -> None:
        # The model `refuse-409` answers 409, and so on.
        if request["model"].startswith("refuse-"):
            self._answer(int(request["model"].removeprefix("refuse-")), REFUSAL, REFUSAL_TYPE)
        elif request.get("stream"):
            self._stream()
        else:
            self._answer(200, CHAT_ANSWER)

    def _embed(self, request: dict) -> None:
        embedding: list[float] | str = EMBEDDING
        if request.get("encoding_format") == "base64":
            embedding = base64.b64encode(struct.pack(f"<{len(EMBEDDING)}f", *EMBEDDING)).decode()
        answer = {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": embedding}],
            "model": "small",
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }
        self._answer(200, json.dumps(answer).encode())

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(STREAM_EVENTS):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            if number == 0:
                # The client opens the gate once it has seen the first event: a proxy that buffers never shows it.
                self.stub.stream_was_released.append(self.stub.go_on.wait(STREAM_WAIT_S))
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        # Only the type belongs in a replay.
        headers = {"content-type": content_type, "set-cookie": "session=secret", "x-request-id": "upstream-1"}
        self._write(status, body, headers)

    def _write(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _read_body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", "0")))
        body = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return bytes(body)

    def log_message(self, *_: object) -> None:
        """The default writes a line per request to standard error."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def start() -> tuple[Stub, ThreadingHTTPServer]:
    """Starts a stub; the caller shuts the server down."""
    stub = Stub()
    handler = type("Handler", (_Handler,), {"stub": stub})
    server = _Server(("127.0.0.1", 0), handler)
    stub.base_url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, name="stub", daemon=True).start()
    return stub, server
