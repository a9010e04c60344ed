"""A publishing line: draft, review by a person, publication, and the news on each channel.

    python publishing_line.py

Each article is a run of a workflow.  The review stops and waits for a person, for as long as that
takes: the job is *held*, and nothing of the run is lost meanwhile.  An article that is approved
goes on; one that is turned down is called off, and what was made for it is undone.  The news goes
out to all channels side by side, and the run ends when each of them has it.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

from killproof import Queue, listing, workflow_view
from killproof.operations import unhold
from killproof.worker import Hold, Worker
from killproof.workflow import Step, Workflow, Workflows

CHANNELS = ["feed", "newsletter", "chat"]


def line_of(folder: Path) -> Workflow:
    """The line; drafts, the site, the reviews and the news are files in this folder."""
    line = Workflow("publish")

    def discard(step: Step) -> None:
        (folder / step.undone["draft"]).unlink(missing_ok=True)

    @line.step(compensate=discard, timeout=30.0)
    def draft(step: Step) -> dict[str, str]:
        name = f"draft-{step.payload['title']}.txt"
        (folder / name).write_text(step.payload["text"], encoding="utf-8")
        return {"draft": name}

    @line.step(timeout=30.0)
    def review(step: Step) -> dict[str, str]:
        approval = folder / f"approved-{step.payload['title']}"
        if not approval.exists():
            raise Hold(f"an editor has to read {step.payload['title']!r}")
        return {"editor": approval.read_text(encoding="utf-8")}

    @line.step(timeout=30.0, needs=["draft", "review"])
    def publish(step: Step) -> list[str]:
        text = (folder / step.results["draft"]["draft"]).read_text(encoding="utf-8")
        (folder / f"{step.payload['title']}.html").write_text(f"<p>{text}</p>", encoding="utf-8")
        return CHANNELS

    @line.step(each=publish, timeout=30.0)
    def announce(step: Step) -> None:
        (folder / f"news-{step.item}-{step.payload['title']}").touch()

    return line


def main(folder: Path) -> dict[str, str]:
    """Write two articles, approve one and turn the other down; return the state of each run."""
    line = line_of(folder)
    with Queue(folder / "queue.db") as queue:
        runs = {
            title: Workflows(queue).start(line, {"title": title, "text": f"All about {title}."})
            for title in ("tea", "coffee")
        }
        worker = Worker(queue, line.handlers, poll=0.02)

        def be_the_editor() -> None:
            while queue.counts()["held"] < len(runs):
                time.sleep(0.02)
            (folder / "approved-tea").write_text("Ada", encoding="utf-8")
            Workflows(queue).cancel(runs["coffee"])
            (review,) = listing.jobs(queue, state="held")
            unhold(queue, review.id)  # As `killproof unhold ID` does.
            while any(map(queue.counts().get, ("available", "leased", "blocked"))):
                time.sleep(0.02)
            worker.stop()

        threading.Thread(target=be_the_editor, daemon=True).start()
        worker.run()
        found = {title: workflow_view.run(queue, run).state for title, run in runs.items()}
    print(found, sorted(path.name for path in folder.iterdir() if path.suffix != ".db"))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
