"""The smallest worker module: `killproof work first_jobs` runs its `handlers`."""

from killproof.worker import Context, Handlers

handlers = Handlers()


@handlers("greet", timeout=30.0)
def greet(context: Context) -> dict[str, str]:
    """Return what becomes the job's result; what a handler raises is a failed attempt."""
    assert isinstance(context.payload, dict)

    return {"said": f"Hello, {context.payload['name']}!"}
