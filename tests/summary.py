"""Sums up a test run, and says loudly what was skipped.

summary.py nextest JUNIT_FILE LEFT_OUT
summary.py cargo OUTPUT_FILE LEFT_OUT

A test that finds something missing passes, but prints a line that begins with SKIP: it counts as skipped, not as
passed. LEFT_OUT is the number of long runs that were not asked for. Ends with status 1 if a test failed or none ran.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree

SKIP = re.compile(r"^.*?\bSKIP(?:PED)?\b:? ?(.*)$", re.MULTILINE)


def reasons(text):
    return sorted({match.group(1).strip() for match in SKIP.finditer(text or "")})


def from_nextest(path):
    passed, failed, skipped = 0, [], {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')} {case.get('name')}"
        output = "\n".join(part.text or "" for part in case if part.tag in ("system-out", "system-err"))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif why := reasons(output):
            skipped[name] = why
        else:
            passed += 1
    return passed, failed, skipped


def from_cargo(path):
    text = open(path, encoding="utf-8", errors="replace").read()
    outcomes = re.findall(r"^test (\S+)(?: - [^.]*)? \.\.\. (ok|FAILED)$", text, re.MULTILINE)
    outputs = dict(re.findall(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^successes:|^failures:|\Z)", text, re.M | re.S))
    failed = [name for name, outcome in outcomes if outcome == "FAILED"]
    skipped = {name: why for name, outcome in outcomes if outcome == "ok" and (why := reasons(outputs.get(name)))}
    return len(outcomes) - len(failed) - len(skipped), failed, skipped


def main():
    runner, path, left_out = sys.argv[1:4]
    left_out = int(left_out or 0)
    passed, failed, skipped = {"nextest": from_nextest, "cargo": from_cargo}[runner](path)
    if failed:
        print("\nFAILED:")
        for name in failed:
            print(f"   {name}")
    if skipped:
        print("\nNOT TESTED, or only in part, because something is missing here:")
        for name, why in sorted(skipped.items()):
            for line in why:
                print(f"   {name}: {line}")
    if left_out:
        print(f"\n{left_out} long runs were left out; ./tests/run --long runs them")
    print(f"\n{passed} passed, {len(failed)} failed, {len(skipped) + left_out} skipped")
    sys.exit(1 if failed or not passed else 0)


main()
