"""One server from bind to exit: it answers 503 while the model loads, serves, and stops as the operator asks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from ninfer_core.api import OptionValues, StartupError, Unavailable
from ninfer_core.plugins import Plugins

from .bind import listen, spelled
from .interrupts import CONFIRM_SECONDS, Interrupts, Prompt
from .progress import StartupProgress, startup_progress
from .state import Context, ServerState
from .version import build_version

if TYPE_CHECKING:
    from ninfer_core.engine.engine import LocalEngine
    from ninfer_core.engine.progress import Progress

    from .door import Door
    from .site import Site
    from .transport import Carrier

log = structlog.get_logger()

INTERRUPTED = 130
ENGINE_FAILED = 2
JOIN_SECONDS = 10.0  # the engine thread's time to reach its next boundary
DRAIN_SECONDS = 10.0  # for the port to close once nothing new is let in; uvicorn's own limit is shorter
COLLECTIONS = (1000, 10, 500)  # objects until the young are walked, times until the older are, times until all are
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # a browser does not accept them as destinations


def serve(
    values: OptionValues,
    plugins: Plugins,
    load: Callable[[Progress], LocalEngine],
    *,
    drain: Callable[[], None] = lambda: None,
) -> int:
    """Serve until stopped; the exit status. Raises StartupError when the server cannot start. ``drain`` waits until the
    log lines so far are written.

    0: stopped cleanly. 2: the engine failed. 130: Ctrl+C before the server was ready, or once more during the stop.
    """
    with contextlib.ExitStack() as bound:
        sock = bound.enter_context(listen(values["host"], values["port"]))
        stats_sock = None
        if values["stats_port"] is not None:
            stats_sock = bound.enter_context(listen(values["host"], values["stats_port"], flag="--stats-port"))
        # the HTTP server loads behind the bound ports, so that a clash is reported at once
        from .transport import loop_factory

        server = Server(values, plugins, load, sock, stats_sock, drain)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            status = runner.run(server.main())
    if server.threads_left:
        # a thread inside native code would take the interpreter down with it
        drain()
        _exit_now(status)
    return status


def compose(values: OptionValues, plugins: Plugins, state: ServerState, version: str) -> Door:
    """The ASGI application of one server. Raises StartupError for frontends that cannot be opened or clash."""
    from .health import own_routes
    from .site import Site, open_frontends

    context = Context(options=values, version=version, state=state)
    frontends = open_frontends(plugins, values["frontends"], context)
    context.frontends = tuple(frontend for _, frontend in frontends)
    site: Site
    own = own_routes(context, lambda: site.routes)
    site = Site(frontends, own)
    return _door(site, values, state, version)


def compose_stats(values: OptionValues, state: ServerState, version: str) -> Door:
    """The ASGI application of ``--stats-port``: under the same rules, but only what a watchdog polls."""
    from .health import watch_routes
    from .site import Site

    context = Context(options=values, version=version, state=state)
    return _door(Site((), watch_routes(context)), values, state, version)


def _door(site: Site, values: OptionValues, state: ServerState, version: str) -> Door:
    from .app import App
    from .bodies import BodyRoom
    from .door import Door
    from .gate import Gate

    bodies = BodyRoom.of(values, lambda: None if state.engine is None else state.engine.info)
    return Door(App(site, state, bodies), site, state, version, Gate.of(values))


class Server:
    """The life of one server process. Everything here runs on the event loop."""

    def __init__(
        self,
        values: OptionValues,
        plugins: Plugins,
        load: Callable[[Progress], LocalEngine],
        sock: socket.socket,
        stats_sock: socket.socket | None,
        drain: Callable[[], None] = lambda: None,
    ) -> None:
        self._drain = drain
        self.state = ServerState()
        self.threads_left = False
        self._values, self._load = values, load
        self._version = build_version()
        self._listeners = [(compose(values, plugins, self.state, self._version), sock)]
        if stats_sock is not None:
            self._listeners.append((compose_stats(values, self.state, self._version), stats_sock))
        self._interrupts, self._prompt = Interrupts(), Prompt()
        self._stop = asyncio.Event()
        self._status = 0

    async def main(self) -> int:
        """The exit status."""
        from .transport import carrier

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            # the terminal was closed; one that is ignored (nohup) stays so
            loop.add_signal_handler(signal.SIGHUP, self._stop.set)
        began = time.monotonic()
        host, port = self._values["host"], self._tell_ports()
        carriers = [carrier(door, self._version) for door, _ in self._listeners]
        serving = [
            asyncio.create_task(http.serve(sockets=[sock]))
            for http, (_, sock) in zip(carriers, self._listeners, strict=True)
        ]
        try:
            with startup_progress() as progress:
                engine = await self._loaded(progress)
            if engine is not None:
                settle_heap()
                engine.start(loop, on_failed=self._failed)
                self.state.engine, self.state.phase = engine, "ready"
                log.info("ready", model=engine.info.id, seconds=round(time.monotonic() - began, 2))
                self._drain()
                announce(host, port, engine.info.id)
                await self._stop.wait()
            await self._end(carriers, serving, engine)
        finally:
            self._prompt.clear()
            for task in serving:
                task.cancel()
        return self._status

    def _tell_ports(self) -> int:
        """Log where the server listens; the port of its API."""
        host, ports = self._values["host"], [sock.getsockname()[1] for _, sock in self._listeners]
        log.info("listening", address=spelled(host, ports[0]), version=self._version)
        for port in ports[1:]:
            log.info("listening_for_stats", address=spelled(host, port))
        return int(ports[0])

    async def _loaded(self, progress: StartupProgress) -> LocalEngine | None:
        """The engine; None when the operator ended the start. Raises StartupError."""
        thread, arriving = load_on_thread(self._load, progress)
        stopped = asyncio.ensure_future(self._stop.wait())
        either: list[asyncio.Future[Any]] = [arriving, stopped]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not arriving.done():
            arriving.cancel()
            self.threads_left = thread.is_alive()
            return None
        try:
            return arriving.result()
        except StartupError:
            raise
        except Exception as error:
            log.debug("load_failed", exc_info=error)
            raise StartupError(f"the model could not be loaded: {type(error).__name__}: {error}") from error

    async def _end(
        self, carriers: Sequence[Carrier], serving: Sequence[asyncio.Task[None]], engine: LocalEngine | None
    ) -> None:
        """Refuse new work, end what runs, close the ports. Bounded: a stuck client or engine does not hold the exit."""
        self._prompt.clear()
        if self.state.phase != "failed":
            self.state.phase = "stopping"
        self.state.ended.set()
        log.info("stopping")
        for http in carriers:
            http.should_exit = True
        if engine is not None:
            engine.stop(Unavailable(message="The server is stopping."))
            ended = await asyncio.to_thread(engine.join, JOIN_SECONDS)
            self.threads_left = self.threads_left or not ended
        await asyncio.wait(serving, timeout=DRAIN_SECONDS if engine is not None else 0.5)
        log.info("server stopped")

    def _failed(self) -> None:
        """Engine-wide failure: nothing can be answered any more, so the server ends itself."""
        log.error("engine_failed", error=self.state.engine and self.state.engine.failed)
        self.state.phase, self._status = "failed", ENGINE_FAILED
        self._stop.set()

    def _interrupted(self) -> None:
        meaning = self._interrupts.press(self.state.phase)
        if meaning == "ask":
            self._prompt.show()
            asyncio.get_running_loop().call_later(CONFIRM_SECONDS, self._prompt.clear)
        elif meaning == "abandon":
            self._prompt.clear()
            self._drain()
            _exit_now(INTERRUPTED)
        else:
            if meaning == "end_startup":
                self._status = INTERRUPTED
            self._stop.set()


def load_on_thread(
    load: Callable[[Progress], LocalEngine], progress: StartupProgress
) -> tuple[threading.Thread, asyncio.Future[LocalEngine]]:
    """Run ``load`` beside the event loop, which answers 503 meanwhile. A daemon: nothing can interrupt a load."""
    loop = asyncio.get_running_loop()
    arriving: asyncio.Future[LocalEngine] = loop.create_future()

    def settle(engine: LocalEngine | None, error: BaseException | None) -> None:
        if arriving.cancelled():
            return
        if engine is not None:
            arriving.set_result(engine)
        else:
            arriving.set_exception(error or StartupError("the model could not be loaded"))

    def work() -> None:
        try:
            outcome: tuple[LocalEngine | None, BaseException | None] = (load(progress), None)
        except BaseException as error:
            outcome = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    thread = threading.Thread(target=work, name="ninfer-load", daemon=True)
    thread.start()
    return thread, arriving


def settle_heap() -> None:
    """Take what was loaded out of the garbage collector's sight, and let it walk everything else rarely: while it
    walks, every stream is silent, half a second for the quarter of a million objects of a model or of a large request.
    Nearly all memory comes back without it; what is left behind in cycles dies young, where it still looks often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)


def announce(host: str, port: int, model: str) -> None:
    """The last words of a start, on stderr: what is served, and the URLs to open."""
    base = f"http://{spelled(WILDCARDS.get(host, host), port)}"
    lines = (f"{model} is served.", f"  API     {base}/v1", f"  health  {base}/health", "Press Ctrl+C twice to stop.")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write("\n" + "\n".join(lines) + "\n\n")
        sys.stderr.flush()


def _exit_now(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        # a stream may be closed, full, or never have been there
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
