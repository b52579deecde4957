"""Models trained as rings: the forward pass against dense rings, what is stored, and what is refused."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save
from scipy.linalg import expm
from scipy.special import erf

from oplens.data import noisy_sinusoids
from oplens.errors import ArgumentError, CheckpointError
from oplens.explanation import Channels, Waves, expand
from oplens.models import S4D, S4DConfig, load_checkpoint

PHASE = 0.004  # inside the limits of every start below


def ring_model(seed=0, modes=4, jitter=0.3, **more):
    """A model whose rings all differ, as after training."""
    torch.manual_seed(seed)
    model = S4D(S4DConfig(2, 3, d_model=3, d_state=2 * modes, dt_min=0.05, dt_max=0.5, **more))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".kernel." in name:
                parameter.add_(jitter * torch.randn(parameter.shape) * (parameter.abs() + 0.3))
    return model


def coupling_matrix(kernel, h, modes):
    """W (N, N) without delay, from the parameters of feature h: dense for plain poles, S - Q Q^T - delta for weights."""
    N = 2 * modes
    F = np.array([[np.exp(2j * np.pi * (k + 0.5) * j / N) / math.sqrt(N) for k in range(modes)] for j in range(N)])
    if "coupling" not in kernel:
        poles = -np.exp(kernel["log_A_real"][h]) + 1j * kernel["A_imag"][h]
        return 2 * (F @ np.diag(poles) @ F.conj().T).real, F
    W = -np.exp(kernel["log_decay"][h]) * np.eye(N)
    Q = np.zeros((N, N))
    for j in range(N):
        for k in range(N):
            forward, sign = (j - k) % N, 1 if j >= k else -1
            if forward < len(kernel["damping"][h]):
                Q[j, k] = sign * kernel["damping"][h][forward]
            if 1 <= forward <= len(kernel["coupling"][h]):
                W[j, k] += sign * kernel["coupling"][h][forward - 1]
                if forward < modes:
                    W[k, j] -= sign * kernel["coupling"][h][forward - 1]
    return W - Q @ Q.T, F


def turn(kernel, h, W, F):
    """The learned phase, from the dense ring's own decaying waves, and the ring that endures it."""
    if "delay_position" not in kernel:
        return 0.0, W
    poles = np.diag(F.conj().T @ W @ F)
    high = np.arctan2(-poles.real, poles.imag).min()
    low = -np.arctan2(-poles.real, -poles.imag).min()
    phase = low + (high - low) * (1e-6 + (1 - 2e-6) / (1 + np.exp(-kernel["delay_position"][h])))
    return phase, 2 * (np.exp(-1j * phase) * W @ (F @ F.conj().T)).real


@pytest.mark.parametrize("phase", [None, PHASE, -0.3])
@pytest.mark.parametrize("coupling", [None, 1, 2, 4])
def test_the_forward_pass_is_that_of_dense_rings(coupling, phase):
    """N real sites, input at site 0, steps by matrix exponential: no pole, kernel or convolution is formed."""
    model = ring_model(coupling=coupling, phase_delay=phase).as_float64()
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    kernel = {name.rsplit(".", 1)[1]: value for name, value in weights.items() if ".kernel." in name}
    assert ("coupling" in kernel, "delay_position" in kernel) == (coupling is not None, phase is not None)
    x = np.random.default_rng(1).normal(size=(2, 40, 2))
    u = x @ weights["encoder.weight"].T + weights["encoder.bias"]
    z = np.empty(u.shape)
    for h in range(3):
        W, F = coupling_matrix(kernel, h, 4)
        learned, W = turn(kernel, h, W, F)
        assert model.layer(0).phase_delay()[h].item() == pytest.approx(learned, rel=1e-9, abs=1e-14)
        block = np.zeros((9, 9))
        block[:8, :8], block[0, 8] = W, math.sqrt(8)
        step = expm(block * np.exp(kernel["log_dt"][h]))
        readout = 2 * ((kernel["C"][h] @ np.array([1, 1j])) @ F.conj().T).real
        for case in range(2):
            sites = np.zeros(8)
            for t in range(40):
                sites = step[:8, :8] @ sites + step[:8, 8] * u[case, t, h]
                z[case, t, h] = readout @ sites + weights["s4_layers.0.D"][h] * u[case, t, h]
    pooled = (z * (1 + erf(z / math.sqrt(2))) / 2).mean(1)
    expected = pooled @ weights["decoder.weight"].T + weights["decoder.bias"]
    found = model(torch.from_numpy(x)).numpy()
    assert np.abs(found - expected).max() < 1e-10 * np.abs(expected).max()
    for mode in ("recurrence", "step"):
        assert np.abs(model.trace(torch.from_numpy(x), mode=mode).layers[0].z.numpy() - z).max() < 1e-10 * abs(z).max()


