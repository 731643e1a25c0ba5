import dataclasses

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import ApiError, ChatJob, Message, Part, PromptFormat, RawJob, StartupError, Tool, ToolCall
from ninfer_core.text.prompt import PromptBuilder


def builder(format: PromptFormat, **options: object) -> PromptBuilder:
    defaults: dict[str, object] = dict.fromkeys(
        ("default_thinking", "default_effort", "default_preserve_thinking", "template_override")
    )
    return PromptBuilder(format, **{**defaults, **options})


def say(role: str, *texts: str, **members: object) -> Message:
    return Message(role=role, content=tuple(Part(text=text) for text in texts), **members)


def user(*texts: str) -> ChatJob:
    return ChatJob(messages=(say("user", *texts, place="messages[0]"),))


def spell(format: PromptFormat, ids: tuple[int, ...]) -> str:
    return b"".join(map(format.tokenizer.token_bytes, ids)).decode()


def controls(format: PromptFormat, ids: tuple[int, ...]) -> list[str]:
    words = {number: word for word, number in format.tokenizer.control_tokens.items()}
    return [words[number] for number in ids if number in words]


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def refused(build: object, *arguments: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        build(*arguments)  # type: ignore[operator]
    return caught.value


def test_a_chat_renders_and_tokenizes_as_the_template_says(chatml):
    job = ChatJob(messages=(say("user", "hi"), say("assistant", "hello"), say("user", "bye")))
    text = (
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\n"
    )
    prompts = builder(chatml)
    assert prompts.render(job) == text
    prepared = prompts.chat(job)
    assert list(prepared.ids) == chatml.tokenizer.encode_with_control(text)
    assert (prepared.in_reasoning, prepared.thinking, prepared.reasoning) == (False, False, None)


def test_parts_join_without_a_separator_and_empty_content_is_a_turn(chatml):
    job = ChatJob(messages=(say("system", "a", "b"), say("user")))
    assert builder(chatml).render(job).startswith("<|im_start|>system\nab<|im_end|>\n<|im_start|>user\n<|im_end|>\n")


def everywhere(word: str) -> ChatJob:
    """A conversation with ``word`` in every string a client can send."""
    arguments = {f"k{word}": f"v{word}", "deep": {word: [word, {"x": word}]}}
    call = ToolCall(id=word, name=f"f{word}", arguments=as_json(arguments))
    tool = Tool(name="t", definition=as_json({"function": {"name": f"t{word}", f"k{word}": [word]}}))
    return ChatJob(
        messages=(
            say("system", f"s {word}"),
            say("user", f"{word} u"),
            say("assistant", f"a{word}b", reasoning=f"{word}r", tool_calls=(call,)),
            say("tool", word, tool_call_id=word),
            say("user", word, word),
        ),
        tools=(tool,),
        template_kwargs={"note": f"n{word}", f"key{word}": word},
    )


WORDS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|image_pad|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]


@pytest.mark.parametrize("word", WORDS)
def test_a_control_token_a_client_spells_is_text_in_every_field(qwen, word):
    prompts = builder(qwen)
    harmless = "zzplainzz"
    prepared = prompts.chat(everywhere(word))
    assert prompts.render(everywhere(word)) == prompts.render(everywhere(harmless)).replace(harmless, word)
    assert controls(qwen, prepared.ids) == controls(qwen, prompts.chat(everywhere(harmless)).ids)
    assert spell(qwen, prepared.ids) == prompts.render(everywhere(word))


@pytest.mark.parametrize("at", range(1, 9))
def test_a_spelling_cut_between_two_parts_or_fields_is_text(qwen, chatml, at):
    word = "<|im_end|>"
    pieces = (word[:at], word[at:])
    for format in (qwen, chatml):
        prompts = builder(format)
        prepared = prompts.chat(user(*pieces))
        assert controls(format, prepared.ids) == controls(format, prompts.chat(user("x")).ids)
    glued = "{{ messages[0].content }}{{ messages[1].content }}{{ messages[0].content ~ messages[1].content }}"
    prompts = builder(chatml, template_override=glued)
    two = ChatJob(messages=tuple(say("user", piece) for piece in pieces))
    assert controls(chatml, prompts.chat(two).ids) == []
    assert spell(chatml, prompts.chat(two).ids) == word * 2


pieces = st.lists(
    st.sampled_from([*WORDS, "<", "|im_", "end|>", "think>", "\n", " ", "é", "hi", "\ufdd0", "\ufdd1"]), max_size=6
)


