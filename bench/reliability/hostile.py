"""Hostile inputs: arguments, configurations and files of which none can work. Each is refused, soon and in little memory."""

import json
import struct

from scenarios import NETWORK, GENERATED, POINTS, settings

SECONDS = 5
KILOBYTES = 200_000

NUMBERS = ["-1", "nan", "x", "", "99999999999999999999999", "1e999", "0x10", "١٢", "1;rm"]
TRAIN = ["train", "--preset", "circle-demo", "--out", "out"]


def arguments():
    """Options that do not exist, do not fit, or have absurd values."""
    sample, evaluate = ["sample", "base", "--out", "out"], ["eval", "base"]
    for option in ("--count", "--batch", "--steps", "--seed", "--threads"):
        for value in [*NUMBERS, "-5", "1.5", "inf"]:
            yield [*sample, option, value]
            yield [*evaluate, option, value]
    for option in ("--guidance", "--sigma-min", "--compliance"):
        for value in ("x", "", "nan", "inf", "-inf", "-1", "1e999", "٣"):
            yield [*sample, option, value]
            yield [*evaluate, option, value]
    for value in ("5-1", "a-b", "0-18446744073709551615", "-", "1", "1-", "-1-3", "0-1-2", "0-99999999999999999999"):
        yield [*sample, "--seeds", value]
    for value in ("toaster", "", "cuda", "CPU", "../cpu", "cpu\n"):
        yield [*sample, "--device", value]
        yield [*TRAIN, "--device", value]
    for word in ("", "..", "trian", "train\n", "--", "-x", "--out", "sample sample", "\x1b[31m", "💥"):
        yield [word] if word else [""]
        yield ["data", word]
        yield ["solve", word]
        yield ["distance", word]
        yield ["reproduce", word]
        yield ["completions", word]
        yield ["bench", word]
    for name in ("nothing", "circle", "../presets/circle-demo", "/etc/passwd", "", "circle-demo\0"[:-1] + "x", "a" * 5000):
        yield ["train", "--preset", name, "--out", "out"]
        yield ["train", "--preset", "circle-demo", "--method", name, "--out", "out"]
        yield ["train", "--config", f"{name}.toml", "--out", "out"]
        yield ["adapt", name or "absent", "--preset", "circle-demo", "--out", "out"]
        yield ["eval", name or "absent"]
        yield ["report", name or "absent", "--out", "page.html"]
        yield ["export", name or "absent", "--to", "vti"]
        yield ["data", "inspect", name or "absent"]
        yield ["data", "describe", f"{name}.h5"]
        yield ["init", name or "absent", "--out", "my.toml"]


# Numbers that no key can have, for keys that are numbers of any kind.
WRONG_TYPES = ["'text'", "[1]", "[]", "{a=1}", "{}", "true", "1979-05-27", "[[1]]", "''"]


def keys(lab):
    """Every number among the keys of configurations, with whether it is a whole one; from the program's own schema."""
    schema = json.loads(lab.run(["presets", "--schema"], lab.home).out)

    def walk(node, path, depth):
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node
        if node.get("type") in ("integer", "number"):
            yield path, node["type"] == "integer"
        if depth < 4:
            for name, child in node.get("properties", {}).items():
                if name not in ("methods", "parameters"):
                    yield from walk(child, [*path, name], depth + 1)

    return [(".".join(path), whole) for path, whole in walk(schema, [], 0)]


