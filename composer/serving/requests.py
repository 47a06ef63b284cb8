"""The requests of OpenAI's HTTP interface: their fields, their bounds, and the reasons why one is refused.

Nothing in a request chooses code, files or templates. Every number and every list has a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from blocks.part import Closed
from composer.spec.places import nearest
from converters.bounded import brief, parse_json, shorten

MOST_CHOICES = 8
"""Texts for one prompt."""
MOST_PROMPTS = 16
MOST_MESSAGES = 2048
MOST_STOPS = 4
LONGEST_STOP = 500
"""Characters of a text that ends an answer."""
MOST_BIASES = 1024
MOST_SEED = 2**63 - 1
DEFAULT_COMPLETION = 16
"""Tokens of a completion where the request sets no number, as OpenAI has it."""
DEFAULT_ANSWER = 2048
"""Tokens of an answer in a conversation where the request sets no number."""
LONGEST_REASON = 300


class RequestError(Exception):
    """A request that is refused, or has failed. status: of HTTP. code, param: as in OpenAI's errors."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    def document(self) -> dict[str, Any]:
        """Return the error in OpenAI's shape."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}}


def _read_stops(value: object) -> object:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise ValueError(f"expected a text, or a list of at most {MOST_STOPS} texts, none of them empty")
    if any(len(stop) > LONGEST_STOP for stop in stops):
        raise ValueError(f"expected texts of at most {LONGEST_STOP} characters")
    return stops


def _read_biases(value: object) -> object:
    if not isinstance(value, dict) or len(value) > MOST_BIASES:
        raise ValueError(f"expected a mapping of at most {MOST_BIASES:,} token ids to numbers")
    for token, bias in value.items():
        if not (isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 10):
            raise ValueError(f"expected token ids as keys, got {brief(token)}")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"expected numbers of -100 to 100, got {brief(bias)}")
    return {int(token): float(bias) for token, bias in value.items()}


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _read_prompts(value: Any) -> object:
    prompts = [value] if isinstance(value, str) or _is_ids(value) else value
    is_list = isinstance(prompts, list) and 0 < len(prompts) <= MOST_PROMPTS
    if not is_list or not (all(isinstance(prompt, str) for prompt in prompts) or all(map(_is_ids, prompts))):
        raise ValueError(f"expected a text, token ids, or a list of at most {MOST_PROMPTS} texts or of as many lists of token ids")
    return prompts


def _read_content(value: object) -> object:
    """Join the parts of a message. Only texts are read."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"expected a text, or a list of parts such as {_PART}")
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind is not None and kind != "text":
            raise ValueError(f"parts of the type {brief(kind)} are not supported: this server reads text alone")
        if not isinstance(part, dict) or part.keys() != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError(f"expected parts such as {_PART}")
    return "".join(part["text"] for part in value)


_PART = '{"type": "text", "text": "…"}'
Stops = Annotated[list[str], BeforeValidator(_read_stops)]
Biases = Annotated[dict[int, float], BeforeValidator(_read_biases)]
Prompts = Annotated[list[str | list[int]], BeforeValidator(_read_prompts)]
MessageContent = Annotated[str, BeforeValidator(_read_content)]


class StrictlyTyped(Closed):
    """A closed schema that converts no types: "1" and true are no numbers."""

    model_config = ConfigDict(strict=True)


class ChatMessage(StrictlyTyped):
    role: Literal["system", "developer", "user", "assistant"]
    content: MessageContent
    name: str | None = Field(None, max_length=64)

    def for_template(self) -> dict[str, str]:
        """Return the message as chat templates read it. Templates do not know OpenAI's newer name of the system's role."""
        named = {} if self.name is None else {"name": self.name}
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content, **named}


