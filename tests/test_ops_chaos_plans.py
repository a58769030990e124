"""Scenarios: what they say, what is wrong with them, and that a seed gives the same plan again."""

from __future__ import annotations

import pytest

from configs import failpoints
from configs.problems import ConfigError
from configs.words import ExitRequest
from ops.chaos.driver import Strike, Target
from ops.chaos.network import NIC, Hosts, Proxies
from ops.chaos.play import network_of, orders_of
from ops.chaos.reading import load
from ops.chaos.scenario import shipped
from ops.chaos.schedule import schedule

HEAD = 'about = "A test."\n'
DRAWN = """
[[faults]]
group = "any"
between = [5, 50]
[[faults]]
target = "rank"
rank = "any"
mtbf_s = 4.0
until_s = 60.0
[[faults]]
at = "reduce"
rank = "any"
do = "stop"
between = [5, 50]
"""


@pytest.fixture
def planned(tmp_path):
    """The runs of a scenario, from its text."""

    def make(text: str, **options):
        path = tmp_path / "scenario.toml"
        path.write_text(HEAD + text)
        scenario = load(str(path), options.get("overrides", ()))
        return schedule(scenario, source=str(path), **options)

    return make


@pytest.fixture
def refused(tmp_path):
    """Why a scenario is refused."""

    def make(text: str) -> str:
        path = tmp_path / "scenario.toml"
        path.write_text(HEAD + text)
        with pytest.raises(ConfigError) as caught:
            load(str(path))
        return str(caught.value).replace(f"{path}: ", "")

    return make


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_scenario_can_be_planned_and_says_what_it_proves(name):
    scenario = load(name)
    assert scenario.about.endswith(".")
    plans = schedule(scenario, source=name)
    assert all(plan.faults for plan in plans)
    assert len({plan.name for plan in plans}) == len(plans)
    assert plans == schedule(scenario, source=name)


def test_the_same_seed_is_the_same_plan_and_another_is_another(planned):
    one, again, other = planned(DRAWN, seed=3), planned(DRAWN, seed=3), planned(DRAWN, seed=4)
    assert one == again
    assert one[0].faults != other[0].faults
    assert planned(DRAWN) == planned(DRAWN, seed=0)


def test_cases_draw_apart(planned):
    """A run's faults do not depend on which others are made."""
    fault = "faults = [{ between = [0, 1000] }]"
    head = '[keys]\n"training.steps" = 2000\n'
    both = planned(f'{head}[[cases]]\nname = "a"\n{fault}\n[[cases]]\nname = "b"\n{fault}\n')
    alone = planned(f'{head}[[cases]]\nname = "b"\n{fault}\n')
    assert both[1] == alone[0]
    assert both[0].strikes != both[1].strikes


def test_a_series_has_the_mean_time_it_says(planned):
    (plan,) = planned("[[faults]]\nmtbf_s = 5.0\nuntil_s = 5000.0\n")
    moments = [strike.at_s for strike in plan.strikes]
    assert moments == sorted(moments)
    assert 900 < len(moments) < 1100
    assert {strike.group for strike in plan.strikes} == {"g0", "g1"}
    (even,) = planned('[[faults]]\ngroup = "g1"\nevery_s = 15.0\nuntil_s = 61.0\n')
    assert [strike.at_s for strike in even.strikes] == [15.0, 30.0, 45.0, 60.0]


def test_a_trace_says_who_is_there(planned, tmp_path):
    trace = "# seconds,group,what\n0,g0,join\n0,g1,join\n600,g1,leave\n900,g2,join\n1200,g1,join\n"
    (tmp_path / "spot.csv").write_text(trace)
    text = '[keys]\n"launch.groups" = 3\n[[faults]]\ntarget = "node"\ntrace = "spot.csv"\nspeed = 100.0\ndo = "drain"\n'
    (plan,) = planned(text)
    assert plan.away == {"g2"}
    moves = [(strike.at_s, strike.group, strike.action) for strike in plan.strikes]
    assert moves == [(6.0, "g1", "drain"), (9.0, "g2", "join"), (12.0, "g1", "join")]


