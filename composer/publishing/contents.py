"""The files that a push uploads: those that the record of a model or an export names, or of a spec; and its metrics."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from composer.drawing.picture import picture
from composer.errors import PushError
from composer.evaluation.folder import RESULTS
from composer.evaluation.report import EvaluatedModelFacts, EvaluationReport
from composer.reporting.escape import escape_markdown, markdown_block, markdown_code, markdown_link
from composer.spec.inherit import find_spec
from composer.spec.loading import SpecLike, load_document, load_spec, variants_of
from composer.spec.places import plain
from composer.spec.reading import MOST_BYTES, read_file
from composer.spec.writing import to_yaml
from composer.system.files import read_text_file, sha256
from composer.system.json_files import read_state
from composer.weights.card import PICTURE, model_card
from composer.weights.record import CARD, RECORD, Record, StoredFile, not_of_the_build, read_record
from composer.weights.target import on_source
from composer.weights.verify import verify
from converters.bounded import MOST_LOG, MOST_RECORD, check_file, read_bytes, reason, within
from converters.composed import EXPORT, SPEC_FILE
from converters.hub import HUB, read_recorded_names

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

ContentsKind = Literal["model", "export", "spec"]
SPEC_FILES = (SPEC_FILE, CARD, PICTURE)
"""The files of a spec on the Hub."""


@dataclass(frozen=True)
class Contents:
    """The files of a push, by their paths in the repository: a path here, or bytes. left_out: files of the folder that no record
    names."""

    kind: ContentsKind
    files: Mapping[str, Path | bytes]
    left_out: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(file) if isinstance(file, bytes) else file.stat().st_size for name, file in sorted(self.files.items())}


def contents_of(pushed: SpecLike, repo_id: str, results: Sequence[object] = ()) -> Contents:
    """Return the files of a built model, of an export, or of a spec.

    results: ``EvalResult`` objects for the card of a model. Raises PushError for a folder without a record, and for a file that is
    missing or has changed; SpecError, BuildError and ExportError.
    """
    folder = Path(pushed).expanduser() if isinstance(pushed, str | Path) and not str(pushed).startswith(HUB) else None
    if folder is None or not folder.is_dir():
        if results:
            raise PushError("--metrics is for a model, and this is a spec: leave it out.")
        return _of_spec(pushed, repo_id)
    if (folder / EXPORT).is_file():
        return _of_export(folder, repo_id, results)
    record = read_record(folder)
    if record is None:
        raise PushError(
            f"{folder} has no {RECORD} and no {EXPORT}; expected a folder of `compose build` or `compose export`, or a spec."
        )
    return _of_model(folder, record, repo_id, results)


def _of_model(folder: Path, record: Record, repo_id: str, results: Sequence[object]) -> Contents:
    """Return the files of a model, all of which have been read and compared with the record."""
    files: dict[str, Path | bytes] = {**_paths_of(folder, (*record.files, *record.documents, RECORD))}
    strangers, changed = not_of_the_build(folder, record)
    failed = [check.subject for check in verify(folder).failed]
    _refuse_changed(folder, [name for name in dict.fromkeys((*failed, *changed)) if name not in (*strangers, CARD)])
    text = read_text_file(folder / CARD, PushError, MOST_RECORD) if CARD in changed else model_card(record, repo_id, on_hub=True)
    if hashed := _hash_linked(folder, record):
        stored = record.model_copy(update={"files": record.files | hashed})
        files[RECORD] = f"{json.dumps(stored.model_dump(mode='json'), indent=2, ensure_ascii=False)}\n".encode()
    return Contents("model", files | {CARD: with_results(text, repo_id, results)}, tuple(strangers))


def _hash_linked(folder: Path, record: Record) -> dict[str, StoredFile]:
    """Return the entries of large linked files that the build has not hashed, with their hashes.

    Raises PushError for a file that is not the linked one any more: nothing shows that its contents are those of the build.
    """
    unhashed = {name: stored for name, stored in record.files.items() if stored.sha256 is None}
    for name, stored in unhashed.items():
        stat = (folder / name).stat()
        if (stat.st_dev, stat.st_ino, stat.st_mtime_ns) != (stored.device, stored.inode, stored.modified_ns):
            raise PushError(
                f"{folder / name} is not the file that the build linked, and its record has no hash of it. Build the model again "
                "with --hash."
            )
    return {name: stored.model_copy(update={"sha256": sha256(folder / name)}) for name, stored in unhashed.items()}


def _of_export(folder: Path, repo_id: str, results: Sequence[object]) -> Contents:
    from composer.exporting.folder import differences, read_export

    record = read_export(folder)
    assert record is not None, "the folder has its file"
    files: dict[str, Path | bytes] = {**_paths_of(folder, record.files)}
    changed = differences(folder, record)
    _refuse_changed(folder, [name for name in changed if name in record.files and name != CARD])
    text = read_text_file(folder / CARD, PushError, MOST_RECORD).replace('"FOLDER"', json.dumps(repo_id))
    card = with_results(text, repo_id, results)
    stored = record.model_copy(update={"files": record.files | {CARD: hashlib.sha256(card).hexdigest()}})
    files |= {CARD: card, EXPORT: f"{stored.model_dump_json(indent=2)}\n".encode()}
    return Contents("export", files, tuple(name for name in changed if name not in record.files))


def _paths_of(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return the paths of files of a folder. Raises PushError for one that is missing, is no regular file, or is a link out of the
    folder: what it names is not the model's."""
    paths = {}
    for name in names:
        try:
            paths[name] = within(folder, name)
            check_file(paths[name])
        except FileNotFoundError:
            _refuse_changed(folder, [name])
        except OSError as error:
            raise PushError(f"{folder / name} cannot be pushed: {reason(error)}. Build or export {folder} again.") from error
    return paths


