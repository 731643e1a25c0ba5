"""``--api-key``: who gets in with what, whatever else the request says."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
import structlog

from ninfer_core import options
from ninfer_core.errors import OptionError
from ninfer_core.serve.auth import ApiKey
from ninfer_core.serve.run import compose_stats
from ninfer_core.testing import compose

KEY = "local-secret"
BEARER = {"authorization": f"Bearer {KEY}"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PROTECTED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/v1/models"),
    ("GET", "/%761/models"),
    ("GET", "//v1/models"),
    ("GET", "/v1"),
    ("GET", "/metrics"),
    ("GET", "/nope"),
    ("GET", "/health/"),
    ("GET", "/health/x"),
    ("GET", "//health"),
    ("GET", "/v1/health"),
    ("POST", "/health"),
    ("DELETE", "/v1/models"),
    ("OPTIONS", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/completion"),
]


def ask(door, wire, *headers, path="/v1/models", method="GET", body=b""):
    """The answer to a request whose headers are exactly these bytes."""

    async def run():
        line = wire(path=path, method=method, body=body)
        line.headers = [(b"host", b"127.0.0.1"), *headers]
        scope = {**line.scope, "headers": line.headers}
        await door(scope, line.receive, line.send)
        return line

    return asyncio.run(run())


@pytest.mark.contract("load.key", "access.key", "access.figures")
@pytest.mark.parametrize(("method", "path"), PROTECTED)
def test_everything_but_health_needs_the_key(serve, method, path):
    site = serve(api_key=KEY)
    response = site.get(method, path, CHAT if method == "POST" else None)
    assert response.status_code == 401
    assert response.json() == {
        "error": {
            "message": "This server requires an API key; the one sent is missing or wrong.",
            "type": "authentication_error",
            "code": "invalid_api_key",
        }
    }
    assert response.headers["x-ninfer-version"] == "1.2.3+test"
    assert response.headers["x-request-id"].startswith("req_")
    assert site.engine.jobs == []
    assert site.get(method, path, CHAT if method == "POST" else None, headers=BEARER).status_code != 401


@pytest.mark.contract("access.key")
@pytest.mark.parametrize(
    "headers", [BEARER, {"authorization": f"bearer   {KEY}"}, {"x-api-key": KEY}, {"X-API-Key": KEY}]
)
def test_the_key_lets_in_as_bearer_and_as_x_api_key(serve, headers):
    assert serve(api_key=KEY).get("POST", "/v1/chat/completions", CHAT, headers=headers).status_code == 200


@pytest.mark.contract("access.open")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_health_is_open(serve, method):
    assert serve(api_key=KEY).get(method, "/health").status_code == 200


@pytest.mark.contract("access.open")
def test_a_preflight_is_open_and_starts_nothing(serve):
    site = serve(api_key=KEY)
    asks = {"origin": "http://a.example", "access-control-request-method": "POST"}
    assert site.get("OPTIONS", "/v1/chat/completions", headers=asks).status_code == 204
    assert site.engine.jobs == []


WRONG = [
    ((b"authorization", b""),),
    ((b"authorization", KEY.encode()),),
    ((b"authorization", b"Bearer"),),
    ((b"authorization", b"Bearer " + KEY.encode() + b"x"),),
    ((b"authorization", b"Bearer " + KEY.encode()[:-1]),),
    ((b"authorization", b"Bearer local secret"),),
    ((b"authorization", b"Basic " + KEY.encode()),),
    ((b"authorization", b"Bearer \xc3\xa9"),),
    ((b"authorization", b"Bearer \xe9\xff"),),
    ((b"x-api-key", KEY.encode() + b"\x00"),),
    ((b"x-api-key", b"\x00"),),
    ((b"x-api-key", b"Bearer " + KEY.encode()),),
    ((b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer " + KEY.encode())),
    ((b"authorization", b"Bearer " + KEY.encode()), (b"authorization", b"Bearer " + KEY.encode())),
    ((b"x-api-key", KEY.encode()), (b"x-api-key", b"wrong")),
    ((b"cookie", KEY.encode()),),
]


@pytest.mark.contract("access.key")
@pytest.mark.parametrize("headers", WRONG, ids=lambda headers: "compare-digest-" + repr(headers[0][1]))
def test_every_other_key_is_401_and_never_500(serve, wire, headers):
    line = ask(serve(api_key=KEY).door, wire, *headers)
    assert line.status == 401
    assert msgspec.json.decode(line.text)["error"]["code"] == "invalid_api_key"


def test_one_right_header_of_two_kinds_is_enough(serve, wire):
    headers = [(b"authorization", b"Bearer none"), (b"x-api-key", KEY.encode())]
    assert ask(serve(api_key=KEY).door, wire, *headers).status == 200


def test_a_key_of_any_letters_is_compared_as_utf_8():
    key = ApiKey("schlüssel")
    assert key.admits([(b"x-api-key", "schlüssel".encode())])
    assert not key.admits([(b"x-api-key", "schlüssel".encode("latin-1"))])


@pytest.mark.parametrize(
    "host",
    [
        pytest.param(b"x/health?", id="CVE-2026-48710-query"),
        pytest.param(b"a/#", id="CVE-2026-48746-fragment"),
        pytest.param(b"x/#/health", id="CVE-2026-49468-path"),
        pytest.param(b"127.0.0.1/health?x=", id="CVE-2026-48710-loopback"),
    ],
)
def test_a_crafted_host_opens_nothing(serve, wire, host):
    async def run():
        line = wire(path="/v1/models", method="GET")
        await serve(api_key=KEY).door({**line.scope, "headers": [(b"host", host)]}, line.receive, line.send)
        return line.status

    assert asyncio.run(run()) == 401


@pytest.mark.contract("access.figures")
@pytest.mark.parametrize("path", ["/v1/load", "/stats", "/metrics", "/nope"])
def test_the_stats_listener_asks_for_the_same_key(serve, wire, path):
    site = serve(api_key=KEY)
    values = options.parse(["--api-key", KEY], compose([]), "serve")[1]
    door = compose_stats(values, site.state, "v")
    assert ask(door, wire, path=path).status == 401
    assert ask(door, wire, path="/health").status == 200
    assert ask(door, wire, (b"x-api-key", KEY.encode()), path="/nope").status == 404


def test_a_server_that_loads_says_so_before_it_asks_for_a_key(serve):
    assert serve(api_key=KEY, loading=True).get("GET", "/v1/models").status_code == 503


@pytest.mark.contract("access.secret")
def test_no_log_line_and_no_answer_holds_the_key(serve):
    wrong = "another-secret"
    with structlog.testing.capture_logs() as lines, CaptureRecords() as records:
        site = serve(api_key=KEY)
        answers = [
            site.get("POST", path, CHAT, headers={"x-api-key": key, "authorization": f"Bearer {key}"})
            for key in (KEY, wrong)
            for path in ("/v1/chat/completions", "/nope")
        ]
    assert [answer.status_code for answer in answers] == [200, 404, 401, 401]
    said = f"{lines}{records.seen}{[(answer.text, answer.headers) for answer in answers]}"
    assert lines
    assert KEY not in said
    assert wrong not in said


class CaptureRecords(logging.Handler):
    """What the standard library's loggers say meanwhile."""

    def __enter__(self):
        self.seen = []
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *exc):
        logging.getLogger().removeHandler(self)

    def emit(self, record):
        self.seen.append(record.getMessage())


@pytest.mark.parametrize(
    "line", [["--api-key", "secret\x01"], ["--api-key", " secret"], ["--api-key", "secret", "--api-key=secret"]]
)
def test_a_mistake_about_the_key_does_not_show_it(line):
    with pytest.raises(OptionError, match="--api-key") as refused:
        options.parse(line, compose([]), "serve")
    assert "secret" not in str(refused.value)
