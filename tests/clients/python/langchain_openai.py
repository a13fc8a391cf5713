from langchain_openai import ChatOpenAI

from tests.clients.tried import GREEDY, MESSAGES, MODEL, OTHER, TOOL, URL, Weather, joined, tell


def chat(model=MODEL, **more):
    return ChatOpenAI(model=model, base_url=f"{URL}/v1", api_key="none", max_retries=0, **GREEDY, **more)


tell(
    "langchain-openai",
    "langchain-openai",
    chat=lambda: chat().invoke(MESSAGES).content,
    stream=lambda: joined(part.content for part in chat().stream(MESSAGES)),
    structured_output=lambda: chat().with_structured_output(Weather).invoke(MESSAGES),
    tools=lambda: chat().bind_tools([TOOL]).invoke(MESSAGES),
    another_model=lambda: chat(OTHER).invoke(MESSAGES),
    refused_field=lambda: chat(presence_penalty=1).invoke(MESSAGES),
)
