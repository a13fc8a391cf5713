from langchain_ollama import ChatOllama

from tests.clients.tried import MESSAGES, MODEL, OPTIONS, OTHER, TOOL, URL, Weather, joined, tell


def chat(model=MODEL, **more):
    return ChatOllama(model=model, base_url=URL, num_ctx=4096, **OPTIONS, **more)


tell(
    "langchain-ollama",
    "langchain-ollama",
    chat=lambda: chat().invoke(MESSAGES).content,
    stream=lambda: joined(part.content for part in chat().stream(MESSAGES)),
    list=lambda: chat(validate_model_on_init=True).model,
    structured_output=lambda: chat().with_structured_output(Weather).invoke(MESSAGES),
    tools=lambda: chat().bind_tools([TOOL]).invoke(MESSAGES),
    another_model=lambda: chat(OTHER).invoke(MESSAGES),
    refused_field=lambda: chat(reasoning=True).invoke(MESSAGES),
)
