"""The table of faults that were tried."""

import sys


def pytest_terminal_summary(terminalreporter):
    tally = getattr(sys.modules.get("harness"), "TALLY", {})
    if tally:
        failed = terminalreporter.getreports("failed")
        end = "something lost" if any("faults" in report.nodeid for report in failed) else "nothing lost"
        terminalreporter.section(f"{sum(tally.values())} faults, {end}")
        for (kind, job), times in sorted(tally.items()):
            terminalreporter.write_line(f"{kind:14} {job:28} {times:6}")
