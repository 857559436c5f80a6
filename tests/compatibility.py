"""Writes the table of suites into the README, from what ran.

compatibility.py RESULTS_DIRECTORY README

The table stands between two marks in the README; rows of suites that did not run this time are left as they are.
"""

import json
import pathlib
import re
import sys

BEGIN, END = "<!-- suites: written by tests/compatibility.py -->", "<!-- end of suites -->"
HEAD = "| suite | version | setting | passed | failed | skipped by the suite | what the failed ones need |\n|---|---|---|---|---|---|---|"


def row(result):
    cells = [result[name] for name in ("name", "version", "setting", "passed", "failed", "skipped")]
    cells.append("; ".join(result["missing"]) or "-")
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main(directory, readme):
    readme = pathlib.Path(readme)
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    rows = {}
    for line in old.splitlines():
        match = re.match(r"\| (.*?) \|", line)
        if match and match.group(1) != "suite":
            rows[match.group(1)] = line
    for path in pathlib.Path(directory).glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        rows[result["name"]] = row(result)
    table = "\n".join([HEAD, *(rows[name] for name in sorted(rows))])
    readme.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


main(*sys.argv[1:])
