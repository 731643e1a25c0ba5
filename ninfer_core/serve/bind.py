"""The listening socket, opened before anything slow: a clash is reported in milliseconds."""

from __future__ import annotations

import contextlib
import errno
import socket

from ninfer_core.errors import StartupError

BACKLOG = 2048
IDLE_SECONDS = 10  # of silence before the first keepalive probe
PROBE_SECONDS = 3
PROBES = 3
RETRANSMIT_MS = 15_000  # data unacknowledged for this long ends a connection

WHY = {
    errno.EADDRINUSE: "is in use; choose another with {flag}, or stop what listens there",
    errno.EACCES: "needs privileges this process does not have; choose a port above 1023 with {flag}",
    errno.EADDRNOTAVAIL: "is not an address of this machine; choose another with --host (127.0.0.1, 0.0.0.0)",
}


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A listening TCP socket, SO_REUSEADDR set so that connections in TIME_WAIT do not hold the port.

    Listening here, not only binding, is what makes a second server fail at once: two sockets that both set
    SO_REUSEADDR may share a port until one listens. Raises StartupError naming address and way out: ``flag`` is the
    option that sets this port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise StartupError(f"--host {host!r} does not name an address; try 127.0.0.1 or 0.0.0.0") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _watch_peers(sock)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        why = WHY.get(error.errno or 0, "cannot be listened on").format(flag=flag)
        raise StartupError(f"{spelled(host, port)} {why}") from None
    sock.setblocking(False)
    return sock


def spelled(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _watch_peers(sock: socket.socket) -> None:
    """Keepalive probes and a retransmission limit; accepted connections inherit them on Linux."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_KEEPIDLE": IDLE_SECONDS,
        "TCP_KEEPINTVL": PROBE_SECONDS,
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": RETRANSMIT_MS,
    }
    for name, value in wanted.items():
        # not every platform knows each of them
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
