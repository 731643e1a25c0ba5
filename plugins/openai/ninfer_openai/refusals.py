"""What this server cannot do for a chat body, field by field. A neutral value passes; one that asks for something is a
400 naming the field and the guarantee that cannot be given, so that no request is answered as if it had been less."""

from __future__ import annotations

from ninfer_core.api import ApiError
from ninfer_core.api.http import invalid_value, not_supported, quoted

from .types import ChatBody

CONSTRAINED = (
    "grammar",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
)


def refuse_unsupported(body: ChatBody) -> None:
    """Raise the first refusal; nothing when the body asks only for what this server does."""
    _output(body)
    _sampling(body)
    _tools(body)
    _format(body)
    _service(body)


def _output(body: ChatBody) -> None:
    if body.n not in (None, 1):
        raise not_supported("n", f"One request gives one choice: 'n' must be 1, but is {quoted(body.n)}.")
    for at, modality in enumerate(body.modalities or ()):
        if modality != "text":
            text = f"Only text is generated; 'modalities[{at}]' is {quoted(modality)}."
            raise not_supported("modalities", text, param=f"modalities[{at}]")
    if body.verbosity not in (None, "medium"):
        if body.verbosity not in ("low", "high"):
            raise invalid_value("verbosity", body.verbosity, "low, medium or high")
        raise not_supported("verbosity", f"Only medium verbosity is served; 'verbosity' is {quoted(body.verbosity)}.")


def _sampling(body: ChatBody) -> None:
    if body.repetition_penalty not in (None, 1):
        text = f"No repetition penalty is applied: 'repetition_penalty' must be 1, but is {body.repetition_penalty:g}."
        raise not_supported("repetition_penalty", text)
    for token, bias in (body.logit_bias or {}).items():
        if bias != 0:
            raise not_supported(
                "logit_bias", f"No 'logit_bias' is applied; token {quoted(token)} has a bias of {bias:g}."
            )


def _tools(body: ChatBody) -> None:
    if body.tools:
        raise not_supported("tools", f"Tool calls are not generated; 'tools' defines {len(body.tools)} of them.")
    if body.functions:
        raise not_supported("functions", f"Tool calls are not generated; 'functions' defines {len(body.functions)}.")
    for field, value in (("tool_choice", body.tool_choice), ("function_call", body.function_call)):
        if value not in (None, "none", "auto"):
            text = f"Tool calls are not generated; '{field}' must be none or auto, but is {quoted(value)}."
            raise not_supported(field, text)


def _format(body: ChatBody) -> None:
    kind = body.response_format.type if body.response_format is not None else "text"
    if kind in ("json_object", "json_schema"):
        text = f"Output is not constrained: 'response_format.type' must be text, but is {quoted(kind)}."
        raise not_supported("response_format", text, param="response_format.type")
    if kind != "text":
        raise invalid_value("response_format.type", kind, "text, json_object or json_schema")
    for field in CONSTRAINED:
        value = getattr(body, field)
        if value is not None and value != "":
            raise not_supported(field, f"Output is not constrained; leave '{field}' out.")


def _service(body: ChatBody) -> None:
    if body.store:
        raise not_supported("store", "Chat Completions are not stored; leave 'store' out or send false.")
    if body.web_search_options is not None:
        raise not_supported("web_search_options", "The web is not searched; leave 'web_search_options' out.")
    if body.moderation is not None:
        raise not_supported("moderation", "Nothing is moderated; leave 'moderation' out.")
    for key, value in (body.mm_processor_kwargs or {}).items():
        if value is not None:
            param = f"mm_processor_kwargs.{key}"
            text = f"The media processor takes no options; '{param}' is {quoted(value)}."
            raise not_supported("mm_processor_kwargs", text, param=param)
    if body.graft:
        raise ApiError("unknown_graft", f"No graft named {quoted(body.graft)} is loaded.", param="graft")
