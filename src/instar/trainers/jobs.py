"""Jobs and results as JSON files: what parent and compute child hand each other. No torch, nothing pickled."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from instar.errors import TrainingError
from instar.records import GateReport, UpdateJob, UpdateResult, job_lists

JOB_FILE = "job.json"


def write_job(folder: Path, job: UpdateJob) -> Path:
    """Put the job into `folder`, whole or not at all. It holds a person's words, so its owner alone may read it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / JOB_FILE
    draft = folder / f".{JOB_FILE}.{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump(asdict(job), out)
    os.replace(draft, file)
    return file


def read_job(folder: Path) -> UpdateJob:
    """Raises TrainingError when there is no such job or it is damaged."""
    try:
        document = json.loads((folder / JOB_FILE).read_text("utf-8"))
        return UpdateJob(**{**document, **job_lists(document)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{folder / JOB_FILE} is no job: {error}") from error


def result_document(result: UpdateResult) -> dict[str, Any]:
    return asdict(result)


def result_from(document: dict[str, Any]) -> UpdateResult:
    """Raises TrainingError when the document is no result."""
    try:
        gate = document["gate"]
        return UpdateResult(**{**document, "gate": GateReport(**gate) if gate else None})
    except (KeyError, TypeError) as error:
        raise TrainingError(f"the compute child's answer is no result: {error}") from error
