"""A server in a thread of this process, for notebooks."""

from __future__ import annotations

import socket
import time
from threading import Thread
from types import TracebackType

from verfedgnn.core.errors import ConfigError
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.http.app import make_app
from verfedgnn.serving.http.bounded_protocol import make_server

START_SECONDS = 60.0
"""Longest wait for the server to answer."""


class BackgroundServer:
    """Serves a run to this machine until `stop` is called, the `with` block ends or Python exits."""

    def __init__(self, catalogue: Catalogue, port: int) -> None:
        try:
            self._listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on port {port}: {error.strerror}; pass port=0 for a free one"
            ) from None
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        """Address of the page and of the API."""
        self._server = make_server(make_app(catalogue))
        self._thread = Thread(target=self._server.run, args=([self._listener],), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self) -> None:
        """Finish open requests and stop."""
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    def __enter__(self) -> BackgroundServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<serving at {self.address}; stop() ends it>"

    def _repr_html_(self) -> str:
        """Show the address as a link in a notebook."""
        return f'Serving at <a href="{self.address}" target="_blank">{self.address}</a>; <code>stop()</code> ends it.'
