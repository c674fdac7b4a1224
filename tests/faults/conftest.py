"""The table of faults that were tried."""

import sys


def pytest_terminal_summary(terminalreporter, exitstatus):
    tally = getattr(sys.modules.get("harness"), "TALLY", {})
    if tally:
        end = "something lost" if exitstatus else "nothing lost"
        terminalreporter.section(f"{sum(tally.values())} faults, {end}")
        for (kind, job), times in sorted(tally.items()):
            terminalreporter.write_line(f"{kind:14} {job:28} {times:6}")