@pytest.mark.parametrize("initialisation", ["lin", "real"])
def test_a_ring_of_full_reach_starts_as_the_plain_model_of_the_same_seed(initialisation):
    x = torch.randn(2, 30, 1)
    found = []
    for more in ({}, {"coupling": 8}, {"phase_delay": 0.0}, {"coupling": 8, "phase_delay": 0.0}):
        torch.manual_seed(3)
        found.append(S4D(S4DConfig(1, 2, d_model=4, d_state=16, initialisation=initialisation, **more)).as_float64()(x))
    for logits in found[1:]:
        assert (logits - found[0]).abs().max() < 1e-6


def test_the_default_keeps_the_names_of_the_reference():
    plain = set(S4D(S4DConfig(1, 2)).state_dict())
    kernel = "s4_layers.0.kernel."
    assert {name for name in plain if name.startswith(kernel)} == {
        kernel + name for name in ("C", "log_dt", "log_A_real", "A_imag")
    }
    rings = set(S4D(S4DConfig(1, 2, coupling=3, phase_delay=0.001)).state_dict())
    assert rings - plain == {kernel + name for name in ("log_decay", "damping", "coupling", "delay_position")}
    assert plain - rings == {kernel + "log_A_real", kernel + "A_imag"}


@pytest.mark.parametrize("architecture", ["plain", "reference"])
@pytest.mark.parametrize("phase", [None, PHASE])
@pytest.mark.parametrize("coupling", [None, 1, 4])
@pytest.mark.parametrize("initialisation", ["lin", "inv", "real"])
def test_explanations_of_every_kind_of_ring_add_up_to_its_logits(initialisation, coupling, phase, architecture):
    model = ring_model(
        initialisation=initialisation, coupling=coupling, phase_delay=phase, architecture=architecture
    ).double()
    data = [np.random.default_rng(length).normal(size=(2, length)) for length in (25, 20, 25, 9)]
    op = expand(model, data)
    with torch.no_grad():
        logits = np.concatenate([model(torch.from_numpy(x.T.copy())[None]).numpy() for x in data])
    margin = logits - logits.mean(1, keepdims=True)
    for part in (Waves(), Channels()):
        ds = op.explain(data, by=part)
        parts = [d for d in ds.share.dims if d not in ("case", "class")]
        total = ds.order_0 + ds.share.sum(parts) + ds.source_share.sum(("order", "source")) + ds.remainder
        scale = np.abs(ds.share).sum(parts).max()
        assert np.abs(total.transpose("case", "class").values - margin).max() < 1e-10 * max(float(scale), 1), part


def test_gradients_at_every_start_are_finite_and_reach_every_weight():
    x, y = torch.randn(4, 30, 2), torch.tensor([0, 1, 2, 0])
    for initialisation in ("lin", "inv", "real"):
        for coupling in (1, 3, 4):
            torch.manual_seed(0)
            model = S4D(
                S4DConfig(2, 3, 3, 8, initialisation=initialisation, coupling=coupling, phase_delay=PHASE, dt_min=0.05)
            )
            torch.nn.functional.cross_entropy(model(x), y).backward()
            for name, parameter in model.named_parameters():
                assert torch.isfinite(parameter.grad).all(), (initialisation, coupling, name)
                if ".kernel." in name:
                    assert parameter.grad.abs().amax(0).min() > 0, (initialisation, coupling, name)


