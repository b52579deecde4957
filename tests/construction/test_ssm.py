"""Built state-space models: scipy.signal, double loops and many digits say what they must give, their certificates how nearly."""

import copy
import dataclasses

import mpmath
import numpy as np
import pytest
import torch
from scipy import signal

from oplens.construction.filters import ExponentialSum, FiniteKernel
from oplens.construction.second_order_kernel import SecondOrderKernel
from oplens.construction.ssm import build_ssm, certify_ssm
from oplens.construction.ssm_certificate import kernel_errors
from oplens.construction.ssm_verification import verify_ssm
from oplens.construction.volterra import volterra
from oplens.errors import ArgumentError
from oplens.models import S4D, Preprocessing, S4DConfig

DESIGNS = {
    "low 1": (1, 40.0, "low"),
    "low 4": (4, 40.0, "low"),
    "low 12": (12, 20.0, "low"),
    "high 3": (3, 0.5, "high"),
    "band 4": (4, (8.0, 13.0), "bandpass"),
    "stop 2": (2, (45.0, 55.0), "bandstop"),
}


def run(model, x):
    """Output (length, n_outputs) in float64 of x (length, n_channels)."""
    x = torch.as_tensor(np.asarray(x, dtype=float).reshape(len(x), -1)).to(model.decoder.weight.dtype)
    with torch.no_grad():
        return model(x[None])[0].double().numpy()


def noise(length, *channels, seed=0):
    """White noise in [-1, 1] that float32 holds exactly."""
    return np.random.default_rng(seed).uniform(-1, 1, (length, *channels)).astype(np.float32).astype(float)


def stored_response(model, feature, length, digits=60):
    """The impulse response of what a model stores, by its formula in many digits: no code of the library."""
    with mpmath.workdps(digits):
        layer = model.s4_layers[0]
        dt = mpmath.exp(mpmath.mpf(layer.kernel.log_dt[feature].item()))
        total = [mpmath.mpf(0)] * length
        for n in range(layer.kernel.C.shape[1]):
            rate, angle = (p[feature, n].item() for p in (layer.kernel.log_A_real, layer.kernel.A_imag))
            A = mpmath.mpc(-mpmath.exp(mpmath.mpf(rate)), mpmath.mpf(angle))
            weight = mpmath.mpc(*layer.kernel.C[feature, n].tolist()) * (mpmath.exp(A * dt) - 1) / A
            a, power = mpmath.exp(A * dt), mpmath.mpc(1)
            for t in range(length):
                total[t] += 2 * (weight * power).real
                power *= a
        total[0] += mpmath.mpf(layer.D[feature].item())
        return total


