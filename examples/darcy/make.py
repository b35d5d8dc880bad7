#!/usr/bin/env python3
"""Thirty sensors of the first held-out field of the preset darcy-demo: fifteen of the pressure p, fifteen of the permeability K.

    softly data generate --preset darcy-demo --out data/darcy
    python3 examples/darcy/make.py data/darcy/valid > examples/darcy/sensors.csv

Places are random and lie between nodes; readings are interpolated linearly and disturbed by noise of 1 % of the field's standard
deviation in the training data. Nothing but Python's own library is needed.
"""

import random
import struct
import sys

SD = {"p": 5.9e-4, "K": 7.9e-3}


def read(path):
    """The first field of an array [N, H, W] of little-endian f4 numbers, as rows."""
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<H", data[8:10])[0]
    shape = data[10 : 10 + length].decode().split("'shape': (")[1].split(")")[0]
    _, rows, cols = (int(n) for n in shape.split(",") if n.strip())
    numbers = struct.unpack_from(f"<{rows * cols}f", data, 10 + length)
    return [numbers[i * cols : (i + 1) * cols] for i in range(rows)]


def at(field, x, y):
    """Linear between nodes of the unit square."""
    place = [x * (len(field) - 1), y * (len(field[0]) - 1)]
    low = [min(int(place[0]), len(field) - 2), min(int(place[1]), len(field[0]) - 2)]
    a, b = (p - q for p, q in zip(place, low))
    i, j = low
    first = (1 - b) * field[i][j] + b * field[i][j + 1]
    second = (1 - b) * field[i + 1][j] + b * field[i + 1][j + 1]
    return (1 - a) * first + a * second


def main():
    random.seed(19)
    print("field,x,y,value,sd")
    for name, sd in SD.items():
        field = read(f"{sys.argv[1]}/{name}.npy")
        for _ in range(15):
            x, y = random.random(), random.random()
            print(f"{name},{x:.3f},{y:.3f},{at(field, round(x, 3), round(y, 3)) + random.gauss(0, sd):.5f},{sd}")


if __name__ == "__main__":
    main()
