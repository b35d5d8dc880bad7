"""Kills at random moments, and faults at every file operation: the same command must end in the same bytes."""

import shutil

from lab import difference

# How often a command is killed in a row, at most, before it may end.
MOST_IN_A_ROW = 4


def judged(trial, report):
    """The trial's counts; what went wrong is reported with its folder, which then stays."""
    folder, counts, problem = trial
    if problem:
        counts["problems"] = 1
        report(f"{problem} (see {folder})")
    else:
        shutil.rmtree(folder)
    return counts


def finished(lab, scenario, folder, expected):
    """Runs the command undisturbed; what is wrong with its end, if anything."""
    outcome = lab.run(scenario.arguments, folder, scenario.environment)
    if outcome.code != 0:
        return f"refused with {outcome.code}: {outcome.err.strip()[-300:]}", {"refused": 1}
    names = difference(scenario.result(folder, outcome), expected)
    return (f"different: {', '.join(names)}", {"different": 1}) if names else (None, {})


def random_moments(lab, scenario, expected, length, random):
    """A command that is killed up to four times, then runs to its end."""
    folder = scenario.prepare(lab)
    counts = {"kills": 0, "trials": 1}
    for _ in range(random.randint(1, MOST_IN_A_ROW)):
        # A study's own death must reach its trainings, too.
        group = random.random() < 0.5
        outcome = lab.kill(scenario.arguments, folder, random.uniform(0, 1.1 * length), scenario.environment, group)
        if outcome.code not in (-9, 0):
            return folder, counts | {"refused": 1}, f"{scenario.name} refused: {outcome.code} {outcome.err.strip()[-300:]}"
        counts["kills"] += outcome.code == -9
    problem, more = finished(lab, scenario, folder, expected)
    return folder, counts | more, problem and f"{scenario.name} after {counts['kills']} kills: {problem}"


def operation(lab, scenario, expected, kind, at):
    """A command whose `at`-th file operation is spoiled, then the same command undisturbed."""
    folder = scenario.prepare(lab)
    counts = {"trials": 1}
    place = f"{scenario.name}, {kind} at operation {at}"
    outcome, _ = lab.faulty(scenario.arguments, folder, kind, at, scenario.environment)
    killed = outcome.code == -9
    counts["kills" if kind == "kill" else "failures"] = int(killed if kind == "kill" else outcome.code != 0)
    if "panicked" in outcome.err or outcome.code not in ((-9, 0, 1) if kind == "kill" else (0, 1)):
        return folder, counts | {"refused": 1}, f"{place}: {outcome.code} {outcome.err.strip()[-300:]}"
    if outcome.code == 1 and not ("cannot" in outcome.err or "failed" in outcome.err):
        return folder, counts | {"silent": 1}, f"{place} does not say what failed: {outcome.err.strip()[-300:]}"
    problem, more = finished(lab, scenario, folder, expected)
    return folder, counts | more, problem and f"{place}: {problem}"
