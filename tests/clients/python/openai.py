from openai import OpenAI

from tests.clients.tried import FORMAT, GREEDY, MESSAGES, MODEL, OTHER, TOOL, URL, joined, tell

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def create(model=MODEL, **more):
    return client.chat.completions.create(model=model, messages=MESSAGES, **GREEDY, **more)


def content(**more):
    return create(**more).choices[0].message.content


tell(
    "openai",
    "openai",
    chat=content,
    stream=lambda: joined(part.choices[0].delta.content for part in create(stream=True)),
    list=lambda: client.models.list().data[0].id,
    structured_output=lambda: content(response_format=FORMAT),
    tools=lambda: content(tools=[TOOL]),
    another_model=lambda: content(model=OTHER),
    refused_field=lambda: content(presence_penalty=1),
)
