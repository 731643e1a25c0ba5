"""``/completion`` through the real engine: what a client of llama.cpp's own route gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

contract = pytest.mark.contract
PATHS = ("/completion", "/completions")
CONTEXT = 256
SCRIPT: dict[str, Any] = {
    "replies": [
        {"match": "think", "text": "<think>so</think><tool_call>x</tool_call><|image_pad|>!", "draft": [2, 0]},
        {"match": "lines", "text": "one\ntwo STOP three", "draft": [3]},
        {"match": "forever", "text": "x", "finish": "never"},
        {"match": "chance", "text": "a", "logits": {"a": 20, "b": 20, "c": 20, "d": 20}, "finish": "never"},
    ],
    "default": {"text": "abc"},
}
MEMBERS = {
    "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated", "tokens_cached",
    "generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "timings",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(scripted) -> Iterator[Any]:
    with scripted(SCRIPT, "--max-context", str(CONTEXT), "--greedy") as running:
        yield running


def complete(server: Any, prompt: Any = "hi", path: str = "/completion", **more: Any) -> Any:
    response = server.post(path, {"prompt": prompt, **more})
    assert response.status_code == 200, response.text
    return response.json() if not more.get("stream") else events(response.text)


def events(text: str) -> list[dict[str, Any]]:
    assert "[DONE]" not in text
    parts = [part for part in text.removesuffix("\n\n").split("\n\n") if not part.startswith(":")]
    return [msgspec.json.decode(part.removeprefix("data: ")) for part in parts]


def steady(whole: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the clock."""
    return {key: value for key, value in whole.items() if key != "timings"}


@contract("completion.paths", "completion.answer", "completion.text", "completion.counts", "completion.model")
def test_the_answer_is_llama_cpps_object(server):
    whole = complete(server, return_tokens=True, model="scripted")
    assert set(whole) == MEMBERS
    assert (whole["content"], whole["prompt"], whole["stop"]) == ("abc", "hi", True)
    assert (whole["tokens_predicted"], whole["tokens_evaluated"], whole["tokens_cached"]) == (4, 2, 0)
    assert (whole["has_new_line"], whole["truncated"], whole["id_slot"]) == (False, False, 0)
    assert whole["model"] == server.engine.info.id == "scripted"
    assert whole["timings"]["prompt_n"] + whole["timings"]["cache_n"] == whole["tokens_evaluated"]
    assert whole["timings"]["predicted_n"] == whole["tokens_predicted"]
    other = complete(server, path="/completions", return_tokens=True, model="scripted")
    same = {"generation_settings"}
    assert {k: v for k, v in steady(other).items() if k not in same} == {
        k: v for k, v in steady(whole).items() if k not in same
    }


@contract("completion.tokens", "completion.counts")
def test_the_ids_spell_the_answer_and_its_stop_token(server):
    whole = complete(server, return_tokens=True)
    assert server.post("/detokenize", {"tokens": whole["tokens"]}).json()["content"] == "abc<|im_end|>"
    assert len(whole["tokens"]) == whole["tokens_predicted"]
    assert complete(server)["tokens"] == []


@contract("completion.stop-type", "completion.text")
@pytest.mark.parametrize(
    ("asks", "content", "stop_type", "word"),
    [
        ({"prompt": "lines"}, "one\ntwo STOP three", "eos", ""),
        ({"prompt": "lines", "stop": ["nope", "STOP"]}, "one\ntwo ", "word", "STOP"),
        ({"prompt": "lines", "stop": "\n"}, "one", "word", "\n"),
        ({"prompt": "lines", "n_predict": 5}, "one\nt", "limit", ""),
        ({"prompt": "forever", "n_predict": -1}, "x" * (CONTEXT - 6), "limit", ""),
    ],
)
def test_how_it_ended(server, asks, content, stop_type, word):
    whole = complete(server, **asks)
    assert (whole["content"], whole["stop_type"], whole["stopping_word"]) == (content, stop_type, word)
    assert whole["has_new_line"] == ("\n" in content)


