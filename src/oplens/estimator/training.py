r"""One training run of an S4D, with skorch: AdamW in two groups, early stopping, a checkpoint after every epoch.

The learning rate of step k and the decision to stop are functions of k and of the history alone, so a run restored from a
checkpoint continues exactly as if it had never been interrupted.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from skorch import NeuralNet
from skorch.callbacks import Callback
from skorch.helper import predefined_split
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from oplens.data import SequenceData
from oplens.errors import ArgumentError
from oplens.estimator.checkpoint import RunState, load_run, save_run
from oplens.models import S4D, Preprocessing, S4DConfig

# Steps and poles of the diagonal systems, or what poles are made of: small changes move every resonance, so they get a rate of their
# own and no weight decay.
STATE_SPACE = ("log_dt", "log_A_real", "A_imag", "log_decay", "damping", "coupling", "delay_position")
SCHEDULES = ("cosine", "constant")

Labelled = tuple[SequenceData, NDArray[np.int64]]


@dataclass(frozen=True)
class Plan:
    """Numbers that decide how a model is trained; see :class:`oplens.estimator.S4DClassifier`."""

    lr: float
    lr_ssm: float
    weight_decay: float
    label_smoothing: float
    offset_jitter: float
    schedule: str
    max_epochs: int
    batch_size: int
    patience: int | None
    seed: int


@dataclass(frozen=True)
class Outcome:
    """Model in evaluation mode with the best epoch's weights, and what happened in every epoch."""

    model: S4D
    history: list[dict[str, float]]
    best_epoch: int


class Cases(Dataset[Any]):
    """Raw sequences (n_cases, length, channels) in float64, their lengths and class numbers."""

    def __init__(self, data: SequenceData, targets: NDArray[np.int64]) -> None:
        self.x = torch.from_numpy(np.ascontiguousarray(data.X.transpose(0, 2, 1)))
        self.lengths = torch.from_numpy(data.lengths)
        self.y = torch.from_numpy(targets)

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Cases of one batch, cut to its longest; `lengths` only where they differ, since a mask costs a transform."""
        lengths = self.lengths[index]
        longest = int(lengths.max())
        inputs = {"x": self.x[index, :longest]}
        if int(lengths.min()) < longest:
            inputs["lengths"] = lengths
        return inputs, self.y[index]


class Batches:
    """Iterator that skorch builds from a dataset; shuffled and jittered when it is given a generator.

    The generator's state is the state of the sampler. `jitter` (channels,) is the standard deviation of the constant that every
    case's channels are shifted by, drawn anew each time.
    """

    def __init__(
        self,
        dataset: Cases,
        batch_size: int,
        generator: torch.Generator | None = None,
        jitter: Tensor | None = None,
    ) -> None:
        self.dataset, self.batch_size, self.generator, self.jitter = dataset, batch_size, generator, jitter

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        n_cases = len(self.dataset)
        if self.generator is None:
            yield from (self.dataset.batch(index) for index in torch.arange(n_cases).split(self.batch_size))
            return
        for index in torch.randperm(n_cases, generator=self.generator).split(self.batch_size):
            inputs, labels = self.dataset.batch(index)
            if self.jitter is not None:
                noise = torch.randn(len(index), len(self.jitter), generator=self.generator, dtype=torch.float64)
                inputs["x"] = inputs["x"] + (noise * self.jitter)[:, None, :]
            yield inputs, labels


class Keeper(Callback):
    """Sets the learning rates of every step and counts what validation says."""

    def __init__(self, plan: Plan, step: int, total: int) -> None:
        self.plan, self.step, self.total = plan, step, total
        self.loss, self.correct, self.count = 0.0, 0, 0

    def on_epoch_begin(self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        """Forget the last epoch's validation."""
        self.loss, self.correct, self.count = 0.0, 0, 0

    def on_batch_begin(self, net: Any, batch: Any = None, training: bool = False, **kwargs: Any) -> None:
        """Set the learning rates of this step."""
        if not training:
            return
        factor = 0.5 * (1 + math.cos(math.pi * self.step / self.total)) if self.plan.schedule == "cosine" else 1.0
        for group in net.optimizer_.param_groups:
            group["lr"] = group["initial_lr"] * factor
        self.step += 1

    def on_batch_end(self, net: Any, batch: Any = None, training: bool = False, **kwargs: Any) -> None:
        """Add one validation batch to this epoch's sums."""
        if not training:
            labels = batch[1]
            # Smoothed labels would reward an unsure model; validation asks for the plain likelihood.
            self.loss += float(functional.cross_entropy(kwargs["y_pred"], labels, reduction="sum"))
            self.correct += int((kwargs["y_pred"].argmax(1) == labels).sum())
            self.count += len(labels)


def train(
    config: S4DConfig,
    training: Labelled,
    validation: Labelled | None,
    plan: Plan,
    *,
    checkpoint_dir: Path | None = None,
    verbose: int = 0,
) -> Outcome:
    """Train a model, or continue the run with the same data, configuration and plan that `checkpoint_dir` holds.

    Notes
    -----
    The caller's random state is left as it was. Each run has its own folder in `checkpoint_dir`, named by its fingerprint, so
    that the folds of a cross-validation or grid search may share one.
    """
    state = RunState(fingerprint(config, training, validation, plan))
    directory = None if checkpoint_dir is None else checkpoint_dir / f"run-{state.fingerprint[:16]}"
    saved = None if directory is None else load_run(directory)
    if saved is not None and saved.fingerprint == state.fingerprint:
        state = saved
    cases = Cases(*training)
    steps = math.ceil(len(cases) / plan.batch_size)
    with torch.random.fork_rng(devices=[]), _progress(plan.max_epochs, len(state.history), verbose) as report:
        torch.manual_seed(plan.seed)
        order = torch.Generator().manual_seed(plan.seed)
        keeper = Keeper(plan, len(state.history) * steps, plan.max_epochs * steps)
        net = _net(config, plan, _sampler(config, plan, training[0], order), validation, keeper)
        if state.history:
            _restore(net, state, order)
        while not finished(state.history, plan):
            net.fit_loop(cases, epochs=1)
            _record(net, keeper, state, plan)
            if directory is not None:
                state.moments = _moments(net)
                state.dropout, state.order = torch.get_rng_state(), order.get_state()
                save_run(state, directory)
            report(state.history[-1])
    model: S4D = net.module_
    model.load_state_dict(state.best)
    return Outcome(model.eval(), state.history, best_epoch(state.history))


