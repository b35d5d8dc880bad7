#!/usr/bin/env python3
"""Does softly keep its promises (book/src/promises.md) under kills, failing disks, damaged files and hostile inputs?

    bench/reliability/run.py                          # the short version, two or three minutes on two cores
    bench/reliability/run.py --long --out counts.json # 10,000 kills, 10,000 damaged files, every hostile input
    bench/reliability/run.py --only damage --seed 3   # one part, other random numbers

Every trial depends on the seed, its part and its number alone. What goes wrong is printed at once, its folder stays, and the
exit code is 1. The program is cargo's release build, or the one that SOFTLY_PROGRAM names. Needs Linux and a C compiler.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

import damage
import hostile
import kills
from lab import ROOT, Lab
from scenarios import scenarios, templates

PARTS = ("operations", "kills", "damage", "hostile")

# Kills at random moments by command, in the long version; in the short one this share of them.
KILLS = {"train": 3400, "adapt": 2600, "generate": 1600, "sample": 1000, "eval": 1000, "reproduce": 400}
SHORT_KILLS = 0.015
# One in so many file operations is spoiled, in the long version and the short one.
EVERY = {"reproduce": (12, 150)}
DAMAGED = (10_000, 300)
HOSTILE_EVERY = (1, 8)


class Run:
    """The trials of a run, side by side, and their counts."""

    def __init__(self, lab, options):
        self.lab, self.options, self.problems = lab, options, []
        self.pool = concurrent.futures.ThreadPoolExecutor(options.jobs)

    def report(self, problem):
        self.problems.append(problem)
        print(f"PROBLEM {problem}", flush=True)

    def random(self, *place):
        return random.Random("-".join(map(str, (self.options.seed, *place))))

    def all(self, trials):
        """The sums of the counts of all trials, functions that return folder, counts and problem."""
        total = collections.Counter()
        for counts in self.pool.map(lambda trial: kills.judged(trial(), self.report), trials):
            total.update(counts)
        return dict(total)

    def operations(self, prepared):
        """Faults at file operations."""
        found = {}
        for scenario, (expected, _, operations) in prepared:
            every = EVERY.get(scenario.name, (1, 6))[not self.options.long]
            for kind in ("kill", "eio", "full"):
                first = self.random("operations", scenario.name, kind).randrange(every) + 1
                places = range(first, operations + 1, every)
                trials = [lambda at=at, s=scenario, e=expected, k=kind: kills.operation(self.lab, s, e, k, at) for at in places]
                found[f"{scenario.name}, {kind}"] = {"operations": operations} | self.all(trials)
            self.tell(found, scenario.name)
        return found

    def kills(self, prepared):
        """Kills at random moments, until there are enough."""
        found = {}
        for scenario, (expected, length, _) in prepared:
            wanted = KILLS[scenario.name] * (1 if self.options.long else SHORT_KILLS)
            total, number = collections.Counter(), 0
            while total["kills"] < wanted and number < 20 * KILLS[scenario.name]:
                numbers = range(number, number + 4 * self.options.jobs)
                number = numbers[-1] + 1
                total.update(self.all([
                    lambda n=n: kills.random_moments(self.lab, scenario, expected, length, self.random("kills", scenario.name, n))
                    for n in numbers]))
            found[scenario.name] = dict(total)
            self.tell(found, scenario.name)
        return found

    def damage(self):
        """Damaged files."""
        victims = damage.victims(self.lab)
        expected = [damage.expectation(self.lab, victim) for victim in victims]
        share = DAMAGED[not self.options.long] // len(victims)
        found = {}
        for victim, whole in zip(victims, expected):
            found[victim.name] = self.all([
                lambda n=n: damage.trial(self.lab, victim, whole, self.random("damage", victim.name, n)) for n in range(share)])
            self.tell(found, victim.name)
        return found

    def hostile(self):
        """Hostile inputs."""
        every = HOSTILE_EVERY[not self.options.long]
        inputs = list(hostile.inputs(self.lab))[self.random("hostile").randrange(every)::every]
        most = collections.Counter()

        def trial(words):
            folder, counts, problem = hostile.trial(self.lab, *words)
            for key in ("cpu", "seconds", "kilobytes"):
                most[key] = max(most[key], counts.pop(key))
            return folder, counts, problem

        found = self.all([lambda words=words: trial(words) for words in inputs])
        found = {"inputs": len(inputs)} | found | {f"most {key}": round(value, 2) for key, value in most.items()}
        print(f"  hostile inputs: {found}", flush=True)
        return found

    def tell(self, found, name):
        for key in [key for key in found if key.split(",")[0] == name]:
            print(f"  {key}: {found[key]}", flush=True)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="the long version")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be repeated")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="trials side by side")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file for the counts")
    return parser.parse_args()


def main():
    chosen = options()
    program = os.environ.get("SOFTLY_PROGRAM", ROOT / "target/release/softly")
    start = time.monotonic()
    home = pathlib.Path(tempfile.mkdtemp(prefix="softly-reliability-"))
    lab = Lab(program, home, chosen.seed)
    templates(lab)
    run = Run(lab, chosen)
    counts = {"seed": chosen.seed, "long": chosen.long, "program": json.loads(lab.run(["info", "--json"], home).out)}
    parts = chosen.only or PARTS
    needed = [name for name in ("operations", "kills") if name in parts]
    prepared = [(scenario, scenario.whole(lab)) for scenario in scenarios()] if needed else []
    for name in parts:
        print(name, flush=True)
        begin = time.monotonic()
        counts[name] = getattr(run, name)(prepared) if name in needed else getattr(run, name)()
        counts[f"{name} seconds"] = round(time.monotonic() - begin)
    counts |= {"problems": run.problems, "seconds": round(time.monotonic() - start), "jobs": chosen.jobs}
    if chosen.out:
        chosen.out.write_text(json.dumps(counts, indent=1) + "\n")
    print(f"{len(run.problems)} problems in {counts['seconds']} s, seed {chosen.seed}")
    if not run.problems:
        shutil.rmtree(home)
    sys.exit(1 if run.problems else 0)


if __name__ == "__main__":
    main()
