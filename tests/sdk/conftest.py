"""The gateway's own binary in front of a stub, once for all tests of this folder."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import stub as upstream

# The tests talk to the loopback address only, whatever proxy the machine is set up with.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"

ROOT = Path(__file__).resolve().parents[2]
START_S = 30
DRAIN_S = 40
TENANTS = ["dev_1", "dev_2", "dev_3"]
UPSTREAM_CREDENTIAL = "Bearer of-the-upstream"

CONFIG = """\
listen: 127.0.0.1:{port}
tenants:
  - {{ id: dev_1, key: "env:DEV_1_KEY", routes: ["*"] }}
  - {{ id: dev_2, key: "env:DEV_2_KEY", routes: ["*"] }}
  - {{ id: dev_3, key: "env:DEV_3_KEY", routes: ["*"] }}
admin:
  listen: 127.0.0.1:{admin_port}
store:
  embedded: {{ path: "{folder}/store" }}
audit: {{ file: "{folder}/audit.jsonl" }}
negative_cache:
  enabled: true
  # 409 is the one status that clients retry and the memory can hold, where an operator asks for it. No profile does.
  statuses: [400, 409, 413, 415, 422]
upstreams:
  - name: documents
    adapter: sync-facade
    base_url: {upstream}
    mount: /documents
    sync_paths: [/classify]
    credential: {{ header: Authorization, value: "env:UPSTREAM_AUTH" }}
  - name: models
    adapter: openai
    base_url: {upstream}
    mount: /models
    credential: {{ header: Authorization, value: "env:UPSTREAM_AUTH" }}
  - name: guarded-models
    adapter: sync-facade
    base_url: {upstream}
    mount: /guarded
    sync_paths: [/v1/chat/completions]
    credential: {{ header: Authorization, value: "env:UPSTREAM_AUTH" }}
  - name: document-intelligence
    adapter: sync-facade
    base_url: {upstream}
    mount: /di
    sync_paths:
      - "/documentintelligence/documentModels/prebuilt-read:analyze"
      - "/formrecognizer/documentModels/prebuilt-read:analyze"
    credential: {{ header: Ocp-Apim-Subscription-Key, value: "env:UPSTREAM_AUTH" }}
    negative_cache: {{ profile: azure-document-intelligence }}
  - name: openai
    adapter: openai
    base_url: {upstream}
    mount: /openai
    credential: {{ header: Authorization, value: "env:UPSTREAM_AUTH" }}
    negative_cache: {{ profile: openai }}
  - name: anthropic
    adapter: sync-facade
    base_url: {upstream}
    mount: /anthropic
    sync_paths: [/v1/messages]
    credential: {{ header: x-api-key, value: "env:UPSTREAM_AUTH" }}
    negative_cache: {{ profile: anthropic }}
"""


@dataclass
class Gateway:
    """A running gateway."""

    url: str
    admin_url: str
    folder: Path
    upstream: upstream.Stub

    def key_of(self, tenant: str) -> str:
        return f"key-of-{tenant}-0123456789abcdef"

    def audit(self, **wanted: object) -> list[dict]:
        """The audit lines that hold all of `wanted`."""
        lines = (self.folder / "audit.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [event for event in events if all(event.get(key) == value for key, value in wanted.items())]


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    binary = Path(os.environ.get("NEVERTWICE_BIN", ROOT / "target/debug/nevertwice")).resolve()
    if not binary.is_file():
        pytest.fail("the gateway is not built: cargo build -p nevertwice (or set NEVERTWICE_BIN)")

    stub, server = upstream.start()
    process, running = _start(binary, stub, tmp_path_factory)
    try:
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DRAIN_S)
        finally:
            process.kill()
            server.shutdown()


def _start(
    binary: Path, stub: upstream.Stub, folders: pytest.TempPathFactory
) -> tuple[subprocess.Popen[bytes], Gateway]:
    # Another process may take a free port before the gateway binds it: then others are tried.
    for _ in range(3):
        folder = folders.mktemp("gateway")
        port, admin_port = _free_ports()
        running = Gateway(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", folder, stub)
        config = CONFIG.format(port=port, admin_port=admin_port, folder=folder, upstream=stub.base_url)
        (folder / "gateway.yaml").write_text(config)
        keys = {f"{tenant.upper()}_KEY": running.key_of(tenant) for tenant in TENANTS}
        with (folder / "gateway.log").open("wb") as log:
            process = subprocess.Popen(
                [binary, "serve", "--config", folder / "gateway.yaml"],
                env={**os.environ, **keys, "UPSTREAM_AUTH": UPSTREAM_CREDENTIAL},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        problem = _wait_until_ready(process, running)
        if problem is None:
            return process, running
        process.kill()
        process.wait()
        said = (folder / "gateway.log").read_text(errors="replace")
        if "in use" not in said:
            break
    pytest.fail(f"the gateway {problem}; it said:\n{said}")


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def _wait_until_ready(process: subprocess.Popen[bytes], running: Gateway) -> str | None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            return f"ended with code {process.returncode}"
        try:
            with urllib.request.urlopen(f"{running.admin_url}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return None
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.05)
    return f"was not ready within {START_S} s"
