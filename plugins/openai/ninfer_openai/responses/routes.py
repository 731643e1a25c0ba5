"""The routes of Responses, bound to one server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

import msgspec

from ninfer_core.api import ApiError, Engine, FrontendContext, HttpRequest, HttpResponse, Result, Route
from ninfer_core.api.bodies import THREAD_BYTES
from ninfer_core.api.http import (
    Body,
    beside,
    decode,
    event_stream,
    invalid_value,
    json_response,
    not_supported,
    quoted,
    to_json,
)
from ninfer_core.api.tool_sets import tool_headers

from .answer import Style, whole
from .input import refuse_unknown_types
from .items import Ids, Item, encoded, for_history
from .plan import Leniency, Plan, plan_count, plan_create
from .response import Head, echo
from .store import RECORD_BYTES, Link, Record, Store
from .stream import EventStream
from .types import CountBody, CreateBody

MIB = 1 << 20
PATH = "/v1/responses"
ORDERS = ("asc", "desc")
LARGEST_PAGE = 100
USUAL_PAGE = 20

T = TypeVar("T")


class _KindIn(msgspec.Struct):
    type: str | None = None


class _KindsIn(msgspec.Struct):
    input: list[_KindIn]


class _IdIn(msgspec.Struct):
    id: str


_create_body = msgspec.json.Decoder(CreateBody)
_count_body = msgspec.json.Decoder(CountBody)
_kinds = msgspec.json.Decoder(_KindsIn)
_item_id = msgspec.json.Decoder(_IdIn)


class Responses:
    """Handlers over one store. ``clock``: seconds since the epoch."""

    def __init__(self, context: FrontendContext, clock: Callable[[], float]) -> None:
        options = context.options
        self._context, self._clock = context, clock
        self._lenient = Leniency(
            assistant_history=bool(options.get("lenient_assistant_history", False)),
            image_detail=bool(options.get("lenient_image_detail", False)),
            tools=bool(options.get("lenient_tools", False)),
        )
        self.store = Store(
            max_records=options.get("response_store_max_records", 1024),
            max_bytes=options.get("response_store_max_mib", 256) * MIB,
        )

    def routes(self) -> tuple[Route, ...]:
        """What the core serves."""
        one = PATH + "/{response_id}"
        routes = (
            ("POST", PATH, self.create, "OpenAI Responses generation"),
            ("POST", f"{PATH}/input_tokens", self.input_tokens, "the tokens of a Responses prompt"),
            ("POST", f"{PATH}/compact", self.compact, "refused: conversations are not compacted"),
            ("GET", one, self.retrieve, "a stored Response"),
            ("DELETE", one, self.delete, "forget a stored Response"),
            ("GET", f"{one}/input_items", self.input_items, "the input Items of a stored Response"),
            ("POST", f"{one}/cancel", self.cancel, "refused: nothing runs in the background"),
        )
        return tuple(Route(method=m, path=path, handler=handler, summary=told) for m, path, handler, told in routes)

    async def create(self, request: HttpRequest) -> HttpResponse:
        """``POST /v1/responses``."""
        body = await _decoded(request.body, _create_body)
        engine = self._context.engine(body.model)
        parent = self._parent(body.previous_response_id)
        ids = Ids(request.request_id)
        plan = await _beside(
            request.body,
            parent,
            partial(plan_create, body, request_id=request.request_id, ids=ids, parent=parent, lenient=self._lenient),
        )
        inputs = tuple(map(encoded, plan.items))
        if body.store is not False:
            # known before a token is generated for nothing
            self.store.check_room(Link(parent.link if parent else None, inputs).chain_size + RECORD_BYTES)
        making = _Making(
            store=self.store,
            clock=self._clock,
            body=body,
            plan=plan,
            ids=ids,
            parent=parent.link if parent else None,
            inputs=inputs,
        )
        return await making.response(engine)

    async def input_tokens(self, request: HttpRequest) -> HttpResponse:
        """``POST /v1/responses/input_tokens``."""
        body = await _decoded(request.body, _count_body)
        engine = self._context.engine(body.model)
        parent = self._parent(body.previous_response_id)
        ids = Ids(request.request_id)
        work = partial(plan_count, body, ids=ids, parent=parent, lenient=self._lenient)
        plan = await _beside(request.body, parent, work)
        with _refusals_of_input():
            counted = await engine.count(plan.job)
        headers = tool_headers(engine.info, plan.tools.offered, plan.tools.dropped)
        return json_response({"object": "response.input_tokens", "input_tokens": counted}, headers=headers)

    async def retrieve(self, request: HttpRequest) -> HttpResponse:
        """``GET /v1/responses/{id}``."""
        _refuse_include(request.query)
        stream = request.query.get("stream", "false")
        if stream not in ("true", "false"):
            raise invalid_value("stream", stream, "true or false")
        for name, asks in (("stream", stream == "true"), ("starting_after", "starting_after" in request.query)):
            if asks:
                text = f"A stream is sent once, to the client that asked for the Response; leave '{name}' out."
                raise ApiError("stream_recovery_not_supported", text, param=name)
        return HttpResponse(body=self.store.find(request.params["response_id"]).body)

    async def delete(self, request: HttpRequest) -> HttpResponse:
        """``DELETE /v1/responses/{id}``."""
        id = request.params["response_id"]
        self.store.delete(id)
        return json_response({"id": id, "object": "response.deleted", "deleted": True})

    async def input_items(self, request: HttpRequest) -> HttpResponse:
        """``GET /v1/responses/{id}/input_items``."""
        _refuse_include(request.query)
        limit, order = _page(request.query)
        items = list(self.store.find(request.params["response_id"]).input_items)
        if order == "desc":
            items.reverse()
        names = [_item_id.decode(item).id for item in items]
        after = request.query.get("after")
        if after is not None:
            if after not in names:
                raise invalid_value("after", after, "the id of an input Item of this response")
            at = names.index(after) + 1
            items, names = items[at:], names[at:]
        page = {
            "object": "list",
            "data": [msgspec.Raw(item) for item in items[:limit]],
            "first_id": names[0] if names else None,
            "last_id": names[:limit][-1] if names else None,
            "has_more": len(items) > limit,
        }
        return json_response(page)

    async def cancel(self, _request: HttpRequest) -> NoReturn:
        """``POST /v1/responses/{id}/cancel``."""
        raise not_supported("background", "Nothing runs in the background; close the connection to cancel a Response.")

    async def compact(self, _request: HttpRequest) -> NoReturn:
        """``POST /v1/responses/compact``."""
        raise not_supported("compaction", "Conversations are not compacted here.")

    def _parent(self, id: str | None) -> Record | None:
        return None if id is None else self.store.find(id, param="previous_response_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Making:
    """One Response being made. ``inputs``: its own Items, encoded; ``parent``: the conversation it continues."""

    store: Store
    clock: Callable[[], float]
    body: CreateBody
    plan: Plan
    ids: Ids
    parent: Link | None
    inputs: tuple[bytes, ...]

    async def response(self, engine: Engine) -> HttpResponse:
        """The answer, whole or as a stream; every refusal is raised before it."""
        plan, created = self.plan, int(self.clock())
        with _refusals_of_input():
            generation = await engine.chat(plan.job)
        members = echo(self.body, plan.tools, model=engine.info.id, sampling=generation.sampling)
        head = Head(id=self.ids.response, created_at=created, echo=members)
        style = Style(
            ids=self.ids,
            on_the_wire=plan.tools.on_the_wire,
            summarizes=plan.summarizes,
            encrypts=plan.encrypts,
            token_bytes=None if plan.job.logprobs is None else engine.token_bytes,
        )
        headers = tool_headers(engine.info, plan.tools.offered, plan.tools.dropped)
        if self.body.stream:
            stream = EventStream(generation, head, style, partial(self._finished, head))
            response = event_stream(stream.chunks(), late_error=stream.failed)
            response.headers.update(headers)
            return response
        async with generation:
            result = await generation.result()
        return json_response(self._finished(head, result, whole(result, style)), headers=headers)

    def _finished(self, head: Head, result: Result, output: Sequence[Item]) -> dict[str, Any]:
        """The terminal object. One that is to be stored is, before anybody sees it; what ends otherwise, by an error or
        because the client has gone, leaves nothing behind."""
        response = head.ended(result, output, int(self.clock()))
        if self.body.store is not False:
            items = (*self.inputs, *(encoded(for_history(item)) for item in output))
            self.store.add(
                Record(
                    id=head.id,
                    body=to_json(response),
                    link=Link(self.parent, items),
                    inputs=len(self.inputs),
                    session_key=self.plan.job.session_key,
                    preserve_thinking=self.plan.preserve_thinking,
                )
            )
        return response


@contextlib.contextmanager
def _refusals_of_input() -> Iterator[None]:
    """What is wrong with the conversation as a whole is found in this endpoint's ``input``."""
    try:
        yield
    except ApiError as error:
        if error.param == "messages":
            error.param = "input"
        raise


