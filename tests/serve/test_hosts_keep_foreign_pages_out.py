"""The Host rule on loopback, and what pages of other origins may send. Ollama CVE-2024-28224."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ninfer_core import options
from ninfer_core.errors import OptionError
from ninfer_core.serve.hosts import HostRule, allowed_name, binds_loopback, foreign_post
from ninfer_core.testing import compose

CHAT = msgspec.json.encode({"messages": [{"role": "user", "content": "hi"}]})


LOOPBACK = """
    127.0.0.1 127.0.0.1:8080 127.8.9.1:1 localhost LocalHost:99 localhost. app.localhost:3 localhost:
    [::1] [::1]:8080 [0:0:0:0:0:0:0:1]:1 [::ffff:127.0.0.1]
"""
FOREIGN_NAMES = """
    evil.example evil.example:8080 localhost.evil.example 127.0.0.1.evil.example notlocalhost xn--localhost-9za
    0.0.0.0 [::]:8080 192.168.1.5 [2001:db8::1]:1 127.1 2130706433
"""


def ask(site, wire, *headers, method="GET", path="/v1/models", body=b"", http_version="1.1"):
    async def run():
        line = wire(path=path, method=method, body=body)
        scope = {**line.scope, "headers": list(headers), "http_version": http_version}
        await site.door(scope, line.receive, line.send)
        return line

    line = asyncio.run(run())
    code = msgspec.json.decode(line.text)["error"]["code"] if line.status >= 400 else None
    return line.status, code


@pytest.mark.contract("access.hosts")
@pytest.mark.parametrize("host", LOOPBACK.split())
def test_loopback_names_are_let_in_with_any_port(serve, wire, host):
    assert ask(serve(), wire, (b"host", host.encode()))[0] == 200


@pytest.mark.contract("access.hosts")
@pytest.mark.parametrize(
    "host",
    FOREIGN_NAMES.split(),
)
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/nope"])
def test_other_names_are_403(serve, wire, host, path):
    assert ask(serve(), wire, (b"host", host.encode()), path=path) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        [b""],
        [b" "],
        [b"127.0.0.1", b"127.0.0.1"],
        [b"localhost", b"evil.example"],
        [b"a/#"],
        [b"x/health?"],
        [b"user@127.0.0.1"],
        [b"127.0.0.1:80:80"],
        [b"[::1"],
        [b"::1"],
        [b"localhost\x00"],
        [b"lo\xe9calhost"],
        [b"localhost, evil.example"],
        [b"http://localhost"],
        [b"localhost:port"],
        [b"."],
        [b"localhost:123456"],
    ],
)
def test_no_host_two_of_them_and_unreadable_ones_are_400(serve, wire, hosts):
    assert ask(serve(), wire, *((b"host", host) for host in hosts)) == (400, "invalid_host")


def test_http_1_0_may_leave_the_host_out(serve, wire):
    assert ask(serve(), wire, http_version="1.0")[0] == 200
    assert ask(serve(), wire, (b"host", b"evil.example"), http_version="1.0")[0] == 403


def test_the_refusal_names_the_option_that_lets_it_in(serve):
    response = serve().get("GET", "/v1/models", headers={"host": "box.lan:8080"})
    assert response.json()["error"]["message"] == (
        "The host name 'box.lan' is not served here. To let it in, start the server with --allowed-host box.lan."
    )


@pytest.mark.contract("access.hosts")
@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
def test_allowed_names_are_let_in_beside_loopback_on_every_bind(serve, wire, bound):
    site = serve(host=bound, allowed_host=("box.lan", "192.168.1.5", "2001:db8::1"))
    for host in (b"box.lan:8080", b"BOX.lan.", b"192.168.1.5:1", b"[2001:DB8:0::1]:1", b"localhost", b"127.0.0.1:1"):
        assert ask(site, wire, (b"host", host))[0] == 200, host
    for host in (b"evil.example", b"sub.box.lan", b"192.168.1.6"):
        assert ask(site, wire, (b"host", host)) == (403, "host_not_allowed"), host


def test_other_binds_let_every_name_in_until_one_is_named(serve, wire):
    for host in (b"evil.example", b"a/#"):
        assert ask(serve(host="0.0.0.0"), wire, (b"host", host))[0] == 200
    assert ask(serve(host="0.0.0.0"), wire)[0] == 200


@pytest.mark.parametrize(
    ("bound", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("no.such.host.invalid", False),
    ],
)
def test_a_bind_is_loopback_by_its_address(bound, loopback):
    assert binds_loopback(bound) is loopback


def test_the_name_that_was_bound_is_served(serve, wire, monkeypatch):
    import socket

    real = socket.getaddrinfo

    def box_is_here(host, *more, **named):
        return real("127.0.1.1" if host == "box" else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", box_is_here)
    assert ask(serve(host="box"), wire, (b"host", b"box:8080"))[0] == 200
    assert ask(serve(host="box"), wire, (b"host", b"evil.example")) == (403, "host_not_allowed")


@pytest.mark.parametrize("value", ["", "http://x", "x:80", "[::1]:80", "a b", "x/y", "*", "é", "."])
def test_an_allowed_host_is_a_name_or_an_address_alone(value):
    with pytest.raises(ValueError, match="without scheme and port"):
        allowed_name(value)
    with pytest.raises(OptionError, match="--allowed-host"):
        options.parse([f"--allowed-host={value}"], compose([]), "serve")


def test_allowed_hosts_add_up_and_are_spelled_once():
    line = ["--allowed-host", "Box.LAN.", "--allowed-host", "[2001:db8:0::1]"]
    values = options.parse(line, compose([]), "serve")[1]
    assert values["allowed_host"] == ("box.lan", "2001:db8::1")
    assert HostRule(values["allowed_host"]).refusal([(b"host", b"[2001:db8::1]:9")]) is None


HERE = (b"host", b"127.0.0.1:8080")
JSON = (b"content-type", b"application/json; charset=utf-8")
FOREIGN = (b"origin", b"https://evil.example")


@pytest.mark.parametrize(
    "kind",
    [
        [],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"text/plain; application/json")],
        [(b"content-type", b"application/x-www-form-urlencoded")],
        [(b"content-type", b"multipart/form-data")],
        [JSON, (b"content-type", b"text/plain")],
    ],
)
@pytest.mark.parametrize(
    "origin", [b"https://evil.example", b"null", b"http://127.0.0.1:9", b"http://localhost:8080", b""]
)
def test_a_page_of_another_origin_cannot_post_what_needs_no_preflight(serve, wire, kind, origin):
    site = serve()
    headers = [HERE, (b"origin", origin), *kind]
    assert ask(site, wire, *headers, method="POST", path="/completion", body=b'{"prompt":"x"}') == (
        403,
        "origin_not_allowed",
    )
    assert site.engine.jobs == []


@pytest.mark.parametrize(
    "headers",
    [
        [HERE],
        [HERE, (b"content-type", b"text/plain")],
        [HERE, (b"content-type", b"application/x-www-form-urlencoded")],
        [HERE, FOREIGN, JSON],
        [HERE, FOREIGN, (b"content-type", b"APPLICATION/problem+JSON")],
        [HERE, (b"origin", b"http://127.0.0.1:8080"), (b"content-type", b"text/plain")],
        [HERE, (b"origin", b"https://127.0.0.1:8080")],
    ],
)
def test_clients_without_an_origin_json_and_our_own_pages_are_served(serve, wire, headers):
    assert ask(serve(), wire, *headers, method="POST", path="/v1/chat/completions", body=CHAT)[0] == 200


def test_with_cors_every_origin_may_post(serve, wire):
    headers = [HERE, FOREIGN, (b"content-type", b"text/plain")]
    assert ask(serve(cors=True), wire, *headers, method="POST", path="/v1/chat/completions", body=CHAT)[0] == 200
    # but not under a name that is not ours
    evil = [(b"host", b"evil.example"), FOREIGN, JSON]
    assert ask(serve(cors=True), wire, *evil, method="POST", path="/v1/chat/completions", body=CHAT)[0] == 403


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reading_is_not_posting(method):
    assert foreign_post(method, [HERE, FOREIGN]) is None
    assert foreign_post("DELETE", [HERE, FOREIGN]) is not None