def best_epoch(history: list[dict[str, float]]) -> int:
    """Number, from 1, of the epoch with the least validation loss (the first of equals); the last one without validation."""
    if "valid_loss" not in history[-1]:
        return len(history)
    return 1 + int(np.argmin([entry["valid_loss"] for entry in history]))


def finished(history: list[dict[str, float]], plan: Plan) -> bool:
    """Whether all epochs are done, or validation has not improved for `patience` epochs."""
    if not history or len(history) >= plan.max_epochs:
        return bool(history)
    return plan.patience is not None and len(history) - best_epoch(history) >= plan.patience


def fingerprint(config: S4DConfig, training: Labelled, validation: Labelled | None, plan: Plan) -> str:
    """SHA-256 of all that a run depends on: configuration, plan and data."""
    text = json.dumps([config.to_dict(), dataclasses.asdict(plan)], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for data, targets in filter(None, (training, validation)):
        for array in (data.X, data.lengths, targets):
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _sampler(config: S4DConfig, plan: Plan, data: SequenceData, order: torch.Generator) -> dict[str, Any]:
    assert config.preprocessing is not None
    options: dict[str, Any] = {"iterator_train__generator": order}
    # Where each case's mean is subtracted, a shift would be too.
    if plan.offset_jitter and not config.preprocessing.remove_offset:
        spread = Preprocessing.standardise(data.X, data.lengths).scale
        options["iterator_train__jitter"] = plan.offset_jitter * torch.tensor(spread, dtype=torch.float64)
    return options


def _net(config: S4DConfig, plan: Plan, sampler: dict[str, Any], validation: Labelled | None, keeper: Keeper) -> Any:
    own = {"lr": plan.lr_ssm, "initial_lr": plan.lr_ssm, "weight_decay": 0.0}
    net = NeuralNet(
        S4D,
        module__config=config,
        criterion=torch.nn.CrossEntropyLoss,
        criterion__label_smoothing=plan.label_smoothing,
        optimizer=torch.optim.AdamW,
        lr=plan.lr,
        optimizer__weight_decay=plan.weight_decay,
        optimizer__param_groups=[(f"*.kernel.{name}", own) for name in STATE_SPACE],
        batch_size=plan.batch_size,
        iterator_train=Batches,
        **sampler,
        iterator_valid=Batches,
        train_split=None if validation is None else predefined_split(Cases(*validation)),
        callbacks=[keeper],
        callbacks__print_log=None,
        callbacks__epoch_timer=None,
        verbose=0,
    )
    net.initialize()
    for group in net.optimizer_.param_groups:
        group.setdefault("initial_lr", plan.lr)
    return net


def _record(net: Any, keeper: Keeper, state: RunState, plan: Plan) -> None:
    entry = {"epoch": len(state.history) + 1, "train_loss": float(net.history[-1, "train_loss"])}
    if keeper.count:
        entry |= {"valid_loss": keeper.loss / keeper.count, "valid_accuracy": keeper.correct / keeper.count}
    if not all(math.isfinite(value) for value in entry.values()):
        raise ArgumentError(
            f"S4DClassifier.fit: training diverged in epoch {entry['epoch']} (the loss is not finite); lower "
            f"lr={plan.lr:g} and lr_ssm={plan.lr_ssm:g}, or let preprocessing standardise the data."
        )
    state.history.append(entry)
    state.model = {name: tensor.detach().clone() for name, tensor in net.module_.state_dict().items()}
    if best_epoch(state.history) == len(state.history):
        state.best = state.model


def _moments(net: Any) -> dict[str, Tensor]:
    names = [name for name, _ in net.module_.named_parameters()]
    numbers = {id(parameter): name for name, parameter in zip(names, net.module_.parameters(), strict=True)}
    return {
        f"{numbers[id(parameter)]}.{key}": value.detach().clone()
        for parameter, values in net.optimizer_.state.items()
        for key, value in values.items()
    }


def _restore(net: Any, state: RunState, order: torch.Generator) -> None:
    net.module_.load_state_dict(state.model)
    for name, parameter in net.module_.named_parameters():
        net.optimizer_.state[parameter] = {
            key: state.moments[f"{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")
        }
    order.set_state(state.order)
    torch.set_rng_state(state.dropout)


@contextlib.contextmanager
def _progress(max_epochs: int, done: int, verbose: int) -> Iterator[Callable[[dict[str, float]], None]]:
    """A bar over epochs on standard error, or nothing."""
    if not verbose:
        yield lambda entry: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("epoch"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=max_epochs, completed=done)

        def report(entry: dict[str, float]) -> None:
            text = f"loss {entry['train_loss']:.3f}"
            if "valid_loss" in entry:
                text += f", held out {entry['valid_loss']:.3f} ({entry['valid_accuracy']:.0%} right)"
            bar.update(task, completed=entry["epoch"], description=text)

        yield report
