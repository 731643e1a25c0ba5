import gc
import time
import weakref
from datetime import datetime

import pytest

from ninfer_core.api import ApiError, Message, Part, StartupError
from ninfer_core.text import sandbox
from ninfer_core.text.provenance import Spellings
from ninfer_core.text.template import ChatTemplate

HELLO = (Message(role="user", content=(Part(text="hello"),), place="messages[0]"),)


def template(source: str) -> ChatTemplate:
    spellings = Spellings(["<|end|>", "<think>"])
    return ChatTemplate(
        source, spellings=spellings, variables={"bos_token": "<|end|>"}, now=lambda: datetime(2031, 2, 3)
    )


def render(source: str, messages=HELLO, **client: object) -> str:
    return template(source).render(messages, settings={}, client=client).text


GROW = "{% set n = namespace(s='x') %}{% for i in range(60) %}"
NEST = "{% set n = namespace(s=[1]) %}{% for i in range(60) %}"
HOSTILE = {
    "string-product": "{{ 'x' * 1000000000 }}",
    "list-product": "{% set l = [0] * 1000000000 %}",
    "doubling": GROW + "{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling-tilde": GROW + "{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubling-set-block": (GROW + "{% set b %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = b %}{% endfor %}"),
    "doubling-list": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling-join": GROW + "{% set n.s = [n.s,n.s]|join %}{% endfor %}",
    "doubling-method-join": (GROW + "{% set n.s = ''.join([n.s, n.s]) %}{% endfor %}"),
    "doubling-replace": (GROW + "{% set n.s = n.s | replace('x', 'xx') %}{% endfor %}"),
    "doubling-format": (GROW + "{% set n.s = '{0}{0}'.format(n.s) %}{% endfor %}"),
    "doubling-percent": GROW + "{% set n.s = '%s%s'%(n.s,n.s) %}{% endfor %}",
    "squaring": "{% set n = namespace(i=9) %}{% for i in range(60) %}{% set n.i = n.i * n.i %}{% endfor %}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "percent-width": "{{ '%1000000000d' % 1 }}",
    "percent-star": "{{ '%*d' % (1000000000, 1) }}",
    "format-width": "{{ '{:>1000000000}'.format('') }}",
    "format-nested-width": "{{ '{:>{}}'.format('', 1000000000) }}",
    "format-filter": "{{ '%1000000000d' | format(1) }}",
    "center": "{{ 'x' | center(1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "zfill": "{{ 'x'.zfill(1000000000) }}",
    "expandtabs": "{{ ('\\t' * 10000).expandtabs(100000) }}",
    "indent": "{{ ('x\\n' * 100000) | indent(100000) }}",
    "batch": "{{ [1] | batch(1000000000, 'x') | list }}",
    "slice": "{{ [1] | slice(1000000000) | list }}",
    "range": "{{ range(1000000000) | list }}",
    "strftime": "{{ strftime_now('%1000000000Y') }}",
    "to-bytes": "{{ (1).to_bytes(1000000000, 'big') }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "long-output": "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
    "nested-loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "loop-in-macro": (
        "{% macro m() %}{% for j in range(100000) %}{% endfor %}{% endmacro %}"
        "{% for i in range(9999) %}{{ m() }}{% endfor %}"
    ),
    "doubling-inside": NEST + "{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
    "doubling-inside-tojson": NEST + "{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}",
    "doubling-inside-compared": (
        "{% set n = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}"
        "{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s == n.t }}"
    ),
    "doubling-inside-tuple": NEST + "{% set n.s = (n.s, n.s) %}{% endfor %}{{ {n.s: 1} }}",
    "doubling-inside-dict": NEST + "{% set n.s = {'a': n.s, 'b': n.s} %}{% endfor %}{{ n.s }}",
    "doubling-inside-dict-call": NEST + "{% set n.s = dict(a=n.s, b=n.s) %}{% endfor %}{{ n.s }}",
    "doubling-inside-arguments": (
        "{% set n = namespace(s=[1]) %}{% macro m() %}{% set n.s = varargs %}{% endmacro %}"
        "{% for i in range(60) %}{{ m(n.s, n.s) }}{% endfor %}{{ n.s }}"
    ),
    "doubling-inside-batch": NEST + "{% set n.s = (n.s + n.s) | batch(2) | list %}{% endfor %}{{ n.s }}",
    "batch-fill": (
        "{% set l = range(100000) | list %}{% for row in [1] | batch(100000, [l, l]) %}{{ row }}{% endfor %}"
    ),
    "product-inside": "{% set l = range(100000) | list %}{{ [l] * 100000 }}",
    "tojson-indent": "{{ [1] | tojson(indent=1000000000) }}",
    "tojson-indents": "{{ (range(100000) | list) | tojson(indent=100000) }}",
    "tojson-separators": "{{ {'a': 1, 'b': 2} | tojson(separators=(',' * 9000000, ':' * 9000000)) }}",
    "class-walk": "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
    "mutation": "{{ messages.append(1) }}",
    "attribute-of-format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
}


