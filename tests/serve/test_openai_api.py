"""OpenAI's API: shapes, events, usage, and the same tokens as `generate`."""

import asyncio

import jax
import numpy as np
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import llama_jax as ll
from llama_jax import chat, generate
from llama_jax.sampling import Sampler
from tests.serve.conftest import NAME, ask, count, events
from tests.serve.test_ollama_api import QUESTION


def test_a_chat_completion_is_generates_answer(client, loaded, expected):
    answer = ask(client, "/v1/chat/completions", messages=QUESTION, temperature=0, max_tokens=9).json()
    ids = chat.encode(loaded.tokenizer, QUESTION)
    assert list(answer) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"]
    (choice,) = answer["choices"]
    said = dict(role="assistant", content=expected(ids, 9))
    assert choice == dict(index=0, message=said, finish_reason="length")
    counts = dict(prompt_tokens=len(ids), completion_tokens=9, total_tokens=len(ids) + 9)
    cached = answer["usage"].pop("prompt_tokens_details")["cached_tokens"]
    assert (answer["usage"], 0 <= cached < len(ids)) == (counts, True)
    again = ask(client, "/v1/chat/completions", messages=QUESTION, temperature=0, max_tokens=9).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids) - 16  # a piece is run again
    assert answer["object"] == "chat.completion"


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_is_events_that_end_with_done(client, loaded, expected, usage):
    answer = ask(client, "/v1/chat/completions", messages=QUESTION, temperature=0, max_completion_tokens=9,
                 stream=True, stream_options=dict(include_usage=usage))  # fmt: skip
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer)
    last = found.pop() if usage else None
    assert not usage or (last["choices"], last["usage"]["completion_tokens"]) == ([], 9)
    first, *deltas, end = [part["choices"][0]["delta"] for part in found]
    assert (first, end) == (dict(role="assistant", content=""), {})
    assert all(list(delta) == ["content"] for delta in deltas)
    assert "".join(delta["content"] for delta in deltas) == expected(chat.encode(loaded.tokenizer, QUESTION), 9)
    assert [part["choices"][0]["finish_reason"] for part in found] == [None] * (len(found) - 1) + ["length"]
    assert {part["object"] for part in found} == {"chat.completion.chunk"}
    assert len({part["id"] for part in found}) == 1


def test_a_completion_continues_its_prompt_as_it_stands(client, loaded, expected):
    ids = loaded.tokenizer.encode("Once upon a time")
    for prompt in ("Once upon a time", ["Once upon a time"], ids):
        answer = ask(client, "/v1/completions", prompt=prompt, temperature=0, max_tokens=7).json()
        assert answer["choices"] == [dict(text=expected(ids, 7), index=0, finish_reason="length")]
        assert answer["usage"]["prompt_tokens"] == len(ids)
    parts = events(ask(client, "/v1/completions", prompt=ids, temperature=0, max_tokens=7, stream=True))
    assert "".join(part["choices"][0]["text"] for part in parts) == expected(ids, 7)


def test_parts_of_a_message_are_one_text_and_a_seed_is_a_seed(client):
    parts = [dict(type="text", text="Why is "), dict(type="text", text="the sky blue?")]
    body = dict(temperature=1.0, seed=3, max_tokens=8)
    one = ask(client, "/v1/chat/completions", messages=[dict(role="user", content=parts)], **body).json()
    other = ask(client, "/v1/chat/completions", messages=QUESTION, **body).json()
    assert one["choices"] == other["choices"]


BEGUN = [*QUESTION, dict(role="assistant", content="The sky is")]


