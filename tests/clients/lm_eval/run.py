"""lm-eval's tasks of this folder on a server, and on the same weights in transformers: a line of JSON.

Arguments: the folder where lm-eval is installed, the server's address, its model's name, the model's GGUF file. The
folder of the repository is where it runs.
"""

import importlib.metadata
import json
import operator
import site
import sys
from pathlib import Path

packages, url, name, file = sys.argv[1:]
site.addsitedir(packages)  # at the end: what .venv has comes first

import lm_eval  # noqa: E402 (after the path is made)
from lm_eval.tasks import TaskManager  # noqa: E402

MODELS = {
    "local-completions": dict(model=name, base_url=f"{url}/v1/completions", max_retries=1),
    "hf": dict(pretrained=str(Path(file).parent), gguf_file=Path(file).name, dtype="float32", device="cpu"),
}


def found(model: str, arguments: dict) -> dict:
    """task: {metrics: {name: of all rows}, rows: [{resps: what the model said, name: of this row}]}"""
    tasks = TaskManager(include_path=str(Path(__file__).parent), include_defaults=False)
    evaluated = lm_eval.simple_evaluate(
        model, arguments, tasks=["endings", "goes_on"], task_manager=tasks, batch_size=8, bootstrap_iters=0,
        samples=dict(goes_on=list(range(20))),
    )  # fmt: skip
    return {
        task: dict(
            metrics={name.split(",")[0]: value for name, value in evaluated["results"][task].items()},
            rows=[{key: row[key] for key in ("resps", *row["metrics"])} for row in sorted(rows, key=by_number)],
        )
        for task, rows in evaluated["samples"].items()
    }


by_number = operator.itemgetter("doc_id")
version = importlib.metadata.version("lm_eval")
every = {model: found(model, arguments) for model, arguments in MODELS.items()}
print(json.dumps(dict(version=version) | every, default=float))