def _refuse_changed(folder: Path, names: Sequence[str]) -> None:
    if names:
        listed = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise PushError(
            f"{folder} does not match its record ({listed}). Run `compose verify {shlex.quote(str(folder))}` "
            f"for details, and build or export it "
            "again."
        )


def with_results(card: str, repo_id: str, results: Sequence[object]) -> bytes:
    """Return a card as UTF-8, with the results of an evaluation as ``model-index`` in its front matter."""
    if results:
        from huggingface_hub import ModelCard

        read = ModelCard(card, ignore_metadata_errors=True)
        data: Any = read.data
        data.model_name, data.eval_results = repo_id.rpartition("/")[2], list(results)
        card = str(read)
    return card.encode()


def _of_spec(pushed: SpecLike, repo_id: str) -> Contents:
    """Return the contents to upload: a file that extends no other, unchanged with its comments; otherwise the whole document."""
    vary, specs = variants_of(pushed)
    path = find_spec(str(pushed), Path()) if isinstance(pushed, str | Path) else None
    if path is not None and path.is_file() and read_file(path, str(path)).child("extends") is None:
        content = read_bytes(path, MOST_BYTES)
    elif vary is None:
        content = to_yaml(load_spec(pushed).model_dump(mode="json", exclude_unset=True)).encode()
    else:
        document = plain(load_document(pushed))
        assert isinstance(document, dict), "it has been read as a sweep"
        content = to_yaml(document).encode()
    spec = next(iter(specs.values()))
    files: dict[str, Path | bytes] = {SPEC_FILE: content}
    if vary is None:
        subject = on_source(spec, None, None)
        files[PICTURE] = picture(subject.resolved, on=subject.on, dtype=subject.dtype).svg.encode()
    files[CARD] = "\n".join(
        _spec_card(spec.name, spec.paper, content.decode("utf-8-sig"), repo_id, is_sweep=vary is not None)
    ).encode()
    return Contents("spec", files)