def test_a_matrix_is_every_failpoint_with_every_action():
    plans = {plan.name: plan for plan in schedule(load("matrix"), source="matrix")}
    assert set(plans) == {f"{name}-{do}" for name in failpoints.NAMES for do in ("kill", "stop", "raise")}
    assert plans["reduce-kill"].faults == ("g1:reduce@6#0:kill",)
    assert plans["heal_recv-stop"].faults == ("g1:heal_recv#0:stop", "at step 6 kill g1")
    assert plans["heal_send-stop"].faults == ("g1:heal_send#0:stop=3", "at step 6 kill g0")
    assert plans["closing-raise"].config.training.steps == 12
    assert all(len(plan.config.chaos.failpoints) == 1 for plan in plans.values())
    assert all(plan.limits.failpoints == plan.config.chaos.failpoints for plan in plans.values())


def test_faults_that_come_together_do_not_wait(planned):
    text = '[[faults]]\ngroup = "g1"\nstep = 4\n[[faults]]\ntarget = "lighthouse"\nstep = 4\ntogether = true\n'
    (plan,) = planned(text)
    assert plan.strikes == (
        Strike(group="g1", step=4),
        Strike(target=Target.LIGHTHOUSE, group=None, step=4, apart=False),
    )


def test_the_command_line_wins_over_the_scenario(planned):
    text = '[keys]\n"training.steps" = 9\n[[faults]]\nstep = 4\n'
    assert planned(text)[0].config.training.steps == 9
    (plan,) = planned(text, overrides=["--training.steps", "7"])
    assert (plan.config.training.steps, plan.limits.steps) == (7, 7)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "nothing goes wrong"),
        ("[[faults]]\nstep = 1\n[[fault]]\n", "fault: unknown key (did you mean faults?)"),
        ("[[faults]]\nstpe = 1\n", "faults[1].stpe: unknown key (did you mean step?)"),
        ("[[faults]]\n", "expected a time"),
        ("[[faults]]\nstep = 1\nmtbf_s = 2.0\n", "not several"),
        ("[[faults]]\nmtbf_s = 2.0\n", "until_s"),
        ('[[faults]]\nstep = 1\ndo = "kil"\n', "did you mean kill"),
        ('[[faults]]\nstep = 1\ntarget = "grup"\n', "'group'"),
        ('[[faults]]\nat = "redcue"\n', "did you mean reduce"),
        ('[[faults]]\nat = "reduce"\ndo = "nan"\n', "forward and backward only"),
        ('compare = true\n[[faults]]\nat = "forward"\ndo = "nan"\n', "a NaN skips a step"),
        ('[[faults]]\nat = "vote_after"\npart = 2\n', "has no parts"),
        ('[[faults]]\nat = "reduce"\nevery_s = 2.0\nuntil_s = 9.0\n', "a step or none"),
        ('[[faults]]\ntarget = "network"\nstep = 1\ndo = "rate"\n', "expected amount"),
        ('[[faults]]\ntarget = "network"\nstep = 1\ndo = "kill"\n', "expected one of cut, drop, delay, rate"),
        ('[[faults]]\ntarget = "node"\nstep = 1\n', "expected seconds"),
        ('[[faults]]\ntarget = "lighthouse"\nstep = 1\ndo = "stop"\n', "expected seconds"),
        ('[[faults]]\ntarget = "node"\ntrace = "none.csv"\n', "cannot be read"),
        ('[[faults]]\ntrace = "none.csv"\n', 'target = "node"'),
        ('[keys]\n"training.stpes" = 3\n[[faults]]\nstep = 1\n', "did you mean training.steps"),
        ("[[faults]]\nstep = 1\n[limits]\nstal_s = 1.0\n", "did you mean stall_s"),
        ("about = 3", "(syntax)"),
        ('[[cases]]\nname = "../evil"\nfaults = [{ step = 1 }]\n', "it names a folder, found '../evil'"),
        ('[[cases]]\nname = "undisturbed-0"\nfaults = [{ step = 1 }]\n', "not run or undisturbed"),
        ('[[cases]]\nname = "calm"\n', "cases.calm: expected faults"),
        ('[keys]\n"job.dump_folder" = "x"\n[[faults]]\nstep = 1\n', "keys.job.dump_folder: expected it to be left out"),
        ("[keys.chaos]\nfailpoints = []\n[[faults]]\nstep = 1\n", "keys.chaos.failpoints: expected it to be left out"),
        ("[[faults]]\nmtbf_s = 1e-9\nuntil_s = 9.0\n", "faults[1].mtbf_s: expected at least 0.0009: 10000 strikes"),
        ("[[faults]]\nstep = 1\namount = 7\n", "faults[1].amount: means nothing here: leave it out"),
        ("[[faults]]\nstep = 1\nspeed = 4.0\n", "faults[1].speed: means nothing here"),
        ('[[faults]]\ntarget = "lighthouse"\ngroup = "g1"\nstep = 1\n', "faults[1].group: means nothing here"),
        ('[[faults]]\nat = "forward"\ntarget = "network"\n', "faults[1].target: means nothing here"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused_with_the_reason(refused, text, why):
    assert why in refused(text)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ('group = "g7"\nstep = 3', "faults[1].group: expected g0, g1 (the groups of this run) or any, found 'g7'"),
        ('group = "g2"\nat = "vote_after"', "faults[1].group: expected g0, g1"),
        ('target = "rank"\nrank = 2\nstep = 3', "faults[1].rank: expected a rank from 0 to 1"),
        ('at = "reduce"\nrank = -1', "faults[1].rank: expected a rank from 0 to 1"),
        ("step = 20", "faults[1].step: expected at most step 19, the last at which a run of 20 steps can be struck"),
        ("between = [3, 20]", "faults[1].between: expected at most step 19"),
        ('at = "data"\nstep = 20', "at most step 19, the last at which a run of 20 steps passes data, found 20"),
        ('at = "backward"\npart = 99', "faults[1].part: expected a microbatch below"),
        ('at = "save_write"\nstep = 21', "faults[1].step: expected at most step 20"),
    ],
)
def test_a_fault_that_could_never_happen_is_refused(refused, fault, why):
    assert why in refused(f'[keys]\n"training.steps" = 20\n[[faults]]\n{fault}\n')


