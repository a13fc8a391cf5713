from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.ollama import OllamaProvider

from tests.clients.tried import GREEDY, MESSAGES, MODEL, OTHER, URL, Weather, tell

HI = MESSAGES[0]["content"]


def agent(model=MODEL, output_type=str, **more):
    made = OpenAIChatModel(model, provider=OllamaProvider(base_url=f"{URL}/v1"))
    return Agent(made, output_type=output_type, model_settings=GREEDY | more, retries=0)


def streamed():
    events = agent().run_stream_sync(HI)
    *_, last = events.stream_text()
    return last


tell(
    "pydantic-ai",
    "pydantic-ai-slim",
    chat=lambda: agent().run_sync(HI).output,
    stream=streamed,
    structured_output=lambda: agent(output_type=NativeOutput(Weather)).run_sync(HI).output,
    tools=lambda: agent(output_type=Weather).run_sync(HI).output,
    another_model=lambda: agent(OTHER).run_sync(HI).output,
    refused_field=lambda: agent(presence_penalty=1).run_sync(HI).output,
)
