"""Every named error of the project. Imports nothing, so that any layer may raise one."""


class NInferError(Exception):
    """Base of all errors raised on purpose."""


class StartupError(NInferError):
    """A start that cannot go on: one line for the operator, exit status 1."""


class OptionError(StartupError):
    """A command line that cannot be used: names the flag, the value and what would be accepted."""


class PluginError(StartupError):
    """A plugin that cannot be used; the message names it."""


class PluginConflict(PluginError):
    """Two plugins offer one name."""

    def __init__(
        self, kind: str, name: str, first: str, second: str, way_out: str = "leave one out with --no-plugin"
    ) -> None:
        super().__init__(f"{kind} {name!r} is offered twice: by {first} and by {second}; {way_out}")
        self.kind, self.name, self.first, self.second = kind, name, first, second


class UnknownChoice(StartupError):
    """A name no installed plugin offers."""

    def __init__(self, what: str, name: str, known: list[str], nearest: str | None) -> None:
        hint = f" (did you mean {nearest!r}?)" if nearest else ""
        super().__init__(f"{what} {name!r} is not installed{hint}; known: {', '.join(known) or 'none'}")
        self.what, self.name, self.known, self.nearest = what, name, known, nearest


class Refusal(StartupError):
    """A combination (family, backend, dtype, ...) that whoever knows refuses at start, with the way out."""


class ArtifactError(StartupError):
    """A model file that cannot be read: names the file, the place in it and what was expected."""


class InvariantError(NInferError):
    """A broken internal invariant: our fault, never the client's."""


class RequestFailed(NInferError):
    """A fault that belongs to one request (NaN logits, a failing row); the others go on."""


class ApiError(NInferError):
    """A refusal the client can act on; each protocol renders its own envelope.

    ``status`` is the HTTP status, ``type`` the OpenAI error category, ``param`` the place in the body
    (``messages[1].role``), ``fields`` extra members of the error object (``n_prompt_tokens``), ``headers`` extra
    response headers.
    """

    status = 400
    type = "invalid_request_error"

    def __init__(
        self,
        code: str | None,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        type: str | None = None,
        fields: dict[str, int | str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param
        self.fields = fields or {}
        self.headers = headers or {}
        if status is not None:
            self.status = status
        if type is not None:
            self.type = type


class Unauthorized(ApiError):
    """The API key is missing or wrong."""

    status = 401
    type = "authentication_error"

    def __init__(self) -> None:
        super().__init__("invalid_api_key", "This server requires an API key; the one sent is missing or wrong.")


class NotFound(ApiError):
    """No such route or resource."""

    status = 404
    type = "not_found_error"


class MethodNotAllowed(ApiError):
    """The route exists, with another method."""

    status = 405

    def __init__(self, method: str, path: str, allowed: list[str]) -> None:
        super().__init__(
            "method_not_allowed",
            f"{method} is not allowed on {path}; allowed: {', '.join(allowed)}",
            headers={"allow": ", ".join(allowed)},
        )


class RequestTooLarge(ApiError):
    """The raw body exceeds the limit."""

    status = 413

    def __init__(self, limit_mib: int) -> None:
        super().__init__("request_too_large", f"The request body exceeds {limit_mib} MiB (--max-request-mib).")


class RequestTimeout(ApiError):
    """The client stopped sending its request."""

    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__("request_timeout", f"Nothing of the request body came for {seconds:g} seconds.")


class ContextLengthExceeded(ApiError):
    """The prompt does not fit the context. ``at_least``: it was not counted to its end."""

    def __init__(self, prompt_tokens: int, max_context: int, *, at_least: bool = False) -> None:
        count = f"at least {prompt_tokens}" if at_least else prompt_tokens
        super().__init__(
            "context_length_exceeded",
            f"The prompt has {count} tokens, but this server's context holds {max_context}.",
            fields={"n_prompt_tokens": prompt_tokens, "n_ctx": max_context},
        )


class Overloaded(ApiError):
    """No capacity unit is free."""

    status = 429
    type = "server_overloaded"

    def __init__(self) -> None:
        super().__init__("server_overloaded", "The server is at capacity. Retry later.")


class QueueTimeout(ApiError):
    """The request was not admitted before its deadline."""

    status = 503
    type = "service_unavailable"

    def __init__(self) -> None:
        super().__init__("request_queue_timeout", "The request was not admitted before its deadline. Retry later.")


class Unavailable(ApiError):
    """The engine takes no requests: it is loading, stopping or has failed."""

    status = 503
    type = "service_unavailable"

    def __init__(self, code: str = "service_unavailable", message: str = "The server is not available.") -> None:
        super().__init__(code, message, headers={"retry-after": "2"} if code == "model_loading" else None)


class InternalError(ApiError):
    """Something of ours broke; the text never says what."""

    status = 500
    type = "server_error"

    def __init__(self) -> None:
        super().__init__("internal_error", "The server failed to complete this request.")