class StreamOptions(StrictlyTyped):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted, and ignored."""


class TextRequest(StrictlyTyped):
    """The fields that both kinds of requests have. Defaults are OpenAI's, whatever the model's generation_config.json has."""

    model: str = Field(max_length=1000)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(None, ge=1)
    stop: Stops = Field(default_factory=list)
    seed: int | None = Field(None, ge=-MOST_SEED - 1, le=MOST_SEED)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(-1, ge=-1, le=2**31)
    """0 and -1: all tokens."""
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    logit_bias: Biases = Field(default_factory=dict)

    IGNORED: ClassVar[frozenset[str]] = frozenset(
        {
            *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
            "parallel_tool_calls",  # of tools, which are refused
        }
    )
    """Fields that clients send habitually, and that change nothing here."""
    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields of OpenAI's interface that are not supported, each with the values that request nothing."""

    @property
    def most_tokens(self) -> int | None:
        """The largest number of new tokens. None: the request sets none."""
        return self.max_tokens

    @property
    def most_logprobs(self) -> int | None:
        """The number of likely tokens whose log-probabilities are reported beside the chosen one's. None: none at all."""
        return None


class ChatRequest(TextRequest):
    messages: list[ChatMessage] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)

    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "reasoning_effort": (),
        "verbosity": (),
        "chat_template": (),
        "chat_template_kwargs": ({},),
    }

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def most_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(TextRequest):
    prompt: Prompts
    logprobs: int | None = Field(None, ge=0, le=5)

    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "suffix": ("",),
        "echo": (False,),
        "best_of": (1,),
        "prompt_embeds": (),
    }

    @property
    def most_logprobs(self) -> int | None:
        return self.logprobs


AnyRequest = TypeVar("AnyRequest", bound=TextRequest)


def read_request(kind: type[AnyRequest], body: bytes) -> AnyRequest:
    """Return the request in a body. A value of null counts as left out, as some clients send every field. Raises RequestError."""
    try:
        document = parse_json(body.decode())
    except ValueError as error:
        reason = "expected UTF-8" if isinstance(error, UnicodeDecodeError) else shorten(str(error), LONGEST_REASON)
        raise RequestError(400, f"The body is not JSON: {reason}.") from None
    if not isinstance(document, dict):
        raise RequestError(400, f"The body is {brief(document)}; expected a mapping of fields.")
    fields = {name: value for name, value in document.items() if value is not None and name not in kind.IGNORED}
    for name, neutral in kind.REFUSED.items():
        value = fields.pop(name, None)
        if value is not None and not any(type(value) is type(other) and value == other for other in neutral):
            raise RequestError(400, f"{name} is not supported by this server: leave it out.", code="unsupported", param=name)
    for name in fields:
        if name not in kind.model_fields:
            raise RequestError(
                400, f"{shorten(name)} is an unknown field{nearest(name, kind.model_fields) or '.'}", param=shorten(name)
            )
    if "messages" in fields and isinstance(fields["messages"], list):
        fields["messages"] = list(map(_without_empty, fields["messages"]))
    try:
        request = kind.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error) from None
    if isinstance(request, ChatRequest) and request.top_logprobs is not None and not request.logprobs:
        raise RequestError(400, "top_logprobs is for requests with logprobs: true.", param="top_logprobs")
    return request


def _without_empty(message: object) -> object:
    """Remove null and empty fields, as in answers that a client sends back."""
    if not isinstance(message, dict):
        return message
    return {name: value for name, value in message.items() if name == "content" or value not in (None, [])}


def _refusal(error: ValidationError) -> RequestError:
    first: Any = error.errors(include_url=False)[0]
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).removeprefix(".")
    param = shorten(place)
    match first["type"]:
        case "missing":
            message = f"{param} is missing."
        case "extra_forbidden":
            message = f"{param} is not supported by this server: leave it out."
        case "value_error":
            message = f"{param}: {first['ctx']['error']}."
        case "greater_than_equal" | "less_than_equal" | "greater_than" as kind:
            words = {"greater_than_equal": "at least", "less_than_equal": "at most", "greater_than": "more than"}[kind]
            (bound,) = first["ctx"].values()
            message = f"{param}: expected a number of {words} {bound:,}, got {brief(first['input'])}."
        case _:
            message = f"{param}: {first['msg'].replace('Input should be', 'expected')}, got {brief(first['input'])}."
    return RequestError(400, message, param=param)
