"""Conventions: the denoiser of Gaussian data is known exactly in each of them."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import softly
from softly import denoisers

S = 0.6
ALPHAS = np.cos(0.5 * math.pi * (np.arange(1, 101) / 101)) ** 2
LEVELS = [0, 17, 50, 99]


def clean_of(x_t, signal, noise):
    """E[x₀ | x_t] of data with deviation S where x_t = signal·x₀ + noise·ε."""
    return signal * S**2 / (signal**2 * S**2 + noise**2) * x_t


def noise_of(x_t, signal, noise):
    """E[ε | x_t]."""
    return noise / (signal**2 * S**2 + noise**2) * x_t


def of_step(t):
    alpha = ALPHAS[np.rint(t).astype(int)].reshape(-1, 1, 1, 1)
    return np.sqrt(alpha), np.sqrt(1 - alpha)


def epsilon(x, t):
    return noise_of(x, *of_step(t))


def velocity(x, t):
    signal, noise = of_step(t)
    return signal * noise_of(x, signal, noise) - noise * clean_of(x, signal, noise)


def flow(x, t):
    t = t.reshape(-1, 1, 1, 1)
    return noise_of(x, 1 - t, t) - clean_of(x, 1 - t, t)


def network(x, c_noise):
    sigma = np.exp(4 * c_noise).reshape(-1, 1, 1, 1)
    total = np.hypot(sigma, 0.5)
    noisy = x * total
    return (clean_of(noisy, 1.0, sigma) - (0.5 / total) ** 2 * noisy) / (sigma * 0.5 / total)


class Posterior(SimpleNamespace):
    pass


class Azula:
    """A denoiser with azula's interface and a variance-preserving schedule."""

    @staticmethod
    def schedule(t):
        return math.cos(0.5 * math.pi * t), math.sin(0.5 * math.pi * t)

    def __call__(self, x, t):
        angle = 0.5 * math.pi * t.reshape(-1, 1, 1, 1)
        return Posterior(mean=clean_of(x, np.cos(angle), np.sin(angle)))


def scheduler(kind):
    return SimpleNamespace(alphas_cumprod=ALPHAS, config=SimpleNamespace(prediction_type=kind))


CONVENTIONS = {
    "edm": denoisers.edm(lambda x, s: clean_of(x, 1.0, s.reshape(-1, 1, 1, 1))),
    "physicsnemo": denoisers.edm(lambda x, s, condition: clean_of(x, 1.0, s.reshape(-1, 1, 1, 1)), condition=None),
    "edm_network": denoisers.edm_network(network, sigma_data=0.5),
    "epsilon": denoisers.epsilon(epsilon, alphas_cumprod=ALPHAS),
    "velocity": denoisers.velocity(velocity, alphas_cumprod=ALPHAS),
    "clean": denoisers.clean(lambda x, t: clean_of(x, *of_step(t)), alphas_cumprod=ALPHAS, whole=True),
    "diffusers ε": denoisers.diffusers(lambda x, t: SimpleNamespace(sample=epsilon(x, t)), scheduler("epsilon")),
    "diffusers v": denoisers.diffusers(velocity, scheduler("v_prediction")),
    "diffusers x₀": denoisers.diffusers(lambda x, t: clean_of(x, *of_step(t)), scheduler("sample")),
    "flow": denoisers.flow_matching(flow),
    "flow reversed": denoisers.flow_matching(lambda x, t: -flow(x, 1 - t), reverse=True),
    "score": denoisers.score(lambda x, s: -x / (S**2 + s.reshape(-1, 1, 1, 1) ** 2)),
    "azula": denoisers.azula(Azula()),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_convention_gives_the_exact_denoiser(name):
    sigma = np.sqrt((1 - ALPHAS[LEVELS]) / ALPHAS[LEVELS])
    x = np.random.default_rng(0).normal(size=(len(sigma), 2, 4, 4)) * np.hypot(S, sigma).reshape(-1, 1, 1, 1)
    expected = clean_of(x, 1.0, sigma.reshape(-1, 1, 1, 1))
    np.testing.assert_allclose(CONVENTIONS[name](x, sigma), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["edm", "epsilon", "velocity", "flow", "score", "edm_network"])
def test_the_derivative_of_a_convention_is_that_of_its_network(name):
    build = {
        "edm": lambda f, vjp: denoisers.edm(f, vjp=vjp),
        "epsilon": lambda f, vjp: denoisers.epsilon(f, alphas_cumprod=ALPHAS, vjp=vjp),
        "velocity": lambda f, vjp: denoisers.velocity(f, alphas_cumprod=ALPHAS, vjp=vjp),
        "flow": lambda f, vjp: denoisers.flow_matching(f, vjp=vjp),
        "score": lambda f, vjp: denoisers.score(f, vjp=vjp),
        "edm_network": lambda f, vjp: denoisers.edm_network(f, vjp=vjp),
    }[name]
    denoiser = build(lambda x, t: np.sin(x), lambda x, t, w: np.cos(x) * w)
    rng = np.random.default_rng(0)
    x, v, w = (rng.normal(size=(2, 1, 3, 3)) for _ in range(3))
    sigma, e = np.array([0.3, 2.0]), 1e-6
    slope = (denoiser(x + e * v, sigma) - denoiser(x - e * v, sigma)) / (2 * e)
    assert (denoiser.vjp(x, sigma, w) * v).sum() == pytest.approx((slope * w).sum(), rel=1e-7)
    assert denoiser.has_vjp and not build(lambda x, t: x, None).has_vjp


def test_steps_between_levels_are_interpolated_or_rounded():
    schedule = denoisers.Schedule(ALPHAS)
    middle = math.exp(0.5 * (schedule.log_sigmas[10] + schedule.log_sigmas[11]))
    assert schedule.time(middle) == pytest.approx(10.5)
    assert denoisers.Schedule(ALPHAS, whole=True).time(1.01 * middle) == 11
    assert schedule.time(1e-9) == 0 and schedule.time(1e9) == 99


def test_unusable_conventions_are_refused():
    with pytest.raises(softly.Error, match="falling"):
        denoisers.epsilon(epsilon, alphas_cumprod=[0.1, 0.9])
    with pytest.raises(softly.Error, match="prediction type"):
        denoisers.diffusers(epsilon, scheduler("something"))
    with pytest.raises(softly.Error, match="function"):
        denoisers.edm(3)
    with pytest.raises(softly.Error, match="vjp"):
        denoisers.edm(epsilon).vjp(np.ones((1, 1, 2, 2)), np.ones(1), np.ones((1, 1, 2, 2)))
