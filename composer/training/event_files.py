"""TensorBoard's event files, written step by step, so that a full disk is an error of the step that meets it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from converters.bounded import appending

EVENTS: Any = event_pb2
SUMMARIES: Any = summary_pb2
"""The classes of TensorBoard's protocol are generated at import, so type checkers do not know them."""
VERSION = "brain.Event:2"
"""The first event of every file has it: tensorboard/compat/proto/event.proto."""


class Board:
    """One event file. TensorBoard reads the files of a folder in the order of their names, which begin with the time.

    torch's SummaryWriter writes in another thread, which reports a full disk by a traceback of its own, minutes later.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """step: TensorBoard drops the events of earlier files in the folder from this step on. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        started = EVENTS.SessionLog(status=EVENTS.SessionLog.START)
        self._append(EVENTS.Event(file_version=VERSION), EVENTS.Event(step=step, session_log=started))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Numbers by the names of their curves. Raises OSError."""
        values = [SUMMARIES.Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
        self._append(EVENTS.Event(step=step, summary=SUMMARIES.Summary(value=values)))

    def _append(self, *events: Any) -> None:
        with appending(self._file) as stream:
            records = RecordWriter(stream)
            for event in events:
                event.wall_time = time.time()
                records.write(event.SerializeToString())