def test_what_a_run_has_is_what_its_case_and_the_command_line_say(planned):
    text = '[[cases]]\nname = "three"\nkeys = { "launch.groups" = 3 }\nfaults = [{ group = "g2", step = 3 }]\n'
    assert planned(text)
    with pytest.raises(ConfigError) as caught:
        planned(text, overrides=["--launch.groups", "2", "--training.steps", "3"])
    assert "cases.three.faults[1].group: expected g0, g1" in str(caught.value)
    assert "cases.three.faults[1].step: expected at most step 2" in str(caught.value)
    assert planned("[keys.training]\nsteps = 9\n[[faults]]\nstep = 4\n")[0].config.training.steps == 9


def test_every_problem_of_a_scenario_is_told_at_once_in_words_of_ours(refused):
    told = refused(
        """
seed = "three"
keys = { "training.stps" = 9, "launch.groups" = 2.5 }
[[faults]]
group = "g0"
step = 3
[[faults]]
group = "g5"
at = "heal_snd"
do = "kil"
speed = 0
[[faults]]
target = "grup"
rank = "al"
between = [3]
[limits]
stall_s = "long"
"""
    )
    assert told.splitlines() == [
        "seed: expected a whole number, found 'three'",
        "faults[2].speed: expected a number > 0.0, found 0",
        "faults[2].do: expected one of kill, hang, raise, nan, flip, corrupt, truncate, full, stop, delay, exit, "
        "found 'kil' (did you mean kill?)",
        "faults[2].at: no such failpoint, found 'heal_snd' (did you mean heal_send?)",
        "faults[3].target: expected one of 'rank', 'group', 'node', 'lighthouse' or 'network', found 'grup' "
        "(did you mean group?)",
        "faults[3].rank: expected a whole number or 'any', found 'al'",
        "faults[3].between: expected 2 of them, found [3]",
        "limits.stall_s: expected a number, found 'long'",
        "keys: training.stps: unknown key (did you mean training.steps?)",
        "keys: launch.groups: expected a whole number, found 2.5",
        "faults[2].group: expected g0, g1 (the groups of this run) or any, found 'g5'",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('actions = ["kil"]', "matrix.actions: 'kil' is unknown (did you mean kill?)"),
        ('actions = ["nan"]\nnames = ["reduce"]', "matrix.actions: nan acts in forward and backward only"),
        ("", "matrix.actions: expected this key, which is missing"),
        ("actions = []", "matrix.actions: expected at least one"),
        ('actions = ["kill"]\n[keys]\n"launch.groups" = 1', "matrix: expected at least launch.groups = 2"),
    ],
)
def test_a_matrix_that_makes_no_sense_is_refused(refused, text, why):
    assert why in refused(f"[matrix]\n{text}\n")


