"""The gateway's own binary as a child process."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_S = 30
DRAIN_S = 40
TENANTS = ["dev_1", "dev_2", "dev_3"]
UPSTREAM_CREDENTIAL = "Bearer of-the-upstream"

Upstream = TypeVar("Upstream")
T = TypeVar("T")


@dataclass
class Gateway(Generic[Upstream]):
    """A running gateway."""

    url: str
    admin_url: str
    folder: Path
    upstream: Upstream
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def key_of(self, tenant: str) -> str:
        return f"key-of-{tenant}-0123456789abcdef"

    def audit(self, **wanted: object) -> list[dict]:
        """The audit lines that hold all of `wanted`."""
        lines = (self.folder / "audit.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [event for event in events if all(event.get(key) == value for key, value in wanted.items())]

    def spawn(self) -> str | None:
        """Starts it with the configuration in its folder; what went wrong, if anything."""
        keys = {f"{tenant.upper()}_KEY": self.key_of(tenant) for tenant in TENANTS}
        with (self.folder / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(
                [_binary(), "serve", "--config", self.folder / "gateway.yaml"],
                env={**os.environ, **keys, "UPSTREAM_AUTH": UPSTREAM_CREDENTIAL},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self._wait_until_ready()

    def kill(self) -> None:
        """As a machine that loses its power does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(DRAIN_S)
        finally:
            self.process.kill()

    def said(self) -> str:
        return (self.folder / "gateway.log").read_text(errors="replace")

    def _wait_until_ready(self) -> str | None:
        assert self.process is not None
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                return f"ended with code {self.process.returncode}"
            try:
                with urllib.request.urlopen(f"{self.admin_url}/readyz", timeout=5) as answer:
                    if answer.status == 200:
                        return None
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.05)
        return f"was not ready within {START_S} s"


def start(config: str, stub: Upstream, folders: pytest.TempPathFactory, **more: object) -> Gateway[Upstream]:
    """Starts one with this configuration, in which ports, folder and what `more` has are filled in."""
    # Another process may take a free port before the gateway binds it: then others are tried.
    for _ in range(3):
        folder = folders.mktemp("gateway")
        port, admin_port = free_ports()
        gateway = Gateway(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", folder, stub)
        text = config.format(port=port, admin_port=admin_port, folder=folder, **more)
        (folder / "gateway.yaml").write_text(text)
        problem = gateway.spawn()
        if problem is None:
            return gateway
        gateway.kill()
        if "in use" not in gateway.said():
            break
    pytest.fail(f"the gateway {problem}; it said:\n{gateway.said()}")


def eventually(look: Callable[[], T | None], within_s: float = 10) -> T:
    """What `look` finds. Audit and counts may lag behind the answers."""
    until = time.monotonic() + within_s
    while (found := look()) is None:
        assert time.monotonic() < until, f"not seen within {within_s} s"
        time.sleep(0.05)
    return found


def free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def _binary() -> Path:
    binary = Path(os.environ.get("NEVERTWICE_BIN", ROOT / "target/debug/nevertwice")).resolve()
    if not binary.is_file():
        pytest.fail("the gateway is not built: cargo build -p nevertwice (or set NEVERTWICE_BIN)")
    return binary
