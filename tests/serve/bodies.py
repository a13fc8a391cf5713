"""Bodies drawn from the server's own description, as hypothesis strategies: such as fit it, and damaged ones."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from llama_lab.serve.fields import NEVER
from tests.fuzz import hostile
from tests.serve.small import NAME

TEXTS = st.sampled_from(["", "a", "Once upon a time", "<|im_end|>", "user", "system", "0s", "5m", "\n", "é", "👋" * 9])
NUMBERS = st.sampled_from([0, 0.5, 1, 2, -1, 1.5, 40])
SHORT = dict(options=dict(num_predict=2), max_tokens=2)  # so that what is answered is answered soon


def resolved(schema: dict, schemas: dict) -> dict:
    """The schema that a reference names, or the schema itself."""
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def fitting(schema: dict, schemas: dict) -> st.SearchStrategy:
    """Values that a schema of the description allows; any value where it says nothing."""
    schema = resolved(schema, schemas)
    if "anyOf" in schema:
        return st.one_of([fitting(each, schemas) for each in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        allowed = {name: each for name, each in schema["properties"].items() if each != NEVER}
        fields = {name: fitting(each, schemas) for name, each in allowed.items()}
        needed = {name: fields.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(needed, optional=fields)
    if kind == "array":
        inside = fitting(schema.get("items", {}), schemas)
        return st.lists(inside, min_size=schema.get("minItems", 0), max_size=3)
    if kind == "integer":
        low, high = schema.get("minimum", -3), schema.get("maximum", schema.get("exclusiveMaximum", 52) - 1)
        return st.integers(low, min(high, 50))
    simple = dict(string=TEXTS, number=NUMBERS, boolean=st.booleans(), null=st.none())
    return simple.get(kind, hostile.values)


@st.composite
def contents(draw, schema: dict, schemas: dict) -> bytes:
    """A body: one that fits, mostly of the model that is there, or one that is damaged in a place or as a text."""
    found = draw(fitting(schema, schemas))
    if draw(st.integers(0, 7)):
        found = SHORT | found | dict(model=NAME)
    how = draw(st.sampled_from(["fits", "damaged", "damaged", "text"]))
    if how == "text":
        return draw(hostile.texts_of(found)).encode(errors="surrogatepass")
    return json.dumps(found if how == "fits" else draw(hostile.documents(found))).encode(errors="surrogatepass")