def test_an_unknown_config_is_a_problem_of_the_file(refused):
    assert "config: expected a TOML file or the name of a shipped config" in refused(
        'config = "dbug"\n[[faults]]\nstep = 1\n'
    )


def test_a_trace_that_cannot_be_read_is_named_with_its_line(refused, tmp_path):
    (tmp_path / "bad.csv").write_text("0,g0,join\nsoon,g1,leave\n")
    assert "bad.csv:2: trace: expected lines" in refused('[[faults]]\ntarget = "node"\ntrace = "bad.csv"\n')
    (tmp_path / "bad.csv").write_text("0,g0,join\n5,g9,leave\n")
    assert "bad.csv:2: group: expected g0, g1" in refused('[[faults]]\ntarget = "node"\ntrace = "bad.csv"\n')
    (tmp_path / "bad.csv").write_text("0,g0,join\n5,g0,join\n3,g0,leave\n")
    told = refused('[[faults]]\ntarget = "node"\ntrace = "bad.csv"\n')
    assert "bad.csv:2: trace: expected g0 to leave first: it did join before" in told
    assert "bad.csv:3: trace: expected the lines in order of time" in told
    (tmp_path / "bad.csv").write_text("# nobody\n")
    assert "there are none" in refused('[[faults]]\ntarget = "node"\ntrace = "bad.csv"\n')


def test_an_unknown_scenario_is_told_the_names():
    with pytest.raises(ConfigError) as caught:
        load("matrx")
    assert "did you mean matrix" in str(caught.value)


def test_a_run_gets_the_network_that_its_faults_need(planned, tmp_path):
    (plain,) = planned("[[faults]]\nstep = 4\n")
    assert network_of(plain) is None
    (bad,) = planned('[[faults]]\ntarget = "network"\ndo = "cut"\nseconds = 1.0\nstep = 4\n')
    network = network_of(bad)
    assert isinstance(network, Proxies)
    orders = orders_of(bad, tmp_path / "run", network)
    assert (orders.network, orders.strikes) == (network, bad.strikes)
    assert orders.config.job.dump_folder == str(tmp_path / "run")
    network.close()


def test_groups_with_hosts_of_their_own_bind_there(planned, tmp_path):
    (plan,) = planned('hosts = true\n[[faults]]\ntarget = "network"\ndo = "drop"\nseconds = 1.0\nstep = 4\n')
    try:
        hosts = network_of(plan)
    except ExitRequest as refusal:
        pytest.skip(refusal.reason)
    assert isinstance(hosts, Hosts)
    try:
        orders = orders_of(plan, tmp_path / "run", hosts)
    finally:
        hosts.close()
    assert [layout.netns for layout in orders.layouts] == [hosts.space("g0"), hosts.space("g1")]
    assert orders.config.fault_tolerance.interface == NIC
    assert orders.bindings.gateway == f"{hosts.address}:0"
