"""`llama-jax serve`: Ollama's and OpenAI's APIs, answered under any placement that steps.

stepper   one slot's programs: prompt in chunks, then token by token; all compiled before the first request; rows, those
          of all slots in one call, and which of the two a placement has
batcher   the thread that gives each slot its turn: requests join and leave between two steps
answers   from a request to pieces of text, and back out when its client leaves
service   one model, ready to answer, and what it counts
logprobs  log probabilities in either API's shape
tokens    texts to tokens, and which texts cannot fit
fields    what requests may say: what both APIs read, what would change an answer and is refused, what changes none
wire      bodies, errors and streams, in either API's shape
ollama    Ollama's API: https://github.com/ollama/ollama/blob/main/docs/api.md
openai    OpenAI's: https://platform.openai.com/docs/api-reference
gate      access to the server: keys, hosts, pages
app       the routes, and the description of all of them
process   the server's life: socket, start, signals, end
"""
