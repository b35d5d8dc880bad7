"""Training, adapting, sampling and judging, and the same bytes as the program."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import softly
from conftest import ADAPT, SHORT, darcy_like, gaussian, poisson


def test_a_model_knows_itself(base, data):
    assert base.fields == ("p", "K") and base.shape == (2, 16, 16) and base.sigma_data == 0.5
    assert base.units["p"][0] == pytest.approx(float(data["p"].mean(dtype=np.float64)), rel=1e-6)
    assert "plain" in repr(base) and "unet" in base.config and base.constraint is None and base.parameters == {}


def test_denoise_and_its_derivative(base, adapted, data):
    rng = np.random.default_rng(0)
    x, v, w = (0.5 * rng.normal(size=(2, 2, 16, 16)) for _ in range(3))
    sigma = np.array([0.3, 1.0])
    estimate = adapted.denoise(x, sigma)
    assert estimate.dtype == np.float64 and adapted.denoise(x.astype(np.float32), 0.3).dtype == np.float32
    assert (adapted.denoise(x[:1], 0.3) == estimate[:1]).all(), "a sample does not depend on its batch"
    # Directions with kinks, or with equations that hold to rounding, have no difference quotients; this one has.
    smooth = softly.adapt(base, data, poisson(15.0), denoiser={"scd": {"directions": ["spectral"]}}, **ADAPT)
    e = 3e-3
    for model in (base, smooth):
        slope = (model.denoise(x + e * v, sigma) - model.denoise(x - e * v, sigma)) / (2 * e)
        assert (model.vjp(x, sigma, w) * v).sum() == pytest.approx((slope * w).sum(), rel=1e-5)


def test_samples_depend_on_seed_and_index_alone(adapted):
    four = adapted.sample(4, seed=1, steps=4)
    assert set(four) == {"p", "K"} and four["p"].shape == (4, 16, 16) and four["p"].dtype == np.float32
    two = adapted.sample(2, seed=1, first=2, steps=4, batch=1)
    assert (two["p"] == four["p"][2:]).all() and (adapted.sample(1, seed=2, steps=4)["p"] != four["p"][0]).any()
    plain = adapted.sample(2, seed=1, steps=4, compliance=0)
    assert (plain["p"] != four["p"][:2]).any()


def test_no_compliance_is_the_base(adapted, base):
    assert (adapted.sample(2, steps=4, compliance=0)["p"] == base.sample(2, steps=4)["p"]).all()


def test_samples_given_measurements(base, data, tmp_path):
    known = np.full((16, 16), np.nan)
    known[8, 8], known[3, 12] = 0.9, 0.4
    given = {"noise": {"p": "1%"}, "data": data, "steps": 6, "progress": False}
    found = base.sample(5, observe={"p": known}, **given)
    assert found["p"].shape == found["K"].shape == (5, 16, 16) and found["p"].dtype == np.float32
    scale = data["p"].std()
    assert np.abs(found["p"][:, 8, 8] - 0.9).max() < 0.2 * scale < np.abs(base.sample(5, steps=6)["p"][:, 8, 8] - 0.9).max()
    table = tmp_path / "sensors.csv"
    lines = [f"p,{8 / 15},{8 / 15},0.9", f"p,{3 / 15},{12 / 15},0.4"]
    table.write_text("\n".join(["field,x,y,value", *lines[::-1]]) + "\n")
    np.testing.assert_allclose(base.sample(5, observe=table, **given)["p"], found["p"], atol=1e-5 * scale)
    table.write_text("field,x,y,value,sd\nK,0.5,0.5,1.1,0.01\n")
    both = base.sample(2, observe=[{"p": np.stack([known, known + 0.1])}, table], **given)
    assert both["K"].shape == (2, 2, 16, 16) and (both["p"][0] != both["p"][1]).any()
    other = base.sample(2, observe={"p": known}, conditioning="kriging", **given)["p"]
    assert np.abs(other[:, 8, 8] - 0.9).max() < 0.2 * scale
    for words, wrong in [
        (r"observe\[\"p\"\]: expected the shape", {"observe": {"p": known[:3]}}),
        ("float32 or float64", {"observe": {"p": np.ones((16, 16), dtype=int)}}),
        ("NaN at every node", {"observe": {"p": np.full((16, 16), np.nan)}}),
        ("nowhere.csv", {"observe": "nowhere.csv"}),
        ("expected a path or a dictionary", {"observe": [3]}),
        ("found none|standard deviation", {"observe": {"p": known}, "noise": None}),
        ("arrays in memory", {"observe": {"p": known}, "data": None}),
        ("wonder", {"observe": {"p": known}, "conditioning": "wonder"}),
        ("goes with observe", {}),
    ]:
        with pytest.raises(softly.Error, match=words):
            base.sample(1, **{**given, **wrong})


def test_judging(adapted, data):
    likelihood = adapted.nll(data, count=3)
    assert np.isfinite(likelihood.bits_per_dim) and likelihood.samples.shape == (3,) and "NLL" in repr(likelihood)
    known = softly.Dataset.from_arrays(equation=poisson(10.0), **darcy_like(64))
    evaluation = adapted.evaluate(known, samples=4, nll=2)
    assert evaluation.residual > 0 and evaluation.nll is not None and set(evaluation.scatter) == {"p", "K"}
    assert "mean |R|" in repr(evaluation) and evaluation._repr_html_().startswith("<table>")
    assert evaluation.references["data"] < 1e-2
    explained = adapted.explained(data, count=4)
    assert "kalman" in explained.directions and len(explained.span) == len(explained.sigmas) and "together" in repr(explained)
    assert all(0 <= share <= 1 for share in explained.span)


def test_learned_parameters(adapted, data):
    assert adapted.parameters["f"].value == pytest.approx(10.0, rel=0.01)
    found = adapted.intervals(data, count=6)["f"]
    assert found.verdict in ("identified", "elsewhere", "not-identifiable") and found.value == adapted.parameters["f"].value
    assert adapted.constraint is not None and adapted.constraint.parameters["f"] == {"learn": 15.0}


def test_save_load_and_report(adapted, tmp_path):
    file = tmp_path / "model.safetensors"
    adapted.save(file)
    again = softly.load(file)
    assert (again.sample(1, steps=3)["p"] == adapted.sample(1, steps=3)["p"]).all() and again.run is None
    assert softly.load(adapted.run).run == os.fspath(adapted.run)
    with pytest.raises(softly.Error, match="run folder"):
        again.report(tmp_path / "page.html")


def test_the_report_of_a_run(tmp_path, data, monkeypatch):
    monkeypatch.setenv("SOFTLY_REDUCED", "1")
    saved = data.save(tmp_path / "data")
    model = softly.train(saved, poisson(), "scd", out=tmp_path / "run", budget=None, **SHORT)
    model.report(tmp_path / "page.html")
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_a_budget_sizes_the_network(tmp_path, data):
    few = softly.Dataset.from_arrays(p=data["p"][:16], K=data["K"][:16])
    out = tmp_path / "run"
    first = softly.train(few, budget="1s", out=out, train__iterations=3)
    again = softly.train(few, budget="1s", out=out, train__iterations=3)
    assert first.config == again.config and "unet" in first.config


def test_goes_on_after_an_interrupt_to_the_same_bytes(tmp_path, data):
    script = (
        "import sys, softly, numpy as np; sys.path.insert(0, sys.argv[1]); from conftest import *\n"
        "data = softly.Dataset.from_arrays(**darcy_like(64))\n"
        "settings = {**SHORT, 'train': {**SHORT['train'], 'iterations': 4000}}\n"
        "softly.train(data, budget=None, out=sys.argv[2], progress=False, **settings)\n"
    )
    here = os.path.dirname(__file__)
    command = [sys.executable, "-c", script, here]
    process = subprocess.Popen([*command, str(tmp_path / "a")], stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "a" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert "KeyboardInterrupt" in said and "is saved" in said, said
    assert (tmp_path / "a" / "checkpoints" / "latest.safetensors").exists()
    assert not (tmp_path / "a" / "snapshots" / "final.safetensors").exists()
    for name in ("a", "b"):
        subprocess.run([*command, str(tmp_path / name)], check=True, timeout=300)
    final = [(tmp_path / name / "snapshots" / "final.safetensors").read_bytes() for name in ("a", "b")]
    assert final[0] == final[1]


def test_the_program_gives_the_same_bytes(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = data.save("data")
    with open("my.toml", "w") as file:
        file.write('[data]\npath = "data"\n[denoiser]\nbackbone = { kind = "unet", channels = 4, multipliers = [1, 1], blocks = 1, head = 4 }\n')
        file.write("[train]\niterations = 5\nbatch = 4\n[methods.adapt.train]\niterations = 5\nbatch = 4\n" + poisson(15.0).to_toml())
    program = [sys.executable, "-m", "softly"]
    subprocess.run([*program, "train", "--config", "my.toml", "--method", "vanilla", "--out", "p/base"], check=True)
    subprocess.run([*program, "adapt", "p/base", "--config", "my.toml", "--method", "adapt", "--out", "p/adapted"], check=True)
    base = softly.train(saved, config="my.toml", out="q/base")
    softly.adapt(base, saved, config="my.toml", out="q/adapted")
    for run in ("base", "adapted"):
        bytes_ = [open(f"{way}/{run}/snapshots/final.safetensors", "rb").read() for way in "pq"]
        assert bytes_[0] == bytes_[1], run


def test_several_threads_at_once(adapted):
    expected = adapted.sample(2, steps=3)["p"]
    found, failures = [None] * 4, []

    def work(k):
        try:
            found[k] = adapted.sample(2, steps=3)["p"]
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures and all((array == expected).all() for array in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_process_can_go_on(adapted):
    expected = adapted.sample(1, steps=3)["p"]
    pid = os.fork()
    if pid == 0:
        same = (adapted.sample(1, steps=3)["p"] == expected).all()
        os._exit(0 if same else 1)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the forked process hangs")


def test_threads_do_not_change_numbers(adapted):
    expected = adapted.sample(2, steps=3)["p"]
    try:
        softly.set_threads(1)
        assert softly.threads() == 1 and (adapted.sample(2, steps=3)["p"] == expected).all()
    finally:
        softly.set_threads()


def test_a_function_has_an_exact_likelihood_and_exact_samples(data):
    rng = np.random.default_rng(5)
    s = 0.7
    noise = softly.Dataset.from_arrays(u=s * rng.normal(size=(64, 6, 6)))
    denoise, vjp = gaussian(s)
    constraint = softly.Constraint("dx(u) + dy(u)")
    model = softly.adapt(
        denoiser=denoise, vjp=vjp, sigma_data=s, units="none", data=noise, constraint=constraint, **ADAPT
    )
    assert "on a function" in repr(model)
    found = model.nll(noise, count=6, compliance=0, probes=4)
    least = 0.002
    x = noise.held_out("u").astype(np.float64)[:6]
    # E over the noise at σ_min of −log₂ N(x + σ_min n; 0, s² + σ_min²), per dimension.
    variance = s**2 + least**2
    expected = (0.5 * np.log2(2 * np.pi * variance) + 0.5 * (x**2 + least**2) / variance / np.log(2)).mean((1, 2))
    np.testing.assert_allclose(found.samples, expected, atol=5e-3)
    samples = model.sample(256, steps=24, compliance=0)["u"]
    assert samples.std() == pytest.approx(s, rel=0.03)


def test_a_softly_model_as_a_function_gives_the_native_weights(base, data, tmp_path):
    settings = {**ADAPT, "train": {**ADAPT["train"], "iterations": 20, "shares": 1}}
    native = softly.adapt(base, data, poisson(15.0), out=tmp_path / "a", **settings)
    function = softly.adapt(
        denoiser=base.denoise, vjp=base.vjp, units=base.units, data=data, constraint=poisson(15.0), out=tmp_path / "b", **settings
    )
    x = np.random.default_rng(0).normal(size=(3, 2, 16, 16))
    np.testing.assert_allclose(function.denoise(x, 0.5), native.denoise(x, 0.5), rtol=0, atol=1e-6)
    weights = [_weights(tmp_path / run / "snapshots" / "final.safetensors") for run in "ab"]
    shared = set(weights[1])
    assert shared and shared < set(weights[0])
    for name in shared:
        np.testing.assert_allclose(weights[1][name], weights[0][name], rtol=1e-6, atol=1e-6)
    again = softly.load(tmp_path / "b", denoiser=base.denoise)
    assert (again.sample(1, steps=3)["p"] == function.sample(1, steps=3)["p"]).all()
    np.testing.assert_allclose(function.sample(1, steps=3)["p"], native.sample(1, steps=3)["p"], atol=1e-4)


def _weights(path):
    import json

    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            found[name] = np.frombuffer(content[8 + length + first : 8 + length + last], dtype="<f4")
    return found
