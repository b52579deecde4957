"""Stages of measuring: all of them are asked what they refuse before the first one costs time."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import xarray as xr

from oplens.cli.terminal import progress, say
from oplens.models.recording import Recorder


@dataclass(frozen=True)
class Stage:
    """One part of the work: what it depends on beside the inputs, and what makes it of a recorder and what is told of progress."""

    name: str
    words: str
    depends: tuple[str, ...]
    make: Callable[[Recorder, Any], xr.DataTree]


class _Started(BaseException):
    """A stage has run the model: all that it refuses beforehand is behind it. No error, so that nobody takes it for one."""


class _Unrun:
    """A recorder with everything but a run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorder, name)

    def record(self, x: Any, mask: Any = None) -> Any:
        raise _Started

    def apply(self, parameters: Any, x: Any, mask: Any = None) -> Any:
        raise _Started


def rehearse(stage: Stage, recorder: Recorder) -> None:
    """Let a stage refuse what it refuses before any other has cost time."""
    with contextlib.suppress(_Started):
        stage.make(cast(Recorder, _Unrun(recorder)), None)


def run(stage: Stage, recorder: Recorder) -> xr.DataTree:
    """Make it, telling how far it is; a stage without words tells by itself."""
    if not stage.words:
        return stage.make(recorder, say)
    with progress(stage.words) as tick:
        return stage.make(recorder, tick)
