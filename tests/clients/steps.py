"""How the scripts that stand for applications tell what worked: "ok STEP" or "FAIL STEP: why", one line each."""

import traceback


def step(name, act, *arguments):
    """Does one thing, says how it went, and returns what it gave."""
    try:
        result = act(*arguments)
    except Exception as problem:
        failed(name, problem)
        return None
    print(f"ok {name}", flush=True)
    return result


async def step_async(name, act, *arguments):
    """The same for a coroutine."""
    try:
        result = await act(*arguments)
    except Exception as problem:
        failed(name, problem)
        return None
    print(f"ok {name}", flush=True)
    return result


def failed(name, problem):
    traceback.print_exc()
    why = " ".join(f"{type(problem).__name__} {problem}".split())
    print(f"FAIL {name}: {why}", flush=True)


def expect(found, wanted, what):
    if found != wanted:
        raise AssertionError(f"{what}: {found!r}, not {wanted!r}")