async def _decoded(raw: Body, decoder: msgspec.json.Decoder[T]) -> T:
    """The body. A member of an unread type of Item may be anything, so such an Item is refused by its type."""
    try:
        return await decode(raw, decoder)
    except ApiError as refusal:
        if (refusal.param or "").startswith("input["):
            try:
                kinds = await decode(raw, _kinds)
            except ApiError:
                raise refusal from None
            refuse_unknown_types([item.type for item in kinds.input])
        raise


async def _beside(raw: Body, parent: Record | None, work: Callable[[], T]) -> T:
    """``work()``; on a thread for a long conversation, whose reading would hold up every stream."""
    if parent is not None and parent.link.chain_size > THREAD_BYTES:
        return await asyncio.to_thread(work)
    return await beside(raw, work)


def _refuse_include(query: Mapping[str, str]) -> None:
    for name, value in query.items():
        if (name == "include" or name.startswith("include[")) and value:
            text = f"Responses are returned as they were made; 'include' has to be left out, but is {quoted(value)}."
            raise not_supported("include", text)


def _page(query: Mapping[str, str]) -> tuple[int, str]:
    limit, order = query.get("limit", str(USUAL_PAGE)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= LARGEST_PAGE):
        raise invalid_value("limit", limit, f"a whole number from 1 to {LARGEST_PAGE}")
    if order not in ORDERS:
        raise invalid_value("order", order, "asc or desc")
    return int(limit), order