@contract("completion.stops")
def test_thirty_two_stop_strings(server):
    stops = [f"never{n}" for n in range(31)]
    assert complete(server, "lines", stop=[*stops, "two"])["stopping_word"] == "two"
    refused = server.post("/completion", {"prompt": "lines", "stop": [*stops, "two", "x"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stop")


@contract("completion.plain")
@pytest.mark.parametrize("stream", [False, True])
def test_tags_are_text_and_special_tokens_are_not(server, stream):
    made = complete(server, "think", stream=stream)
    text = "".join(event["content"] for event in made) if stream else made["content"]
    assert text == "<think>so</think><tool_call>x</tool_call>!"


@contract("completion.prompt", "completion.prompt.several", "completion.prompt.control")
@pytest.mark.parametrize("thread", ["llama.cpp-24382"])
def test_a_prompt_is_text_ids_or_both(server, thread):
    end = server.post("/tokenize", {"content": "<|im_end|>"}).json()["tokens"]
    assert len(end) == 1
    for prompt in ("h<|im_end|>i", ["h", *end, 105], [104, *end, 105], [["h", *end, "i"]], ["h<|im_end|>i"]):
        whole = complete(server, prompt)
        assert (whole["prompt"], whole["tokens_evaluated"]) == ("h<|im_end|>i", 3), prompt
    refused = server.post("/completion", {"prompt": ["a", "b"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "multiple_prompts_not_supported")


@contract("completion.limit")
@pytest.mark.parametrize("drafts", ["llama.cpp-4047", "llama.cpp-9933"])
def test_limits(server, drafts):
    prompt = "lines" if drafts == "llama.cpp-9933" else "hi"
    for asks, predicted in (
        ({"n_predict": 0}, 0),
        ({"n_predict": 1}, 1),
        ({"n_predict": 2, "max_tokens": 1}, 2),
        ({"max_tokens": 3}, 3),
        ({"n_predict": 0, "max_tokens": 3}, 0),
    ):
        assert complete(server, prompt, **asks)["tokens_predicted"] == predicted
    whole = complete(server, prompt)
    for asks in ({"n_predict": -1}, {"n_predict": -2}, {"max_tokens": -9}, {"n_predict": None}):
        assert complete(server, prompt, **asks)["content"] == whole["content"]


@contract("completion.limit", "completion.settings")
def test_a_silent_request_has_the_default_limit_and_a_negative_one_none(scripted):
    with scripted(SCRIPT, "--max-context", str(CONTEXT), "--default-max-tokens", "5") as server:
        assert complete(server, "forever")["tokens_predicted"] == 5
        assert complete(server, "forever")["generation_settings"]["n_predict"] == 5
        assert complete(server, "forever", n_predict=-1)["tokens_predicted"] > 200
        assert complete(server, "forever", n_predict=9)["tokens_predicted"] == 9


@contract("completion.settings", "completion.sampling", "completion.preset")
def test_the_settings_are_what_the_request_resolved_to(scripted):
    with scripted(SCRIPT, "--top-p", "0.5") as server:
        preset = server.engine.format.preset
        silent = complete(server)["generation_settings"]
        assert (silent["temperature"], silent["top_p"]) == (preset.temperature, 0.5)
        asked = {"temperature": -1, "top_k": 0, "top_p": 0.25, "min_p": 0.5, "seed": 7, "stop": ["x", ""]}
        made = complete(server, presence_penalty=1, frequency_penalty=-1, n_predict=3, ignore_eos=True, **asked)
        settings = made["generation_settings"]
        told = {"n_predict": 3, "max_tokens": 3, "seed": 7, "temperature": 0, "top_k": 20, "top_p": 0.25, "min_p": 0.5}
        told |= {"presence_penalty": 1, "frequency_penalty": -1, "stop": ["x"], "ignore_eos": True, "stream": False}
        assert settings == {**told, "timings_per_token": False}
        top = complete(server, top_k=40)["generation_settings"]["top_k"]
        assert top == 20


@contract("completion.sampling")
def test_a_seed_repeats_an_answer_and_a_negative_one_is_random(scripted):
    with scripted(SCRIPT, "--max-context", str(CONTEXT)) as server:
        asks = {"n_predict": 40, "temperature": 1, "presence_penalty": 0, "top_p": 1}
        first, second = (complete(server, "chance", seed=3, **asks)["content"] for _ in range(2))
        assert first == second
        drawn = [complete(server, "chance", seed=seed, **asks) for seed in (-1, -5, -1)]
        assert len({one["generation_settings"]["seed"] for one in drawn}) == 3
        assert all(one["generation_settings"]["seed"] >= 0 for one in drawn)
        greedy = {complete(server, "chance", **{**asks, "temperature": -0.5})["content"] for _ in range(2)}
        assert len(greedy) == 1


@contract("completion.sampling", "raw.sampling", "options.seed")
def test_a_negative_seed_is_random_where_the_server_has_a_seed_too(scripted):
    with scripted(SCRIPT, "--max-context", str(CONTEXT), "--seed", "5") as server:
        seeds = [complete(server, **asks)["generation_settings"]["seed"] for asks in ({}, {"seed": -1}, {"seed": -1})]
        assert seeds[0] == 5
        assert len(set(seeds)) == 3
        asks = {"n_predict": 40, "temperature": 1, "presence_penalty": 0, "top_p": 1}
        assert len({complete(server, "chance", **asks)["content"] for _ in range(2)}) == 1
        asks = {"prompt": "chance", "max_tokens": 40, "temperature": 1, "presence_penalty": 0, "top_p": 1, "seed": -1}
        drawn = [server.post("/v1/completions", asks).json()["choices"][0]["text"] for _ in range(3)]
        assert len(set(drawn)) > 1


@contract("completion.flags")
def test_ignore_eos_runs_to_the_limit(server):
    assert complete(server, n_predict=9)["stop_type"] == "eos"
    assert complete(server, n_predict=9, ignore_eos=True)["tokens_predicted"] == 9
    kept = complete(server, cache_prompt=True)
    assert steady(complete(server, cache_prompt=False))["content"] == kept["content"]
    assert complete(server, response_format={"type": "text"})["content"] == "abc"


@contract("completion.json-schema")
@pytest.mark.parametrize(
    "asks", [{"json_schema": {}}, {"json_schema": {"type": "object"}}, {"response_format": {"type": "json_object"}}]
)
def test_constrained_output_is_refused(server, asks):
    refused = server.post("/completion", {"prompt": "hi", **asks})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "response_format_not_supported")


@contract("completion.stream", "completion.stream.tokens", "completion.stream.end", "completion.paths")
@pytest.mark.parametrize("path", PATHS)
def test_a_stream_has_the_next_text_and_the_running_count(server, path):
    whole = complete(server, "lines", path, return_tokens=True)
    *chunks, last = complete(server, "lines", path, stream=True, return_tokens=True)
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    counts = [chunk["tokens_predicted"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] <= last["tokens_predicted"]
    for chunk in chunks:
        assert (chunk["stop"], chunk["tokens"], chunk["tokens_evaluated"]) == (False, [], 5)
        assert "timings" not in chunk
    assert set(last) == MEMBERS
    assert (last["content"], last["stop"], last["tokens"]) == ("", True, whole["tokens"])
    for name in MEMBERS - {"content", "timings", "generation_settings"}:
        assert last[name] == whole[name], name
    assert last["generation_settings"]["stream"] is True


@contract("completion.flags", "completion.progress")
def test_timings_and_progress_come_where_they_were_asked_for(server):
    told = complete(server, "lines" * 10, stream=True, return_progress=True, timings_per_token=True)
    progress = [event for event in told if "prompt_progress" in event]
    assert [event["prompt_progress"]["processed"] for event in progress] == [0, 50]
    assert all(event["content"] == "" and event["timings"]["predicted_n"] == 0 for event in progress)
    assert told[: len(progress)] == progress, "progress precedes the first text"
    texts = told[len(progress) : -1]
    assert all(event["timings"]["predicted_n"] == event["tokens_predicted"] for event in texts)
    silent = complete(server, "lines", stream=True, return_progress=True)
    assert not any("timings" in event for event in silent[:-1])
    assert "prompt_progress" not in str(complete(server, "lines", return_progress=True))


@contract("completion.fields")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thread", ["llama.cpp-9933"])
def test_only_the_named_fields_come_back(server, stream, thread):
    asked = {"response_fields": ["content", "generation_settings/n_predict", "timings/predicted_n", "none/such"]}
    made = complete(server, n_predict=2, stream=stream, **asked)
    last = made[-1] if stream else made
    content = "" if stream else "ab"
    assert last == {"content": content, "generation_settings/n_predict": 2, "timings/predicted_n": 2}
    assert set(complete(server, response_fields=[])) == MEMBERS


@contract("completion.overflow")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("size", "thread"), [(CONTEXT + 1, "ik_llama-2420"), (CONTEXT * 9, "kon-91")])
def test_a_prompt_beyond_the_context_is_refused_with_both_counts(server, size, thread, stream):
    refused = server.post("/completion", {"prompt": "x" * size, "stream": stream})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["n_ctx"]) == (400, "context_length_exceeded", CONTEXT)
    assert CONTEXT < error["n_prompt_tokens"] <= size


@contract("completion.overflow")
@pytest.mark.parametrize(
    ("size", "predicted"),
    [pytest.param(CONTEXT - 1, 2, id="pi-5930"), pytest.param(CONTEXT, 1, id="claude-code-476")],
)
def test_a_large_limit_is_cut_to_the_context(server, size, predicted):
    whole = complete(server, "forever" + "x" * (size - 7), n_predict=128_000)
    assert (whole["tokens_predicted"], whole["stop_type"], whole["truncated"]) == (predicted, "limit", False)
    assert whole["generation_settings"]["n_predict"] == predicted
