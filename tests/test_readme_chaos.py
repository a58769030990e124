"""What the READMEs say of chaos scenarios: their names, their keys, and the example."""

from __future__ import annotations

from ops.chaos import reading, scenario
from ops.chaos.schedule import schedule
from ops.verdict.story import Invariant
from tests.support.pages import blocks, names, section, spans, table


def test_scenarios_and_invariants_are_all_there():
    text = section("ops/README.md", "Chaos with a verdict")
    assert sorted(names(table(text, "scenario"))) == sorted(scenario.shipped())
    assert names(table(text, "invariant")) == [invariant.value for invariant in Invariant]


def test_the_scenario_of_the_example_can_be_planned(tmp_path):
    (code,) = blocks(section("ops/README.md", "Chaos with a verdict"), "toml")
    path = tmp_path / "example.toml"
    path.write_text(code)
    (plan,) = schedule(reading.load(str(path)), source=str(path))
    assert len(plan.faults) == 5
    assert plan.config.training.steps == 1000


def test_the_tables_of_a_scenario_are_its_keys():
    text = section("ops/README.md", "Writing a scenario")
    for heading, model in (
        ("key of a scenario", scenario.Scenario),
        ("key of a fault", scenario.Fault),
        ("limit", scenario.Bounds),
    ):
        rows = table(text, heading)
        assert [spans(row[0])[0] for row in rows] == list(model.model_fields)
        for name, default, _ in rows:
            field = model.model_fields[name.strip("`")]
            if default.strip("`")[:1] in ('"', "t", "f") and field.default is not None:
                assert str(field.default).lower() in default, name
    acts = {row[0].strip("`"): tuple(spans(row[1])) for row in table(text, "target")}
    assert acts == {target.value: actions for target, actions in scenario.ACTIONS.items()}
