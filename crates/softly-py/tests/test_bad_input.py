"""What users hand over by mistake: a clear exception, never a crash."""

import numpy as np
import pytest

import softly
from conftest import ADAPT, SHORT, gaussian, poisson

LAPLACE = softly.Constraint("dxx(u) + dyy(u)")
U = np.ones((4, 4))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (U.astype(np.float16), "float16"),
        (U.astype(int), "int64"),
        (U.astype(complex), "imaginary"),
        (U.astype(bool), "bool"),
        (U.astype(object), "object"),
        (U.tolist(), "list"),
        (None, "NoneType"),
        (np.ones(4), r"\[4\]"),
        (np.ones((1, 2, 3, 4)), r"\[1, 2, 3, 4\]"),
        (np.ones((0, 4, 4)), r"\[0, 4, 4\]"),
        (np.full((4, 4), np.nan), "nan"),
        (np.full((4, 4), np.inf), "inf"),
        (np.ones((1, 1)), "u|axis|axes|nodes"),
    ],
)
def test_arrays(array, words):
    with pytest.raises(softly.Error, match=words):
        LAPLACE.residual(u=array)


def test_arrays_that_do_not_fit_one_another():
    pair = softly.Constraint("u - v")
    with pytest.raises(softly.Error, match="expected the shape"):
        pair.residual(u=np.ones((3, 4, 4)), v=np.ones((2, 4, 4)))
    with pytest.raises(softly.Error, match="no array is given"):
        pair.residual(u=U)
    with pytest.raises(softly.Error, match="no field `w`"):
        pair.residual(u=U, v=U, w=U)
    with pytest.raises(softly.Error, match="cotangent"):
        pair.vjp(np.ones((3, 3)), u=U, v=U)
    with pytest.raises(softly.Error, match="direction"):
        pair.jvp({"u": np.ones((3, 3))}, u=U, v=U)
    with pytest.raises(softly.Error, match="no field `w`"):
        pair.jvp({"w": U}, u=U, v=U)
    with pytest.raises(softly.Error, match="negative number"):
        softly.Constraint("log(u)").residual(u=-U)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: softly.Constraint("dz(u)"), "dz"),
        (lambda: softly.Constraint("dx(u"), "constraint"),
        (lambda: softly.Constraint(3), "text"),
        (lambda: softly.Constraint("2"), "field"),
        (lambda: softly.Constraint("u", axes=("x",)), "two axes"),
        (lambda: softly.Constraint("u", axes="xy"), "two axes"),
        (lambda: softly.Constraint("u", axes=("x", "x")), "x"),
        (lambda: softly.Constraint("u", axes=("x", 3)), "name"),
        (lambda: softly.Constraint("u", stencil="wide"), "wide|stencil"),
        (lambda: softly.Constraint("u", norm="l7"), "l7"),
        (lambda: softly.Constraint("u - q", q=np.ones((3, 3))), "np.save"),
        (lambda: softly.Constraint("u - q", q=object()), "expected a number"),
        (lambda: softly.Constraint("u - q", q={"learns": 2}), "expected a number"),
        (lambda: softly.Constraint(softly.Equation("u", region="middle")), "middle"),
        (lambda: softly.Axis("x", placement="corners"), "corners"),
        (lambda: softly.learn(1.0, length=2.0), "size"),
        (lambda: softly.set_threads(0), "threads"),
    ],
)
def test_constraints(make, words):
    with pytest.raises(softly.Error, match=words) as caught:
        make()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: softly.Dataset.from_arrays(), "at least one"),
        (lambda: softly.Dataset.from_arrays(u=U), r"\[N, H, W\]"),
        (lambda: softly.Dataset.from_arrays(u=np.ones((1, 4, 4))), "2 samples"),
        (lambda: softly.Dataset.from_arrays(u=np.ones((4, 4, 4)), valid=2.0), "share"),
        (lambda: softly.Dataset.from_arrays(u=np.ones((4, 4, 4)), v=np.ones((3, 4, 4))), "expected the shape"),
        (lambda: softly.Dataset.from_arrays(u=np.full((4, 4, 4), np.nan)), "finite"),
        (lambda: softly.Dataset.from_arrays(u=np.full((4, 4, 4), 1e300)), "single precision"),
        (lambda: softly.Dataset.from_arrays(u=np.ones((4, 4, 4)), valid={}), "expected arrays for u"),
        (lambda: softly.Dataset.from_arrays(k=np.ones(4)), "numbers of samples only"),
        (lambda: softly.Dataset.from_arrays(u=np.ones((4, 4, 4)))["v"], "no field `v`"),
        (lambda: softly.Dataset.open("nowhere"), "nowhere"),
        (lambda: softly.Dataset.import_("nowhere.npy", out="nothing"), "nowhere"),
        (lambda: softly.Dataset.import_("x.npy", out="nothing", placement="corners"), "corners"),
        (lambda: softly.load("nowhere.safetensors"), "nowhere"),
    ],
)
def test_data(make, words):
    with pytest.raises(softly.Error, match=words):
        make()