def configurations(lab):
    """Settings and files that are no configuration."""
    for key, whole in keys(lab):
        for value in [*WRONG_TYPES, *(["-1", "1.5", "nan", "inf", "1e300", "99999999999999999999"] if whole else [])]:
            yield [*TRAIN, "--set", f"{key}={value}"]
    absurd = ["1000000000000", "9223372036854775807"]
    for key in ("data.count", "data.valid", "train.batch", "train.shares", "sampler.steps"):
        for value in [*absurd, "0"]:
            yield [*TRAIN, "--set", f"{key}={value}"]
    fields = ["train", "--preset", "darcy-demo", "--out", "out", *settings(GENERATED)]
    for key in ("channels", "multipliers", "blocks"):
        for value in absurd:
            yield [*fields, "--set", f"denoiser.backbone.{key}={[int(value)] if key == 'multipliers' else value}"]
    for key, values in {
        "train.adam.betas": ["[1.0, 0.9]", "[-0.1, 0.9]", "[0.9, 1.5]", "[nan, 0.9]", "[0.9]", "[0.9, 0.9, 0.9]"],
        "train.ema": ["{kind='constant', decay=1.0}", "{kind='constant', decay=-0.1}", "{kind='constant', decay=nan}",
                      "{kind='power', sigma_rel=0.5}", "{kind='none'}", "{decay=0.5}"],
        "sampler.churn": ["{amount=-1.0}", "{amount=nan}", "{amount=inf}", "{noise=-1.0}", "{from=2.0, to=1.0}", "{rate=1}"],
        "train.rate": ["0", "-1e-3", "nan", "inf"], "train.clip": ["0", "-1", "nan"],
        "denoiser.backbone": ["{kind='mlp'}", "{kind='transformer', hidden=8}", "{hidden=8}", "'mlp'"],
        "constraint.residual": ["''", "'x +'", "'(' ", "'x^'", "'1'", "'nope(x)'", "'x^2 + z'", f"'{'(' * 500}x{')' * 500}'",
                                f"'{'x+' * 40000}x'", "'x = 1'", "'dx(x)'", "[]", "[{}]", "[{formula='x', region='moon'}]"],
        "constraint.fields": ["[]", "['z']", "['../x', 'y']", "['x', 'x']", "['']", "[1]", "'x'"],
        "constraint.parameters": ["{'../a' = 1.0}", "{a = 'a'}", "{a = {file='/dev/null'}}", "{a = {file='absent.npy'}}",
                                  "{a = {normal=[1.0]}}", "{a = nan}", "{a = {}}", "{x = 1.0}"],
        "data.path": ["'absent'", "'base'", "'/dev/null'", "''"],
        "nothing": ["1"], "train.nothing": ["1"], "": ["1"], ".": ["1"], "train": ["1", "[]"], "train.": ["1"],
    }.items():
        for value in values:
            yield [*TRAIN, "--method", "scd", "--set", f"{key}={value}"]
    for setting in ("", "=", "train.rate", "train.rate:1", "train..rate=1", "train.rate = ", "=1", "\n=1"):
        yield [*TRAIN, "--set", setting]


TEXTS = [
    b"[train", b"train = ", b"\x00\x01\x02", b"\xff\xfe[\x00t\x00", b"[train]\nrate = 1\nrate = 2\n", b"[train]\n[train]\n",
    b"train.rate = 1e-3\n[train]\nbatch = 4\n", b"[[train]]\n", b"a" * 100_000, b"[" * 20_000, b"x=" + b"[" * 20_000,
    b"x=" + b"{a=" * 20_000, b'"' * 10_001, b"'''" + b"x" * 1000, b"[train]\nrate = 1e-3 # \xff\n", b"rate = 1", b"= 1",
    b"[constraint]\n", b"[constraint]\nfields = ['x', 'y']\n", b"[data]\ncount = 1_0_\n", b"\xef\xbb\xbf[", b"{}", b"null",
    b"<?xml version='1.0'?>", b"#!/bin/sh\nrm x", b"[train]\nbatch = 0x\n", b"[train]\niterations = 1e3\n",
]


