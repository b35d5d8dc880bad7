"""softly in PyTorch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import softly  # noqa: E402
import softly.torch  # noqa: E402
from conftest import ADAPT, poisson  # noqa: E402
from softly import denoisers  # noqa: E402
from softly.torch import ModelDenoiser, Residual, function  # noqa: E402


def test_the_residual_passes_gradcheck_twice():
    residual = Residual(softly.Constraint("u*dx(v) + sin(u)*v^2 - dyy(u)"))
    u, v = (torch.rand(2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda u, v: residual(u=u, v=v), (u, v))
    assert torch.autograd.gradgradcheck(lambda u, v: residual(u=u, v=v), (u, v))


def test_types_shapes_and_names():
    residual = Residual(softly.Constraint("dxx(u)"))
    single = torch.rand(3, 6, 6, requires_grad=True)
    found = residual(u=single)
    assert found.dtype == torch.float32 and found.shape == (3, 6, 6)
    found.sum().backward()
    assert single.grad is not None and single.grad.dtype == torch.float32
    with pytest.raises(softly.Error, match="expected u"):
        residual(v=single)
    with pytest.raises(softly.Error, match="floating"):
        residual(u=torch.ones(3, 6, 6, dtype=torch.int64))
    with pytest.raises(softly.Error, match="torch tensor"):
        softly.Constraint("u").residual(u=single)


class Gaussian(torch.nn.Module):
    """The exact noise prediction of independent normal numbers with deviation s, in EDM's convention of D."""

    def __init__(self, s: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.s = torch.nn.Parameter(torch.tensor(s, dtype=dtype))

    def forward(self, x, sigma):
        assert x.dtype == self.s.dtype and sigma.dtype == self.s.dtype
        return x * (self.s**2 / (self.s**2 + sigma**2)).reshape(-1, 1, 1, 1)


def noise(s: float) -> softly.Dataset:
    return softly.Dataset.from_arrays(u=s * np.random.default_rng(5).normal(size=(64, 6, 6)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_is_a_base_with_its_exact_likelihood(dtype):
    s = 0.7
    data = noise(s)
    constraint = softly.Constraint("dx(u) + dy(u)")
    model = softly.adapt(denoiser=Gaussian(s, dtype), sigma_data=s, units="none", data=data, constraint=constraint, **ADAPT)
    found = model.nll(data, count=4, compliance=0, probes=4)
    variance = s**2 + 0.002**2
    x = data.held_out("u").astype(np.float64)[:4]
    expected = (0.5 * np.log2(2 * np.pi * variance) + 0.5 * (x**2 + 0.002**2) / variance / np.log(2)).mean((1, 2))
    np.testing.assert_allclose(found.samples, expected, atol=5e-3)
    assert model.sample(128, steps=16, compliance=0)["u"].std() == pytest.approx(s, rel=0.05)


def test_functions_of_tensors_and_conventions():
    s = 0.7
    exact = Gaussian(s)
    alphas = np.linspace(0.999, 0.001, 500)
    levels = denoisers.Schedule(alphas)

    def epsilon(x, t):
        sigma = torch.tensor(np.exp(np.interp(t.double().numpy(), np.arange(500), levels.log_sigmas)), dtype=x.dtype)
        noisy = x * torch.sqrt(1 + sigma**2).reshape(-1, 1, 1, 1)
        return (noisy - exact(noisy, sigma)) / sigma.reshape(-1, 1, 1, 1)

    convention = denoisers.epsilon(function(epsilon), alphas_cumprod=alphas)
    data = noise(s)
    settings = {"sigma_data": s, "units": "none", "data": data, "constraint": softly.Constraint("dx(u) + dy(u)"), **ADAPT}
    x = np.random.default_rng(0).normal(size=(2, 1, 6, 6)).astype(np.float32)
    models = [softly.adapt(denoiser=d, **settings) for d in (convention, function(exact), exact)]
    for model in models[:2]:
        np.testing.assert_allclose(model.denoise(x, 0.5), models[2].denoise(x, 0.5), atol=2e-3)
    with pytest.raises(softly.Error, match="softly.torch.function"):
        softly.adapt(denoiser=lambda x, s: torch.from_numpy(x), **settings)


def test_a_softly_model_is_a_torch_callable(adapted, data):
    denoise = ModelDenoiser(adapted)
    x = torch.rand(2, 2, 16, 16, dtype=torch.float64, requires_grad=True)
    w = torch.rand(2, 2, 16, 16, dtype=torch.float64)
    estimate = denoise(x, 0.5)
    np.testing.assert_array_equal(estimate.detach().numpy(), adapted.denoise(x.detach().numpy(), 0.5))
    (estimate * w).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), adapted.vjp(x.detach().numpy(), 0.5, w.numpy()), rtol=1e-12)


def test_the_regulariser_of_pidm_in_a_training_loss():
    torch.manual_seed(0)
    network = torch.nn.Conv2d(2, 2, 3, padding=1)
    residual = Residual(poisson())
    x = torch.rand(4, 2, 16, 16)
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    for _ in range(5):
        estimate = network(x)
        r = residual(p=estimate[:, 0], K=estimate[:, 1])
        loss = (estimate - x).square().mean() + 1e-3 * r.square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