def test_training(data, tmp_path):
    for arguments, words in [
        ({"method": "magic"}, "no method `magic`"),
        ({"train": {"iterationz": 3}}, "iterations"),
        ({"budget": "soon"}, "budget"),
        ({"preset": "nothing"}, "preset"),
        ({"method": "scd"}, "constraint"),
        ({"train": {"rate": object()}}, "train.rate"),
    ]:
        with pytest.raises(softly.Error, match=words):
            softly.train(data, **{"budget": None, **arguments})
    with pytest.raises(softly.Error, match="Dataset"):
        softly.train(np.ones((3, 4, 4)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(softly.Error, match="not empty"):
        softly.train(data, budget=None, out=tmp_path / "full", **SHORT)
    with pytest.raises(softly.Error, match="neither"):
        softly.adapt(data=data)
    with pytest.raises(softly.Error, match="Dataset"):
        softly.adapt(denoiser=lambda x, s: x)
    with pytest.raises(softly.Error, match="units"):
        softly.adapt(denoiser=lambda x, s: x, data=data, units={"p": (0, 1)})
    with pytest.raises(softly.Error, match="sigma_data"):
        softly.adapt(denoiser=lambda x, s: x, data=data, sigma_data=-1)


def test_models(base, data):
    x = np.ones((2, 2, 16, 16))
    for arguments, words in [
        ((x[:, :1], 0.5), r"\['N', 2, 16, 16\]"),
        ((x[:0], 0.5), "N ≥ 1"),
        ((x.astype(int), 0.5), "int64"),
        ((np.full_like(x, np.nan), 0.5), "finite"),
        ((x, [0.5]), "2 samples"),
        ((x, np.ones((2, 2))), "2 samples"),
        ((x, -1.0), "positive"),
        ((x, np.nan), "positive"),
        ((x, "much"), "sigma"),
    ]:
        with pytest.raises(softly.Error, match=words):
            base.denoise(*arguments)
    refused = [({"n": 0}, "n:"), ({"n": 2.5}, "n:"), ({"n": 10**12}, "in parts")]
    for arguments, words in [*refused, ({"n": 1, "seed": -1}, "seed"), ({"n": 1, "steps": 0}, "steps")]:
        with pytest.raises(softly.Error, match=words):
            base.sample(**arguments)
    with pytest.raises(softly.Error, match="no soft constraint"):
        base.sample(1, compliance=0.5)
    other = softly.Dataset.from_arrays(p=data["p"][:, :8], K=data["K"][:, :8])
    with pytest.raises(softly.Error, match="expected p, K on 16 × 16"):
        base.nll(other)
    with pytest.raises(softly.Error, match="constraint"):
        base.explained(data)
    with pytest.raises(softly.Error, match="network of its own"):
        softly.load(base.run, denoiser=lambda x, s: x)


class Mistake(Exception):
    pass


def fails(x, sigma):
    raise Mistake("in the network")


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (fails, Mistake, "in the network"),
        (lambda x, s: x[:, :1], softly.Error, "expected the shape of x"),
        (lambda x, s: x[0], softly.Error, "expected the shape of x"),
        (lambda x, s: x.tolist(), softly.Error, "found list"),
        (lambda x, s: None, softly.Error, "NoneType"),
        (lambda x, s: x.astype(complex), softly.Error, "complex"),
        (lambda x, s: np.full_like(x, np.nan), softly.Error, "finite"),
        (lambda x: x, TypeError, "argument"),
    ],
)
def test_functions_that_fail(function, error, words, data, tmp_path):
    with pytest.raises(error, match=words):
        softly.adapt(denoiser=function, data=data, constraint=poisson(), out=tmp_path / "run", **ADAPT)
    assert not (tmp_path / "run" / "snapshots" / "final.safetensors").exists()


def test_a_function_that_fails_late_leaves_a_usable_run(data, tmp_path):
    calls = []
    denoise, _ = gaussian(0.5)

    def sometimes(x, sigma):
        calls.append(len(x))
        if len(calls) == limit:
            raise Mistake("late")
        return denoise(x, sigma)

    limit = 10**9
    settings = {"data": data, "constraint": poisson(), **ADAPT}
    whole = softly.adapt(denoiser=sometimes, out=tmp_path / "a", **settings)
    limit, calls = len(calls) - 1, []
    with pytest.raises(Mistake):
        softly.adapt(denoiser=sometimes, out=tmp_path / "b", **settings)
    limit = 10**9
    again = softly.adapt(denoiser=sometimes, out=tmp_path / "b", **settings)
    assert (again.sample(1, steps=3)["p"] == whole.sample(1, steps=3)["p"]).all()


def test_a_function_without_a_derivative_has_no_likelihood(data, tmp_path):
    model = softly.adapt(denoiser=gaussian(0.5)[0], data=data, constraint=poisson(), out=tmp_path / "run", **ADAPT)
    assert model.sample(1, steps=3)["p"].shape == (1, 16, 16)
    with pytest.raises(softly.Error, match="vjp"):
        model.nll(data)
    with pytest.raises(softly.Error, match="vjp"):
        model.vjp(np.ones((1, 2, 16, 16)), 1.0, np.ones((1, 2, 16, 16)))
    with pytest.raises(softly.Error, match="function"):
        model.report(tmp_path / "page.html")
    with pytest.raises(softly.Error, match=r"softly.load\(path, denoiser=f\)"):
        softly.load(tmp_path / "run")
