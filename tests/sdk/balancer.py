"""One address in front of two gateways."""

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What speaks of one connection, or is written anew.
NOT_PASSED = {"host", "connection", "content-length", "transfer-encoding", "date", "server"}


class _Plain(urllib.request.HTTPErrorProcessor):
    """An answer is an answer, whatever its status."""

    def http_response(self, request: object, response: object) -> object:
        return response


class Balancer:
    """POSTs go to one gateway, all else to the other."""

    def __init__(self) -> None:
        self.submits_to = self.polls_to = ""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Plain())
        balancer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._pass(balancer.polls_to, None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                self._pass(balancer.submits_to, body)

            def _pass(self, url: str, body: bytes | None) -> None:
                headers = {k: v for k, v in self.headers.items() if k.lower() not in NOT_PASSED}
                request = urllib.request.Request(url + self.path, body, headers, method=self.command)
                with opener.open(request, timeout=30) as answer:
                    content = answer.read()
                    self.send_response_only(answer.status)
                    for name, value in answer.headers.items():
                        if name.lower() not in NOT_PASSED:
                            self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """The default writes a line per request to standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, name="balancer", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
