"""openai's `.stream()` and `.parse()`, which add the events up."""

from openai import OpenAI, pydantic_function_tool

from tests.clients.tried import GREEDY, MESSAGES, MODEL, OTHER, URL, Weather, tell

chats = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0).chat.completions


def asked(model=MODEL, **more):
    return dict(model=model, messages=MESSAGES, **GREEDY, **more)


def streamed(**more):
    with chats.stream(**asked(**more)) as stream:
        return stream.get_final_completion().choices[0].message


def again():
    """The helper's own message given back, as in any second turn."""
    message = streamed(logprobs=True)
    chats.create(**asked() | dict(messages=[*MESSAGES, message, *MESSAGES]))
    return message.content


tell(
    "openai: `.stream`, `.parse`",
    "openai",
    chat=lambda: chats.parse(**asked()).choices[0].message.content,
    stream=again,
    structured_output=lambda: chats.parse(**asked(response_format=Weather)).choices[0].message.parsed,
    tools=lambda: chats.parse(**asked(tools=[pydantic_function_tool(Weather)])),
    another_model=lambda: streamed(model=OTHER),
    refused_field=lambda: streamed(presence_penalty=1),
)
