"""As its README has it: no `context_window`, so that what the server says of the model is asked for as `num_ctx`."""

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama

from tests.clients.tried import MESSAGES, MODEL, OPTIONS, OTHER, URL, Weather, joined, tell, weather

HI = MESSAGES[0]["content"]


def made(model=MODEL, **options):
    return Ollama(model=model, base_url=URL, request_timeout=120, additional_kwargs=OPTIONS | options)


tell(
    "llama-index-llms-ollama",
    "llama-index-llms-ollama",
    chat=lambda: made().complete(HI).text,
    stream=lambda: joined(part.delta for part in made().stream_chat([ChatMessage(HI)])),
    structured_output=lambda: made().as_structured_llm(Weather).complete(HI).raw,
    tools=lambda: made().chat_with_tools([FunctionTool.from_defaults(weather)], HI),
    another_model=lambda: made(OTHER).complete(HI),
    refused_field=lambda: made(presence_penalty=1).complete(HI),
)
