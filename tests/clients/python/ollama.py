from ollama import Client

from tests.clients.tried import MESSAGES, MODEL, OPTIONS, OTHER, SCHEMA, URL, joined, tell, weather

client = Client(URL)


def chat(model=MODEL, options=OPTIONS, **more):
    return client.chat(model, MESSAGES, options=options, **more)


tell(
    "ollama",
    "ollama",
    chat=lambda: chat().message.content,
    stream=lambda: joined(part.message.content for part in chat(stream=True)),
    list=lambda: client.list().models[0].model,
    structured_output=lambda: chat(format=SCHEMA).message.content,
    tools=lambda: chat(tools=[weather]),
    another_model=lambda: chat(OTHER),
    refused_field=lambda: chat(options=dict(presence_penalty=1)),
)
