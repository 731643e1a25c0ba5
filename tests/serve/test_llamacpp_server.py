"""What llama.cpp's clients ask about a server: props, slots, the catalog, the index, the version."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from live_server import Live, read_all
from soon import soon

from ninfer_core import options
from ninfer_core.api import ChatJob, Message, Part, Slot, SlotCheckpoint
from ninfer_core.serve import version as version_module
from ninfer_core.testing import FakeEngine
from ninfer_core.testing.fakes import renamed

contract = pytest.mark.contract
VERSION = "1.2.3+test"
SCRIPT: dict[str, Any] = {
    "name": "stored",
    "replies": [{"match": "slow", "text": "x", "finish": "never", "delay_ms": 4}],
    "default": {"text": "OK"},
}
GETS = ("/props", "/slots", "/models", "/health", "/v1", "/v1/load", "/v1/models")
DIALECT = {
    "/completion": {"prompt": "hi"},
    "/completions": {"prompt": "hi"},
    "/tokenize": {"content": "hi"},
    "/detokenize": {"tokens": [104]},
    "/apply-template": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/rerank": {"query": "q", "documents": ["d"]},
    "/v1/reranking": {"query": "q", "documents": ["d"]},
    "/rerank": {"query": "q", "documents": ["d"]},
    "/reranking": {"query": "q", "documents": ["d"]},
    "/models/load": {"model": "fake"},
    "/slots/0": {},
}


def get(server: Any, path: str, method: str = "GET") -> httpx.Response:
    async def ask() -> httpx.Response:
        async with server.client() as client:
            return await client.request(method, path)

    return server.runner.run(ask())


# ---------------------------------------------------------------------- props


@contract("props.shape", "props.build", "props.relay", "props.model", "props.limits")
def test_props_are_llama_cpps(serve):
    response = serve(FakeEngine(info=renamed("org/model", max_context=777, max_concurrency=3))).get("GET", "/props")
    assert response.status_code == 200
    assert response.json() == {
        "default_generation_settings": {
            "n_ctx": 777,
            "speculative": False,
            "params": {
                "n_predict": -1,
                "max_tokens": -1,
                "temperature": 1.0,
                "top_k": 20,
                "top_p": 0.95,
                "min_p": 0.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "seed": -1,
            },
        },
        "total_slots": 3,
        "model_alias": "org/model",
        "model_path": "/models/fake.ninfer",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"ninfer {VERSION}",
        "endpoint_slots": True,
        "endpoint_props": True,
        "endpoint_metrics": True,
        "cors_proxy_enabled": False,
    }


@contract("props.limits", "props.n-predict", "props.sampler", "props.seed", "props.model")
@pytest.mark.parametrize(
    ("flags", "limit", "seed", "thinks", "changes"),
    [
        ((), -1, -1, True, {}),
        (("--no-thinking",), -1, -1, False, {}),
        (("--default-reasoning-effort", "none"), -1, -1, False, {}),
        (("--default-max-tokens", "99", "--seed", "5"), 99, 5, True, {}),
        (("--greedy",), -1, -1, True, {"temperature": 0}),
        (("--temperature", "0.25", "--top-k", "0", "--top-p", "0.5"), -1, -1, True, None),
        (("--max-context", "512", "--max-concurrency", "3", "--model-id", "mine"), -1, -1, True, {}),
    ],
    ids=lambda value: str(value)[:50],
)
def test_props_tell_what_a_silent_request_gets(scripted, flags, limit, seed, thinks, changes):
    with scripted(SCRIPT, *flags) as server:
        told = get(server, "/props").json()
        format = server.engine.format
        preset = format.thinking_preset if thinks and format.thinking_preset is not None else format.preset
        params = told["default_generation_settings"]["params"]
        assert (params["n_predict"], params["max_tokens"], params["seed"]) == (limit, limit, seed)
        expected = {"temperature": preset.temperature, "top_p": preset.top_p, "top_k": preset.top_k or 20}
        expected |= {"min_p": preset.min_p, "presence_penalty": preset.presence_penalty}
        expected |= {"temperature": 0.25, "top_k": 20, "top_p": 0.5} if changes is None else changes
        assert {name: params[name] for name in expected} == expected
        limits = server.engine.limits
        assert told["default_generation_settings"]["n_ctx"] == limits.max_context
        assert told["total_slots"] == limits.max_concurrency
        assert told["model_alias"] == ("mine" if "mine" in flags else "stored")
        assert told["model_path"].endswith("script.json")
        # and a silent chat runs with these very values
        generation = server.runner.run(_silent_chat(server.engine))
        assert all(generation.sampling[name] == value for name, value in expected.items())


async def _silent_chat(engine: Any) -> Any:
    generation = await engine.chat(ChatJob(messages=(Message(role="user", content=(Part(text="hi"),)),)))
    async with generation:
        await generation.result()
    return generation


@contract("props.limits")
def test_a_drafting_server_says_so(scripted):
    for script, drafts in ((SCRIPT, False), ({**SCRIPT, "draft": [2]}, True)):
        with scripted(script) as server:
            assert get(server, "/props").json()["default_generation_settings"]["speculative"] is drafts
            assert get(server, "/slots").json()[0]["speculative"] is drafts


@contract("props.read-only", "dialect.envelope")
def test_props_cannot_be_written(serve):
    refused = serve().get("POST", "/props", {"chat_template": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (405, "method_not_allowed")
    assert refused.headers["allow"] == "GET, HEAD, OPTIONS"


# ---------------------------------------------------------------------- slots


@contract("slots.list", "slots.processing", "slots.published")
def test_slots_show_what_runs_without_waiting_for_it(scripted):
    with scripted(SCRIPT, "--max-concurrency", "2") as server:
        server.runner.run(watched(server))


async def watched(server: Any) -> None:
    idle = {
        "is_processing": False,
        "retained": False,
        "checkpoints": [],
        "n_ctx": server.engine.info.max_context,
        "n_prompt_tokens": 0,
        "n_prompt_tokens_cache": 0,
        "speculative": False,
    }
    async with server.client() as client:

        async def slots() -> Any:
            return (await client.get("/slots", params={"model": "stored"})).json()

        assert await slots() == [{"id": 0, **idle}, {"id": 1, **idle}]
        body = msgspec.json.encode({"prompt": "slow", "n_predict": 50})
        running = asyncio.ensure_future(client.post("/completion", content=body, timeout=30))

        async def is_busy() -> bool:
            return (await slots())[0]["is_processing"]

        async def is_idle() -> bool:
            return await slots() == [{"id": 0, **idle}, {"id": 1, **idle}]

        await soon(is_busy, "the request is shown")
        told = await slots()
        assert not running.done()
        assert told == [{"id": 0, **idle, "is_processing": True, "n_prompt_tokens": 4}, {"id": 1, **idle}]
        answer = (await running).json()
        assert answer["id_slot"] == 0
        await soon(is_idle, "the slot is free")


@contract("slots.list")
def test_a_kept_session_has_its_digest_and_checkpoints(serve):
    marks = (SlotCheckpoint(frontier=1812, digest="51d0"), SlotCheckpoint(frontier=2409, digest="e27a90c4d15b3f68"))
    kept = Slot(index=0, prompt_tokens=2410, cached_tokens=2410, digest="8c3f1e0a7b2d4c19", checkpoints=marks)
    info = renamed("fake", max_context=131072, speculative=True)
    assert serve(FakeEngine(info=info, slots=[kept])).get("GET", "/slots").json() == [
        {
            "id": 0,
            "is_processing": False,
            "retained": True,
            "session_digest": "8c3f1e0a7b2d4c19",
            "checkpoints": [
                {"frontier": 1812, "session_digest": "51d0"},
                {"frontier": 2409, "session_digest": "e27a90c4d15b3f68"},
            ],
            "n_ctx": 131072,
            "n_prompt_tokens": 2410,
            "n_prompt_tokens_cache": 2410,
            "speculative": True,
        }
    ]


@contract("slots.persistence")
@pytest.mark.parametrize("action", ["?action=save", "?action=restore", "?action=erase", "", "?action=x"])
def test_sessions_are_not_kept_in_files(serve, action):
    for body in ({"filename": "a"}, b"", b"{"):
        refused = serve().get("POST", f"/slots/0{action}", body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (501, "slot_persistence_disabled")


# ---------------------------------------------------------------------- the catalog


@contract("catalog.list", "catalog.card", "catalog.secret")
def test_the_catalog_is_the_one_model(scripted):
    flags = ("--max-context", "512", "--no-thinking", "--api-key", "s3cret", "--allowed-host", "a.example")
    with scripted(SCRIPT, *flags, "--allowed-host", "b.example") as server:

        async def ask(path: str) -> Any:
            async with server.client() as client:
                return (await client.get(path, headers={"authorization": "Bearer s3cret"})).json()

        told = server.runner.run(ask("/models"))
        card = server.runner.run(ask("/v1/models"))["data"][0]
    (model,) = told["data"]
    assert told["object"] == "list"
    assert {key: model[key] for key in card} == card
    assert set(model) - set(card) == {"aliases", "path", "status"}
    assert (model["aliases"], model["status"]["value"], model["status"]["failed"]) == ([], "loaded", False)
    path, *words = model["status"]["args"]
    assert path == model["path"] == server.engine.info.path
    assert "s3cret" not in str(told)
    pairs = [["--max-context", "512"], ["--no-thinking"], ["--allowed-host", "a.example"]]
    pairs += [["--allowed-host", "b.example"]]
    assert sorted(words) == sorted(word for pair in pairs for word in pair)
    for pair in pairs:
        at = words.index(pair[-1])
        assert words[at + 1 - len(pair) : at + 1] == pair


@contract("catalog.load", "catalog.unknown", "catalog.polling")
def test_a_loaded_model_is_loaded_again_at_once(serve):
    site = serve()
    loaded = site.get("POST", "/models/load", {"model": "fake"})
    assert (loaded.status_code, loaded.json()) == (200, {"success": True})
    for path in ("/models/load", "/models/unload", "/models/sleep"):
        missing = site.get("POST", path, {"model": "gpt"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        empty = site.get("POST", path, {"model": ""})
        assert (empty.status_code, empty.json()["error"]["param"]) == (400, "model")
        assert site.get("POST", path, {}).json()["error"]["code"] == "missing_required_parameter"
    for path in GETS:
        site.get("GET", path)
    assert site.engine.jobs == []


@contract("catalog.single")
@pytest.mark.parametrize(
    ("path", "code"),
    [("/models/unload", "model_unload_not_supported"), ("/models/sleep", "model_suspend_disabled")],
)
def test_the_only_model_stays_loaded(serve, path, code):
    site = serve()
    refused = site.get("POST", path, {"model": "fake"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (501, code)
    assert site.get("GET", "/models").json()["data"][0]["status"]["value"] == "loaded"


@pytest.mark.parametrize("path", ["/props", "/slots"])
@contract("catalog.unknown")
def test_the_model_parameter_names_a_model(serve, path):
    site = serve()
    assert site.get("GET", path, params={"model": "fake"}).content == site.get("GET", path).content
    missing = site.get("GET", path, params={"model": "gpt"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@contract("catalog.events")
def test_a_listener_hears_of_the_stop_and_does_not_hold_it_up(tmp_path: Path) -> None:
    live = Live(SCRIPT, tmp_path)
    with socket.create_connection((live.host, live.port), timeout=20) as listener:
        listener.sendall(b"GET /models/sse HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        heard = b""
        while b": model status\n\n" not in heard:
            heard += listener.recv(4096)
        assert heard.startswith(b"HTTP/1.1 200")
        assert live.stop() == 0
        heard += read_all(listener)
    assert b'data: {"model":"stored","event":"model_status","data":{"status":"unloading"}}\n\n' in heard


# ---------------------------------------------------------------------- index and version


@contract("index.table")
def test_the_index_has_the_model_and_every_route(serve):
    told = serve().get("GET", "/v1").json()
    assert told["models"] == ["fake"]
    listed = {(one["method"], one["path"]) for one in told["endpoints"]}
    assert all(one["summary"] for one in told["endpoints"])
    assert {("POST", path) for path in DIALECT if path != "/slots/0"} <= listed
    assert {("GET", path) for path in (*GETS, "/models/sse")} <= listed


@contract("version.health", "version.header", "version.string")
def test_the_version_is_on_every_answer(serve):
    site = serve(api_key="k")
    assert site.get("GET", "/health").json() == {"status": "ok", "version": VERSION}
    answers = [site.get("GET", "/health"), site.get("GET", "/props"), site.get("POST", "/nope", {})]
    answers += [site.get("GET", "/props", headers={"authorization": "Bearer k"})]
    answers += [serve(loading=True).get("GET", path) for path in GETS]
    assert [answer.status_code for answer in answers] == [200, 401, 401, 200, *[503] * len(GETS)]
    assert all(answer.headers["x-ninfer-version"] == VERSION for answer in answers)


@contract("version.string", "version.log")
def test_the_startup_log_has_the_version(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("NINFER_BUILD_ID", "host7")
    version_module.build_version.cache_clear()
    try:
        live = Live(SCRIPT, tmp_path)
        assert live.server._version == version_module.build_version()
        assert live.server._version.endswith("+host7")
        assert live.stop() == 0
    finally:
        version_module.build_version.cache_clear()
    assert "+host7" in "".join(capfd.readouterr())


@contract("dialect.loading")
@pytest.mark.parametrize("path", [pytest.param(path, id=f"omlx-1884-{path}") for path in [*DIALECT, *GETS]])
def test_every_route_is_503_until_the_model_is_ready(serve, path):
    site = serve(loading=True)
    for method in ("GET", "POST", "OPTIONS", "HEAD"):
        answer = site.get(method, path, DIALECT.get(path) if method == "POST" else None)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "2"
        if method != "HEAD":
            assert answer.json()["error"]["code"] == "model_loading"


@contract("dialect.envelope")
@pytest.mark.parametrize("path", DIALECT)
def test_what_is_wrong_with_a_route_is_told_in_the_dialects_envelope(serve, path):
    site = serve(max_request_mib=1)
    wrong = site.get("DELETE", path)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    missing = site.get("GET", f"{path}/none/such")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "route_not_found")
    large = site.get("POST", path, b" " * (1 << 20) + b"x")
    assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
    ids = {answer.headers["x-request-id"] for answer in (wrong, missing, large)}
    assert len(ids) == 3


@contract("dialect.envelope")
@pytest.mark.parametrize("path", [path for path in GETS if path != "/v1/load"])  # a fake engine has no figures
def test_head_is_answered_where_get_is(serve, path):
    site = serve()
    whole, head = site.get("GET", path), site.get("HEAD", path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))


@contract("version.flag")
def test_the_version_flag_loads_no_model(plugins):
    with pytest.raises(options.Shown) as shown:
        options.parse(["--version", "/no/such/model"], plugins, "serve")
    assert version_module.build_version() in shown.value.text
