"""What a model is measured on, as batches of tensors: tokens, or sequences of real numbers with their labels."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.data import SequenceData, as_sequences
from oplens.data.tokens import Tokens, as_tokens
from oplens.errors import ArgumentError, DataError

if TYPE_CHECKING:
    import torch

    from oplens.models.recording import Recorder


@dataclass(frozen=True)
class Batch:
    """Some cases.

    Attributes
    ----------
    x : Tensor, (batch, length) int64 or (batch, length, d_input)
    lengths : tuple of int
        Padding stands on the right.
    n_bytes : ndarray or None
        Bytes of text that the predictions of a case cover.
    text_mask : ndarray of bool, (batch, length), or None
        True where a token stands for text.
    labels : tuple of str or None
    """

    x: "torch.Tensor"
    lengths: tuple[int, ...]
    n_bytes: Any = None
    labels: tuple[str, ...] | None = None
    text_mask: Any = None

    @property
    def mask(self) -> "torch.Tensor":
        """True at real positions, (batch, length)."""
        import torch

        return torch.arange(self.x.shape[1]) < torch.tensor(self.lengths)[:, None]


@dataclass(frozen=True)
class Inputs:
    """Checked inputs of one model.

    Attributes
    ----------
    data : Tokens or SequenceData
    lengths : ndarray of int64, (n_cases,)
    """

    data: Tokens | SequenceData
    lengths: Any

    @classmethod
    def of(cls, call: str, recorder: "Recorder", inputs: Any) -> "Inputs":
        """Refuse inputs of the wrong kind, or that the model cannot take, before it runs."""
        if recorder.kind == "tokens":
            return cls._tokens(call, recorder, inputs)
        if isinstance(inputs, Tokens):
            raise ArgumentError(
                f"{call}({inputs.source}): tokens, but {recorder.name} takes sequences of real numbers."
            )
        data = as_sequences(inputs)
        if data.n_channels != recorder.d_input:
            raise DataError(
                f"{call}: sequences of {data.n_channels} channels, but {recorder.name} takes {recorder.d_input}; give the channels it was "
                "trained on."
            )
        _short_enough(call, recorder, data.lengths)
        return cls(data, data.lengths)

    @classmethod
    def _tokens(cls, call: str, recorder: "Recorder", inputs: Any) -> "Inputs":
        if isinstance(inputs, SequenceData):
            raise ArgumentError(f"{call}({inputs.source}): real numbers, but {recorder.name} takes tokens.")
        import torch

        if isinstance(inputs, torch.Tensor):
            inputs = inputs.detach().cpu().numpy()
        tokens = inputs if isinstance(inputs, Tokens) else as_tokens(inputs, max_length=recorder.max_length)
        if recorder.vocabulary is not None and tokens.ids.max() >= recorder.vocabulary:
            case = int(tokens.ids.max(1).argmax())
            raise DataError(
                f"{call}({tokens.source}): case {case} holds {tokens.ids.max()}, the vocabulary of {recorder.name} is 0 to "
                f"{recorder.vocabulary - 1}; these are tokens of another tokenizer."
            )
        _short_enough(call, recorder, tokens.lengths)
        return cls(tokens, tokens.lengths)

    @property
    def n_cases(self) -> int:
        """Number of cases."""
        return self.data.n_cases

    @property
    def facts(self) -> dict[str, Any]:
        """What the data are, ready for JSON."""
        data = self.data
        span = {"length": [int(self.lengths.min()), int(self.lengths.max())]}
        if isinstance(data, Tokens):
            return {**data.facts, **span}
        counts = {} if data.y is None else {name: int((data.y == name).sum()) for name in data.classes}
        return {
            "name": data.name,
            "source": data.source,
            "cases": data.n_cases,
            "steps": int(self.lengths.sum()),
            "channels": list(data.channels),
            "sampling_rate": data.sampling_rate,
            "class_counts": counts,
            **span,
        }

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches of at most `size` cases, in order, each cut to its longest."""
        import torch

        data = self.data
        if isinstance(data, Tokens):
            for batch in data.batches(size):
                sizes = tuple(batch.mask.sum(1).tolist())
                yield Batch(torch.from_numpy(batch.ids), sizes, batch.n_bytes, text_mask=batch.text_mask)
            return
        for start in range(0, self.n_cases, size):
            rows = slice(start, start + size)
            lengths = data.lengths[rows]
            x = data.X[rows, :, : int(lengths.max())].transpose(0, 2, 1)
            labels = None if data.y is None else tuple(map(str, data.y[rows]))
            yield Batch(torch.from_numpy(np.ascontiguousarray(x)), tuple(lengths.tolist()), labels=labels)

    def beginning(self, case: int, longest: int) -> Batch:
        """The first positions of one case."""
        import torch

        data, length = self.data, min(longest, int(self.lengths[case]))
        x = data.ids[case : case + 1] if isinstance(data, Tokens) else data.X[case : case + 1].transpose(0, 2, 1)
        return Batch(torch.from_numpy(np.ascontiguousarray(x[:, :length])), (length,))

    def labels(self, case: int, longest: int) -> list[str]:
        """Texts of the first tokens of a case, or numbers of its steps."""
        if isinstance(self.data, Tokens):
            return list(self.data.labels(case, longest))
        return [str(step) for step in range(min(longest, int(self.lengths[case])))]


def _short_enough(call: str, recorder: "Recorder", lengths: Any) -> None:
    if recorder.max_length is not None and lengths.max() > recorder.max_length:
        raise DataError(
            f"{call}: case {int(lengths.argmax())} has {lengths.max()} positions, {recorder.name} takes at most {recorder.max_length}; cut "
            f"the cases into windows, window={recorder.max_length}."
        )
