"""What Ollama's API is asked (https://github.com/ollama/ollama/blob/main/docs/api.md): its names and its defaults but
one: no repetition penalty unless one is asked for.

Options that say how Ollama computes (num_thread, num_gpu, num_batch …) are passed over; those that would change the
text and that we do not have are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from llama_jax.decoding.request import SEEDS
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import SCORED, Sampler
from llama_lab.serve.service import Service
from llama_lab.serve.wire import Role, Stops

NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
DURATION = rf"^([-+]?({NUMBER}(ns|us|µs|μs|ms|s|m|h))+|[-+]?0)$"  # https://pkg.go.dev/time#ParseDuration
MISSING = {  # options that we do not have: the value that asks for nothing
    "typical_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "mirostat": 0,
}


def whole(value: Any) -> Any:
    """A number such as 4.0 is whole too, as clients write it whose language has but one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(whole)]


class Options(boundary.Declared):
    """What is read of `options`. A seed below 0 is none; num_predict below 1 is as much as there is room for."""

    temperature: float = 0.8
    top_k: Whole = 40
    top_p: float = 0.9
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: Whole = -1
    num_predict: Whole = -1
    num_ctx: Whole = 0
    stop: Stops = Field([])
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    mirostat: Whole = 0

    def check(self, context: int) -> None:
        """Raises UserError for what is asked for and not here."""
        for name, neutral in MISSING.items():
            if (value := getattr(self, name)) != neutral:
                raise UserError(f"options.{name} is {value:g}, which this server does not have; leave it out.")
        if self.num_ctx > context:
            raise UserError(f"options.num_ctx is {self.num_ctx}; this server's contexts have {context} tokens.")
        if self.seed >= SEEDS:
            raise UserError(f"options.seed is {self.seed}; it must be below {SEEDS}.")

    @property
    def sampler(self) -> Sampler:
        return Sampler(self.temperature, max(self.top_k, 0), self.top_p or 1.0, self.min_p, self.repeat_penalty)


class Asked(boundary.Declared):
    """What requests for an answer have in common."""

    model: str = ""
    stream: bool = True
    options: Options = Options()
    format: Any = None
    think: bool | Literal["high", "medium", "low", "max"] = False
    keep_alive: int | float | Annotated[str, Field(pattern=DURATION)] | None = None
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=SCORED)

    def check(self, service: Service) -> None:
        """Raises RefusalError, UserError."""
        service.check_model(self.model)
        if self.format:
            raise UserError("format is not supported: this server does not constrain what is said; leave it out.")
        if self.think:
            raise UserError(f'"{self.model}" does not support thinking')
        self.options.check(service.context)

    @property
    def loads(self) -> str:
        """What an empty request is for. The model stays where it is, whatever is asked."""
        if self.keep_alive is None:
            return "load"
        return "load" if any(digit in "123456789" for digit in str(self.keep_alive)) else "unload"


class Message(boundary.Declared):
    role: Role
    content: str = ""
    images: list = Field([])
    tool_calls: list = Field([])


class Chat(Asked):
    messages: list[Message] = Field([], max_length=10_000)
    tools: list = Field([])


class Generate(Asked):
    prompt: str = ""
    system: str = ""
    raw: bool = False
    suffix: str = ""
    template: str = ""
    images: list = Field([])
    context: list[int] = Field([], max_length=1 << 20)


class Named(boundary.Declared):
    model: str = ""
    name: str = ""