def _spec_card(name: str, paper: str | None, text: str, repo_id: str, *, is_sweep: bool) -> Iterator[str]:
    """Yield the lines of the card of a spec."""
    front = {"tags": ["composed-spec", "linear-attention"]}
    command = f"compose ablate {HUB}{repo_id} --from SOURCE" if is_sweep else f"compose build {HUB}{repo_id} --from SOURCE"
    yield f"---\n{yaml.safe_dump(front, sort_keys=False).strip()}\n---\n\n# {escape_markdown(repo_id)}\n"
    yield f"{markdown_code(name)}, a {'sweep of specs' if is_sweep else 'spec'} of heads for linear-attention language models.\n"
    if paper:
        yield f"Paper: {markdown_link(paper)}\n"
    if not is_sweep:
        yield f"![The graph of each head, and the map of layers]({PICTURE})\n"
    yield f"{markdown_block(command, 'sh')}\n\n## Spec\n\n{markdown_block(text, 'yaml')}\n"


TASK = "text-generation"


def results_of(evaluation: Path, model: Path) -> list[EvalResult]:
    """Return the results of a model in the folder of an evaluation.

    The model is found by the hash of its spec and the SHA-256 of its weights, so an evaluation of another model, or of the model
    before it was trained, is refused. Raises PushError.
    """
    evaluation = evaluation.expanduser()
    try:
        report = read_state(evaluation / RESULTS, EvaluationReport, PushError, "Run `compose eval` again.", MOST_LOG)
    except FileNotFoundError:
        raise PushError(
            f"--metrics {evaluation} has no {RESULTS}; expected a folder that `compose eval … -o FOLDER` wrote."
        ) from None
    record = read_record(model)
    spec_hash = None if record is None else record.spec_hash
    weights = {name for name in read_recorded_names(model) if name.endswith(".safetensors")}
    label = next(
        (facts.label for facts in report.setting.models if facts.spec_hash == spec_hash and _is_of(facts, model, weights)), None
    )
    if label is None:
        scored = ", ".join(facts.label for facts in report.setting.models)
        raise PushError(
            f"--metrics {evaluation} scored {scored}, and none of them has the spec and the weights of {model}. "
            f"Evaluate this model first: `compose eval {shlex.quote(str(model))} --tasks TASK --lengths N -o FOLDER`"
        )
    results = list(_results(report, label))
    if not results:
        raise PushError(f"--metrics {evaluation} has no result of {label}: every cell failed. Run `compose eval` again.")
    return results


def _is_of(facts: EvaluatedModelFacts, model: Path, weights: set[str]) -> bool:
    """Whether an evaluated model has the weights of a folder."""
    if not weights or not weights <= facts.weights.keys():
        return False
    return all((model / name).is_file() and sha256(model / name) == digest for name, digest in facts.weights.items())


def _results(report: EvaluationReport, label: str) -> Iterator[EvalResult]:
    from huggingface_hub import EvalResult

    for cell in report.cells:
        if cell.model != label or cell.mean is None:
            continue
        is_loss = cell.scored == "loss"
        yield EvalResult(
            task_type=TASK,
            dataset_type=cell.task,
            dataset_name=f"{cell.task} ({cell.length:,} tokens)",
            dataset_config=f"{cell.length} tokens",
            dataset_args={"length": cell.length, "samples": cell.samples, "seed": report.setting.seed},
            metric_type="perplexity" if is_loss and cell.perplexity is not None else "loss" if is_loss else "accuracy",
            metric_value=cell.perplexity if is_loss and cell.perplexity is not None else cell.mean,
        )
    for figure in report.harness:
        if figure.model == label:
            yield EvalResult(
                task_type=TASK,
                dataset_type=figure.task,
                dataset_name=figure.task,
                metric_type=figure.metric,
                metric_value=figure.value,
                metric_name=f"{figure.metric} ({figure.filter})",
                source_name="lm-evaluation-harness",
            )