@pytest.mark.parametrize(
    ("flags", "mark", "how"),
    [
        (dict(continue_final_message=True), {}, dict(continue_final_message=True)),
        (dict(continue_final_message=True, add_generation_prompt=False), {}, dict(continue_final_message=True)),
        ({}, dict(prefix=True), dict(continue_final_message=True)),
        ({}, dict(partial=True), dict(continue_final_message=True)),
        (dict(add_generation_prompt=False), {}, dict(answer=False)),
        (dict(add_generation_prompt=True, continue_final_message=False), dict(prefix=False), {}),
        ({}, {}, {}),
    ],
)
def test_an_answer_goes_on_with_the_last_message_where_that_is_asked_for(client, loaded, expected, flags, mark, how):
    said = [*BEGUN[:-1], BEGUN[-1] | mark]
    answer = ask(client, "/v1/chat/completions", messages=said, temperature=0, max_tokens=7, **flags).json()
    ids = chat.encode(loaded.tokenizer, BEGUN, **how)
    assert answer["choices"][0]["message"]["content"] == expected(ids, 7)
    assert answer["usage"]["prompt_tokens"] == len(ids)


def test_models_are_listed(client):
    listed = asyncio.run(client.send("GET", "/v1/models")).json()
    assert listed["object"] == "list"
    (one,) = listed["data"]
    assert asyncio.run(client.send("GET", f"/v1/models/{one['id']}")).json() == one
    assert asyncio.run(client.send("GET", "/v1/models/gpt-5")).status_code == 404


def test_a_chats_log_probabilities_fit_the_clients_types_whole_and_in_pieces(client, loaded, service):
    body = dict(messages=QUESTION, temperature=0, max_tokens=9, logprobs=True, top_logprobs=20)
    before = count(service, "compilations_in_service")
    whole = ChatCompletion.model_validate(ask(client, "/v1/chat/completions", **body).json(), strict=True)
    told = whole.choices[0].logprobs.content
    parts = events(ask(client, "/v1/chat/completions", **body, stream=True))
    chunks = [ChatCompletionChunk.model_validate(part, strict=True).choices[0] for part in parts]
    assert chunks[0].logprobs is chunks[-1].logprobs is None  # where no text is, no log probability
    streamed = [one.model_dump() for chunk in chunks[1:-1] for one in chunk.logprobs.content]
    assert streamed == [one.model_dump() for one in told]
    without = ask(client, "/v1/chat/completions", **body | dict(top_logprobs=0)).json()
    assert [one["top_logprobs"] for one in without["choices"][0]["logprobs"]["content"]] == [[]] * 9
    assert count(service, "compilations_in_service") == before  # what `generate` compiles here comes later
    assert b"".join(bytes(one.bytes) for one in told).decode(errors="replace") == whole.choices[0].message.content
    assert [len(one.top_logprobs) for one in told] == [20] * 9
    engine, prompt = generate.build(loaded, "step"), chat.encode(loaded.tokenizer, QUESTION)
    ids = generate.answer(engine, [prompt], 9)[0].token_ids
    logits = generate.logits(engine, [*prompt, *ids[:-1]])[-9:]
    values = np.asarray(jax.nn.log_softmax(logits))
    np.testing.assert_allclose([one.logprob for one in told], values[np.arange(9), ids], atol=1e-4)
    best = [[each.logprob for each in one.top_logprobs] for one in told]
    np.testing.assert_allclose(best, np.sort(values)[:, :-21:-1], atol=1e-4)


@pytest.mark.parametrize("most", [0, 1, 5])
def test_a_completions_log_probabilities_are_columns(client, most):
    body = dict(prompt="Once upon", max_tokens=8, temperature=1.5, seed=2, logprobs=most)
    whole = Completion.model_validate(ask(client, "/v1/completions", **body).json(), strict=True)
    told = whole.choices[0].logprobs
    parts = events(ask(client, "/v1/completions", **body, stream=True))
    columns = [part["choices"][0]["logprobs"] for part in parts]
    assert columns.pop() is None  # the reason stands alone
    for name, values in told.to_dict().items():
        assert [each for part in columns for each in part[name]] == values
    assert len(told.tokens) == 8
    for at, token, value, best in zip(
        told.text_offset, told.tokens, told.token_logprobs, told.top_logprobs, strict=True
    ):
        assert best[token] == value
        assert len(best) in (most, most + 1)
        assert len(best) == most + 1 or value >= min(best.values())
        if "bytes:" not in "".join(told.tokens):
            assert ("Once upon" + whole.choices[0].text)[at:].startswith(token)


