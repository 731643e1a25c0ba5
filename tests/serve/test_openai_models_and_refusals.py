"""The model list, and refusals as a client of OpenAI's routes sees them."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer_core.api import ApiError, ContextLengthExceeded, QueueTimeout, Unavailable
from ninfer_core.errors import InternalError, Overloaded
from ninfer_core.testing import FakeEngine
from ninfer_core.testing.fakes import renamed

contract = pytest.mark.contract
CHAT, RAW = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": [{"role": "user", "content": "hi"}]}, RAW: {"prompt": "hi"}}


@contract("models.alias", "models.limit", "models.modalities", "models.meta")
def test_a_model_has_its_context_limit_under_every_name(serve):
    engine = FakeEngine(info=renamed("org/a model", max_context=777, weight_formats=("q4", "bf16")))
    listed = serve(engine).get("GET", "/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("org/a model", "model", "ninfer")
    assert model["max_model_len"] == model["context_window"] == model["context_length"] == 777
    assert model["modalities"] == {"vision": False}
    assert model["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    assert model["meta"] == {
        "n_vocab": 256,
        "n_ctx": 777,
        "n_ctx_train": 8192,
        "n_embd": 64,
        "n_params": 1_000_000,
        "size": 2_000_000,
        "ftype": "q4+bf16",
    }


@contract("models.lookup")
@pytest.mark.parametrize("name", ["fake", "org/name", "a:b"])
def test_a_model_is_looked_up_by_its_whole_name(serve, name):
    site = serve(FakeEngine(info=renamed(name)))
    assert site.get("GET", f"/v1/models/{name}").json() == site.get("GET", "/v1/models").json()["data"][0]
    missing = site.get("GET", "/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@contract("models.alias")
def test_the_operator_names_the_model(scripted):
    script = {"name": "stored", "default": {"text": "x"}}
    for flags, name in (((), "stored"), (("--model-id", "mine"), "mine")):
        with scripted(script, *flags) as server:
            answer = server.post(RAW, {"prompt": "hi", "model": name})
            assert (answer.status_code, answer.json()["model"]) == (200, name)
            assert server.post(RAW, {"prompt": "hi", "model": "gpt"}).status_code == 404


@contract("chat.model.equal", "chat.model.absent")
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_the_model_is_the_served_one_or_none(serve, path, stream):
    """No client error is found after the headers: RapidMLX 1849, omlx 3036."""
    site = serve()
    for model in ("fake", None, ""):
        assert site.get("POST", path, {**BODIES[path], "model": model, "stream": stream}).status_code == 200
    refused = site.get("POST", path, {**BODIES[path], "model": "gpt-x", "stream": stream})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "gpt-x" in error["message"]


@contract("chat.errors.capacity", "chat.errors.internal", "media.overflow")
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Overloaded(), 429, "server_overloaded"),
        (QueueTimeout(), 503, "request_queue_timeout"),
        (Unavailable(), 503, "service_unavailable"),
        (InternalError(), 500, "internal_error"),
        (ApiError("invalid_prompt", "No.", param="messages"), 400, "invalid_prompt"),
        (ContextLengthExceeded(9000, 4096), 400, "context_length_exceeded"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [pytest.param(False, id="aggregate"), pytest.param(True, id="rapidmlx-1897")])
def test_a_refusal_of_the_engine_is_an_ordinary_answer(serve, path, stream, error, status, code):
    response = serve(FakeEngine(refusal=error)).get("POST", path, {**BODIES[path], "stream": stream})
    found = response.json()["error"]
    assert (response.status_code, found["code"]) == (status, code)
    assert response.headers["x-request-id"].startswith("req_")
    if code == "context_length_exceeded":
        assert (found["n_prompt_tokens"], found["n_ctx"]) == (9000, 4096)


@contract("http.request-id", "http.double-v1")
def test_a_doubled_prefix_is_the_same_route_under_a_fresh_id(serve):
    site = serve()
    ids = [
        site.get("POST", f"{twice}{path}", BODIES[path]).headers["x-request-id"]
        for path in BODIES
        for twice in ("", "/v1")
    ]
    assert len(set(ids)) == len(ids) == 4


@contract("models.residency")
def test_a_model_that_is_never_suspended_is_resident(serve):
    site = serve(FakeEngine(info=renamed("org/fake")))
    told = site.get("GET", "/v1/models/org/fake/residency").json()
    assert (told["state"], told["auto_resume"], told["last_error"]) == ("resident", False, None)
    assert [told[f"{name}_bytes"] for name in ("releasable_device", "host_snapshot", "host_reserved")] == [0, 0, 0]
    assert told["suspend_count"] == told["resume_count"] == 0
    unknown = site.get("GET", "/v1/models/other/residency")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert site.get("POST", "/v1/models/org/fake/residency").status_code == 405


@contract("models.residency.disabled")
@pytest.mark.parametrize("route", ["suspend", "resume"])
def test_a_server_without_suspend_says_so(serve, route):
    site = serve(FakeEngine(info=renamed("org/fake")))
    answer = site.get("POST", f"/v1/models/org/fake/{route}", {})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (501, "model_suspend_disabled", "model")
    assert "'org/fake'" in error["message"]
    unknown = site.get("POST", f"/v1/models/other/{route}")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
