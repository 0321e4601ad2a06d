"""What a client can be told, as one tree. Knows nothing of a dialect's error body: `wire/` shapes it.

ApiError (500)
├── InvalidRequest (400)      names the parameter
│   └── ContextLength (400)   the prompt does not fit the model
├── Unauthorized (401)
├── Forbidden (403)
├── NotFound (404)
├── MethodNotAllowed (405)
├── BodyTimeout (408)
├── TooLarge (413)
├── HeadersTooLarge (431)
├── Overloaded (429)          carries Retry-After
├── EngineFault (500)         an engine failed this request
├── Unavailable (503)         starting, draining, paused or dead; may carry Retry-After
└── DeadlineExceeded (504)
"""

from __future__ import annotations


class ApiError(Exception):
    """`message` goes to the client: no path, address or stack belongs in it."""

    status = 500
    type = "internal_error"
    code: str | None = None

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        self.retry_after = retry_after


class InvalidRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class ContextLength(InvalidRequest):
    code = "context_length_exceeded"


class Unauthorized(ApiError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(ApiError):
    status = 403
    type = "permission_error"


class NotFound(ApiError):
    status = 404
    type = "not_found_error"


class MethodNotAllowed(ApiError):
    status = 405
    type = "invalid_request_error"


class BodyTimeout(ApiError):
    status = 408
    type = "invalid_request_error"
    code = "body_timeout"


class TooLarge(ApiError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class HeadersTooLarge(ApiError):
    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class Overloaded(ApiError):
    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class EngineFault(ApiError):
    status = 500
    type = "engine_error"


class Unavailable(ApiError):
    status = 503
    type = "service_unavailable"


class DeadlineExceeded(ApiError):
    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"