def test_a_stop_ends_the_log_probabilities_too(client):
    body = dict(prompt="Once upon", max_tokens=12, temperature=0, logprobs=0)
    free = ask(client, "/v1/completions", **body).json()["choices"][0]
    stop = free["logprobs"]["tokens"][5]
    cut = ask(client, "/v1/completions", **body, stop=[stop]).json()["choices"][0]
    assert cut["finish_reason"] == "stop"
    n = len(cut["logprobs"]["tokens"])
    assert cut["logprobs"]["tokens"] == free["logprobs"]["tokens"][:n]
    assert all(at < len("Once upon" + cut["text"]) for at in cut["logprobs"]["text_offset"])


@pytest.mark.parametrize("most", [0, 3])
def test_an_echo_has_the_prompts_log_probabilities(client, loaded, service, most):
    """In one piece and in several, in company, and the answer is the one without echo."""
    texts = ["Once upon a time", "One " * 70, "Once"]
    ids = [loaded.tokenizer.encode(text) for text in texts]
    before = count(service, "compilations_in_service")
    body = dict(prompt=texts, temperature=0, max_tokens=most, logprobs=1)
    whole = Completion.construct(**ask(client, "/v1/completions", **body, echo=True).json())  # as the client does
    streamed = events(ask(client, "/v1/completions", **body, echo=True, stream=True))
    plain = ask(client, "/v1/completions", **body).json()["choices"] if most else [dict(text="")] * 3
    assert count(service, "compilations_in_service") == before
    found = ll.score(generate.build(loaded, "step"), ids[:2])
    for i, choice in enumerate(whole.choices):
        told, n = choice.logprobs, len(ids[i])
        assert (choice.index, choice.text, choice.finish_reason) == (i, texts[i] + plain[i]["text"], "length")
        assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
        assert "".join(told.tokens) == choice.text
        for token, at in zip(told.tokens, told.text_offset, strict=True):
            assert choice.text[at:].startswith(token)
        parts = [each["logprobs"] for part in streamed for each in part["choices"] if each["index"] == i]
        assert [value for part in parts if part for value in part["token_logprobs"]] == told.token_logprobs
        if i < 2:
            np.testing.assert_allclose(told.token_logprobs[1:n], found[i].logprobs, atol=1e-4)
            greedy = [max(best.values()) == value for best, value in
                      zip(told.top_logprobs[1:n], told.token_logprobs[1:n], strict=True)]  # fmt: skip
            assert greedy == found[i].best.tolist()
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (sum(map(len, ids)), 3 * most)


def test_an_echos_log_probabilities_have_the_token_that_ends_the_answer(client, loaded):
    """lm-eval asks for one token after a prompt, and leaves out the last that is told."""
    ids = loaded.tokenizer.encode("Once upon")
    best = int(np.argmax(np.asarray(generate.logits(generate.build(loaded, "step"), ids))[-1]))
    body = dict(prompt=ids, temperature=0, max_tokens=1, logprobs=1, echo=True)
    free = ask(client, "/v1/completions", **body).json()["choices"][0]
    ended = ask(client, "/v1/completions", **body, stop_token_ids=[best]).json()["choices"][0]
    assert (ended["text"], ended["finish_reason"]) == (free["text"], "stop")
    assert len(ended["logprobs"]["tokens"]) == len(ids) + 1
    assert ended["logprobs"] == free["logprobs"]


def test_an_echo_of_ids_without_log_probabilities_is_their_text(client, loaded):
    ids = loaded.tokenizer.encode("Once upon")
    for prompt in ("Once upon", ids):
        body = dict(prompt=prompt, echo=True, max_tokens=2, temperature=0)
        whole = ask(client, "/v1/completions", **body).json()["choices"][0]["text"]
        parts = events(ask(client, "/v1/completions", **body, stream=True))
        assert whole == "".join(part["choices"][0]["text"] for part in parts)
        assert whole.startswith("Once upon")
        nothing = ask(client, "/v1/completions", **body | dict(max_tokens=0)).json()
        assert (nothing["choices"][0]["text"], nothing["usage"]["completion_tokens"]) == ("Once upon", 0)


