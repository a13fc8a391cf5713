"""The requests that Ollama and this server are both asked, and where their answers differ by intent.

`DIFFERENCES` is what docs/clients.md has as a table. It must not grow by itself: the test fails for a difference that
is not in it, and for an entry that is none any more.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORT = dict(num_predict=6, temperature=0)
COUNT = dict(model="MODEL", prompt="1, 2, 3, 4, 5,", raw=True, options=SHORT)
SAID = [dict(role="user", content="Count to nine.")]
CHAT = dict(model="MODEL", messages=SAID, options=SHORT)
BEGUN = CHAT | dict(messages=[dict(role="system", content="Be brief."), *SAID,
                              dict(role="assistant", content="1, 2, 3, 4, 5,")])  # fmt: skip
OPENAI = dict(model="MODEL", messages=SAID, max_tokens=6, temperature=0)
TEXT = dict(model="MODEL", prompt="1, 2, 3, 4, 5,", max_tokens=6, temperature=0)
TOOL = dict(type="function", function=dict(name="f", description="", parameters=dict(type="object", properties={})))
WHOLE = dict(stream=False)
PAGE = {"Origin": "http://localhost:3000"}
ASKING = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}


def optional(**options) -> dict:
    return COUNT | WHOLE | dict(options=SHORT | options)


REQUESTS: dict[str, tuple] = {  # what it is: (method, path, body, headers)
    # the server and its model
    "/": ("GET", "/"),
    "HEAD /": ("HEAD", "/"),
    "HEAD /api/version": ("HEAD", "/api/version"),
    "HEAD /api/tags": ("HEAD", "/api/tags"),
    "HEAD /api/ps": ("HEAD", "/api/ps"),
    "version": ("GET", "/api/version"),
    "tags": ("GET", "/api/tags"),
    "ps": ("GET", "/api/ps"),
    "`/api/show`": ("POST", "/api/show", dict(model="MODEL")),
    "`/api/show` by `name`": ("POST", "/api/show", dict(name="MODEL", verbose=False)),
    "show of an unknown model": ("POST", "/api/show", dict(model="none")),
    "show of no model": ("POST", "/api/show", {}),
    "show without a body": ("POST", "/api/show"),
    # answers
    "generate": ("POST", "/api/generate", COUNT | dict(raw=False)),
    "generate, whole": ("POST", "/api/generate", COUNT | WHOLE | dict(raw=False)),
    "generate, raw": ("POST", "/api/generate", COUNT),
    "generate, raw, whole": ("POST", "/api/generate", COUNT | WHOLE),
    "generate with a system text": ("POST", "/api/generate", COUNT | dict(raw=False, system="Be brief.")),
    "generate from a context": ("POST", "/api/generate", COUNT | WHOLE | dict(raw=False, context=[20, 21, 22])),
    "generate one token": ("POST", "/api/generate", COUNT | dict(options=SHORT | dict(num_predict=2))),
    "generate to a stop": ("POST", "/api/generate", COUNT | dict(options=SHORT | dict(num_predict=40, stop=[" 9"]))),
    "the tag in capitals": ("POST", "/api/generate", COUNT | WHOLE | dict(model="MODEL:LATEST")),
    "nulls": ("POST", "/api/generate", COUNT | dict(stream=None, system=None, format=None, keep_alive=None)),
    "unknown fields and options": ("POST", "/api/generate", optional(num_thread=2, unheard=1) | dict(unheard=1)),
    "a whole number as 6.0": ("POST", "/api/generate", optional(num_predict=6.0)),
    "every option": ("POST", "/api/generate", optional(seed=3, top_k=5, top_p=0.8, min_p=0.1, repeat_penalty=1.1)),
    "a seed of 53 bits, `top_p` of 0": ("POST", "/api/generate", optional(seed=2**53, top_p=0, temperature=1)),
    "a penalty of no tokens": ("POST", "/api/generate", optional(repeat_last_n=0, repeat_penalty=1.5)),
    "keep_alive as a text": ("POST", "/api/generate", COUNT | WHOLE | dict(keep_alive="1h30m")),
    "chat": ("POST", "/api/chat", CHAT),
    "chat, whole": ("POST", "/api/chat", CHAT | WHOLE),
    "chat to a stop": ("POST", "/api/chat", CHAT | dict(options=SHORT | dict(num_predict=30, stop=[" ", "."]))),
    "chat with a system text": ("POST", "/api/chat", CHAT | dict(messages=[dict(role="system", content="x"), *SAID])),
    "chat in turns": ("POST", "/api/chat", CHAT | WHOLE | dict(messages=[*SAID, dict(role="assistant", content="One."),
                                                                        dict(role="user", content="On.")])),
    "chat that begins the answer": ("POST", "/api/chat", BEGUN | WHOLE),
    "log probabilities": ("POST", "/api/generate", COUNT | dict(logprobs=True)),
    "log probabilities, whole": ("POST", "/api/generate", COUNT | WHOLE | dict(logprobs=True)),
    "log probabilities of the most likely": ("POST", "/api/chat", CHAT | dict(logprobs=True, top_logprobs=3)),
    "log probabilities of the most likely, whole": ("POST", "/api/chat",
                                                    CHAT | WHOLE | dict(logprobs=True, top_logprobs=20)),
    "the most likely without log probabilities": ("POST", "/api/generate", COUNT | WHOLE | dict(top_logprobs=2)),
    "a role in capitals": ("POST", "/api/chat", CHAT | WHOLE | dict(messages=[dict(role="User", content="Hi")])),
    # an empty request loads
    "generate nothing": ("POST", "/api/generate", dict(model="MODEL")),
    "generate nothing, whole": ("POST", "/api/generate", dict(model="MODEL", prompt="", stream=False)),
    "chat about nothing": ("POST", "/api/chat", dict(model="MODEL", messages=[])),
    "chat without messages": ("POST", "/api/chat", dict(model="MODEL")),
    "generate nothing, and forget": ("POST", "/api/generate", dict(model="MODEL", keep_alive=0)),
    "chat about nothing, and forget": ("POST", "/api/chat", dict(model="MODEL", messages=[], keep_alive="0s")),
    "ps after `keep_alive: 0`": ("GET", "/api/ps"),
    # mistakes
    "an unknown model": ("POST", "/api/generate", COUNT | dict(model="none")),
    "an unknown model in a chat": ("POST", "/api/chat", CHAT | WHOLE | dict(model="none")),
    "generate without a model": ("POST", "/api/generate", dict(prompt="x")),
    "chat without a model": ("POST", "/api/chat", dict(messages=SAID)),
    "no body": ("POST", "/api/generate"),
    "half a body": ("POST", "/api/chat", '{"model": "MODEL"'),
    "a body that is a list": ("POST", "/api/chat", "[1]"),
    "a body that is NaN": ("POST", "/api/generate", '{"model": "MODEL", "prompt": NaN}'),
    "data after the body's end": ("POST", "/api/generate", '{"model": "MODEL"} and more'),
    "a number as model": ("POST", "/api/chat", CHAT | dict(model=3)),
    "a number as prompt": ("POST", "/api/generate", COUNT | dict(prompt=3)),
    "a text as messages": ("POST", "/api/chat", CHAT | dict(messages="x")),
    "a number as message": ("POST", "/api/chat", CHAT | dict(messages=[3])),
    "a number as content": ("POST", "/api/chat", CHAT | dict(messages=[dict(role="user", content=3)])),
    "a text as stream": ("POST", "/api/generate", COUNT | dict(stream="yes")),
    "a list as options": ("POST", "/api/generate", COUNT | dict(options=[])),
    "a string as `temperature`": ("POST", "/api/generate", optional(temperature="hot")),
    "a negative temperature": ("POST", "/api/generate", optional(temperature=-1)),
    "`num_predict` of 6.5": ("POST", "/api/generate", optional(num_predict=6.5)),
    "a string as `stop`": ("POST", "/api/generate", optional(stop=" 9")),
    "`temperature` outside `options`": ("POST", "/api/generate", COUNT | WHOLE | dict(temperature=0)),
    "more context than there is": ("POST", "/api/generate", optional(num_ctx=4096)),
    "keep_alive that is no time": ("POST", "/api/generate", COUNT | dict(keep_alive="soon")),
    "keep_alive that is true": ("POST", "/api/generate", COUNT | dict(keep_alive=True)),
    "a thought of no such strength": ("POST", "/api/chat", CHAT | dict(think="much")),
    "thinking": ("POST", "/api/chat", CHAT | dict(think=True)),
    "tools": ("POST", "/api/chat", CHAT | dict(tools=[TOOL])),
    "suffix": ("POST", "/api/generate", COUNT | dict(raw=False, suffix="x")),
    "raw with a system text": ("POST", "/api/generate", COUNT | dict(system="x")),
    "too many log probabilities": ("POST", "/api/generate", COUNT | WHOLE | dict(logprobs=True, top_logprobs=21)),
    # what is not here
    "`format`": ("POST", "/api/generate", COUNT | WHOLE | dict(format="json")),
    "`template`": ("POST", "/api/generate", COUNT | WHOLE | dict(raw=False, template="{{ .Prompt }}")),
    "`presence_penalty`": ("POST", "/api/generate", optional(presence_penalty=0.5)),
    "an unknown role": ("POST", "/api/chat", CHAT | WHOLE | dict(messages=[dict(role="judge", content="Hi")])),
    "a message without a role": ("POST", "/api/chat", CHAT | WHOLE | dict(messages=[dict(content="Hi")])),
    "`/api/embed`": ("POST", "/api/embed", dict(model="MODEL", input="x")),
    "`/api/delete`": ("DELETE", "/api/delete", dict(model="none")),
    "`/api/status`": ("GET", "/api/status"),
    "`/v1/responses`": ("POST", "/v1/responses", dict(model="MODEL", input="x", max_output_tokens=2)),
    "`/openapi.json`": ("GET", "/openapi.json"),
    # paths, methods, pages
    "an unknown path": ("GET", "/nowhere"),
    "an unknown path of the API": ("POST", "/api/nowhere", {}),
    "a wrong method": ("GET", "/api/chat"),
    "another wrong method": ("DELETE", "/api/generate"),
    "a slash at the end of the path": ("GET", "/api/tags/"),
    "OPTIONS": ("OPTIONS", "/api/tags"),
    "a page of this machine": ("GET", "/api/tags", None, PAGE),
    "a page of this machine that asks first": ("OPTIONS", "/api/chat", None, PAGE | ASKING),
    "a page of a program": ("GET", "/api/tags", None, {"Origin": "app://notes"}),
    "a request from another site's page": ("GET", "/api/tags", None, {"Origin": "https://evil.example"}),
    "a preflight request from such a page": ("OPTIONS", "/api/chat", None, {"Origin": "https://evil.example"} | ASKING),
    "another name in `Host`": ("GET", "/api/tags", None, {"Host": "evil.example"}),
    # OpenAI's API
    "v1 models": ("GET", "/v1/models"),
    "v1 model": ("GET", "/v1/models/MODEL"),
    "v1 unknown model": ("GET", "/v1/models/none"),
    "v1 chat": ("POST", "/v1/chat/completions", OPENAI),
    "v1 chat, streamed": ("POST", "/v1/chat/completions", OPENAI | dict(stream=True)),
    "v1 chat, streamed, with usage": ("POST", "/v1/chat/completions",
                                      OPENAI | dict(stream=True, stream_options=dict(include_usage=True))),
    "v1 chat with content in parts": ("POST", "/v1/chat/completions",
                         OPENAI | dict(messages=[dict(role="user", content=[dict(type="text", text="Hi")])])),
    "v1 chat with `stop`": ("POST", "/v1/chat/completions", OPENAI | dict(max_tokens=30, stop=["e", "a"])),
    "v1 completion": ("POST", "/v1/completions", TEXT),
    "v1 completion, streamed": ("POST", "/v1/completions", TEXT | dict(stream=True)),
    "v1 completion, streamed, with usage": ("POST", "/v1/completions",
                                            TEXT | dict(stream=True, stream_options=dict(include_usage=True))),
    "v1 chat with `logprobs`": ("POST", "/v1/chat/completions", OPENAI | dict(logprobs=True, top_logprobs=2)),
    "v1 chat with `logprobs`, streamed": ("POST", "/v1/chat/completions",
                                          OPENAI | dict(logprobs=True, top_logprobs=2, stream=True)),
    "v1 completion with `logprobs`": ("POST", "/v1/completions", TEXT | dict(logprobs=2)),
    "v1 chat with an unknown model": ("POST", "/v1/chat/completions", OPENAI | dict(model="none", stream=True)),
    "v1 completion with an unknown model": ("POST", "/v1/completions", TEXT | dict(model="none")),
    "v1 chat without a model": ("POST", "/v1/chat/completions", dict(messages=SAID)),
    "v1 completion without a model": ("POST", "/v1/completions", dict(prompt="x")),
    "v1 chat about nothing": ("POST", "/v1/chat/completions", OPENAI | dict(messages=[])),
    "v1 completion without a prompt": ("POST", "/v1/completions", dict(model="MODEL")),
    "v1 completion of a list of prompts": ("POST", "/v1/completions", TEXT | dict(prompt=["1, 2,"])),
    "v1 no body": ("POST", "/v1/chat/completions"),
    "v1 half a body": ("POST", "/v1/chat/completions", '{"model": "MODEL"'),
    "v1 a text as temperature": ("POST", "/v1/chat/completions", OPENAI | dict(temperature="hot")),
    "v1 a text as messages": ("POST", "/v1/chat/completions", OPENAI | dict(messages="x")),
    "v1 tools": ("POST", "/v1/chat/completions", OPENAI | dict(tools=[TOOL])),
    "v1 `n` of 2": ("POST", "/v1/chat/completions", OPENAI | dict(n=2)),
    "v1 `response_format`": ("POST", "/v1/chat/completions", OPENAI | dict(response_format=dict(type="json_object"))),
    "v1 unknown path": ("GET", "/v1/nowhere"),
    "v1 wrong method": ("GET", "/v1/chat/completions"),
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """in what (`alike.aspect`); what Ollama does and what is done here, each beginning with its status; why."""

    aspect: str
    theirs: str
    ours: str
    why: str


STRICT = "an error instead of a guess"
LEFT_OUT = "it would change the answer, so it is refused"
ELSEWHERE = "this server holds one model"
OPENAI_SAYS, OPENAI_READS = "as in OpenAI's API", "OpenAI's clients read an error"
OWN_ENTRIES = "Ollama adds `parameters`, `tensors` and most of `model_info`"
ROWS = (  # a Difference's fields, and the requests that differ so
    ("status", "405", "200", "HEAD is answered wherever GET is", "HEAD /api/ps"),
    ("lines", "200, with more of the file's entries", "200, with fewer", OWN_ENTRIES, "`/api/show`",
     "`/api/show` by `name`"),
    ("lines", "200, no model", "200, the model", "the model is never unloaded", "ps after `keep_alive: 0`"),
    ("status", "404", "400", "as in Ollama's chat", "generate without a model", "v1 completion without a model"),
    ("status", "200", "400", STRICT, "data after the body's end", "a negative temperature", "`num_predict` of 6.5",
     "an unknown role", "a message without a role"),
    ("status", "500", "400", "the mistake is the client's", "a string as `temperature`"),
    ("status", "500", "200", OPENAI_SAYS, "a string as `stop`"),
    ("status", "200", "400", LEFT_OUT, "`template`", "`presence_penalty`", "`temperature` outside `options`",
     "v1 `n` of 2"),
    ("status", "200", "400", "not an embedding model; clients retry after 501", "`/api/embed`"),
    ("status", "404", "501", ELSEWHERE, "`/api/delete`"),
    ("status", "200", "404", "not supported", "`/api/status`", "`/v1/responses`"),
    ("status", "404", "200", "Ollama has none", "`/openapi.json`"),
    ("status", "301", "307", "307 keeps the method", "a slash at the end of the path"),
    ("kind", "403, no body", "403, a JSON error", "the body says why", "a request from another site's page",
     "a preflight request from such a page", "another name in `Host`"),
    ("lines", "200, usage of 0 in each event", "200, usage in the last", OPENAI_SAYS,
     "v1 completion, streamed, with usage"),
    ("lines", "200, without", "200, and `prompt_tokens_details`", OPENAI_SAYS, "v1 chat",
     "v1 chat with content in parts", "v1 chat with `stop`", "v1 `response_format`", "v1 completion"),
    ("lines", "200, the role in each event", "200, the role in the first", OPENAI_SAYS, "v1 chat, streamed",
     "v1 chat, streamed, with usage"),
    ("lines", "200", "200, and `refusal`", OPENAI_SAYS, "v1 chat with `logprobs`", "v1 chat with `logprobs`, streamed"),
    ("lines", "200, without", "200, with them", OPENAI_SAYS, "v1 completion with `logprobs`"),
    ("status", "200", "400", OPENAI_SAYS, "v1 completion without a prompt"),
    ("status", "400", "200", OPENAI_SAYS, "v1 completion of a list of prompts"),
    ("kind", "404, plain text", "404, a JSON error", OPENAI_READS, "v1 unknown path"),
    ("kind", "405, plain text", "405, a JSON error", OPENAI_READS, "v1 wrong method"),
)  # fmt: skip
DIFFERENCES = {name: Difference(*row[:4]) for row in ROWS for name in row[4:]}


def table() -> str:
    """The differences for docs/clients.md: a row for all that differ alike."""
    rows = [f"| {', '.join(names)} | {theirs} | {ours} | {why} |" for _, theirs, ours, why, *names in ROWS]
    return "\n".join(["| request | Ollama | here | why |", "|---|---|---|---|", *rows])
