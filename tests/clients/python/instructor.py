import instructor
from openai import OpenAI

from tests.clients.tried import GREEDY, MESSAGES, MODEL, OTHER, URL, Weather, tell

plain = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def ask(mode, model=MODEL, **more):
    client = instructor.from_openai(plain, mode=mode)
    asked = dict(model=model, messages=MESSAGES, response_model=Weather, max_retries=0)
    return client.chat.completions.create(**asked, **GREEDY, **more)


def streamed():
    """The fields as they come."""
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    asked = dict(model=MODEL, messages=MESSAGES, response_model=Weather, **GREEDY)
    *_, last = client.chat.completions.create_partial(**asked)
    return Weather.model_validate(last.model_dump())


tell(
    "instructor",
    "instructor",
    stream=streamed,
    structured_output=lambda: ask(instructor.Mode.JSON_SCHEMA),
    tools=lambda: ask(instructor.Mode.TOOLS),
    another_model=lambda: ask(instructor.Mode.JSON_SCHEMA, OTHER),
    refused_field=lambda: ask(instructor.Mode.JSON_SCHEMA, presence_penalty=1),
)