def post(client, path, **body):
    return asyncio.run(client.send("POST", path, body))


def test_tokens_of_texts_and_conversations_and_back(client, loaded, service):
    ids = loaded.tokenizer.encode("Once upon<|im_end|>", allow_special_tokens=True)
    found = post(client, "/tokenize", prompt="Once upon<|im_end|>", add_special_tokens=False, return_token_strs=True)
    told = dict(count=len(ids), max_model_len=service.context, tokens=ids, token_strs=["Once", " upon", "<|im_end|>"])
    assert found.json() == told
    assert post(client, "/detokenize", model=NAME, tokens=ids).json() == dict(prompt="Once upon<|im_end|>")
    assert post(client, "/detokenize", tokens=[]).json() == dict(prompt="")
    chats = post(client, "/tokenize", messages=BEGUN, continue_final_message=True).json()
    assert chats["tokens"] == chat.encode(loaded.tokenizer, BEGUN, continue_final_message=True)
    info = asyncio.run(client.send("GET", "/tokenizer_info")).json()
    assert (info["eos_token"], info["chat_template"]) == ("<|im_end|>", loaded.tokenizer.chat_template)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/tokenize", {}, 400, "either prompt or messages"),
        ("/tokenize", dict(prompt="a", messages=QUESTION), 400, "either prompt or messages"),
        ("/tokenize", dict(messages=QUESTION, add_special_tokens=True), 400, "add_special_tokens is for a prompt"),
        ("/tokenize", dict(prompt="a", model="gpt-5"), 404, "gpt-5"),
        ("/tokenize", dict(messages=QUESTION, chat_template="x"), 400, "chat_template is not supported"),
        ("/detokenize", dict(tokens=[49152]), 400, "outside the vocabulary"),
        ("/detokenize", dict(tokens="a"), 400, "tokens"),
        ("/detokenize", {}, 400, "has no tokens"),
    ],
)
def test_what_is_no_text_and_no_tokens_is_refused(client, path, body, status, words):
    answer = post(client, path, **body)
    assert answer.status_code == status
    assert words in answer.json()["error"]


