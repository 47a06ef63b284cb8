"""Records out of data sets of the Hub, through ``datasets``, which is kept from following what a data set's files name.

A data set's card may name files of other hosts and of this machine, its features may be images that are fetched when a record is
read, and some of its kinds of files run code or name other services. So the card is checked before ``datasets`` follows it, only
kinds of text and tables are read, and nothing is decoded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from composer.data.parquet import ROWS, records_of
from composer.data.references import HUB, HubData
from composer.errors import DataError, first_line
from converters.bounded import MOST_CONFIG, brief, read_text, shorten
from converters.endpoint import checked_answers

KINDS = ("arrow", "csv", "json", "parquet", "text")
"""The readers of ``datasets`` that open only the files passed to them."""
CARDS = ("README.md", ".huggingface.yaml")
"""The files in which a data set may name its data files."""
NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*|[\w-][\w.-]*")


def read_hub(data: HubData) -> Iterator[dict[str, Any]]:
    """Yield the records of a data set. Raises DataError."""
    try:
        with checked_answers(None, limit_tries=False), _silent() as datasets:
            revision = _check_revision(data, datasets)
            rows = datasets.load_dataset(data.name, data.config, split=data.split, revision=revision).with_format("arrow")
    except DataError:
        raise
    except Exception as error:  # the Hub's own errors, the network's, and those of the data set's files
        offline = "; HF_HUB_OFFLINE is set, so only what was downloaded before can be read" if is_offline() else ""
        raise DataError(
            f"{data.title} (split {data.split}) cannot be read: {first_line(error)}{offline}. "
            "Options: split, config (the subset), revision; a gated data set needs `hf auth login`"
        ) from error
    place, done = f"{data.title} ({data.split}), record", 0
    for table in rows.iter(batch_size=ROWS):
        for batch in table.combine_chunks().to_batches():
            yield from records_of(batch, place, done)
            done += batch.num_rows


def is_offline() -> bool:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return HF_HUB_OFFLINE


def _check_revision(data: HubData, datasets: Any) -> str | None:
    """Return the commit whose card, files and kind have been checked. Offline ``datasets`` reads tables from its cache only."""
    _check_name(data, Path(datasets.__file__).parent / "packaged_modules")
    if is_offline():
        return data.revision
    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError

    api = HfApi()
    commit = api.dataset_info(data.name, revision=data.revision).sha
    for name in CARDS:
        try:
            path = api.hf_hub_download(data.name, name, repo_type="dataset", revision=commit)
        except EntryNotFoundError:
            continue
        check_card(read_text(Path(path), MOST_CONFIG), name, data.title)
    check_builder(datasets.load_dataset_builder(data.name, data.config, revision=commit), data)
    return commit


def _check_name(data: HubData, readers: Path) -> None:
    """Raise DataError for a name that ``datasets`` would read as a folder, or as one of its readers."""
    if not NAME.fullmatch(data.name) or ".." in data.name or (readers / data.name).exists():
        raise DataError(f"{HUB}{shorten(data.name)}: no name of a data set; expected {HUB}owner/name")
    if os.path.exists(data.name):
        raise DataError(
            f"{data.title}: a file or folder {data.name} is here, too, and would be read instead; name it without {HUB}"
        )


def check_card(text: str, name: str, title: str) -> None:
    """Raise DataError if a data set's card, or its ``.huggingface.yaml``, names data files outside of the data set."""
    import yaml
    from huggingface_hub import DatasetCard

    try:
        card = DatasetCard(text, ignore_metadata_errors=True).data.to_dict() if name == CARDS[0] else yaml.safe_load(text)
    except Exception as error:  # whatever YAML and the classes of huggingface_hub raise
        raise DataError(f"{title}: its {name} cannot be read: {first_line(error)}") from error
    configs = card.get("configs") if isinstance(card, dict) else None
    for config in configs if isinstance(configs, list) else []:
        for pattern in _texts([config.get("data_files"), config.get("data_dir")] if isinstance(config, dict) else []):
            path = PurePosixPath(pattern)
            if ":" in pattern or "\\" in pattern or pattern.startswith("~") or path.is_absolute() or ".." in path.parts:
                raise DataError(
                    f"{title}: its {name} names {brief(pattern)}, which is not in the data set, so it is not read. Download the "
                    "files that you want, and name them instead"
                )


def check_builder(builder: Any, data: HubData) -> None:
    """Raise DataError if the data set is of a kind that is not read, or has files of another place."""
    kind = type(builder).__module__.split(".")[-1]
    if not type(builder).__module__.startswith("datasets.packaged_modules.") or kind not in KINDS:
        raise DataError(f"{data.title}: a data set of the kind {shorten(kind)}; expected one of {', '.join(KINDS)}")
    files = (path for paths in (builder.config.data_files or {}).values() for path in paths)
    other = next((path for path in files if not str(path).startswith(f"hf://datasets/{data.name}@")), None)
    if other is not None:
        raise DataError(f"{data.title}: names the file {brief(str(other))}, which is not in the data set")


def _texts(tree: Any) -> Iterator[str]:
    """Yield every text of some lists and mappings, their keys left out."""
    seen: set[int] = set()  # YAML can name one list many times
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value


@contextmanager
def _silent() -> Iterator[Any]:
    """The package ``datasets``, whose log is off for the block: this module reports its errors."""
    import datasets
    from datasets.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield datasets
    finally:
        logging.set_verbosity(before)
