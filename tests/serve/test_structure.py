"""Answers that must be JSON, as each client asks for them: alone, in a crowd, streamed and cut."""

import asyncio
import json
from concurrent.futures import Future

import httpx
import jsonschema
import ollama
import openai
import pydantic
import pytest

import llama_jax as ll
from llama_jax import generate
from llama_jax.sampling import Sampler
from llama_lab.serve import structure
from tests.serve import small
from tests.serve.conftest import NAME, ask, events, lines


class PromptPool(pydantic.BaseModel):
    """The original notebook's."""

    prompts: list[str]


PERSON = dict(
    type="object",
    properties=dict(age=dict(type="integer", minimum=0, maximum=150), kind={"enum": ["cat", "dog", None]}),
    required=["age", "kind"],
    additionalProperties=False,
)
CONST = dict(type="object", properties=dict(nothing={"const": None}), required=["nothing"], additionalProperties=False)
TREE = {  # no regular language
    "$defs": {"tree": dict(type="array", items={"$ref": "#/$defs/tree"})},
    "$ref": "#/$defs/tree",
}
QUESTION = [dict(role="user", content="Who?")]
HOT = dict(temperature=1.5, seed=3)
NAMED = dict(type="json_schema", json_schema=dict(name="person", schema=PERSON, strict=True))
ALIKE = [  # under /v1
    dict(response_format=NAMED),
    dict(response_format=dict(type="json_schema", json_schema=dict(schema=PERSON, description=None))),
    dict(response_format=dict(type="json_object", schema=PERSON)),
    dict(json_schema=PERSON),
    dict(json_schema=json.dumps(PERSON)),
    dict(guided_json=PERSON),
    dict(guided_json=json.dumps(PERSON), response_format=dict(type="text")),
    dict(structured_outputs=dict(json=PERSON, regex=None)),
]