def section_response(sos, length, digits=60):
    """The impulse response of second-order sections by their difference equation."""
    with mpmath.workdps(digits):
        x = [mpmath.mpf(1)] + [mpmath.mpf(0)] * (length - 1)
        for section in sos:
            b, a = ([mpmath.mpf(float(v)) for v in part] for part in (section[:3], section[3:]))
            y = []
            for t in range(length):
                value = sum(b[i] * x[t - i] for i in range(min(3, t + 1)))
                y.append((value - sum(a[i] * y[t - i] for i in range(1, min(3, t + 1)))) / a[0])
            x = y
        return x


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_butterworth_filter_is_exact_up_to_a_certified_rounding(name, dtype):
    order, cutoff, band = DESIGNS[name]
    sos = signal.butter(order, cutoff, band, output="sos", fs=256.0)
    kernel = ExponentialSum.butterworth(order, cutoff, 256.0, band)
    model, certificate = build_ssm(kernel, dtype=dtype, length=600)
    assert (certificate.claim, certificate.dtype, dict(certificate.error_parts)) == ("exact", dtype, {"kernels": 0.0})
    assert model.config.n_modes == -(-kernel.n_poles // 2)
    x = noise(600)
    assert np.abs(run(model, x)[:, 0] - signal.sosfilt(sos, x)).max() < {"float64": 2e-13, "float32": 1e-5}[dtype]
    # sosfilt rounds more than the model does where poles are near 1; the sum over lags is the better oracle.
    expected = np.convolve([float(v) for v in section_response(sos, 600)], x)[:600]
    error = np.abs(run(model, x)[:, 0] - expected).max()
    # Residues of order 12 cancel by two digits.
    assert error < {"float64": 2e-15, "float32": 1e-6}[dtype] * (30 if order == 12 else 1)
    assert error < certificate.error_bound


@pytest.mark.parametrize(
    ("name", "dtype"), [("low 4", "float64"), ("low 4", "float32"), ("stop 2", "float64"), ("low 12", "float32")]
)
def test_the_certified_rounding_of_weights_is_their_l1_error(name, dtype):
    order, cutoff, band = DESIGNS[name]
    kernel = ExponentialSum.butterworth(order, cutoff, 256.0, band)
    model, certificate = build_ssm(kernel, dtype=dtype, input_bound=3.0)
    sos = signal.butter(order, cutoff, band, output="sos", fs=256.0)
    length = 700
    with mpmath.workdps(60):
        wanted, stored = section_response(sos, length), stored_response(model, 0, length)
        exact = float(sum(abs(a - b) for a, b in zip(wanted, stored, strict=True)))
    certified = dict(certificate.rounding_parts)["stored weights"]
    assert 3 * exact <= certified < 3 * exact * 1.02


def test_weights_made_for_the_poles_as_stored_beat_plain_rounding():
    kernel = ExponentialSum.butterworth(8, (8.0, 13.0), 256.0, "bandpass")
    certificate = build_ssm(kernel, dtype="float32")[1]
    plain, _ = build_ssm(kernel)
    rounded = certify_ssm(plain.float(), kernel)
    assert dict(certificate.rounding_parts)["stored weights"] < 0.2 * dict(rounded.error_parts)["kernels"]
    assert rounded.claim == "bound"


def test_real_negative_and_complex_poles_with_a_skip():
    kernel = ExponentialSum([0.9, -0.7, 0.5 + 0.6j, 0.5 - 0.6j], [1.0, -2.0, 0.3 - 1j, 0.3 + 1j], 0.75)
    model, certificate = build_ssm(kernel)
    assert (model.config.n_modes, certificate.claim) == (3, "exact")
    t = np.arange(200)
    h = 0.9**t - 2 * (-0.7) ** t + 2 * ((0.3 - 1j) * (0.5 + 0.6j) ** t).real + 0.75 * (t == 0)
    x = noise(200)
    assert np.abs(run(model, x)[:, 0] - signal.lfilter(h, [1.0], x)).max() < 1e-14
    for mode in ("recurrence", "step"):
        with torch.no_grad():
            other = model.trace(torch.from_numpy(x)[None, :, None], mode=mode).logits[0, :, 0].numpy()
        assert np.abs(other - signal.lfilter(h, [1.0], x)).max() < 1e-13


@pytest.mark.parametrize(
    ("poles", "residues", "relative"),
    [
        ([0.9, 0.9], [0.0, 1.0], 1e-12),  # (t + 1) p^t, an alpha function
        ([0.8 * np.exp(0.5j), 0.8 * np.exp(-0.5j)] * 3, [0, 0, 0, 0, 1, 1], 1e-8),  # a gammatone of order 3
        ([0.9, 0.9 + 1e-9], [-1e9, 1e9], 1e-11),  # nearly the first
    ],
)
def test_repeated_poles_are_split_and_the_distance_certified(poles, residues, relative):
    kernel = ExponentialSum(poles, residues)
    model, certificate = build_ssm(kernel)
    assert certificate.claim == "bound"
    length = 500
    with mpmath.workdps(60):
        wanted = [mpmath.mpf(0)] * length
        seen = {}
        for p, r in zip(kernel.poles, kernel.residues, strict=True):
            j = seen[p] = seen.get(p, 0) + 1
            pole, residue = mpmath.mpc(p), mpmath.mpc(r)
            for t in range(length):
                wanted[t] += (residue * mpmath.binomial(t + j - 1, j - 1) * pole**t).real
        stored = stored_response(model, 0, length)
        exact = float(sum(abs(a - b) for a, b in zip(wanted, stored, strict=True)))
        size = float(sum(abs(a) for a in wanted))
    certified = dict(certificate.error_parts)["kernels"]
    assert exact <= certified < 1.02 * exact
    assert 1e-16 < certified / size < relative


def chirp(length=96):
    t = np.arange(length)
    return np.exp(-0.5 * ((t - length / 2) / (length / 8)) ** 2) * np.cos(
        2 * np.pi * (0.02 * t + 0.08 / length * t * t)
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_matched_filter_is_within_the_l1_error_of_its_kernel(dtype):
    template = chirp()
    kernel = FiniteKernel.matched(template)
    model, certificate = build_ssm(kernel, n_modes=10, dtype=dtype, length=1200)
    assert certificate.claim == "bound"
    assert model.config.n_modes == 10
    stored = np.array([float(v) for v in stored_response(model, 0, 1500, digits=30)])
    difference = np.pad(template[::-1], (0, 1500 - len(template))) - stored
    certified = dict(certificate.error_parts)["kernels"]
    assert np.abs(difference).sum() <= certified < 1.01 * np.abs(difference).sum()
    assert certified < 0.05 * np.abs(template).sum()
    # The bound is attained, at the last step, by the sign of the reversed difference; no other input of its size comes near.
    worst = np.sign(difference[:1200][::-1])
    for x, share in ((worst, 0.98), (noise(1200), 0.0)):
        expected = np.array(
            [template @ part for part in np.lib.stride_tricks.sliding_window_view(np.pad(x, (95, 0)), 96)]
        )
        error = np.abs(run(model, x)[:, 0] - expected).max()
        assert share * certified < error < certificate.error_bound
        assert share or error < 0.5 * certified


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["delay", "alternating", "low-pass", "noise"])
def test_as_many_modes_as_half_the_lags_are_the_kernel_itself(name, dtype):
    """More modes never hurt: weights that would no longer cancel when rounded are not taken."""
    values = {
        "delay": np.eye(8)[7],
        "alternating": (-1.0) ** np.arange(6),
        "low-pass": signal.firwin(33, 0.2),
        "noise": noise(40),
    }[name]
    kernel, half = FiniteKernel(values), len(values) // 2
    few, many, more = (
        dict(build_ssm(kernel, n_modes=n, dtype=dtype, length=64)[1].error_parts)["kernels"]
        for n in (max(1, half // 4), half, 2 * half)
    )
    size = np.abs(values).sum()
    assert many < {"float64": 1e-6, "float32": 2e-3}[dtype] * size
    assert many < 0.1 * few
    assert more < {"float64": 1e-9, "float32": 1e-4}[dtype] * size
    model, certificate = build_ssm(kernel, n_modes=half, dtype=dtype, length=64)
    x = noise(64)
    assert np.abs(run(model, x)[:, 0] - np.convolve(values, x)[:64]).max() < certificate.error_bound
    found, certificate = build_ssm(kernel, tolerance=1e-2 * size, dtype=dtype, length=64)
    assert dict(certificate.error_parts)["kernels"] <= 1e-2 * size
    assert found.config.n_modes <= half


@pytest.mark.parametrize(("tolerance", "between"), [(0.8, False), (0.3, True)])
def test_a_tolerance_is_kept_with_the_fewest_modes_found(tolerance, between):
    kernel = FiniteKernel(tuple(chirp(64)))
    model, certificate = build_ssm(kernel, tolerance=tolerance)
    assert certificate.error_bound < tolerance
    assert (
        model.config.n_modes not in (1, 2, 3, 4, 6, 8, 12, 16)
    ) == between  # not only the sizes that are tried first
    fewer, worse = build_ssm(kernel, n_modes=model.config.n_modes - 1)
    assert worse.error_bound > tolerance
    assert fewer.config.n_modes == model.config.n_modes - 1
    with pytest.raises(ArgumentError, match=r"of up to 4 modes has an L1 error of .* L1 norm"):
        build_ssm(kernel, tolerance=0.8, n_modes=4)


def test_a_real_template_is_matched(shared_data):
    """The mean difference of the two classes of slow cortical potentials, against scipy.signal.correlate on the data."""
    from oplens.data import read_ts

    data = read_ts(shared_data / "data" / "SelfRegulationSCP1" / "SelfRegulationSCP1_TRAIN.ts", sampling_rate=256.0)
    y = np.array(data.y)
    first, second = sorted(set(y))
    template = (data.X[y == second] - 0).mean(0)[0] - data.X[y == first].mean(0)[0]
    kernel = FiniteKernel.matched(template)
    model, certificate = build_ssm(
        kernel, n_modes=8, sampling_rate=256.0, length=896, input_bound=np.abs(data.X[:, 0]).max()
    )
    norm = np.abs(template).sum()
    L1 = kernel_errors(model, volterra("test", kernel, None, 0.0))[0].error
    assert 0.03 * norm < L1 < 0.045 * norm
    x = data.X[7, 0]
    expected = signal.correlate(x, template, mode="full")[: len(x)]  # inner products with the past, sample by sample
    error = np.abs(run(model, x)[:, 0] - expected).max()
    assert 0 < error < L1 * np.abs(x).max() < certificate.error_bound


def double_loop(x, h0, h1, h2):
    """y(t) = h0 + sum h1 x + sum sum h2 x x, lag by lag."""
    y = np.full(len(x), h0)
    for t in range(len(x)):
        past = x[max(0, t - len(h1) + 1) : t + 1][::-1]
        y[t] += h1[: len(past)] @ past + past @ h2[: len(past), : len(past)] @ past
    return y


def test_a_second_order_kernel_of_exponentials_is_exact():
    poles = [0.7, 0.5 + 0.4j, 0.5 - 0.4j]
    M = np.array([[1.0, 0.3 - 0.2j, 0.3 + 0.2j], [0.3 - 0.2j, 0.5j, -0.8], [0.3 + 0.2j, -0.8, -0.5j]])
    kernel1, kernel2 = ExponentialSum.butterworth(2, 0.3), SecondOrderKernel.from_exponentials(poles, M)
    model, certificate = build_ssm(kernel1, kernel2, -0.4, length=120)
    assert certificate.claim == "exact"
    assert certificate.error_bound < 1e-9
    t = np.arange(120)
    powers = np.array([np.power(complex(p), t) for p in poles])
    h2 = np.einsum("ab,as,bt->st", M, powers, powers)
    b, a = signal.butter(2, 0.3)
    x = noise(120)
    expected = double_loop(x, -0.4, signal.lfilter(b, a, t == 0), h2.real)
    assert np.abs(run(model, x)[:, 0] - expected).max() < 1e-13
    assert np.abs(run(model, x)[:, 0] - expected).max() < certificate.error_bound


def test_a_second_order_matrix_is_within_its_certificate_and_its_cut_is_counted():
    g = np.exp(-np.arange(12) / 3) * np.cos(np.arange(12) / 2)
    H = np.outer(g, g) - 0.5 * np.outer(g[::-1], g[::-1]) + 0.02 * np.eye(12)
    for rank in (None, 2):
        kernel2 = SecondOrderKernel.from_matrix(H, rank)
        model, certificate = build_ssm(None, kernel2, n_modes=5, input_bound=2.0, length=80)
        parts = dict(certificate.error_parts)
        assert certificate.claim == "bound"
        worst = 0.0
        for seed in range(5):
            x = 2 * np.sign(noise(80, seed=seed))
            found = np.abs(run(model, x)[:, 0] - double_loop(x, 0.0, np.zeros(12), H)).max()
            worst = max(worst, found)
        assert worst < certificate.error_bound
        # The products of norms that stand for the norm of products cost this much, and no more.
        assert worst > 0.01 * certificate.error_bound
        responses = [
            np.array([float(v) for v in stored_response(model, h, 300, 30)]) for h in range(len(kernel2.filters))
        ]
        stored = sum(w * np.outer(r, r) for w, r in zip(kernel2.weights, responses, strict=True))
        distance = np.abs(np.pad(kernel2.response(12), (0, 288)) - stored).sum()
        assert distance * 4 < parts["kernels"] < 4 * 12 * distance
        assert parts["decomposition"] == pytest.approx(4 * kernel2.left_over)


def test_channels_and_outputs_get_filters_of_their_own():
    fast, slow = ExponentialSum([0.5], [1.0]), ExponentialSum.butterworth(3, 0.1)
    square = SecondOrderKernel([ExponentialSum([0.6], [1.0])], [-1.5], [[2.0, -0.3]])
    model, certificate = build_ssm(
        [[fast, None], [slow, fast]], [square, None], [0.1, -7.0], n_modes=4, channels=("C3", "C4"), outputs=("y", "z"),
        length=150,
    )  # fmt: skip
    assert (model.config.channels, model.config.classes, model.config.n_modes) == (("C3", "C4"), ("y", "z"), 4)
    x = noise(150, 2)
    sos = signal.butter(3, 0.1, output="sos")
    leak = lambda u, p: signal.lfilter([1.0], [1.0, -p], u)  # noqa: E731
    first = 0.1 + leak(x[:, 0], 0.5) - 1.5 * leak(2 * x[:, 0] - 0.3 * x[:, 1], 0.6) ** 2
    second = -7.0 + signal.sosfilt(sos, x[:, 0]) + leak(x[:, 1], 0.5)
    found = run(model, x)
    assert np.abs(found - np.stack([first, second], 1)).max() < 1e-13
    assert np.abs(found - np.stack([first, second], 1)).max() < certificate.error_bound
    single, _ = build_ssm([[fast, None], [slow, fast]], [square, None], [0.1, -7.0], dtype="float32", length=150)
    bound = certify_ssm(single, [[fast, None], [slow, fast]], [square, None], [0.1, -7.0], length=150).error_bound
    assert 1e-7 < np.abs(run(single, x) - found).max() < bound < 1e-2


def test_padding_modes_do_nothing_and_files_keep_every_bit(tmp_path):
    kernel = ExponentialSum.butterworth(4, 0.2)
    model, certificate = build_ssm(kernel, n_modes=7)
    assert torch.count_nonzero(model.layer(0).kernel.C[0, 2:]) == 0
    small, _ = build_ssm(kernel)
    x = noise(100)
    assert np.abs(run(model, x) - run(small, x)).max() < 1e-15
    model.save_pretrained(tmp_path)
    back = S4D.from_pretrained(tmp_path)
    assert back.decoder.weight.dtype == torch.float64
    assert np.array_equal(run(back, x), run(model, x))
    assert certify_ssm(back, kernel).error_bound == pytest.approx(certificate.error_bound)


@pytest.mark.parametrize(("dtype", "u"), [("float64", 2.0**-53), ("float32", 2.0**-24)])
def test_the_rounding_of_a_run_is_bounded_as_the_formulas_say(dtype, u):
    p, r, length, R = 0.75, 2.0, 500, 3.0
    kernel, square = ExponentialSum([p], [r]), SecondOrderKernel([ExponentialSum([p], [r])], [0.5])
    levels = np.log2(1000)  # the FFT of 500 steps has 1000
    norm1, norm2 = r / (1 - p), r / np.sqrt(1 - p * p)
    kernels = r * 2.0**-53 * (4 * abs(np.log(p)) * p / (1 - p) ** 2 + 34 / (1 - p)) + u * norm1
    transform = 3 * ((1 + 8 * u) ** levels - 1) + 8 * u + 2 * u
    z = R * (kernels + transform * np.sqrt(length) * norm2)
    first = dict(build_ssm(kernel, dtype=dtype, input_bound=R, length=length)[1].rounding_parts)["arithmetic"]
    assert first == pytest.approx(z + 2 * u * R * norm1, rel=0.02)
    second = dict(build_ssm(None, square, dtype=dtype, input_bound=R, length=length)[1].rounding_parts)["arithmetic"]
    Z = R * norm1
    assert second == pytest.approx(0.5 * (2 * Z * z + z * z + u * Z * Z) + 2 * u * 0.5 * Z * Z, rel=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_random_series_stay_under_their_certificates(seed):
    rng = np.random.default_rng(seed)
    upper = rng.uniform(0.2, 0.995, 3) * np.exp(1j * rng.uniform(0.01, 3.1, 3))
    residues = rng.normal(size=3) + 1j * rng.normal(size=3)
    poles = [*upper, *upper.conj(), rng.uniform(-0.9, 0.9)]
    first = ExponentialSum(poles, [*residues, *residues.conj(), rng.normal()], rng.normal())
    M = rng.normal(size=(2, 2))
    second = SecondOrderKernel.from_exponentials(rng.uniform(-0.8, 0.9, 2), M + M.T)
    model, _ = build_ssm(first, second, rng.normal(), input_bound=2.0)
    constant = float(model.decoder.bias.detach())
    found = verify_ssm(model, first, second, constant, ["float64", "float32"], input_bound=2.0, length=700, seed=seed)
    assert found.passed
    # A bound that nothing comes near would be no news: by worst-case rounding of transforms it is some thousand times what is met.
    assert all(check.bound < 1e5 * check.largest_error for check in found.checks if check.signal != "impulse")


def test_counts_are_those_of_the_tensors():
    _, certificate = build_ssm(ExponentialSum.butterworth(4, 0.2), constant=2.0)
    # log_dt 0; D; 2 rates, 2 angles, 2 complex weights; encoder 1 and bias 0; polynomial 0, 1; decoder 1, bias 2.
    assert (certificate.dense, certificate.sparse, certificate.readout) == (16, 13, 2)
    assert (certificate.width, certificate.hidden, certificate.depth, certificate.attention_layers) == (1, (4,), 1, 0)
    found = certificate.to_dict()
    assert found["error_bound"] == pytest.approx(sum(found["rounding_parts"].values()))
    assert "stored weights" in str(certificate)


def test_verification_runs_every_signal_under_a_bound_that_one_attains():
    kernel1 = FiniteKernel(tuple(chirp(48)))
    kernel2 = SecondOrderKernel([ExponentialSum([0.6], [1.0])], [0.1])
    model, certificate = build_ssm(kernel1, kernel2, 1.0, n_modes=4, input_bound=2.0)
    found = verify_ssm(model, kernel1, kernel2, 1.0, ["float64", "float32"], input_bound=2.0, length=400)
    assert found.passed
    assert [check.signal for check in found.checks][:6] == [
        "impulse", "step", "slow sinusoid", "fast sinusoid", "white noise", "worst for output 0",
    ]  # fmt: skip
    by_name = {(check.dtype, check.signal): check for check in found.checks}
    worst = by_name["float64", "worst for output 0"]
    assert 0.95 * certificate.error_bound < worst.largest_error <= worst.bound
    assert worst.largest_error > 2 * by_name["float64", "white noise"].largest_error
    assert found.to_dict()["kernels"][0]["n_modes"] == 4
    assert "certified" in str(found)


def test_verification_finds_a_model_that_computes_something_else():
    kernel = ExponentialSum.butterworth(2, 0.2)
    model, _ = build_ssm(kernel)
    wrong = copy.deepcopy(model)
    honest = wrong.readout
    wrong.readout = lambda z: honest(z) + 1e-6
    assert not verify_ssm(wrong, kernel, length=64).passed
    # Weights that moved are another certificate, not a wrong one.
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved.layer(0).D += 1e-6
        moved.decoder.bias += 2e-6
    assert certify_ssm(moved, kernel).error_bound == pytest.approx(3e-6, rel=1e-3)
    assert verify_ssm(moved, kernel, length=64).passed


MOVED = {
    "its encoder has a bias": lambda model: model.encoder.bias[1].fill_(1e-3),
    "a feature's readout is not the power": lambda model: model.polynomial[0, 0].fill_(1e-3),
    "an output reads another one's features": lambda model: model.decoder.weight[0, 1].fill_(1e-3),
    "weights in torch.float16 and torch.float64": lambda model: setattr(
        model.decoder, "bias", torch.nn.Parameter(torch.zeros(2, dtype=torch.float16))
    ),
    "no finite bound. A stored wave does not fade": lambda model: model.layer(0).kernel.log_A_real[0, 0].fill_(-800.0),
}


@pytest.mark.parametrize("sentence", MOVED)
def test_weights_that_no_bound_counts_are_not_certified(sentence):
    kernels = [[ExponentialSum([0.5], [1.0]), None], [None, ExponentialSum([0.5], [1.0])]]
    model, _ = build_ssm(kernels)
    with torch.no_grad():
        MOVED[sentence](model)
    for call in (certify_ssm, verify_ssm):
        with pytest.raises(ArgumentError, match=sentence):
            call(model, kernels, length=16)


def test_every_channel_is_asked_whether_it_is_preprocessed():
    kernels = [[ExponentialSum([0.5], [1.0]), ExponentialSum([0.6], [1.0])]]
    model, _ = build_ssm(kernels)
    config = dataclasses.replace(model.config, preprocessing=Preprocessing((0.0, 0.0), (1.0, 2.0)))
    other = S4D(config).double()
    other.load_state_dict(model.state_dict())
    with pytest.raises(ArgumentError, match="the model preprocesses its input"):
        certify_ssm(other, kernels)


def test_features_that_share_a_filter_are_certified_each():
    kernel = ExponentialSum.butterworth(2, 0.2)
    kernels = [[kernel, None], [None, kernel]]
    model, _ = build_ssm(kernels)
    with torch.no_grad():
        model.layer(0).D[1] += 1e-3
    assert certify_ssm(model, kernels).error_bound == pytest.approx(1e-3, rel=1e-6)
    assert verify_ssm(model, kernels, length=64).passed


@pytest.mark.parametrize("mixing", [None, [3.0, -4.0], [0.1, 0.05]])
def test_what_a_rank_leaves_out_is_counted_in_units_of_the_channels(mixing):
    """The cut part acts on the mixture: with weights 3 and -4 it is 49 times as large."""
    g = np.exp(-np.arange(8) / 3)
    H = np.outer(g, g) + 0.3 * np.eye(8)
    kernel2 = SecondOrderKernel.from_matrix(H, 2, mixing)
    model, certificate = build_ssm(None, kernel2, n_modes=4, length=64, input_bound=2.0)
    gain = np.array([1.0] if mixing is None else mixing)
    values, vectors = np.linalg.eigh(H)
    largest = np.argsort(-np.abs(values), kind="stable")[:2]
    cut = np.abs(H - vectors[:, largest] * values[largest] @ vectors[:, largest].T).sum() * np.abs(gain).sum() ** 2
    assert dict(certificate.error_parts)["decomposition"] == pytest.approx(4 * cut, rel=1e-6)
    x = 2 * np.ones((64, 1)) * np.sign(gain)
    found = np.abs(run(model, x)[:, 0] - double_loop(x @ gain, 0.0, np.zeros(8), H)).max()
    assert 0.1 * certificate.error_bound < found < certificate.error_bound


@pytest.mark.parametrize("dtype", [torch.float32, np.float32, np.dtype("float32"), "float32"])
def test_a_dtype_is_known_by_any_of_its_names(dtype):
    model, certificate = build_ssm(ExponentialSum([0.5], [1.0]), dtype=dtype)
    assert (model.decoder.weight.dtype, certificate.dtype) == (torch.float32, "float32")
    assert verify_ssm(model, ExponentialSum([0.5], [1.0]), dtypes=[dtype], length=16).checks[0].dtype == "float32"


def test_a_gain_alone_is_a_filter_too():
    model, certificate = build_ssm(ExponentialSum((), (), direct=-2.5), constant=1.0)
    x = noise(20)
    assert np.abs(run(model, x)[:, 0] - (1 - 2.5 * x)).max() < certificate.error_bound < 1e-10
    assert (certificate.claim, model.config.n_modes) == ("exact", 1)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_slow_high_pass_is_certified_over_all_of_its_memory(dtype):
    """0.1 Hz at 10 kHz: most of the memory lies beyond the lags that are summed one by one."""
    b, a = signal.butter(1, 0.1, "high", fs=10_000.0)
    model, certificate = build_ssm(ExponentialSum.from_ba(b, a), dtype=dtype, length=256)
    certified = dict(certificate.rounding_parts)["stored weights"]
    with mpmath.workdps(60):
        # H = b0 (1 - w)/(1 - p w): b0 at lag 0 and b0 (p - 1) p^(t - 1) beyond; the stored kernel has one wave c q^t, c and q real.
        b0, p = mpmath.mpf(b[0]), -mpmath.mpf(a[1])
        assert b[1] == -b[0]
        kernel, skip = model.layer(0).kernel, mpmath.mpf(model.layer(0).D.item())
        x = -mpmath.exp(mpmath.mpf(kernel.log_A_real.item()))
        c, q = 2 * mpmath.mpf(kernel.C[0, 0, 0].item()) * (mpmath.exp(x) - 1) / x, mpmath.exp(x)
        g = b0 * (p - 1) / p
        # g p^t - c q^t changes its sign once at most, where (p/q)^t = c/g; the sums on either side are geometric.
        rest = lambda t: g * p**t / (1 - p) - c * q**t / (1 - q)  # noqa: E731
        turn = mpmath.log(c / g) / mpmath.log(p / q) if p != q and c / g > 0 else 0
        t = max(1, int(mpmath.ceil(turn)))
        exact = float(abs(b0 - c - skip) + abs(rest(1) - rest(t)) + abs(rest(t)))
    assert exact <= certified < 2 * exact
    assert exact < {"float64": 1e-15, "float32": 1e-6}[dtype]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda k: build_ssm(), "no kernel was given"),
        (lambda k: build_ssm([[None]]), "no kernel was given"),
        (lambda k: build_ssm(np.ones(3)), r"FiniteKernel\(array\)"),
        (lambda k: build_ssm(k, np.eye(3)), r"SecondOrderKernel.from_matrix"),
        (lambda k: build_ssm(k, dtype="float16"), "float64 or float32"),
        (lambda k: build_ssm(k, n_modes=1), r"needs 2 modes; leave n_modes out, or give FiniteKernel"),
        (lambda k: build_ssm(k, n_modes=0), "n_modes"),
        (lambda k: build_ssm(FiniteKernel([1.0, 2.0])), "say with n_modes how many"),
        (lambda k: FiniteKernel([1e300, 2.0]), "a value of size 1e.300 is above 1e.60"),
        (lambda k: ExponentialSum([0.5], [1e200]), "a value of size 1e.200 is above 1e.60"),
        (lambda k: build_ssm(k, tolerance=0.0), "tolerance"),
        (lambda k: build_ssm(k, input_bound=0.0), "input_bound"),
        (lambda k: build_ssm(k, length=0), "length"),
        (lambda k: build_ssm([k, k], constant=[0.0] * 3), "kernel1 for 2, constant for 3 outputs"),
        (lambda k: build_ssm([[k, k], [k]]), "for 1 and 2 channels"),
        (lambda k: build_ssm(k, constant=[]), "one number per output"),
        (lambda k: build_ssm(k, constant=float("nan")), "constant"),
        (lambda k: build_ssm(k, SecondOrderKernel([k], [1.0], [[1.0, 1.0]])), "for 1 and 2 channels"),
        (lambda k: build_ssm([k] * 5000), "5000 features"),
        (lambda k: build_ssm(k, channels=("a", "b")), "names of channels"),
        (lambda k: build_ssm(ExponentialSum([0.5], [1e60]), dtype="float32"), "float32 cannot hold this kernel"),
        (lambda k: build_ssm(FiniteKernel([1e60, 1e60]), n_modes=1, dtype="float32"), "overflow float32"),
        (lambda k: certify_ssm(S4D(S4DConfig(1, 1, 1, 2)), k), "polynomial readout"),
        (lambda k: certify_ssm(None, k), "expected an S4D"),
        (lambda k: certify_ssm(build_ssm(k)[0], [k, k]), "1 features, the kernels ask for"),
        (lambda k: verify_ssm(build_ssm(k)[0], k, dtypes=["float16"]), "float64 or float32"),
        (lambda k: verify_ssm(build_ssm(k)[0], k, dtypes="float64"), "give a list"),
        (lambda k: verify_ssm(build_ssm(k)[0], k, length=10**6), "length"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_or_judged_is_a_sentence(call, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        call(ExponentialSum.butterworth(4, 0.2))


def test_a_model_that_preprocesses_is_refused():
    from oplens.models import Preprocessing

    kernel = ExponentialSum.butterworth(2, 0.2)
    good = build_ssm(kernel)[0].config.to_dict()
    for preprocessing in (
        Preprocessing((1.0,), (1.0,)),
        Preprocessing((0.0,), (2.0,)),
        Preprocessing((0.0,), (1.0,), True),
    ):
        model = S4D(S4DConfig.from_dict({**good, "preprocessing": preprocessing}))
        with pytest.raises(ArgumentError, match="preprocesses its input"):
            certify_ssm(model, kernel)
