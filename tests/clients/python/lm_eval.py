"""lm-eval's models for such servers: texts by `/v1/chat/completions`, likelihoods by `/v1/completions`. What a server
says of an error is in lm-eval's log alone."""

import json
from types import SimpleNamespace

from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from tests.clients.tried import MESSAGES, MODEL, URL, tell

HOW = dict(model=MODEL, max_retries=1, max_length=512)


def asked(*arguments):
    return [SimpleNamespace(args=arguments)]


def chat():
    model = LocalChatCompletion(base_url=f"{URL}/v1/chat/completions", **HOW)
    (said,) = model.generate_until(asked(JsonChatStr(json.dumps(MESSAGES)), dict(max_gen_toks=32, until=["\n"])))
    return said


def likelihood():
    """Of an ending, and whether it is the greedy one."""
    model = LocalCompletionsAPI(base_url=f"{URL}/v1/completions", **HOW)
    ((logarithm, greedy),) = model.loglikelihood(asked("The sky is", " blue"), disable_tqdm=True)
    return f"{logarithm:.3f} {greedy}"


tell("lm-eval", "lm_eval", chat=chat, likelihood=likelihood)
