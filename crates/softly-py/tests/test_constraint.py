"""Constraints on arrays: exact answers, adjoints and differences."""

import numpy as np
import pytest

import softly
from conftest import darcy_like

RNG = np.random.default_rng(3)


def fields(*shape: int) -> dict[str, np.ndarray]:
    return {"p": RNG.normal(size=shape), "K": RNG.normal(size=shape)}


def darcy(**more):  # type: ignore[no-untyped-def]
    return softly.Constraint("K*laplacian(p) + dot(grad(K), grad(p)) + f", fields=("p", "K"), f=10.0, **more)


def test_a_solution_has_no_residual():
    t, x = np.meshgrid(np.linspace(0, 2, 9), np.linspace(0, 1, 17), indexing="ij")
    heat = softly.Constraint("dt(u) - nu*dxx(u)", axes={"t": (0, 2), "x": (0, 1)}, nu=0.1)
    assert np.abs(heat.residual(u=0.2 * t + x**2)).max() < 1e-12
    assert heat.fields == ("u",) and heat.parameters == {"nu": 0.1}


def test_residual_is_numpys():
    p, K = fields(3, 9, 9).values()
    h = 1 / 8

    def d(u: np.ndarray, axis: int) -> np.ndarray:
        return np.gradient(u, h, axis=axis, edge_order=2)

    def d2(u: np.ndarray, axis: int) -> np.ndarray:
        u = np.moveaxis(u, axis, -1)
        out = np.empty_like(u)
        out[..., 1:-1] = (u[..., 2:] - 2 * u[..., 1:-1] + u[..., :-2]) / h**2
        out[..., 0] = (2 * u[..., 0] - 5 * u[..., 1] + 4 * u[..., 2] - u[..., 3]) / h**2
        out[..., -1] = (2 * u[..., -1] - 5 * u[..., -2] + 4 * u[..., -3] - u[..., -4]) / h**2
        return np.moveaxis(out, -1, axis)

    expected = K * (d2(p, 1) + d2(p, 2)) + d(K, 1) * d(p, 1) + d(K, 2) * d(p, 2) + 10
    np.testing.assert_allclose(darcy().residual(p=p, K=K), expected, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("shape", [(6, 7), (4, 6, 7)])
def test_transposed_and_plain_products_are_adjoint(shape):
    equations = ["K*laplacian(p) + f", softly.Equation("p*K - 1", region="border", weight=0.5)]
    system = softly.Constraint(equations, fields=("p", "K"), f=10.0)
    u, v = fields(*shape), fields(*shape)
    w = RNG.normal(size=(*shape[:-2], 2, *shape[-2:]))
    forward, back = system.jvp(v, **u), system.vjp(w, **u)
    assert forward.shape == w.shape and back["p"].shape == shape
    left, right = (forward * w).sum(), sum((back[name] * v[name]).sum() for name in u)
    assert left == pytest.approx(right, rel=1e-12)
    e = 1e-6
    moved = [system.residual(**{name: u[name] + s * e * v[name] for name in u}) for s in (1, -1)]
    np.testing.assert_allclose(forward, (moved[0] - moved[1]) / (2 * e), atol=1e-6)


def test_curvature_is_the_change_of_the_transposed_product():
    constraint = softly.Constraint("u*dx(u)^2 + sin(u)*dy(u)")
    u, v, w = (RNG.normal(size=(2, 5, 6)) for _ in range(3))
    e = 1e-6
    moved = [constraint.vjp(w, u=u + s * e * v)["u"] for s in (1, -1)]
    np.testing.assert_allclose(constraint.curvature(w, {"u": v}, u=u)["u"], (moved[0] - moved[1]) / (2 * e), atol=1e-5)


def test_gradient_is_that_of_the_norm():
    for norm in ("l1-mean", "l1-sum", "l2", "half-squares"):
        constraint = darcy(norm=norm)
        u = fields(2, 5, 5)
        r = constraint.residual(**u)
        seed = {
            "l1-mean": -np.sign(r) / 25,
            "l1-sum": -np.sign(r),
            "l2": -r / np.sqrt((r**2).sum((1, 2), keepdims=True)),
            "half-squares": -r,
        }[norm]
        for name, expected in constraint.vjp(seed, **u).items():
            np.testing.assert_allclose(constraint.gradient(**u)[name], expected, rtol=1e-9, atol=1e-9)


def test_regions_weights_and_single_fields():
    constraint = softly.Constraint([softly.Equation("u", "border", 2.0, "edge"), "u - 1"], axes=("t", "x"))
    found = constraint.residual(u=np.ones((4, 4)))
    assert found.shape == (2, 4, 4)
    assert (found[0, 1:-1, 1:-1] == 0).all() and (found[0, 0] == 2).all() and (found[1] == 0).all()
    assert "on border" in repr(constraint)


def test_every_order_type_and_stride_gives_the_same():
    u = fields(3, 8, 8)
    expected = darcy().residual(**u)
    assert (darcy().residual(**{k: np.asfortranarray(v) for k, v in u.items()}) == expected).all()
    flipped = {k: v[::-1, :, ::-1].copy()[::-1, :, ::-1] for k, v in u.items()}
    assert flipped["p"].strides[0] < 0 and (darcy().residual(**flipped) == expected).all()
    frozen = {k: v.copy() for k, v in u.items()}
    for array in frozen.values():
        array.flags.writeable = False
    assert (darcy().residual(**frozen) == expected).all()
    single = {k: v.astype(np.float32) for k, v in u.items()}
    np.testing.assert_allclose(darcy().residual(**single), expected, rtol=1e-3, atol=1e-2)
    one = darcy().residual(p=u["p"], K=u["K"][:1])
    assert (one[0] == expected[0]).all(), "one K for all samples"


def test_large_arrays_are_copied_in_pieces(monkeypatch):
    from softly import constraint as module

    u = {k: v.astype(np.float32) for k, v in fields(7, 8, 8).items()}
    whole = darcy().residual(**u)
    monkeypatch.setattr(module, "PIECE", 2 * 8 * 2 * 64)
    assert (darcy().residual(**u) == whole).all()
    assert (darcy().vjp(whole, **u)["p"].shape) == (7, 8, 8)


def test_toml_and_back(tmp_path):
    constraint = darcy(stencil="one-sided-4", stencils={"p": "mirror"}, norm="l2")
    file = tmp_path / "darcy.toml"
    file.write_text(constraint.to_toml())
    pytest.importorskip("tomllib")
    again = softly.Constraint.from_toml(file)
    assert again.to_toml() == constraint.to_toml()
    u = fields(2, 8, 8)
    assert (again.residual(**u) == constraint.residual(**u)).all()


def test_parameters_of_every_kind(tmp_path):
    file = tmp_path / "q.npy"
    np.save(file, np.full((4, 4), 2.0))
    u = np.ones((4, 4))
    for value, expected in [(2, -1.0), ("1 + 1", -1.0), (file, -1.0), (softly.learn(2.0), -1.0), (softly.normal(2, 0.1), -1.0)]:
        assert softly.Constraint("u - q", q=value).residual(u=u)[0, 0] == expected
    smooth = softly.Constraint("u - q", q=softly.learn(2.0, length=0.5, size=1.0))
    assert smooth.residual(u=u)[0, 0] == -1.0


def test_audit_and_fit_find_the_source():
    data = softly.Dataset.from_arrays(**darcy_like(32))
    wrong = softly.Constraint(softly.Equation("K*laplacian(p) + f", region="interior"), f=15.0)
    found = wrong.fit(data, "f")
    assert found["f"].value == pytest.approx(10.0, rel=1e-4) and found["f"].given == 15.0 and len(found) == 1
    low, high = found["f"].interval
    assert low <= found["f"].value <= high and "f = 10" in repr(found)
    audit = wrong.audit(data, fit="f")
    assert "10" in audit.verdict and audit.fit is not None and audit.fit["f"].value == pytest.approx(10.0, rel=1e-4)
    # |R| = 5 of the largest term, f = 15.
    assert audit.relative[0] == pytest.approx(1 / 3, rel=1e-4)
    assert "Verdict" in repr(audit) and audit._repr_html_().count("<table>") == 1
    right = softly.Constraint(softly.Equation("K*laplacian(p) + f", region="interior"), f=10.0).audit(data)
    assert right.relative[0] < 1e-4 and right.fit is None