def text_of(answer):
    choice = answer["choices"][0]
    return choice.get("text") or choice["message"]["content"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_way_to_say_it_is_the_same_answer_which_ends_by_itself(client, path):
    prompt = dict(messages=QUESTION) if "chat" in path else dict(prompt="Who?")
    found = [ask(client, path, max_tokens=60, **prompt, **HOT, **way).json() for way in ALIKE]
    answers = [(text_of(each), each["choices"][0]["finish_reason"]) for each in found]
    assert answers == [answers[0]] * len(ALIKE)
    jsonschema.validate(json.loads(answers[0][0]), PERSON)
    assert answers[0][1] == "stop"


def test_the_tokens_are_generates(client, loaded):
    compiled = ll.grammar(PERSON, loaded)
    ids, sampler = loaded.tokenizer.encode("Who?"), Sampler(1.5)
    engine, how = generate.build(loaded, "step"), dict(sampler=sampler, seeds=3, length=16, slots=128)
    (answer,) = generate.answer(engine, [ids], 60, stop=loaded.tokenizer.stop, grammar=compiled, **how)
    served = ask(client, "/v1/completions", prompt="Who?", max_tokens=60, guided_json=PERSON, **HOT).json()
    assert text_of(served) == loaded.tokenizer.decode(answer.token_ids)
    assert served["usage"]["completion_tokens"] == len(answer.token_ids)


@pytest.mark.parametrize("asked", [PERSON, CONST, TREE, "json"], ids=["flat", "null", "recursive", "any"])
@pytest.mark.parametrize("stream", [False, True])
def test_ollamas_formats(client, asked, stream):
    options = HOT | dict(num_predict=250)
    for path, prompt in (("/api/generate", dict(prompt="Who?")), ("/api/chat", dict(messages=QUESTION))):
        answer = ask(client, path, format=asked, stream=stream, options=options, **prompt)
        parts = lines(answer)
        text = "".join(part.get("response", part.get("message", {}).get("content", "")) for part in parts)
        if parts[-1]["done_reason"] == "stop":
            assert jsonschema.Draft202012Validator(dict(type="object") if asked == "json" else asked).is_valid(
                json.loads(text)
            )
        assert parts[-1]["done_reason"] == "stop" or asked in (TREE, "json")  # a random model may go on with these


def test_what_asks_for_no_format_has_none(client):
    plain = ask(client, "/api/generate", prompt="Who?", stream=False, options=HOT | dict(num_predict=9)).json()
    for nothing in ("", None):
        body = dict(prompt="Who?", format=nothing, stream=False, options=HOT | dict(num_predict=9))
        assert ask(client, "/api/generate", **body).json()["response"] == plain["response"]


def test_an_answer_that_is_cut_says_so_and_is_streamed_alike(client):
    body = dict(messages=QUESTION, response_format=NAMED, max_tokens=4, **HOT)
    whole = ask(client, "/v1/chat/completions", **body).json()["choices"][0]
    assert whole["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(whole["message"]["content"])
    parts = [part["choices"][0] for part in events(ask(client, "/v1/chat/completions", stream=True, **body))]
    assert "".join(part["delta"].get("content", "") for part in parts) == whole["message"]["content"]
    assert parts[-1]["finish_reason"] == "length"


def test_log_probabilities_are_the_models_without_the_grammar(client):
    body = dict(prompt="Who?", max_tokens=3, logprobs=5, guided_json=PERSON, temperature=0)
    constrained = ask(client, "/v1/completions", **body).json()["choices"][0]["logprobs"]
    free = ask(client, "/v1/completions", **body | dict(guided_json=None)).json()["choices"][0]["logprobs"]
    best = free["top_logprobs"][0]
    assert best.items() <= constrained["top_logprobs"][0].items()
    assert constrained["token_logprobs"][0] < min(best.values())


def test_constrained_and_free_requests_at_once_are_as_alone_and_compile_nothing(client, service):
    def body(i):
        way = [{}, dict(format=PERSON), dict(format=TREE), dict(format="json")][i % 4]
        return (
            dict(model=NAME, prompt=f"{i} is", stream=False, options=dict(seed=i, temperature=1, num_predict=30)) | way
        )

    async def crowd():
        return await asyncio.gather(*(client.send("POST", "/api/generate", body(i)) for i in range(4)))

    before = service.guard.count("backend")  # of what other tests compile in this process
    alone = [ask(client, "/api/generate", **body(i)).json()["response"] for i in range(4)]
    assert [answer.json()["response"] for answer in asyncio.run(crowd())] == alone
    assert service.guard.count("backend") == before


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (dict(response_format=dict(type="json_schema")), "json_schema has no schema"),
        (dict(response_format=dict(type="grammar")), "response_format.type is"),
        (dict(response_format=NAMED, guided_json=PERSON), "send one of them"),
        (dict(response_format=NAMED, ignore_eos=True), "ignore_eos"),
        (dict(guided_json="{"), "guided_json is not JSON"),
        (dict(guided_json="3"), "guided_json"),
        (dict(structured_outputs=dict(regex="a")), "structured_outputs.regex"),
        (dict(format="json"), "format is not supported"),
        (dict(guided_json={"type": "strange"}), "strange"),
        (dict(guided_json={"enum": []}), "."),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_line(client, body, line):
    answer = ask(client, "/v1/completions", prompt="Who?", max_tokens=2, **body)
    assert answer.status_code == 400
    said = answer.json()["error"]["message"]
    assert line in said
    assert "\n" not in said


def test_others_are_answered_while_a_large_schema_is_compiled(client, service, monkeypatch):
    """What compiles does not hold the event loop, and what it made is kept."""
    calls, waiting = [], asyncio.Event()

    def slow(text):
        calls.append(text)
        loop.call_soon_threadsafe(waiting.set)
        assert answered.result(60)
        return real(text)

    async def both():
        nonlocal loop, answered
        loop, answered = asyncio.get_running_loop(), Future()
        body = dict(model=NAME, prompt="Who?", max_tokens=60, **HOT)
        first = asyncio.ensure_future(client.send("POST", "/v1/completions", body | dict(guided_json=PERSON)))
        await waiting.wait()
        free = await client.send("POST", "/v1/completions", body | dict(max_tokens=2))
        answered.set_result(free.status_code == 200)
        return (await first).status_code, free.status_code

    loop = answered = None
    real = service.compiled
    monkeypatch.setattr(service, "compiled", slow)
    assert asyncio.run(both()) == (200, 200)
    assert calls == [json.dumps(PERSON)]


def test_a_grammar_is_compiled_once(loaded):
    compiled = structure.compiler(loaded.tokenizer, loaded.config.vocab_size)
    assert compiled(json.dumps(PERSON)) is compiled(json.dumps(PERSON))


def in_this_process(client):
    return httpx.ASGITransport(client.app)


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_gets_what_it_parses(client, stream):
    async def said():
        http = httpx.AsyncClient(transport=in_this_process(client))
        async with openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http) as own:
            body = dict(model=NAME, messages=QUESTION, max_tokens=240, seed=1, temperature=1.5)
            if not stream:
                made = await own.chat.completions.parse(response_format=PromptPool, **body)
                return made.choices[0].message.parsed
            async with own.chat.completions.stream(response_format=PromptPool, **body) as parts:
                return (await parts.get_final_completion()).choices[0].message.parsed

    assert isinstance(asyncio.run(said()), PromptPool)


def test_ollamas_client_gets_the_pool_of_prompts(monkeypatch):
    """As the original notebook asks for it, of a server in a process of its own."""
    with small.server() as (_, port):
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{port}")
        asked = dict(model=small.NAME, messages=QUESTION, format=PromptPool.model_json_schema(), options=HOT)
        whole = ollama.Client().chat(**asked)
        parts = list(ollama.Client().chat(**asked, stream=True))
    assert PromptPool.model_validate_json(whole.message.content)
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert (whole.done_reason, parts[-1].done_reason) == ("stop", "stop")
