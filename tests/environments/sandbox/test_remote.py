"""Sandboxes over E2B's wire: our client and E2B's own against our server, and what goes wrong between them. Loopback only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments.sandbox.base import Backend, Sandbox, SandboxConfig
from environments.sandbox.e2b_server import E2BServer
from environments.sandbox.remote import RemoteBackend, RemoteSandbox
from environments.sandbox.remote.client import E2BClient
from tests.environments.sandbox.conformance import Conformance
from tests.environments.sandbox.folder_backend import FolderBackend

pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(FolderBackend().probe()), reason="bubblewrap is not installed")]
KEY = "e2b-0123456789abcdef"


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("E2B_API_KEY", KEY)
        yield


@pytest.fixture(scope="module")
def server(key: None) -> Iterator[E2BServer]:
    with E2BServer(FolderBackend()) as made:
        yield made


class TestOverAFolder(Conformance):
    has_python = False

    @pytest.fixture(scope="class")
    def backend(self, server: E2BServer) -> Backend:
        return RemoteBackend(E2BClient(server.url, backoff_s=0.01))

    def destroy(self, box: Sandbox) -> None:
        assert isinstance(box, RemoteSandbox)
        assert box._client.control("DELETE", f"/sandboxes/{box.remote_id}", repeatable=True).status == 204
