"""The gateway's own binary in front of stubs, once for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest

import document_intelligence
import stub as upstream
from running import TENANTS, UPSTREAM_CREDENTIAL, Gateway, start

__all__ = ["TENANTS", "UPSTREAM_CREDENTIAL", "Gateway"]

# The tests talk to the loopback address only, whatever proxy the machine is set up with.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"

HEAD = """\
listen: 127.0.0.1:{port}
tenants:
  - {{ id: dev_1, key: "env:DEV_1_KEY", routes: ["*"] }}
  - {{ id: dev_2, key: "env:DEV_2_KEY", routes: ["*"] }}
  - {{ id: dev_3, key: "env:DEV_3_KEY", routes: ["*"] }}
admin:
  listen: 127.0.0.1:{admin_port}
audit: {{ file: "{folder}/audit.jsonl" }}
"""

CONFIG = HEAD + """\
store:
  embedded: {{ path: "{folder}/store" }}
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

# At the root: the clients look for an operation's id in addresses whose path begins with /documentintelligence.
AZURE = HEAD + """\
store:
  STORE
negative_cache:
  enabled: true
upstreams:
  - name: documents
    adapter: azuredi-facade
    base_url: {upstream}
    mount: /
    credential: {{ header: Ocp-Apim-Subscription-Key, value: "env:UPSTREAM_AUTH" }}
"""
EMBEDDED = 'embedded: {{ path: "{folder}/store" }}'


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway[upstream.Stub]]:
    stub, server = upstream.start()
    running = start(CONFIG, stub, tmp_path_factory, upstream=stub.base_url)
    try:
        yield running
    finally:
        running.stop()
        server.shutdown()


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway[document_intelligence.Service]]:
    """A facade of Document Intelligence in front of a scripted one."""
    service, server = document_intelligence.start()
    config = AZURE.replace("STORE", EMBEDDED)
    running = start(config, service, tmp_path_factory, upstream=service.base_url)
    try:
        yield running
    finally:
        running.stop()
        server.shutdown()
