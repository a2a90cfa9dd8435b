"""Events that no arithmetic can have end no run: whole commands, from a trainer of one's own to the exporter."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from proving_ground.bench import rundir
from proving_ground.monitoring.exporter import Watched
from tests.programs import program

ROOT = Path(__file__).parents[2]
STEPS, AT = 8, 4
DEEP, LONG = "[" * 50_000 + "]" * 50_000, "7" * 400
APPENDS = f"""
import json, os, sys, time
with open(os.environ["PROVING_GROUND_EVENTS"], "a", buffering=1) as events:
    def say(event, **fields):
        events.write(json.dumps({{"t": time.monotonic(), "event": event, **fields}}) + "\\n")
    say("start", rank=0, world_size=1, pid=os.getpid(), wall_s=time.time())
    say("ready")
    for step in range(1, {STEPS} + 1):
        if step == {AT}:
            events.write(open(sys.argv[1]).read())
        say("step", step=step, samples=8)
        time.sleep(0.3)
    say("end", step={STEPS})
"""
PRINTS = f"""
import sys, time
from tests.programs import program
for step in range(1, {STEPS} + 1):
    print(f"step {{step}} of 8 loss 0.5", open(sys.argv[1]).read() * (step == {AT}), sep="\\n", flush=True)
    time.sleep(0.3)
"""
SUITE = """
title = "Trainers that say what cannot be"
nodes = [1]
repeats = 1
"""
CASE = """
[[case]]
name = "{name}"
workload = "command"
batch_per_node = 8
steps = {steps}
warmup_steps = 1
estimated_step_s = 0.3
[case.command]
argv = ["python", {script}, {said}]
{more}
"""
PATTERN = "pattern = { step = 'step (?P<step>\\S+) of (?P<samples>\\S+) loss (?P<loss>\\S+)' }"
ODD = {
    '{"t": 5, "event": "step", "step": 1e999, "samples": 8}': "`step` must be a whole number",
    f'{{"t": {LONG}, "event": "step", "step": 4, "samples": 8}}': "`t` must be a number of seconds",
    f'{{"t": 5, "event": "step", "step": {LONG}, "samples": 8}}': "`step` must be a whole number",
    f'{{"t": 5, "event": "step", "step": 4, "samples": 8, "x": {DEEP}}}': "nested too deeply",
}
"""Line of an event file → what is said of it."""
PRINTED = (
    "step 1e999 of 8 loss 0.5",
    f"step {LONG} of 8 loss 0.5",
    f"step 4 of {LONG} loss 0.5",
    "step 4 of 8 loss 1e999",
)


def case(folder: Path, name: str, program: str, said: str, more: str = "") -> str:
    """A suite's case: a trainer that says this at its fourth step."""
    script, words = folder / f"{name}.py", folder / f"{name}.said"
    script.write_text(program)
    words.write_text(said)
    return CASE.format(
        name=name, steps=STEPS, script=json.dumps(str(script)), said=json.dumps(str(words)), more=more
    )  # fmt: skip


def test_events_that_cannot_be_computed_with_are_named_and_end_nothing(tmp_path: Path) -> None:
    appends = case(tmp_path, "appends", APPENDS, "".join(f"{line}\n" for line in ODD))
    prints = case(tmp_path, "prints", PRINTS, "\n".join(PRINTED), PATTERN)
    (tmp_path / "odd.toml").write_text(SUITE + appends + prints)
    words = program("bench", "--runs", str(tmp_path / "runs"), "run", "--suite", f"{tmp_path}/odd.toml")
    done = subprocess.run([*words, "--cluster", "local"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), f"a verdict, and no mistake: {done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr
    store = rundir.find(tmp_path / "runs")
    assert store.read("seal")["complete"], done.stderr
    assert rundir.verify(store) == []
    assert_named(store)


def assert_named(store: rundir.RunDir) -> None:
    """Each bad line by its file and number; no other was left out."""
    records = list(rundir.read_history(store))
    said = [str(it["message"]) for it in records if it["event"] == "warning"]
    (trial,) = (it["id"] for it in store.read("plan")["trials"] if it["case"] == "appends")
    assert max(map(len, said)) <= 300
    for number, (message, why) in enumerate(zip(said, ODD.values(), strict=True), AT + 3):  # two starts
        assert message.startswith(f"{trial}.n1.0.jsonl: line {number} left out: ")
        assert why in message
    steps = [it["step"] for it in records if (it["event"], it.get("trial")) == ("step", trial)]
    assert steps == list(range(1, STEPS + 1))


def test_the_exporter_counts_them_and_tells_the_rest(tmp_path: Path) -> None:
    events = tmp_path / "runs" / "odd" / "r" / "events"
    events.mkdir(parents=True)
    steps = ('{"t": 3, "event": "step", "step": 3, "samples": 8}', '{"t": 6, "event": "step", "step": 4, "samples": 8}')
    start = '{"t": 0.1, "event": "start", "rank": 0, "world_size": 1, "pid": 1, "wall_s": 1.0}'
    (events / "t001.n1.0.jsonl").write_text("".join(f"{it}\n" for it in (start, steps[0], *ODD, steps[1])))
    watched = Watched(events.parent)
    watched.poll()
    told = {sample.name: sample.value for family in watched.collect() for sample in family.samples}
    watched.close()
    assert watched.why_not == ""
    assert (told["training_step"], told["exporter_lines_refused_total"]) == (4, len(ODD))