CHAT, TEXT = ("/v1/chat/completions", dict(messages=QUESTION)), ("/v1/completions", dict(prompt="Once"))
CALL = dict(role="assistant", content=None, tool_calls=[dict(id="1", type="function", function=dict(name="f"))])
IMAGE = [dict(role="user", content=[dict(type="image_url")])]
BAD = [  # of what, what is asked, words of the line
    (CHAT, dict(model="gpt-5"), "gpt-5"),
    (CHAT, dict(logprobs=2), "logprobs"),
    (CHAT, dict(logprobs=True, top_logprobs=21), "top_logprobs"),
    (CHAT, dict(logprobs=True, top_logprobs=-1), "top_logprobs"),
    (CHAT, dict(top_logprobs=2), "without logprobs"),
    (CHAT, dict(tools=[dict(type="function")]), "tiny does not support tools"),
    (CHAT, dict(tool_choice="required"), "tiny does not support tools"),
    (CHAT, dict(messages=[*QUESTION, CALL, *QUESTION]), "tiny does not support tools"),
    (CHAT, dict(messages=[dict(role="user")]), "messages.0 has no content"),
    (CHAT, dict(messages=IMAGE), "messages.0.content is [{'type': 'image_url'}]; it must be a text, or parts"),
    (CHAT, dict(messages=[]), "messages"),
    (CHAT, dict(messages=["Hi"]), "messages.0 is 'Hi'; input should be an object."),
    (CHAT, dict(stream_options=True), "stream_options is True; input should be an object."),
    (CHAT, dict(continue_final_message=True), "last message is the user's"),
    (CHAT, dict(messages=[BEGUN[1] | dict(prefix=True), *QUESTION]), "prefix"),
    (CHAT, dict(messages=BEGUN, continue_final_message=True, add_generation_prompt=True), "send one of them"),
    (CHAT, dict(temprature=1), "temprature is no field that this server knows"),
    (CHAT, dict(add_special_tokens=True), "add_special_tokens"),
    (CHAT, dict(repeat_penalty=1.1, repetition_penalty=1.2), "two names of one penalty"),
    (CHAT, dict(repeat_penalty=1.1, repeat_last_n=64), "repeat_last_n is 64"),
    (CHAT, dict(top_p=-0.1), "top_p is -0.1"),
    (CHAT, dict(stop=["x"] * 17), "it must be a text, or a list of 16 texts at most"),
    *((CHAT, {name: n}, name) for name in ("max_tokens", "max_completion_tokens") for n in (0, -2, 1.5)),
    (TEXT, dict(prompt=[[]] * 100), "it must be a text, token ids, or a list of 64"),
    (TEXT, dict(max_tokens=0), "max_tokens is 0, which leaves nothing to answer without echo"),
    (TEXT, dict(max_tokens=-2), "max_tokens"),
    (TEXT, dict(prompt_logprobs=1), "prompt_logprobs is not supported"),
    (CHAT, dict(echo=True), "echo is not supported"),
    (TEXT, dict(prompt=[1, "a"]), "it must be a text, token ids, or a list of 64"),
    (TEXT, dict(prompt=["a", ""]), "prompt is empty"),
    (TEXT, dict(prompt=["a"] * 6), "prompt has 6 of them; this server takes 5 at a time"),  # 2 slots, a queue of 3
    *((TEXT, dict(logprobs=most), "logprobs") for most in (-1, 6, True, "2")),
]


@pytest.mark.parametrize(("asked", "body", "words"), BAD)
def test_an_error_has_openais_shape(client, asked, body, words):
    path, fine = asked
    answer, unknown = ask(client, path, **fine | body), "model" in body
    assert answer.status_code == (404 if unknown else 400)
    assert list(answer.json()) == ["error"]
    error = answer.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == ("not_found_error" if unknown else "invalid_request_error")
    assert words in error["message"]
    assert "\n" not in error["message"]


def test_fields_that_ask_for_nothing_change_nothing(client):
    nothing = dict(n=1.0, logprobs=False, tools=[], presence_penalty=0, frequency_penalty=0.0, top_logprobs=None,
                   user="x", max_tokens=3.0, repeat_last_n=0, repeat_penalty=1.5)  # fmt: skip
    plain, other = (said(client, max_tokens=3), said(client, **nothing))
    assert plain == other


def said(client, **settings):
    """The text of a chat, greedy but for what the settings say."""
    answer = ask(client, "/v1/chat/completions", messages=QUESTION, **dict(temperature=0) | settings)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def test_samplings_further_settings_are_read_by_the_names_that_servers_have(client, loaded, expected):
    ids, greedy = chat.encode(loaded.tokenizer, QUESTION), said(client, max_tokens=8)
    for one in (dict(top_p=0), dict(top_k=1), dict(min_p=1.0), dict(top_p=0.0, top_k=-1)):  # each leaves one token
        assert said(client, max_tokens=8, temperature=1.5, **one) == greedy
    for name in ("repetition_penalty", "repeat_penalty"):
        asked = {name: 5, "temperature": 1.0, "seed": 2**32 + 7}
        assert said(client, max_tokens=8, **asked) == expected(ids, 8, Sampler(1.0, repetition_penalty=5), 7)
    free = said(client, max_tokens=8, temperature=1.0, top_p=0.9, min_p=0.01, seed=5)
    assert free == expected(ids, 8, Sampler(1.0, top_p=0.9, min_p=0.01), 5)


def test_numbers_that_mean_none_are_none(client, service):
    long = ask(client, "/v1/completions", prompt="a", max_tokens=-1, temperature=0, ignore_eos=True).json()
    assert long["usage"]["total_tokens"] == service.context
    texts = {said(client, max_tokens=8, temperature=1.0, seed=-1) for _ in range(3)}
    assert len(texts) > 1


