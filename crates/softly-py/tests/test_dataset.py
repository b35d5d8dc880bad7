"""Datasets from arrays, in folders and from files."""

import numpy as np
import pytest

import softly


def test_arrays_are_not_copied():
    u = np.random.default_rng(0).normal(size=(10, 4, 6)).astype(np.float32)
    data = softly.Dataset.from_arrays(u=u, axes=("t", "x"), valid=0.3)
    assert np.shares_memory(data["u"], u) and len(data) == 7 and data.held_out("u").shape == (3, 4, 6)
    assert data.fields == ("u",) and [axis.name for axis in data.axes] == ["t", "x"] and data.shape == (1, 4, 6)
    assert data.path is None and data.equation is None and data.constants == {}


def test_a_folder_gives_back_what_was_saved(tmp_path):
    rng = np.random.default_rng(1)
    u, k = rng.normal(size=(10, 4, 6)).astype(np.float32), rng.uniform(1, 2, size=10).astype(np.float32)
    axes = (softly.Axis("t", 0, 2), softly.Axis("x", -1, 1, periodic=True, placement="cells"))
    equation = softly.Constraint("dt(u) - k*c*dxx(u)", axes=axes, fields=("u",), k=1.0, c=1.0)
    data = softly.Dataset.from_arrays(u=u, k=k, axes=axes, constants={"c": 0.25}, equation=equation)
    assert data.scalars == ("k",) and data["k"].shape == (9,)
    saved = data.save(tmp_path / "folder")
    assert isinstance(saved["u"], np.memmap) and (saved["u"] == u[:9]).all() and (saved.held_out("u") == u[9:]).all()
    assert (saved["k"] == k[:9]).all() and saved.scalars == ("k",) and saved.constants == {"c": 0.25}
    assert saved.equation is not None and saved.equation.fields == ("u",)
    assert [(a.first, a.last, a.periodic, a.placement) for a in saved.axes] == [
        (0.0, 2.0, False, "nodes"),
        (-1.0, 1.0, True, "cells"),
    ]
    for name, numbers in data.statistics().items():
        assert numbers["mean"] == pytest.approx(float(data[name].mean(dtype=np.float64)))
    assert "held out" in repr(saved) and str(tmp_path) in repr(saved)


def test_own_held_out_samples():
    u = np.random.default_rng(0).normal(size=(4, 3, 3))
    data = softly.Dataset.from_arrays(u=u, valid={"u": u[:1]})
    assert len(data) == 4 and data.held_out("u").shape == (1, 3, 3)


def test_files_are_imported(tmp_path):
    u = np.random.default_rng(0).normal(size=(10, 4, 6)).astype(np.float32)
    np.save(tmp_path / "u.npy", u)
    place = {"u": str(tmp_path / "u.npy")}
    data = softly.Dataset.import_(fields=place, axes=("t", "x"), domain={"t": (0, 2)}, out=tmp_path / "data", valid=0.2)
    assert (data["u"] == u[:8]).all() and data.axes[0].last == 2.0


def test_scalars_are_fields_of_constraints():
    rng = np.random.default_rng(1)
    u, k = rng.normal(size=(10, 4, 6)), rng.uniform(1, 2, size=10)
    data = softly.Dataset.from_arrays(u=u, v=k[:, None, None] * u, k=k)
    assert softly.Constraint("v - k*u", fields=("u", "v", "k")).audit(data).relative[0] < 1e-6
