"""Writes the table of suites into the README, from what ran.

compatibility.py RESULTS_DIRECTORY README

The table stands between two marks in the README; rows of suites that did not run this time are left as they are.
"""

import json
import pathlib
import re
import sys

BEGIN, END = "<!-- suites: written by tests/compatibility.py -->", "<!-- end of suites -->"
COLUMNS = ("suite", "version", "setting", "run", "passed", "failed, for want of", "skipped by the suite, because")
REASON_LENGTH = 90


def counted(reasons):
    """How many there are for each reason, the most frequent first."""
    ordered = sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))
    total = sum(reasons.values())
    if not total:
        return "0"
    return f"{total}: " + "; ".join(f"{count} {shortened(reason)}" for reason, count in ordered)


def shortened(reason):
    text = " ".join(reason.replace("|", "/").split()).rstrip(".")
    return text if len(text) <= REASON_LENGTH else text[: REASON_LENGTH - 1].rsplit(" ", 1)[0] + " …"


def row(result):
    failed = {feature: len(tests) for feature, tests in result["missing"].items()}
    passed = str(result["passed"])
    if result["again"]:
        passed += f" ({len(result['again'])} of them in a second run, alone)"
    return {
        "suite": result["name"],
        "version": result["version"],
        "setting": result["setting"],
        "run": str(result["passed"] + result["failed"]),
        "passed": passed,
        "failed, for want of": counted(failed),
        "skipped by the suite, because": counted(result["skipped"]),
    }


def line(cells):
    return "| " + " | ".join(cells) + " |"


def main(directory, readme):
    readme = pathlib.Path(readme)
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    rows = {}
    known = old.strip().splitlines()
    # Rows of other columns cannot stay.
    if known and known[0] == line(COLUMNS):
        rows = {re.match(r"\| (.*?) \|", row).group(1): row for row in known[2:]}
    for path in pathlib.Path(directory).glob("*.json"):
        result = row(json.loads(path.read_text(encoding="utf-8")))
        rows[result["suite"]] = line(result[column] for column in COLUMNS)
    table = [line(COLUMNS), "|" + "---|" * len(COLUMNS), *(rows[name] for name in sorted(rows, key=str.lower))]
    readme.write_text(f"{before}{BEGIN}\n" + "\n".join(table) + f"\n{END}{after}", encoding="utf-8")


main(*sys.argv[1:])
