#!/usr/bin/env python3
"""Do TensorBoard and VTK read what `softly export` writes?

    pip install numpy tensorboard vtk
    bench/check_exports.py RUN                 # a finished run of fields; SOFTLY_PROGRAM names another program than softly

The event file is read with TensorBoard's own reader and compared with metrics.jsonl; samples are read with VTK's reader and
compared with what `softly sample` draws. Packages that are missing are left out and named.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = os.environ.get("SOFTLY_PROGRAM", "softly")
COUNT = 3


def softly(*arguments):
    subprocess.run([PROGRAM, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def close(a, b):
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b), 1e-30)


def check_tensorboard(run, scratch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    softly("export", run, "--to", "tensorboard", "--out", scratch)
    events = EventAccumulator(str(scratch), size_guidance={"scalars": 0})
    events.Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tags = events.Tags()["scalars"]
    wanted = {"loss/denoising": lambda m: m["loss"], "optimiser/gradient norm": lambda m: m["gradient_norm"]}
    wanted["optimiser/rate"] = lambda m: m["rate"]
    for name in lines[0].get("constraint", {}):
        wanted[f"constraint/{name}"] = lambda m, name=name: m["constraint"][name]
    for tag, pick in wanted.items():
        found = events.Scalars(tag)
        assert [e.step for e in found] == [m["step"] for m in lines], tag
        assert all(close(e.value, pick(m)) for e, m in zip(found, lines)), tag
    print(f"tensorboard: {len(tags)} curves of {len(lines)} points agree with metrics.jsonl")


def check_vti(run, scratch):
    import numpy

    softly("export", run, "--to", "vti", "--count", COUNT, "--out", scratch)
    softly("sample", run, "--count", COUNT, "--out", scratch / "arrays")
    arrays = {path.stem: numpy.load(path) for path in (scratch / "arrays").glob("*.npy")}
    files = sorted(scratch.glob("*.vti"))
    assert len(files) == COUNT
    try:
        from vtk import vtkXMLImageDataReader
        from vtk.util.numpy_support import vtk_to_numpy
    except ImportError:
        print("vtk is not installed: left out")
    else:
        for k, file in enumerate(files):
            reader = vtkXMLImageDataReader()
            reader.SetFileName(str(file))
            reader.Update()
            image = reader.GetOutput()
            data = image.GetCellData() if image.GetCellData().GetNumberOfArrays() else image.GetPointData()
            for name, array in arrays.items():
                values = vtk_to_numpy(data.GetArray(name))
                # VTK's first direction runs fastest: it is the array's first axis if that is x, else the second.
                assert any(numpy.allclose(values, a.ravel(), rtol=1e-6) for a in (array[k].T, array[k])), name
        print(f"vtk: {COUNT} files, dimensions {image.GetDimensions()}, spacing {image.GetSpacing()}, origin {image.GetOrigin()}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        try:
            check_tensorboard(run, scratch / "events")
        except ImportError:
            print("tensorboard is not installed: left out")
        check_vti(run, scratch)


if __name__ == "__main__":
    main()
