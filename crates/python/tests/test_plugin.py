"""The plugin for pytest."""

pytest_plugins = ["pytester"]

TEST = """
import schwann

def test_speed(schwann_gate):
    schwann_gate(schwann.Model.of({"class": "CfC", "input_size": 8, "units": UNITS}), ANYWAY baseline="net", seconds=15)
"""


def run(pytester, units, *options, anyway=False):
    text = TEST.replace("UNITS", str(units)).replace("ANYWAY", "anyway=True," if anyway else "")
    pytester.makepyfile(test_speed=text)
    return pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider", *options)


def test_a_test_fails_when_the_model_got_slower(pytester):
    skipped = run(pytester, 24)
    skipped.assert_outcomes(skipped=1)
    skipped.stdout.fnmatch_lines(["*nothing to compare with*--schwann-save saves it*"])
    run(pytester, 24, "--schwann-save").assert_outcomes(skipped=1)
    run(pytester, 24).assert_outcomes(passed=1)
    slower = run(pytester, 160, anyway=True)
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(["*Regressed: regressed: +*"])