def npy(shape, descr="<f4", order="False", body=b""):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def safetensors(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def arrays():
    """Array files whose headers promise what the bytes do not hold."""
    shapes = ["(4294967296, 4294967296)", "(18446744073709551615,)", "(9223372036854775807, 2)", "(-1, 8, 8)", "(3, 8, 8)",
              "(1e9, 8, 8)", "[3, 8, 8]", "('a',)", "(99999999999999999999, 1, 1)", "3", "", "(1000000, 1000000, 1)"]
    for shape in shapes:
        for descr in ("<f4", ">f8", "<i8"):
            yield ".npy", npy(shape, descr, body=bytes(64))
    for descr in ("O", "<c8", "|S8", "<U4", "<f16", "<M8[s]", "[('a', '<f4')]", "", "<f", "4f<", "<f4'"):
        yield ".npy", npy("(2, 4, 4)", descr, body=bytes(512))
    for order in ("Maybe", "1", "None", ""):
        yield ".npy", npy("(2, 4, 4)", "<f4", order, bytes(128))
    good = npy("(2, 4, 4)", body=bytes(128))
    for cut in range(0, len(good), 7):
        yield ".npy", good[:cut]
    for version in (0, 4, 9, 255):
        yield ".npy", good[:6] + bytes([version]) + good[7:]
    yield ".npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFF0) + b"{'descr'"
    zipped = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    for data in (zipped, b"PK\x03\x04", b"PK\x03\x04" + bytes(60), b"PK\x05\x06" + bytes(18)):
        yield ".npz", data
    matlab = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x100) + b"IM"
    for tag in ((14, 0xFFFFFFF0), (15, 64), (14, 8), (15, 0x7FFFFFFF), (14, 56), (99, 16)):
        yield ".mat", matlab + struct.pack("<II", *tag) + bytes(64)
    for cut in (20, 100, 127, 128, 130, 135):
        yield ".mat", (matlab + struct.pack("<II", 14, 56) + bytes(56))[:cut]
    signature = b"\x89HDF\r\n\x1a\n"
    for rest in (b"", bytes(40), bytes(600), b"\xff" * 600, b"\x00\x00\x00\x00\x00\x08\x08\x00" + b"\xff" * 80, b"\x03" + b"\xff" * 60):
        yield ".h5", signature + rest
        yield ".h5", b"MATLAB 7.3 MAT-file".ljust(512) + signature + rest
    for text in (b"", b"\n\n\n", b"a,b\n", b"1,2\n3\n", b"1,x\n", b"1,,2\n" * 3, b"#\n%\n", b"1;2\n3,4\n", b"nan,inf\n", b"1 2\n" * 2,
                 b"\x00" * 50, b"1," * 50_000 + b"\n", b"CDF\x01", b"\x80\x04\x95", b"PAR1", b"\x1f\x8b\x08", b"1\n2\n", b"e" * 2000):
        yield ".csv", text


def weights():
    """Weights files with headers that lie."""
    one = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    for length in (0, 1, 7, 2**31, 2**63 - 1, 2**64 - 1, 100_000_001):
        yield safetensors(one, bytes(8), length)
    for entry in ({"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 8]}, {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]},
                  {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}, {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
                  {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**63]}, {"dtype": "Q9", "shape": [2], "data_offsets": [0, 8]},
                  {"dtype": "F32", "shape": [2]}, {"shape": [2], "data_offsets": [0, 8]}, [], 1, None, "x"):
        yield safetensors({"w": entry}, bytes(8))
    for header in (b"", b"{", b"[]", b"null", b"{\"w\": " + b"[" * 50_000, b"\xff" * 100, b"{" * 10_000, b'{"__metadata__": 1}'):
        yield safetensors(header)
    for text in ("", "{}", "{}\n", "{}\n" + "0" * 64, "[]\nx", '{"config": ""}\n' + "f" * 64):
        yield safetensors({"__metadata__": {"softly": text}} | one, bytes(8))
    edm2 = {"img_resolution": "16", "img_channels": "2", "model_channels": "32", "channel_mult": "[1, 2]", "num_blocks": "1",
            "attn_resolutions": "[]", "sigma_data": "0.5"}
    for key in edm2:
        for value in ("-1", "0", "1e9", "99999999999", "18446744073709551615", "[]", "x", "nan", "[99999999]", ""):
            yield safetensors({"__metadata__": edm2 | {key: value}} | one, bytes(8))


def inputs(lab):
    """All hostile inputs: a name, the arguments, and the files that they need."""
    for words in arguments():
        yield "arguments", words, {}
    for words in configurations(lab):
        yield "configurations", words, {}
    for i, text in enumerate(TEXTS):
        yield "configurations", ["train", "--config", "evil.toml", "--out", "out"], {"evil.toml": text}
        yield "configurations", ["residual", "--config", "evil.toml", "--field", "x=x.npy"], {"evil.toml": text}
        yield "configurations", ["data", "import", "evil", "--out", "out"], {"evil/dataset.toml": text}
        yield "configurations", ["data", "inspect", "evil"], {"evil/dataset.toml": text}
        yield "configurations", ["train", "--set", "data.path=evil", "--out", "out"], {"evil/dataset.toml": text}
    for suffix, data in arrays():
        yield "headers", ["data", "import", f"evil{suffix}", "--out", "out"], {f"evil{suffix}": data}
        if suffix == ".npy":
            yield "headers", ["distance", "w1", "evil.npy", "evil.npy"], {"evil.npy": data}
    for data in weights():
        yield "headers", ["sample", "evil.safetensors", "--count", "2", "--out", "out"], {"evil.safetensors": data}
        yield "headers", ["adapt", "evil.safetensors", "--preset", "circle-demo", "--out", "out"], {"evil.safetensors": data}


def trial(lab, kind, words, files):
    """Runs a hostile input in a folder with a trained model called `base`."""
    folder = lab.folder()
    (folder / "base").symlink_to(lab.home / "templates" / "base")
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    outcome = lab.run(words, folder, patience=60)
    shown = " ".join(words)
    shown = f"{kind}: softly {shown if len(shown) < 200 else shown[:200] + '…'!r}"
    counts = {kind: 1, "cpu": outcome.cpu, "seconds": outcome.seconds, "kilobytes": outcome.kilobytes}
    if outcome.code not in (1, 2) or "panicked" in outcome.err:
        return folder, counts, f"{shown}: exit {outcome.code}: {outcome.err.strip()[-300:]}"
    if outcome.cpu > SECONDS or outcome.kilobytes > KILOBYTES:
        return folder, counts, f"{shown}: {outcome.cpu:.1f} s, {outcome.kilobytes} kB"
    written = [path.name for path in folder.iterdir() if path.name not in ("base", *(name.split("/")[0] for name in files))]
    return folder, counts, f"{shown} wrote {written}" if written else None
