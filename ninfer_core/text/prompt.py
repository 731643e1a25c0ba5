"""Jobs to prompts: template, provenance-aware tokenization, raw prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import structlog

from ninfer_core.api import ApiError, ChatJob, Message, Part, PromptFormat, RawJob, ReasoningSyntax, StartupError

from .length import LengthGuard
from .modes import EFFORTS, Defaults, Mode, nearest_effort, resolve
from .prompt_json import PromptJson
from .provenance import Spellings
from .segments import SegmentedTokenizer
from .shown import Shown, shown_by
from .template import ChatTemplate, Rendered
from .tokenizer import HFTokenizer
from .tool_reader import ToolReading
from .tool_sources import derived_sources
from .tool_types import ToolTypes

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedPrompt:
    ids: tuple[int, ...]
    in_reasoning: bool  # the prompt ends inside a reasoning block
    thinking: bool  # the turn may reason; chooses the preset
    reasoning: ReasoningSyntax | None  # None: the turn has no reasoning channel
    tool_texts: tuple[tuple[int, ...], ...]  # derived tool sources; together no longer than the prompt's own text
    tools: ToolReading | None = None  # how calls in the answer are read; None: they are text


class PromptBuilder:
    """Builds the prompts of one model. Immutable; any thread may use it; every refusal is an ApiError.

    Control tokens come from the template, or from raw prompts; a spelling in a client's string is text.
    ``template_override`` replaces the model's own template (StartupError when it does not compile). A template of the
    model's own that does not compile leaves raw prompts usable. With ``max_context``, a prompt far beyond it raises
    ContextLengthExceeded before it is encoded whole; one somewhat beyond is built, for its count.
    """

    def __init__(
        self,
        format: PromptFormat,
        *,
        default_thinking: bool | None,
        default_effort: str | None,
        default_preserve_thinking: bool | None,
        template_override: str | None,
        max_context: int | None = None,
    ) -> None:
        self._format = format
        self._defaults = Defaults(
            thinking=default_thinking, effort=default_effort, preserve_thinking=default_preserve_thinking
        )
        self._defaults.check()
        tokenizer = format.tokenizer
        self._segments = SegmentedTokenizer(tokenizer) if isinstance(tokenizer, HFTokenizer) else None
        self._spellings = Spellings([*format.tokenizer.control_tokens, *_tags(format.reasoning)])
        self._json = PromptJson()  # schemas; definitions and arguments are the template's
        self._template, self._broken = self._compile(template_override)
        self._efforts = self._accepted_efforts(None if template_override is not None else format.efforts)
        self._length = None if max_context is None else LengthGuard(format.tokenizer, max_context)
        self._shown = Shown() if self._template is None else shown_by(self._template, tokenizer)

    def chat(self, job: ChatJob) -> PreparedPrompt:
        """The prompt of a conversation; ``invalid_prompt`` when the template refuses it."""
        self._check_length(job)
        mode, rendered, tools = self._render(job)
        if job.tools and not self._shown.tools:
            # the request is an ordinary chat, and its client was told
            log.warning("tools_not_shown", tools=len(job.tools), request_id=job.request_id)
        if self._length is not None:
            self._length.check(rendered.text)
        in_reasoning = not job.prefill and self._ends_with_tag(rendered.marked, "open")
        # a block that the prompt has closed, or a turn under way, leaves nothing to read as reasoning
        may_think = mode.thinking and not self._ends_with_tag(rendered.marked, "close")
        reasons = in_reasoning or (may_think and not job.prefill)
        return PreparedPrompt(
            ids=tuple(self._encode(rendered)),
            in_reasoning=in_reasoning,
            thinking=may_think or in_reasoning,
            reasoning=self._format.reasoning if reasons else None,
            tool_texts=tuple(self._tool_texts(job)),
            tools=tools,
        )

    def render(self, job: ChatJob) -> str:
        """The same prompt as text."""
        return self._render(job)[1].text

    @property
    def shows_tools(self) -> bool:
        """Whether the template has a place for tools. Without one a request with tools is an ordinary chat."""
        return self._shown.tools

    def first_token(self, text: str) -> int:
        """The token an answer begins with that begins with ``text``."""
        return self._encode_text(text, first=False)[0]

    def raw(self, job: RawJob) -> PreparedPrompt:
        """A raw prompt: a control token's spelling is that token; ``invalid_prompt`` for an unknown id."""
        ids: list[int] = []
        at = 0
        alone = len(job.prompt) == 1
        for piece in job.prompt:
            if isinstance(piece, str):
                place = "prompt" if alone else f"prompt[{at}]"
                _check_text(piece, place)
                if self._length is not None:
                    self._length.check(piece)
                ids += self._encode_control(piece, first=not ids)
                at += 1
            else:
                self._check_ids(piece, at)
                ids += piece
                at += len(piece)
        bos = self._format.bos_id
        if bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return PreparedPrompt(ids=tuple(ids), in_reasoning=False, thinking=False, reasoning=None, tool_texts=())

    def _compile(self, override: str | None) -> tuple[ChatTemplate | None, str]:
        source = self._format.template if override is None else override
        if source is None:
            return None, "This model has no chat template; send a raw prompt instead."
        try:
            template = ChatTemplate(source, spellings=self._spellings, variables=self._format.template_globals)
        except StartupError as error:
            if override is not None:
                raise
            log.warning("chat_template_unusable", reason=str(error))
            return None, "This model's chat template cannot be used; send a raw prompt instead."
        return template, ""

    def _accepted_efforts(self, named: tuple[str, ...] | None) -> frozenset[str]:
        """The efforts the template renders a one-message chat with, of those the model names; all, when it cannot
        render that chat at all."""
        efforts = frozenset(named or EFFORTS)
        if self._template is None:
            return efforts
        variable = self._format.thinking_variable or "enable_thinking"

        def renders(**settings: str) -> bool:
            assert self._template is not None
            probe = (Message(role="user", content=(Part(text="Hi"),)),)
            try:
                self._template.render(probe, settings={variable: True, **settings}, client={})
            except ApiError:
                return False
            return True

        if not renders():
            return efforts
        return frozenset(effort for effort in efforts if renders(reasoning_effort=effort))

    def _render(self, job: ChatJob) -> tuple[Mode, Rendered, ToolReading | None]:
        if self._template is None:
            raise ApiError("invalid_prompt", self._broken, param="messages")
        if not job.messages:
            raise ApiError("invalid_prompt", "'messages' must hold at least one message.", param="messages")
        tools = self._reading(job)
        mode = resolve(job, self._format, self._defaults, lambda effort: nearest_effort(effort, self._efforts))
        if job.prefill:
            self._check_prefill(job, mode)
        rendered = self._template.render(
            job.messages, settings=mode.settings, client=mode.client, tools=job.tools, open_end=job.prefill
        )
        if job.forced_tool is not None:
            rendered = self._force(job.forced_tool, rendered)
        return mode, rendered, tools

    def _check_length(self, job: ChatJob) -> None:
        """ContextLengthExceeded for what is sure not to fit, before it is rendered."""
        if self._length is None:
            return
        if self._shown.users:
            self._length.check_turns(job.messages, self._shown.turn_tokens)
        if self._shown.tools:
            self._length.check_tools(job.tools, whole=self._shown.definitions)

    def _reading(self, job: ChatJob) -> ToolReading | None:
        """How the answer's calls are read; ApiError when a forced call cannot be had."""
        syntax = self._format.tools
        types = ToolTypes(job.tools, self._json)
        if job.forced_tool is not None:
            if syntax is None:
                raise _no_choice("this model has no form of its own for tool calls")
            if job.forced_tool not in types.names:
                text = f"'tool_choice' names {job.forced_tool[:80]!r}, which is not among the tools."
                raise ApiError("invalid_value", text, param="tool_choice")
            if job.prefill:
                raise _no_choice("it needs an answer of its own, and 'messages' ends with one to continue")
        if syntax is None or not types.names:
            return None
        return ToolReading(syntax=syntax, types=types, forced=job.forced_tool, single=job.single_call)

    def _force(self, name: str, rendered: Rendered) -> Rendered:
        """The prompt with the opening of a call behind it: the syntax is ours, the name the client's."""
        assert self._format.tools is not None
        if self._ends_with_tag(rendered.marked, "open"):
            raise _no_choice("this model's chat template opens a thinking block whatever it is told")
        opener = self._format.tools.opener(rendered.marks.text(name))
        # str's own sum: as template output has it, marks and all
        return Rendered(marked=str.__add__(rendered.marked, opener), marks=rendered.marks)

    def _check_prefill(self, job: ChatJob, mode: Mode) -> None:
        last = job.messages[-1]
        place = last.place or f"messages[{len(job.messages) - 1}]"
        text = ""
        if last.role != "assistant" or last.tool_calls or last.reasoning:
            text = f"'{place}' cannot be continued: a turn to continue is an assistant message of text only."
        elif self._format.reasoning is not None and mode.explicit is not False:
            text = f"'{place}' can be continued only without thinking; send 'enable_thinking' false with it."
        if text:
            raise ApiError("assistant_prefill_not_supported", text, param=place)

    def _ends_with_tag(self, marked: str, tag: Literal["open", "close"]) -> bool:
        """Whether the prompt ends with one of the template's own reasoning tags."""
        syntax = self._format.reasoning
        return syntax is not None and marked.rstrip().endswith(syntax.open if tag == "open" else syntax.close)

    def _encode(self, rendered: Rendered) -> list[int]:
        """The template's spellings as control tokens. Text with a client's spelling in it is encoded apart, as plain
        text; everything else in one go, as the model was trained on."""
        ids: list[int] = []
        first, run = True, ""
        for piece, is_control in self._spellings.split(rendered.marked):
            text = rendered.marks.plain(piece)
            if is_control or not self._spellings.occur_in(text):
                run += text
                continue
            ids += self._encode_control(run, first=first)
            ids += self._encode_text(text, first=first and not run)
            first, run = False, ""
        ids += self._encode_control(run, first=first)
        return ids

    def _encode_control(self, text: str, *, first: bool) -> list[int]:
        if self._segments is not None:
            return self._segments.encode_with_control(text, first=first)
        return self._format.tokenizer.encode_with_control(text)

    def _encode_text(self, text: str, *, first: bool) -> list[int]:
        if self._segments is not None:
            return self._segments.encode(text, first=first)
        return self._format.tokenizer.encode(text)

    def _tool_texts(self, job: ChatJob) -> Iterator[tuple[int, ...]]:
        for message in job.messages:
            for part in message.content if message.role == "tool" else ():
                for source in derived_sources(part.text):
                    yield tuple(self._encode_text(source, first=False))

    def _check_ids(self, ids: tuple[int, ...], at: int) -> None:
        size = self._format.tokenizer.size
        for offset, token in enumerate(ids):
            if not 0 <= token < size:
                place = f"prompt[{at + offset}]"
                text = f"'{place}' is {token}; this model's token ids go from 0 to {size - 1}."
                raise ApiError("invalid_prompt", text, param=place)


def _no_choice(reason: str) -> ApiError:
    return ApiError("tool_choice_not_supported", f"A call cannot be forced: {reason}.", param="tool_choice")


def _tags(reasoning: ReasoningSyntax | None) -> tuple[str, ...]:
    return () if reasoning is None else (reasoning.open, reasoning.close)


def _check_text(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        text = f"'{place}' holds half a surrogate pair, which is not text."
        raise ApiError("invalid_prompt", text, param=place) from None
