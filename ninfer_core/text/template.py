"""Chat templates: rendered in the sandbox, with the client's strings kept apart from the template's own text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import structlog

from ninfer_core.api import ApiError, Message, StartupError

from .bounds import TemplateTooLarge, check_size
from .provenance import Marks, Spellings, free_characters
from .sandbox import ChatEnvironment, Rendering, TemplateRaised, rendering

log = structlog.get_logger(__name__)

MAX_REASON = 500  # characters of a template's own refusal that are passed on


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A rendered prompt. ``marked`` still holds the marks; ``text`` is what the model reads."""

    marked: str
    marks: Marks

    @property
    def text(self) -> str:
        return self.marks.plain(self.marked)


class ChatTemplate:
    """One compiled template. Immutable; any thread may render.

    ``spellings`` are the control tokens and reasoning tags: those a client wrote are text, those the template wrote are
    control tokens (``provenance.py``). ``variables`` (``bos_token``, ...) and message roles count as the template's.
    Every string of a message (content, reasoning, tool names, ids, arguments and their keys) and of the client's own
    variables counts as the client's. The bounds are those of ``sandbox.py``. Raises StartupError, with the line, for a
    source that does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        spellings: Spellings,
        variables: Mapping[str, Any],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._source, self._spellings, self._variables = source, spellings, variables
        self._own_text = [source, *(value for value in variables.values() if isinstance(value, str))]
        self.handles_developer = "developer" in source
        try:
            self._template = ChatEnvironment(now).compile_chat(source)
        except jinja2.TemplateSyntaxError as error:
            raise StartupError(f"chat template, line {error.lineno}: {error.message}") from None
        except (RecursionError, SyntaxError):
            # the Python code it compiles to has limits of its own
            raise StartupError("chat template: nested too deeply") from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        settings: Mapping[str, Any],
        client: Mapping[str, Any],
        open_end: bool = False,
    ) -> Rendered:
        """The prompt up to where the model goes on: a new assistant turn, or with ``open_end`` the end of the last
        message's content. ``settings`` are variables of the server's own, ``client`` those of the client.

        ApiError ``invalid_prompt`` when the template refuses, fails or is stopped.
        """
        try:
            marks, end = self._marks(messages, client)
            turns = [self._turn(message, marks.text) for message in messages]
            if open_end:
                turns[-1]["content"] += end
            variables = {
                "tools": None,
                "documents": None,
                **{name: _wrapped(value, marks.text) for name, value in client.items()},
                **self._variables,
                **settings,
                "messages": turns,
                "add_generation_prompt": not open_end,
                **({"continue_final_message": True} if open_end else {}),
            }
            marked = self._run(variables, Rendering(marks=marks))
        except RecursionError:
            raise ApiError("invalid_prompt", "The messages are nested too deeply.", param="messages") from None
        if open_end:
            marked, found, _ = marked.rpartition(end)
            if not found:
                text_ = "The chat template does not render the last message's content, so it cannot be continued."
                raise ApiError("invalid_prompt", text_, param=messages[-1].place or "messages")
        return Rendered(marked=marked, marks=marks)

    def _run(self, variables: Mapping[str, Any], limits: Rendering) -> str:
        pieces: list[str] = []
        size = 0
        try:
            with rendering(limits):
                for piece in self._template.generate(variables):
                    limits.look()
                    size += str.__len__(piece)
                    check_size(size)
                    pieces.append(piece)
        except TemplateRaised as refusal:
            reason = limits.marks.plain(str(refusal))
            text = f"The chat template refuses these messages: {reason[:MAX_REASON]}"
            raise ApiError("invalid_prompt", text, param="messages") from None
        except TemplateTooLarge as stopped:
            raise ApiError("invalid_prompt", f"The chat template was stopped: {stopped}.", param="messages") from None
        except (ApiError, RecursionError):
            raise
        except Exception as error:
            # whatever a template can provoke; what went wrong is for the operator
            log.warning("chat_template_failed", error=type(error).__name__, template_line=_line_of(error))
            text = "The chat template could not render these messages."
            raise ApiError("invalid_prompt", text, param="messages") from None
        return "".join(pieces)

    def _marks(self, messages: Sequence[Message], client: Mapping[str, Any]) -> tuple[Marks, str]:
        """The marks, and a character that ends the last message. Refuses strings with lone surrogates."""
        strings: list[str] = []
        for message in messages:
            for text in _strings(_contents(message)):
                strings.append(_checked(text, message.place or "messages"))
        strings += [_checked(text, "chat_template_kwargs") for text in _strings(client)]
        mark, end = free_characters([*strings, *self._own_text], 2)
        return Marks(self._spellings, mark), end

    def _turn(self, message: Message, text: Callable[[str], str]) -> dict[str, Any]:
        """The message as templates know it; members that are not there are left out."""
        role = message.role
        if role == "developer" and not self.handles_developer:
            role = "system"
        turn: dict[str, Any] = {"role": role, "content": text(message.text)}
        if message.reasoning is not None:
            turn["reasoning_content"] = turn["reasoning"] = text(message.reasoning)
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": text(call.id),
                    "type": "function",
                    "function": {"name": text(call.name), "arguments": _wrapped(call.arguments, text)},
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            turn["tool_call_id"] = text(message.tool_call_id)
        return turn


def _contents(message: Message) -> Iterator[Any]:
    yield message.text
    yield message.reasoning
    yield message.tool_call_id
    for call in message.tool_calls:
        yield call.id
        yield call.name
        yield call.arguments


def _strings(value: Any) -> Iterator[str]:
    """Every string in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, Sequence | Iterator):
        for item in value:
            yield from _strings(item)


def _wrapped(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {_wrapped(key, text): _wrapped(item, text) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_wrapped(item, text) for item in value]
    return value


def _checked(text: str, place: str) -> str:
    """``text``, if it is Unicode text."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        refusal = f"'{place}' holds half a surrogate pair, which is not text."
        raise ApiError("invalid_prompt", refusal, param=place) from None
    return text


def _line_of(error: BaseException) -> int | None:
    """The innermost line of the template in a traceback jinja2 has rewritten."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "chat_template":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