def test_what_ends_an_answer_can_be_said_in_tokens_and_left_out(client, loaded, service):
    free = ask(client, "/v1/completions", prompt="Once", max_tokens=12, temperature=0, logprobs=0).json()
    ids = generate.answer(generate.build(loaded, "step"), [loaded.tokenizer.encode("Once")], 12)[0].token_ids
    body = dict(prompt="Once", max_tokens=12, temperature=0, stop_token_ids=[ids[4]])
    cut = ask(client, "/v1/completions", **body).json()
    at = ids.index(ids[4]) + 1
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("stop", at)
    assert free["choices"][0]["text"].startswith(cut["choices"][0]["text"])
    job = service.answer  # ignoring the model's own end leaves the others
    with pytest.MonkeyPatch.context() as patched:
        seen = []
        patched.setattr(service, "answer", lambda *args, **how: seen.append(how) or job(*args, **how))
        assert ask(client, "/v1/completions", **body, ignore_eos=True).json()["usage"] == cut["usage"] | dict(
            prompt_tokens_details=dict(cached_tokens=0)
        )
    assert seen[0]["stop"] == [ids[4]]


def test_several_prompts_get_a_choice_each(client, loaded, expected):
    texts = ["Once upon a time", "One"]
    ids = [loaded.tokenizer.encode(text) for text in texts]
    for prompt in (texts, ids):
        body = dict(prompt=prompt, temperature=0, max_tokens=7)
        whole = ask(client, "/v1/completions", **body).json()
        assert [(one["index"], one["text"]) for one in whole["choices"]] == [
            (i, expected(each, 7)) for i, each in enumerate(ids)
        ]
        assert whole["usage"]["prompt_tokens"] == sum(map(len, ids))
        assert whole["usage"]["completion_tokens"] == 14
    *parts, last = events(ask(client, "/v1/completions", **body, stream=True, stream_options=dict(include_usage=True)))
    streamed = {i: "".join(c["text"] for part in parts for c in part["choices"] if c["index"] == i) for i in range(2)}
    assert list(streamed.values()) == [one["text"] for one in whole["choices"]]
    assert last["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    (alone,) = ask(client, "/v1/completions", prompt=ids[:1], temperature=0, max_tokens=7).json()["choices"]
    assert alone["text"] == expected(ids[0], 7)


def test_usage_can_be_told_with_each_event(client):
    asked = dict(stream=True, stream_options=dict(continuous_usage_stats=True, include_usage=True))
    parts = events(ask(client, "/v1/chat/completions", messages=QUESTION, temperature=0, max_tokens=6, **asked))
    made = [part["usage"]["completion_tokens"] for part in parts]
    assert made == sorted(made)
    assert made[-1] == 6


def test_a_helpers_message_can_be_put_back(client):
    """What a client accumulated of a stream has one role, and no text, no calls, where there were none."""
    said_before = dict(role="assistant", content=None, tool_calls=[], refusal=None, annotations=[], name="helper")
    talk = [*QUESTION, said_before, *QUESTION]
    assert ask(client, "/v1/chat/completions", messages=talk, max_tokens=1).status_code == 200


def test_tools_that_may_not_be_called_are_passed_over(client):
    tool = dict(type="function", function=dict(name="f"))
    assert said(client, max_tokens=3, tools=[tool], tool_choice="none") == said(client, max_tokens=3)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings"])
def test_what_is_not_here_is_no_mistake_of_the_servers_and_says_so(client, path):
    answer = ask(client, path, input="Hi")
    assert answer.status_code == (404 if "responses" in path else 400)  # clients ask again after 5xx
    assert list(answer.json()["error"]) == ["message", "type", "param", "code"]


def test_a_slash_too_many_lists_the_models(client):
    assert asyncio.run(client.send("GET", "/v1/models/")).json()["object"] == "list"
