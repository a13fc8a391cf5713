"""Datasets of the Hugging Face `datasets` library as sources: objects, and datasets of the hub by name, streamed.

    hf:HuggingFaceFW/fineweb:sample-10BT:train      owner/name, configuration (left out: the default), split (left out:
                                                    train)
    hf:HuggingFaceFW/fineweb@REVISION:sample-10BT   at a revision: a run of weeks is not stopped by a change of the
                                                    dataset's card
    hf:/data/mine   hf:mine::test                   a local folder of data files, its only configuration, its split
                                                    "test"

Only what is read is downloaded. No code of a dataset is run: `trust_remote_code` is never given.
Source: https://huggingface.co/docs/datasets/stream
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from llama_jax.plumbing.boundary import shown
from llama_jax.plumbing.errors import UserError, near
from llama_lab.activations import readers
from llama_lab.activations.readers import Example, example, first_line

SPLIT = "train"
SHOWN = 200  # characters of a name in a message


class Loaded(NamedTuple):
    """A streaming dataset, and what identifies it: `about()` reads local files whole, `about(digest)` what that reads.
    parquet: its files, where all of it is in such files: paths of this machine, or URLs."""

    dataset: object
    about: Callable[..., dict]
    parquet: list[Path | str] | None


def is_dataset(value) -> bool:
    """Whether a value is from the `datasets` library, without importing it."""
    library = sys.modules.get("datasets")
    kinds = ("Dataset", "IterableDataset", "DatasetDict", "IterableDatasetDict")
    return library is not None and isinstance(value, tuple(getattr(library, kind) for kind in kinds))


def name_of(dataset) -> str:
    """How messages call a dataset. Raises UserError for a dictionary of splits."""
    if isinstance(dataset, dict):
        raise UserError(f"This dataset has the splits {', '.join(map(repr, dataset))}; give one of them.")
    return f"Dataset {dataset.info.dataset_name}" if dataset.info.dataset_name else f"The {type(dataset).__name__}"


def about(dataset, field: str) -> dict:
    """What identifies a dataset object. A streamed one has no fingerprint: what it is called must do."""
    info = dataset.info
    named = dict(name=info.dataset_name, config=info.config_name, split=str(dataset.split), version=str(info.version))
    known = {k: None if v == "None" else v for k, v in named.items()}
    return dict(kind="dataset", **known, fingerprint=getattr(dataset, "_fingerprint", None), field=field)


def rows(dataset, field: str, name: str, first: int = 0) -> Iterator[Example]:
    """The examples of a dataset from one on, one at a time. Raises UserError if the rest cannot be read."""
    names = dataset.column_names
    if names is not None and field not in names:
        raise UserError(f"{name} has no column {field!r}.{near(field, names)} Name another (--field).")
    number = first
    try:
        for number, row in enumerate(dataset.skip(first) if first else dataset, first):
            yield example(row, field, f"{name}, example {number}")
    except UserError:
        raise
    except Exception as error:  # the network, mostly; damaged files, each format with errors of its own
        raise UserError(f"{name} cannot be read on after example {number}: {first_line(error)}") from error


def load(source: str, field: str) -> Loaded:
    """The dataset that `hf:PATH[@REVISION][:CONFIG[:SPLIT]]` names. Raises UserError if it cannot be opened."""
    parts = source.removeprefix("hf:").split(":")
    path, config, split = (parts + ["", ""])[:3]
    split = split or SPLIT
    if len(parts) > 3 or not path or not source.isprintable():
        raise UserError(f"{shown(source)} is not a dataset; write hf:OWNER/NAME[:CONFIG[:SPLIT]].")
    try:
        import datasets

        path, _, revision = (path, "", "") if Path(path).is_dir() else path.partition("@")
        builder = datasets.load_dataset_builder(path, config or None, revision=revision or None)
        dataset = builder.as_streaming_dataset(split)
    except ImportError as error:
        raise UserError("Datasets of the hub need the datasets library: pip install datasets.") from error
    except Exception as error:  # of the network, of the hub, of damaged files: each library has its own
        raise UserError(f"{source[:SHOWN]} cannot be opened: {first_line(error)}") from error
    files = [str(file) for file in (getattr(builder.config, "data_files", None) or {}).get(split, ())]
    parquet = [file if "://" in file else Path(file) for file in files]
    only_parquet = files and all(file.lower().endswith(".parquet") for file in files)
    return Loaded(dataset, partial(identity, builder, path, split, field), parquet if only_parquet else None)


def identity(builder, path: str, split: str, field: str, digest: Callable[[list], object] = readers.digest) -> dict:
    """What identifies a dataset by name: of the hub its revision, of a local folder its files' names and contents."""
    about = dict(kind="hub", name=path, config=builder.config.name, split=split, field=field)
    if not Path(path).is_dir():
        return about | dict(revision=builder.hash)
    local = [Path(p) for p in builder.config.data_files[split]]
    return about | dict(name=Path(path).name, files=[p.name for p in local], sha256=digest(local))