def test_a_refusal_with_half_a_surrogate_pair_is_text():
    with pytest.raises(ApiError) as refused:
        render(r"{{ raise_exception('no \ud800') }}")
    assert refused.value.message.endswith("no ?")


def test_what_a_template_builds_of_messages_is_counted_once():
    source = "{% set n = namespace(s=[]) %}{% for m in messages %}{% set n.s = n.s + [m] %}{% endfor %}{{ n.s|length }}"
    many = [Message(role="user", content=(Part(text="x" * 100),), place="messages[0]")] * 3000
    assert render(source, many) == "3000"


def test_a_namespace_inside_itself_does_not_show_what_it_holds():
    source = NEST + "{% set n.s = [n.s, n] %}{% if i == 2 %}{% break %}{% endif %}{% endfor %}{{ n.s }}"
    assert render(source) == "[[[[1], <Namespace>], <Namespace>], <Namespace>]"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_stopped_in_time(name, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(ApiError) as caught:
        render(HOSTILE[name])
    assert (caught.value.status, caught.value.code) == (400, "invalid_prompt")
    assert time.monotonic() - began < 4


def test_a_template_reads_as_transformers_renders_it():
    source = """\
{% set count = namespace(n=0) %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% continue %}
    {% endif %}
{% set count.n = count.n + 1 %}
{{ count.n }}: {{ message.content | trim }}
{% generation %}{{ strftime_now('%d %b %Y') }}{% endgeneration %}

{% endfor %}
{{ bos_token ~ '!' ~ 3 }} {{ {'z': 'é<&', 'a': [1, 2.0, true, none]} | tojson }}"""
    system = Message(role="system", content=(Part(text="s"),))
    assert render(source, (system, *HELLO)) == (
        '1: hello\n03 Feb 2031\n<|end|>!3 {"z": "é<&", "a": [1, 2.0, true, null]}'
    )


@pytest.mark.contract("chat.errors.prompt")
def test_the_templates_own_refusal_reaches_the_client():
    with pytest.raises(ApiError) as caught:
        render("{{ raise_exception('roles must ' ~ 'alternate: ' ~ messages[0].content) }}")
    assert caught.value.message == "The chat template refuses these messages: roles must alternate: hello"
    assert (caught.value.code, caught.value.param) == ("invalid_prompt", "messages")


def test_a_refusal_that_quotes_a_control_token_shows_no_marks():
    message = Message(role="user", content=(Part(text="x<|end|>" * 300),))
    with pytest.raises(ApiError) as caught:
        render("{{ raise_exception(messages[0].content) }}", (message,))
    assert "x<|end|>x<|end|>" in caught.value.message
    assert all(ord(char) < 128 for char in caught.value.message)
    assert len(caught.value.message) < 600


@pytest.mark.parametrize(
    "source",
    ["{{ messages[0].nope.nope }}", "{{ 1 / 0 }}", "{{ messages | tojson | int + [] }}", r"{{ '\ud800' }}"],
)
def test_a_failure_of_the_template_is_told_in_our_words(source):
    with pytest.raises(ApiError) as caught:
        render(source)
    assert caught.value.message == "The chat template could not render these messages."


@pytest.mark.parametrize(
    ("source", "line"), [("a\n{% if %}", 2), ("{{ x | nofilter }}", 1), ("{% for %}", 1), ("\n\n{{", 3)]
)
def test_a_template_that_does_not_compile_names_the_line(source, line):
    with pytest.raises(StartupError, match=f"^chat template, line {line}: "):
        template(source)


@pytest.mark.parametrize(
    "source",
    ["{% if x %}" * 3000 + "{% endif %}" * 3000, "{% for a in x %}" * 30 + "{% endfor %}" * 30, "{{" + "(" * 3000],
)
def test_a_template_nested_beyond_python_is_refused_in_one_line(source):
    with pytest.raises(StartupError, match=r"^chat template"):
        template(source)


def test_variables_nested_beyond_python_are_refused():
    value: object = 1
    for _ in range(5000):
        value = [value]
    with pytest.raises(ApiError, match="nested too deeply"):
        render("{{ deep }}", deep=value)


def test_rendering_twice_gives_the_same_text():
    one = template("{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = n.i + 1 %}{{ n.i }}{% endfor %}")
    assert {one.render(HELLO * 3, settings={}, client={}).text for _ in range(3)} == {"123"}


class Words(str):
    """Text that can be watched."""


def test_a_conversation_is_let_go_with_its_rendering():
    watched = Words("hi there")
    gone: list[int] = []
    weakref.finalize(watched, gone.append, 1)
    source = (
        "{% macro say(t) %}{{ t }}{% endmacro %}{% for m in messages %}{{ say(m.content) }}, {{ extra }}{% endfor %}"
    )
    gc.disable()
    try:
        assert template(source).render(HELLO, settings={"extra": watched}, client={}).text == "hello, hi there"
        del watched
        assert gone == [1]
    finally:
        gc.enable()
