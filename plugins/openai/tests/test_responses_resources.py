"""What the server keeps between requests: retrieval, continuation, deletion, listing, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ninfer_core.api import GeneratedCall, HttpRequest, Unavailable
from ninfer_core.testing import FakeEngine
from ninfer_openai.responses.items import decoded

contract = pytest.mark.contract
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
BIG = {"response_store_max_mib": 1}


def shape(job: Any) -> list[tuple[str, str, str | None]]:
    return [(m.role, m.text, m.reasoning) for m in job.messages]


@contract("responses.get", "responses.store.default")
def test_a_response_is_returned_as_it_was_made(responses):
    server = responses()
    answer = server.ask("POST", "", {"model": "fake", "input": "hi"})
    found = server.ask("GET", "/resp_1")
    assert (found.status, found.body) == (200, answer.body)
    *_, end = server.stream(store=True)
    assert msgspec.json.decode(server.ask("GET", f"/{end['response']['id']}").body) == end["response"]


@contract("responses.store.false")
def test_a_response_that_was_not_to_be_stored_is_nowhere(responses):
    server = responses()
    made = server.create(input="hi", store=False)
    for path in (f"/{made['id']}", f"/{made['id']}/input_items"):
        assert server.refusal("GET", path)[:2] == (404, "response_not_found")
    gone = server.refusal(input="x", previous_response_id=made["id"])
    assert gone[:3] == (404, "response_not_found", "previous_response_id")
    assert made["id"] in gone[3]


@contract("responses.chain.history", "responses.chain.instructions", "responses.chain.tools")
@pytest.mark.parametrize("thread", [pytest.param(0, id="vllm-43244")])
def test_a_chain_has_every_item_and_no_earlier_instructions(responses, thread):
    engine = FakeEngine(pieces=[("reasoning", "Think."), "Text.", GeneratedCall(name="f", arguments='{"a": 1E5}')])
    server = responses(engine)
    first = server.create(input="one", instructions="First.", tools=TOOLS)
    call = first["output"][2]
    engine.pieces = [("content", "Done.")]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
    second = server.create(input=[result], previous_response_id=first["id"], instructions="Second.")
    second_job = engine.jobs[-1]
    assert second["previous_response_id"] == first["id"]
    job = server.job(input="three", previous_response_id=second["id"])
    assert shape(second_job) == [
        ("developer", "Second.", None),
        ("user", "one", None),
        ("assistant", "Text.", "Think."),
        ("tool", "42", None),
    ]
    assert shape(job) == [*shape(second_job)[1:], ("assistant", "Done.", None), ("user", "three", None)]
    assert job.messages[1].tool_calls[0].arguments == '{"a": 1E5}'
    assert (second_job.tools, job.tools) == ((), ())


@contract("responses.input.omitted")
def test_input_may_be_left_out_where_a_user_has_spoken(responses):
    server = responses()
    first = server.create(input="hi")["id"]
    for silent in ({}, {"input": ""}, {"input": []}, {"input": None}):
        server.create(previous_response_id=first, **silent)
        assert [row[0] for row in shape(server.engine.jobs[-1])] == ["user", "assistant"]
    mute = server.create(input=[{"role": "system", "content": "x"}])["id"]
    assert server.refusal(previous_response_id=mute)[:3] == (400, "missing_required_parameter", "input")
    assert server.refusal(previous_response_id=mute, input=[])[:3] == (400, "invalid_value", "input")


def test_a_chain_that_waits_for_results_needs_them(responses):
    server = responses(FakeEngine(pieces=[GeneratedCall(name="f", arguments="{}")]))
    first = server.create(input="hi", tools=TOOLS)["id"]
    assert server.refusal(previous_response_id=first)[:3] == (400, "invalid_tool_history", "input")
    assert server.refusal(previous_response_id=first, input="x")[:3] == (400, "invalid_tool_history", "input")


@contract("responses.chain.preserve-thinking")
def test_a_child_inherits_preserve_thinking_and_may_differ(responses):
    server = responses()
    first = server.create(input="a", preserve_thinking=False)["id"]
    assert server.job(previous_response_id=first).preserve_thinking is False
    second = server.create(input="b", previous_response_id=first)["id"]
    assert server.job(previous_response_id=second).preserve_thinking is False
    third = server.create(input="c", previous_response_id=second, chat_template_kwargs={"preserve_thinking": True})[
        "id"
    ]
    assert server.job(previous_response_id=third).preserve_thinking is True
    assert server.job(previous_response_id=second, preserve_thinking=True).preserve_thinking is True
    assert server.job(previous_response_id=server.create(input="d")["id"]).preserve_thinking is None


@contract("responses.session.root", "responses.session.anonymous", "responses.session.read-only", "responses.hints")
def test_a_stored_root_names_the_session_of_its_chain(responses):
    server = responses()
    root = server.create(input="a", prompt_cache_key="mine")["id"]
    key = server.engine.jobs[-1].session_key
    assert key is not None and root in key and "mine" not in key and 1 <= len(key.encode()) <= 256
    assert server.engine.jobs[-1].session_read_only is False
    child = server.create(input="b", previous_response_id=root)["id"]
    grandchild = server.job(previous_response_id=child)
    assert (grandchild.session_key, grandchild.session_read_only) == (key, False)
    aside = server.job(previous_response_id=child, store=False)
    assert (aside.session_key, aside.session_read_only) == (key, True)
    assert server.job(store=False, prompt_cache_key="mine").session_key is None
    assert server.job().session_key not in (None, key)


@contract("responses.delete", "responses.store.descendants")
def test_deleting_forgets_the_object_and_not_its_descendants(responses):
    server = responses()
    first = server.create(input="a")["id"]
    second = server.create(input="b", previous_response_id=first)["id"]
    gone = server.ask("DELETE", f"/{first}")
    assert msgspec.json.decode(gone.body) == {"id": first, "object": "response.deleted", "deleted": True}
    for method, path in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
        assert server.refusal(method, f"/{first}{path}")[:2] == (404, "response_not_found")
    assert server.refusal(input="c", previous_response_id=first)[0] == 404
    assert [row[:2] for row in shape(server.job(previous_response_id=second))] == [
        ("user", "a"),
        ("assistant", "OK."),
        ("user", "b"),
        ("assistant", "OK."),
        ("user", "hi"),
    ]


@contract("responses.input-items")
def test_input_items_are_listed_in_pages(responses):
    server = responses()
    before = server.create(input="before")["id"]
    items = [{"role": "user", "content": str(at), "id": f"i{at}"} for at in range(25)]
    id = server.create(input=items, previous_response_id=before)["id"]

    def page(**query: str) -> dict[str, Any]:
        return msgspec.json.decode(server.ask("GET", f"/{id}/input_items", **query).body)

    first = page()
    assert [item["id"] for item in first["data"]] == [f"i{at}" for at in range(24, 4, -1)]
    assert (first["object"], first["first_id"], first["last_id"], first["has_more"]) == ("list", "i24", "i5", True)
    rest = page(after=first["last_id"])
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (["i4", "i3", "i2", "i1", "i0"], False)
    assert [item["id"] for item in page(order="asc", limit="2", after="i3")["data"]] == ["i4", "i5"]
    assert len(page(limit="100")["data"]) == 25
    assert page(after="i0") == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert first["data"][0] == {
        "type": "message",
        "id": "i24",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "24"}],
    }
    for query, param in (
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"limit": "9" * 5000}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "nope"}, "after"),
    ):
        answer = server.ask("GET", f"/{id}/input_items", **query)
        assert (answer.status, msgspec.json.decode(answer.body)["error"]["param"]) == (400, param)


@contract("responses.items.normalized", "responses.items.order")
def test_listed_items_are_canonical_and_read_the_same_again(responses):
    server = responses()
    items = [
        {"role": "developer", "content": "d", "status": "odd", "unknown": 1},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "u", "prompt_cache_breakpoint": {"mode": "explicit"}}],
        },
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "s"}],
            "encrypted_content": "e",
            "content": [{"type": "reasoning_text", "text": "r"}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "n"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "namespace": "n", "arguments": '{ "a":1.0}'},
        {"type": "function_call_output", "call_id": "1", "name": "f", "output": [{"type": "input_text", "text": "o"}]},
    ]
    id = server.create(input=items)["id"]
    first = server.engine.jobs[-1]
    listed = msgspec.json.decode(server.ask("GET", f"/{id}/input_items", order="asc").body)["data"]
    assert [item["type"][:9] for item in listed] == [
        "message",
        "message",
        "reasoning",
        "message",
        "function_",
        "function_",
    ]
    assert listed[2]["encrypted_content"] == "e"
    assert listed[4]["arguments"] == '{ "a":1.0}'
    assert all(msgspec.json.encode(item) for item in map(decoded, map(msgspec.json.encode, listed)))
    server.create(input=listed)
    assert server.engine.jobs[-1].messages == first.messages


@contract("responses.get.refused")
@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ({"stream": "true"}, "stream_recovery_not_supported", "stream"),
        ({"stream": "maybe"}, "invalid_value", "stream"),
        ({"starting_after": "3"}, "stream_recovery_not_supported", "starting_after"),
        ({"include": "reasoning.encrypted_content"}, "include_not_supported", "include"),
        ({"include[]": "message.output_text.logprobs"}, "include_not_supported", "include"),
        ({"include[0]": "x"}, "include_not_supported", "include"),
    ],
    ids=str,
)
def test_retrieval_recovers_no_stream_and_includes_nothing(responses, query, code, param):
    server = responses()
    id = server.create(input="hi")["id"]
    error = msgspec.json.decode(server.ask("GET", f"/{id}", **query).body)["error"]
    assert (error["code"], error["param"]) == (code, param)
    for neutral in ({"stream": "false"}, {"include": ""}, {"include_obfuscation": "true"}):
        assert server.ask("GET", f"/{id}", **neutral).status == 200


@contract("responses.cancel", "responses.compact")
def test_cancel_and_compact_are_refused(responses):
    server = responses()
    id = server.create(input="hi")["id"]
    assert server.refusal(path=f"/{id}/cancel")[:2] == (400, "background_not_supported")
    assert server.refusal(path="/none/cancel")[:2] == (400, "background_not_supported")
    assert server.refusal(path="/compact", input="hi")[:2] == (400, "compaction_not_supported")


@contract("responses.store.capacity")
def test_a_response_too_large_to_keep_is_an_error_and_not_silently_dropped(responses):
    server = responses(FakeEngine(pieces=["x" * (1 << 20)]), **BIG)
    refused = server.refusal(input="hi")
    assert refused[:3] == (400, "response_store_capacity_exceeded", "store")
    *_, last = server.stream()
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "response_store_capacity_exceeded"
    assert len(server.store) == 0
    assert server.create(input="hi", store=False)["status"] == "completed"


def test_an_input_too_large_to_keep_is_refused_before_anything_is_generated(responses):
    server = responses(**BIG)
    assert server.refusal(input="x" * (1 << 20))[1] == "response_store_capacity_exceeded"
    assert server.engine.jobs == []
    assert server.create(input="x" * (1 << 20), store=False)


@contract("responses.store.lru", "responses.store.evicted")
def test_an_evicted_response_is_not_found(responses):
    server = responses(response_store_max_records=2)
    ids = [server.create(input=str(at))["id"] for at in range(2)]
    server.ask("GET", f"/{ids[0]}")
    server.create(input="third")
    assert server.ask("GET", f"/{ids[0]}").status == 200
    assert server.refusal("GET", f"/{ids[1]}")[:2] == (404, "response_not_found")
    assert server.refusal(input="x", previous_response_id=ids[1])[0] == 404
    # to be continued is to be used
    server.create(input="x", previous_response_id=ids[0], store=False)
    server.create(input="fourth")
    assert server.ask("GET", f"/{ids[0]}").status == 200


@pytest.mark.slow
@pytest.mark.parametrize("thread", [pytest.param(0, id="vllm-48275-in-full")])
def test_five_thousand_responses_stay_within_the_bounds(responses, thread):
    server = responses()
    before = None
    for at in range(5000):
        before = server.create(input="x" * 1000, previous_response_id=before if at % 50 else None)["id"]
    assert len(server.store) == 1024
    assert server.store.bytes < 1024 * 8192


@contract("responses.store.terminal")
def test_what_failed_or_was_left_is_not_stored(responses):
    for engine in (FakeEngine(failure=Unavailable()), FakeEngine(refusal=Unavailable())):
        server = responses(engine)
        assert server.refusal(input="hi")[0] == 503
        server.ask("POST", "", {"model": "fake", "input": "hi", "stream": True})
        assert len(server.store) == 0
    server = responses(FakeEngine(pieces=["x"] * 50))

    async def leave() -> None:
        body = msgspec.json.encode({"model": "fake", "input": "hi", "stream": True})
        request = HttpRequest(method="POST", path="", params={}, query={}, headers={}, body=body, request_id="req_9")
        route, _ = server._route("POST", "/v1/responses")
        response = await route.handler(request)
        async for _ in response.stream:
            break
        await response.stream.aclose()

    asyncio.run(leave())
    assert (len(server.store), server.engine.running, len(server.engine.cancelled)) == (0, 0, 1)