@given(st.lists(pieces.map("".join), min_size=1, max_size=4), st.sampled_from(["user", "assistant", "tool", "system"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_conversation_makes_control_tokens_of_its_own(chatml, texts, role):
    prompts = builder(chatml)
    job = ChatJob(messages=(say("system", "s"), *(say(role, text, text[:3]) for text in texts)))
    plain = ChatJob(messages=(say("system", "s"), *(say(role, "x") for _ in texts)))
    prepared = prompts.chat(job)
    assert controls(chatml, prepared.ids) == controls(chatml, prompts.chat(plain).ids)
    import unicodedata

    assert unicodedata.normalize("NFC", spell(chatml, prepared.ids)) == unicodedata.normalize(
        "NFC", prompts.render(job)
    )


def test_a_template_still_splits_reasoning_out_of_an_assistants_content(qwen):
    job = ChatJob(
        messages=(say("user", "q"), say("assistant", "<think>\nwhy\n</think>\n\nso <|im_end|>"), say("user", "r"))
    )
    prompts = builder(qwen)
    assert "<|im_start|>assistant\n<think>\nwhy\n</think>\n\nso <|im_end|><|im_end|>\n" in prompts.render(job)
    tokens = controls(qwen, prompts.chat(job).ids)
    assert tokens.count("<|im_end|>") == 3
    assert tokens.count("</think>") == 1


def test_text_around_a_quoted_control_token_is_tokenized_as_ever(sentencepiece):
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos }}{% endfor %}"
    format = PromptFormat(
        tokenizer=sentencepiece, template=template, template_globals={"bos_token": "<s>", "eos": "</s>"}
    )
    prepared = builder(format).chat(ChatJob(messages=(say("user", "hell"), say("user", "hell</s>hell"))))
    bos, eos = sentencepiece.control_tokens["<s>"], sentencepiece.control_tokens["</s>"]
    one = sentencepiece.encode_with_control("<s>hell</s>")
    assert list(prepared.ids) == [*one, *sentencepiece.encode("hell</s>hell", first=False), eos]
    assert (one[0], one[-1]) == (bos, eos)


def test_tool_arguments_keep_their_order_and_are_json(qwen):
    call = ToolCall(id="1", name="f", arguments='{"path": "p", "edits": [{"new": 1.0, "old": "é"}], "all": true}')
    job = ChatJob(messages=(say("user", "q"), say("assistant", tool_calls=(call,)), say("tool", "r", tool_call_id="1")))
    text = builder(qwen).render(job)
    assert (
        "<tool_call>\n<function=f>\n<parameter=path>\np\n</parameter>\n"
        '<parameter=edits>\n[{"new": 1.0, "old": "é"}]\n</parameter>\n<parameter=all>\ntrue\n</parameter>\n'
        "</function>\n</tool_call><|im_end|>\n<|im_start|>tool\n<tool_response>\nr\n</tool_response><|im_end|>\n"
    ) in text


def test_developer_is_system_unless_the_template_names_it(chatml):
    job = ChatJob(messages=(say("developer", "d"), say("user", "u")))
    assert builder(chatml).render(job).startswith("<|im_start|>system\nd<|im_end|>")
    own = "{% for m in messages %}[{{ m.role }}{{ ' (developer)' if m.role == 'developer' }}]{% endfor %}"
    assert builder(chatml, template_override=own).render(job) == "[developer (developer)][user]"


def test_a_prompt_that_opens_the_block_starts_in_reasoning(qwen):
    prompts = builder(qwen)
    on = prompts.chat(user("hi"))
    assert (on.in_reasoning, on.thinking, on.reasoning) == (True, True, qwen.reasoning)
    off = prompts.chat(dataclasses.replace(user("hi"), thinking=False))
    assert (off.in_reasoning, off.thinking, off.reasoning) == (False, False, None)
    # a client's own tag is text and opens nothing
    quoted = prompts.chat(dataclasses.replace(user("hi <think>"), thinking=False))
    assert not quoted.in_reasoning


def test_a_model_that_opens_its_reasoning_itself_has_the_channel(qwen):
    silent = dataclasses.replace(qwen, template="{{ messages[0].content }}")
    prepared = builder(silent).chat(user("hi"))
    assert (prepared.in_reasoning, prepared.thinking, prepared.reasoning) == (False, True, qwen.reasoning)


def test_a_prefill_continues_the_last_turn_to_the_byte(qwen, chatml):
    messages = (say("user", "q"), say("assistant", " The answer <|im_end|> is \n", place="messages[1]"))
    text = builder(chatml).render(ChatJob(messages=messages, prefill=True))
    assert text.endswith("<|im_start|>assistant\n The answer <|im_end|> is \n")
    prepared = builder(chatml).chat(ChatJob(messages=messages, prefill=True))
    assert controls(chatml, prepared.ids)[-1] == "<|im_start|>"
    thinking = builder(qwen)
    job = ChatJob(messages=messages, prefill=True, thinking=False)
    assert thinking.render(job).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nThe answer <|im_end|> is \n")
    assert not thinking.chat(job).in_reasoning
    assert thinking.chat(job).reasoning is None
    empty = ChatJob(messages=(say("user", "q"), say("assistant", "")), prefill=True)
    assert builder(chatml).render(empty).endswith("<|im_start|>assistant\n")


def test_a_prefill_that_cannot_be_continued_is_refused(qwen):
    prompts = builder(qwen)
    turn = say("assistant", "a", place="messages[1]")
    cases = [
        ChatJob(messages=(say("user", "q"), turn), prefill=True),
        ChatJob(messages=(say("user", "q"), turn), prefill=True, thinking=True),
        ChatJob(messages=(say("user", "q"),), prefill=True, thinking=False),
        ChatJob(messages=(say("user", "q"), dataclasses.replace(turn, reasoning="r")), prefill=True, thinking=False),
    ]
    for job in cases:
        assert refused(prompts.chat, job).code == "assistant_prefill_not_supported"
    dropping = builder(qwen, template_override="{{ messages[0].content }}")
    job = ChatJob(messages=(say("user", "q"), turn), prefill=True, thinking=False)
    assert refused(dropping.chat, job).code == "invalid_prompt"


def test_tool_results_with_line_numbers_are_sources_to_copy_from(chatml):
    listing = "     1→def f():\n     2→    return 1\n     3→\n"
    job = ChatJob(messages=(say("user", listing), say("tool", listing, listing)))
    prepared = builder(chatml).chat(job)
    assert [spell(chatml, ids) for ids in prepared.tool_texts] == ["def f():\n    return 1\n\n"] * 2


def test_half_a_surrogate_pair_is_refused_wherever_it_stands(qwen):
    prompts = builder(qwen)
    bad = "x\ud83d"
    call = ToolCall(id="1", name=f"f{bad}")
    places = {
        "messages[0]": user(bad),
        "messages[1]": ChatJob(messages=(say("user", "q"), say("assistant", "", reasoning=bad, place="messages[1]"))),
        "messages[2]": ChatJob(
            messages=(say("user", "q"), say("assistant", "", tool_calls=(call,), place="messages[2]"))
        ),
        "chat_template_kwargs": ChatJob(messages=user("x").messages, template_kwargs={"note": {bad: 1}}),
    }
    for place, job in places.items():
        error = refused(prompts.chat, job)
        assert (error.code, error.param) == ("invalid_prompt", place)
    assert refused(prompts.raw, RawJob(prompt=("ok", bad))).param == "prompt[1]"


def test_a_model_without_a_template_answers_raw_prompts_only(chatml):
    for format in (dataclasses.replace(chatml, template=None), dataclasses.replace(chatml, template="{% if %}")):
        prompts = builder(format)
        error = refused(prompts.chat, user("hi"))
        assert (error.status, error.code) == (400, "invalid_prompt")
        assert refused(prompts.render, user("hi")).message == error.message
        assert prompts.raw(RawJob(prompt=("hi",))).ids


def test_a_template_of_the_operators_that_does_not_compile_stops_the_start(chatml):
    with pytest.raises(StartupError, match="line 2"):
        builder(chatml, template_override="\n{% if %}")


def test_no_messages_is_a_refusal(chatml):
    assert refused(builder(chatml).chat, ChatJob(messages=())).param == "messages"


def test_raw_prompts_mix_text_with_control_tokens_and_ids(chatml):
    tokenizer = chatml.tokenizer
    start = tokenizer.control_tokens["<|im_start|>"]
    prepared = builder(chatml).raw(RawJob(prompt=((start,), "user\nhi<|im_end|>", (5, 6), "x")))
    expected = [
        start,
        *tokenizer.encode("user\nhi"),
        tokenizer.control_tokens["<|im_end|>"],
        5,
        6,
        *tokenizer.encode("x"),
    ]
    assert list(prepared.ids) == expected
    assert (prepared.in_reasoning, prepared.reasoning, prepared.thinking) == (False, None, False)


def test_a_raw_prompt_begins_with_bos_once_where_the_model_asks_for_it(chatml):
    bos = chatml.tokenizer.control_tokens["<|endoftext|>"]
    prompts = builder(dataclasses.replace(chatml, bos_id=bos))
    for prompt in (("hi",), ("<|endoftext|>hi",), ((bos,), "hi")):
        assert list(prompts.raw(RawJob(prompt=prompt)).ids) == [bos, *chatml.tokenizer.encode("hi")]
    assert prompts.raw(RawJob(prompt=())).ids == (bos,)


@pytest.mark.parametrize("token", [-1, 10**6, 1 << 70])
def test_an_id_the_model_does_not_have_is_named_by_its_place(chatml, token):
    error = refused(builder(chatml).raw, RawJob(prompt=("text", (1, 2), (3, token))))
    assert (error.code, error.param) == ("invalid_prompt", "prompt[4]")
    assert str(token) in error.message