def test_a_folder_keeps_a_ring_and_older_folders_hold_none(tmp_path):
    model = ring_model(coupling=2, phase_delay=-0.1, initialisation="real").eval()
    model.save_pretrained(tmp_path / "ring")
    loaded = load_checkpoint(tmp_path / "ring")
    assert loaded.config == model.config
    assert (loaded.config.coupling, loaded.config.phase_delay) == (2, -0.1)
    assert (loaded.config.ring_ordering, S4DConfig(1, 2).ring_ordering) == ("stored", "frequency")
    x = torch.randn(2, 20, 2)
    assert torch.equal(loaded(x), model(x))
    assert torch.equal(loaded.layer(0).poles(), model.layer(0).poles())
    plain = S4D(S4DConfig(1, 2, d_model=2, d_state=4))
    plain.save_pretrained(tmp_path / "plain")
    header = json.loads((tmp_path / "plain/config.json").read_text())
    for key in ("coupling", "phase_delay", "initialisation"):
        del header["config"][key]
    (tmp_path / "plain/config.json").write_text(json.dumps(header))
    older = S4D.from_pretrained(tmp_path / "plain")
    assert older.config == plain.config
    assert torch.equal(older.layer(0).system().log_a, plain.layer(0).system().log_a)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"coupling": 99}, r"config\.json: .*neighbours 1 to 4 sites away"),
        ({"coupling": "2"}, "expected an integer or None"),
        ({"coupling": None}, r"key 's4_layers\.0\.kernel\.log_A_real' is missing"),
        ({"coupling": 3}, r"damping has shape \(3, 3\), expected \(3, 4\)"),
        ({"phase_delay": 1.5}, "start unstable"),
        ({"phase_delay": None}, r"unknown keys s4_layers\.0\.kernel\.delay_position"),
        ({"phase_delay": math.nan}, "finite angle"),
        ({"d_state": 2**16, "coupling": 2**15, "phase_delay": 0}, r"C has shape \(3, 4, 2\), expected \(3, 32768, 2\)"),
    ],
)
def test_damaged_configurations_of_rings_are_refused(tmp_path, change, words):
    ring_model(coupling=2, phase_delay=0.01).save_pretrained(tmp_path)
    header = json.loads((tmp_path / "config.json").read_text())
    header["config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(header))
    with pytest.raises(CheckpointError, match=words):
        S4D.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("log_decay", 1e4, r"log_decay reaches 10000, whose exponential overflows"),
        ("damping", 1e200, "the coupling of layer 0 gives poles beyond the largest number"),
        ("coupling", 1.7e308, "the coupling of layer 0 gives poles beyond the largest number"),
        ("delay_position", math.nan, "delay_position holds 3 NaN or infinite values"),
    ],
)
def test_weights_that_are_no_ring_are_refused(tmp_path, name, value, words):
    model = ring_model(coupling=2, phase_delay=0.01).double()
    with torch.no_grad():
        dict(model.layer(0).kernel.named_parameters())[name].fill_(value)
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        S4D.from_pretrained(tmp_path)


@pytest.mark.parametrize("more", [{"coupling": 2}, {"phase_delay": 0.01}])
def test_weights_of_a_ring_without_their_configuration_are_refused_with_the_cure(tmp_path, more):
    model = ring_model(architecture="reference", **more)
    torch.save({"model": model.state_dict()}, tmp_path / "ring.pth")
    (tmp_path / "ring.safetensors").write_bytes(save(model.state_dict()))
    for file in ("ring.pth", "ring.safetensors"):
        with pytest.raises(CheckpointError, match=r"a model trained as rings.*save_pretrained and load that folder"):
            load_checkpoint(tmp_path / file, preprocessing="none")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"coupling": 0}, r"S4DConfig\(coupling=0\): a ring of d_state=64 sites has neighbours 1 to 32 sites away"),
        ({"coupling": 33}, "1 to 32"),
        ({"coupling": True}, "expected an integer or None"),
        ({"coupling": 2.0}, "expected an integer or None"),
        ({"phase_delay": "0"}, "expected a number"),
        ({"phase_delay": math.inf}, "finite angle"),
        (
            {"phase_delay": 0.01},
            r"unstable, their largest Re lambda would be 0\.474 .*phases between -1\.5708 and 0\.00513399 keep",
        ),
        ({"phase_delay": -1.6}, r"largest Re lambda would be 0\.0146"),
        ({"phase_delay": 0.009, "coupling": 1}, r"coupling=1\); phases between -2\.97\d+ and 0\.00807082 keep"),
        ({"phase_delay": 0.005133}, "too close to the limit .* would be -"),
        ({"phase_delay": 1.6, "initialisation": "real"}, r"between -1\.5708 and 1\.5708 keep"),
    ],
)
def test_rings_that_cannot_be_are_refused(more, words):
    with pytest.raises(ArgumentError, match=words):
        S4DConfig(1, 2, **more)


def test_training_steps_keep_every_ring_stable_and_lower_the_loss():
    """Steps a thousand times too large, so that weights run wild; then steps of the usual size."""
    data = noisy_sinusoids(n_cases=40, n_timepoints=60, seed=0)
    x, y = torch.tensor(data.X).transpose(1, 2).float(), torch.tensor(data.y == "20 Hz").long()
    for rate in (3.0, 0.03):
        torch.manual_seed(0)
        model = S4D(S4DConfig(1, 2, d_model=16, d_state=16, coupling=2, phase_delay=0.01))
        optimiser = torch.optim.Adam(model.parameters(), lr=rate)
        losses = []
        for _ in range(40):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            assert model.layer(0).poles().real.max() < 0
        assert np.isfinite(losses).all()
    assert losses[-1] < 0.3 * losses[0]
