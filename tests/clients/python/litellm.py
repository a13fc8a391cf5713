"""LiteLLM by each of its routes to such a server."""

import litellm

from tests.clients.tried import FORMAT, GREEDY, MESSAGES, MODEL, OTHER, TOOL, URL, joined, tell

litellm.suppress_debug_info = True


def features(route, base, unread):
    def ask(model=MODEL, **more):
        return litellm.completion(f"{route}/{model}", MESSAGES, api_base=base, api_key="none", **GREEDY, **more)

    def content(**more):
        return ask(**more).choices[0].message.content

    return dict(
        chat=content,
        stream=lambda: joined(part.choices[0].delta.content for part in ask(stream=True)),
        structured_output=lambda: content(response_format=FORMAT),
        tools=lambda: content(tools=[TOOL]),
        another_model=lambda: content(model=OTHER),
        refused_field=lambda: content(**{unread: 1}),
    )


for route in ("ollama", "ollama_chat"):  # which let only Ollama's own fields through
    tell(f"litellm: `{route}/`", "litellm", **features(route, URL, "mirostat"))
for route in ("openai", "hosted_vllm"):
    tell(f"litellm: `{route}/`", "litellm", **features(route, f"{URL}/v1", "presence_penalty"))
