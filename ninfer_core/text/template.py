"""Chat templates: rendered in the sandbox, with the client's strings kept apart from the template's own text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import jinja2
import structlog

from ninfer_core.api import ApiError, Message, StartupError, Tool

from .bounds import TemplateTooLarge, check_size
from .prompt_json import JsonObject, PromptJson, strings, wrapped
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
    Every string of a message (content, reasoning, tool names, ids, arguments and their keys), of a tool's definition
    and of the client's own variables counts as the client's. The bounds are those of ``sandbox.py``. Raises
    StartupError, with the line, for a source that does not compile.
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
        self._json = PromptJson()
        try:
            mark = free_characters(self._own_text, 1)[0]
        except ApiError:
            raise StartupError("chat template: it holds every private-use character of Unicode") from None
        self._usual = Marks(spellings, mark)  # one object: what it marked is remembered
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
        tools: Sequence[Tool] = (),
        open_end: bool = False,
    ) -> Rendered:
        """The prompt up to where the model goes on: a new assistant turn, or with ``open_end`` the end of the last
        message's content. ``settings`` are variables of the server's own, ``client`` those of the client.

        ApiError ``invalid_prompt`` when the template refuses, fails or is stopped, ``invalid_value`` for arguments or a
        definition that is not JSON. A template that knows the role ``developer`` and refuses it here gets it as
        ``system``.
        """
        render = partial(self._render, messages, settings=settings, client=client, tools=tools, open_end=open_end)
        developer = self.handles_developer and any(message.role == "developer" for message in messages)
        try:
            return render(developer=developer)
        except TemplateRaised as refusal:
            if not developer:
                raise _refused(refusal) from None
        try:
            return render(developer=False)
        except TemplateRaised as refusal:
            raise _refused(refusal) from None

    def _render(
        self,
        messages: Sequence[Message],
        *,
        settings: Mapping[str, Any],
        client: Mapping[str, Any],
        tools: Sequence[Tool],
        open_end: bool,
        developer: bool,
    ) -> Rendered:
        try:
            arguments = [self._arguments(message) for message in messages]
            definitions = [self._json.object(tool.definition, tool.place or "tools") for tool in tools]
            marks, end = self._marks(messages, arguments, definitions, client)
            turns = [
                self._turn(message, given, marks, developer) for message, given in zip(messages, arguments, strict=True)
            ]
            if open_end:
                turns[-1]["content"] += end
            variables = {
                "tools": [definition.marked(marks) for definition in definitions] or None,
                "documents": None,
                **{name: wrapped(value, marks.text) for name, value in client.items()},
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
                for piece in self._pieces(variables):
                    limits.look()
                    size += str.__len__(piece)
                    check_size(size)
                    pieces.append(piece)
                text = "".join(pieces)
                text.isascii() or text.encode()  # half a surrogate pair is not text
        except TemplateRaised as refusal:
            said = limits.marks.plain(str(refusal)).encode(errors="replace").decode()
            raise TemplateRaised(said) from None
        except TemplateTooLarge as stopped:
            raise ApiError("invalid_prompt", f"The chat template was stopped: {stopped}.", param="messages") from None
        except (ApiError, RecursionError):
            raise
        except Exception as error:
            # whatever a template can provoke; what went wrong is for the operator
            log.warning("chat_template_failed", error=type(error).__name__, template_line=_line_of(error))
            refused = "The chat template could not render these messages."
            raise ApiError("invalid_prompt", refused, param="messages") from None
        return text

    def _pieces(self, variables: Mapping[str, Any]) -> Iterator[str]:
        """jinja2's ``generate``. A macro and its context hold each other, and the context the whole conversation: it is
        let go here, and not when the garbage collector finds it."""
        context = self._template.new_context(dict(variables))
        try:
            yield from self._template.root_render_func(context)
        except Exception:
            yield self._template.environment.handle_exception()
        finally:
            context.vars.clear()
            context.parent.clear()

    def _marks(
        self,
        messages: Sequence[Message],
        arguments: Sequence[Sequence[JsonObject]],
        definitions: Sequence[JsonObject],
        client: Mapping[str, Any],
    ) -> tuple[Marks, str]:
        """The marks, and a character that ends the last message. Refuses strings with lone surrogates."""
        texts = [given.strings for group in (*arguments, definitions) for given in group]  # JSON: no lone surrogates
        for message in messages:
            names = [(call.id, call.name) for call in message.tool_calls]
            said = (message.text, message.reasoning, message.tool_call_id, names)
            texts += [_checked(text, message.place or "messages") for text in strings(said)]
        texts += [_checked(text, "chat_template_kwargs") for text in strings(client)]
        mark, end = free_characters([*texts, *self._own_text], 2)
        if mark != self._usual.mark:
            return Marks(self._spellings, mark), end
        return self._usual, end

    def _arguments(self, message: Message) -> list[JsonObject]:
        """The arguments of each call of a message."""
        return [
            self._json.object(call.arguments, call.place or message.place or "messages") for call in message.tool_calls
        ]

    def _turn(self, message: Message, arguments: Sequence[JsonObject], marks: Marks, developer: bool) -> dict[str, Any]:
        """The message as templates know it; members that are not there are left out."""
        text = marks.text
        role = "system" if message.role == "developer" and not developer else message.role
        turn: dict[str, Any] = {"role": role, "content": text(message.text)}
        if message.reasoning is not None:
            turn["reasoning_content"] = turn["reasoning"] = text(message.reasoning)
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": text(call.id),
                    "type": "function",
                    "function": {"name": text(call.name), "arguments": given.marked(marks)},
                }
                for call, given in zip(message.tool_calls, arguments, strict=True)
            ]
        if message.tool_call_id is not None:
            turn["tool_call_id"] = text(message.tool_call_id)
        return turn


def _refused(refusal: TemplateRaised) -> ApiError:
    text = f"The chat template refuses these messages: {str(refusal)[:MAX_REASON]}"
    return ApiError("invalid_prompt", text, param="messages")


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
