"""The frontend contract on a small protocol, and on broken versions of it; the fake engine it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from ninfer_core.api import (
    ApiError,
    ChatJob,
    Delta,
    Done,
    Frontend,
    FrontendContext,
    HttpRequest,
    HttpResponse,
    Message,
    NotFound,
    Part,
    Progress,
    ProtocolFrontend,
    RawJob,
    Route,
    Started,
    Unavailable,
)
from ninfer_core.testing import FakeContext, FakeEngine, ProtocolFrontendContract


class Body(msgspec.Struct):
    prompt: str
    model: str | None = None
    stream: bool = False


def envelope(error: ApiError, request_id: str) -> HttpResponse:
    body = {"error": {"message": error.message, "code": error.code}}
    return HttpResponse(status=error.status, body=msgspec.json.encode(body), headers=dict(error.headers))


@dataclass
class Echo:
    """POST /echo: the generated text, whole or as chunks."""

    context: FrontendContext

    def decode(self, body: bytes) -> Body:
        try:
            return msgspec.json.decode(body, type=Body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError("invalid", str(error)) from None

    async def answer(self, request: HttpRequest) -> HttpResponse:
        body = self.decode(request.body)
        generation = await self.context.engine(body.model).complete(RawJob(prompt=(body.prompt,)))
        if body.stream:
            return HttpResponse(stream=self.chunks(generation), late_error=lambda error: b"failed\n")
        async with generation:
            return HttpResponse(body=msgspec.json.encode({"text": (await generation.result()).content}))

    async def chunks(self, generation: Any) -> AsyncIterator[bytes]:
        async with generation:
            async for event in generation:
                if isinstance(event, Delta):
                    yield event.text.encode() + b"\n"


class RaisesOnBadJson(Echo):
    def decode(self, body: bytes) -> Body:
        return msgspec.json.decode(body, type=Body)


class CallsEverything500(Echo):
    def decode(self, body: bytes) -> Body:
        try:
            return super().decode(body)
        except ApiError as error:
            error.status = 500
            raise


class IgnoresTheModel(Echo):
    async def answer(self, request: HttpRequest) -> HttpResponse:
        body = {**msgspec.json.decode(request.body), "model": None}
        return await super().answer(
            HttpRequest(
                method="POST",
                path="/echo",
                params={},
                query={},
                headers={},
                body=msgspec.json.encode(body),
                request_id="x",
            )
        )


class LeavesTheGenerationOpen(Echo):
    async def chunks(self, generation: Any) -> AsyncIterator[bytes]:
        await generation.__aenter__()
        async for event in generation:
            if isinstance(event, Delta):
                yield event.text.encode()


class SwallowsFailures(Echo):
    async def answer(self, request: HttpRequest) -> HttpResponse:
        try:
            return await super().answer(request)
        except ApiError as error:
            if error.status == 400:
                raise
            return HttpResponse(body=b'{"text": ""}')


class ForeignEnvelope(Echo):
    async def answer(self, request: HttpRequest) -> HttpResponse:
        try:
            return await super().answer(request)
        except ApiError as error:
            return HttpResponse(status=error.status, body=b'{"detail": "no"}')


def frontend(kind: type[Echo]) -> ProtocolFrontend:
    def opened(context: FrontendContext) -> Frontend:
        route = Route(method="POST", path="/echo", handler=kind(context).answer)
        return Frontend(routes=(route,), envelope=envelope, prefixes=("/echo",))

    return ProtocolFrontend(name="echo", summary="says what the engine says", open=opened)


class EchoContract(ProtocolFrontendContract):
    frontend = frontend(Echo)
    bodies = {"/echo": {"prompt": "hi", "model": "fake", "stream": False}}  # noqa: RUF012
    streaming = frozenset({"/echo"})


class TestEcho(EchoContract):
    pass


CAUGHT = [
    (RaisesOnBadJson, "test_broken_bodies_are_refused_in_the_own_envelope"),
    (RaisesOnBadJson, "test_wrong_types_are_answered_or_refused_but_never_raise"),
    (CallsEverything500, "test_broken_bodies_are_refused_in_the_own_envelope"),
    (CallsEverything500, "test_wrong_types_are_answered_or_refused_but_never_raise"),
    (IgnoresTheModel, "test_an_unknown_model_is_not_found"),
    (LeavesTheGenerationOpen, "test_a_stream_left_early_cancels_its_generation"),
    (LeavesTheGenerationOpen, "test_streams_end_by_themselves_even_when_the_engine_fails"),
    (SwallowsFailures, "test_a_failure_of_an_aggregate_keeps_its_status"),
    (ForeignEnvelope, "test_broken_bodies_are_refused_in_the_own_envelope"),
]


@pytest.mark.parametrize(("kind", "check"), CAUGHT, ids=[f"{kind.__name__}-{check}" for kind, check in CAUGHT])
def test_a_wrong_frontend_is_caught(kind: type[Echo], check: str) -> None:
    class Broken(EchoContract):
        frontend = frontend(kind)

    with pytest.raises((AssertionError, msgspec.DecodeError, msgspec.ValidationError)):
        getattr(Broken(), check)()


def test_a_post_route_without_a_good_body_is_caught() -> None:
    class Forgetful(EchoContract):
        bodies = {}  # noqa: RUF012

    with pytest.raises(AssertionError, match="good body"):
        Forgetful().test_every_post_route_has_a_good_body()


CHAT = ChatJob(messages=(Message(role="user", content=(Part(text="hi"),)),), want_progress=True)


def on_loop(work: Callable[[], Any]) -> Any:
    return asyncio.run(work())


def test_the_fake_engine_gives_the_events_of_a_real_one() -> None:
    engine = FakeEngine(pieces=[("reasoning", "hm"), "OK"], finish="stop_token")

    async def work() -> list[Any]:
        async with await engine.chat(CHAT) as generation:
            return [event async for event in generation]

    events = on_loop(work)
    assert [type(event) for event in events] == [Started, Progress, Delta, Delta, Done]
    result = events[-1].result
    assert (result.reasoning, result.content, result.completion_tokens) == ("hm", "OK", 5)
    assert engine.jobs == [CHAT]
    assert (engine.running, engine.cancelled) == (0, [])


def test_a_fake_generation_left_early_counts_as_cancelled() -> None:
    engine = FakeEngine()

    async def work() -> None:
        async with await engine.chat(CHAT) as generation:
            async for _ in generation:
                break

    on_loop(work)
    assert len(engine.cancelled) == 1


def test_the_fake_engine_refuses_and_fails_when_told_to() -> None:
    with pytest.raises(Unavailable):
        on_loop(lambda: FakeEngine(refusal=Unavailable()).chat(CHAT))

    async def work() -> None:
        async with await FakeEngine(failure=Unavailable()).chat(CHAT) as generation:
            await generation.result()

    with pytest.raises(Unavailable):
        on_loop(work)


def test_the_fake_context_knows_its_engines_by_name() -> None:
    engine = FakeEngine()
    context = FakeContext(engine)
    assert context.engine(None) is context.engine("") is context.engine("fake") is engine
    with pytest.raises(NotFound, match="other"):
        context.engine("other")
    body = b'{"model": "fake", "messages": [{"role": "user", "content": "hi"}]}'
    read, job = on_loop(lambda: context.read_chat(body))
    assert read is engine
    assert job.messages[0].text == "hi"
    for bad in (b"", b"{}", b'{"messages": []}'):
        with pytest.raises(ApiError):
            on_loop(lambda bad=bad: context.read_chat(bad))
