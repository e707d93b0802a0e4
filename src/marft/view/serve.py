"""Serving the page on this machine until Ctrl-C."""

from __future__ import annotations

import errno
import os
import platform
import socket
import threading
import webbrowser
from contextlib import suppress

import uvicorn

from marft.types import MarftError
from marft.view.app import application
from marft.view.library import Library

HOST = "127.0.0.1"


def serve(library: Library, port: int = 0, browser: bool = True) -> None:
    """Serve the page at `port` (0: any that is free) until interrupted; raises `MarftError` when the port is taken."""
    with suppress(KeyboardInterrupt), _listen(port) as listening:  # how the user says that it is enough
        address = f"http://{HOST}:{listening.getsockname()[1]}/"
        print(address, flush=True)
        if browser and _has_browser():
            # In a thread: a browser that does not return must not keep the page from being served
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        config = uvicorn.Config(
            application(library),
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=2,  # seconds
        )
        uvicorn.Server(config).run(sockets=[listening])


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port left a moment ago is free
        listening.bind((HOST, port))
        listening.listen()  # so that a browser which is faster than the server waits
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise MarftError(f"--port {port}: the port is taken; choose another, or 0 for any that is free") from None
        raise MarftError(f"--port {port}: cannot be listened at ({error.strerror}); choose another") from None
    return listening


def _has_browser() -> bool:
    """Whether opening a browser would open a window; one in the terminal would only be in the way."""
    if platform.system() == "Linux":
        return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    return True
