"""Tell another program when a job dies: a POST, delivered through the queue itself.

A trigger in the file puts a job of kind `killproof.webhook` in, in the very transaction that makes
another job a dead letter: the news is as durable as the death, whoever wrote it and however that
process ended.  Its delivery is a job like any other, with retries, attempts and a dead letter of
its own (of which no news is sent).  `killproof work` has the handler.

The receiver may get the same news twice, like the effect of any job; the header `Idempotency-Key`
is equal each time.
"""

import json
import urllib.error
import urllib.request
from email.message import Message
from http.client import HTTPException
from typing import IO, TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from killproof.core.database import Transaction
from killproof.core.errors import FileRefused
from killproof.core.jobs import Queue
from killproof.handlers import Handlers, Permanent, RetryLater

if TYPE_CHECKING:
    from killproof.worker import Context

KIND: Final = "killproof.webhook"
SCHEMA_VERSION: Final = 1
#: Part of a key, which has 500 characters at most.
URL_CHARS_MAX: Final = 400
#: For the connection and for each read.
TIMEOUT_SECONDS: Final = 10.0
#: The other side's wish to be left alone is granted up to so long.
RETRY_AFTER_SECONDS_MAX: Final = 3_600.0


ADD: Final = "INSERT OR IGNORE INTO webhook (url) VALUES (:url)"


def add(queue: Queue, url: str) -> None:
    """Send the news of every death from now on to this address.

    Raises:
        ValueError: it is no http or https address; definite.
        FileRefused: the application has a table `webhook`; definite.
        KillproofError: as for `Queue.cancel`.
    """
    parts = urlsplit(url)
    is_plain = url.isprintable() and " " not in url and len(url) <= URL_CHARS_MAX
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise ValueError(
            f"{url!r} must be an http or https address of at most {URL_CHARS_MAX} characters"
        )
    with queue.transaction() as tx:
        _ensure_table(tx)
        tx.change(ADD, {"url": url})


REMOVE: Final = "DELETE FROM webhook WHERE url = :url"


def remove(queue: Queue, url: str) -> bool:
    """Send no more news to this address; False if none was sent there.

    Raises:
        KillproofError: as for `Queue.cancel`.
    """
    with queue.transaction() as tx:
        if tx.row(VERSION) is None:
            return False
        return tx.change(REMOVE, {"url": url}) == 1


URLS: Final = "SELECT url FROM webhook ORDER BY url"


def urls(queue: Queue) -> list[str]:
    """Return the addresses."""
    with queue.database.read() as tx:
        if tx.row(VERSION) is None:
            return []
        return [str(url) for (url,) in tx.rows(URLS)]


def register(handlers: Handlers) -> None:
    """Add the handler of the news, unless the module has one of its own."""
    if KIND not in handlers.kinds:
        handlers(KIND, timeout=3 * TIMEOUT_SECONDS)(deliver)


def deliver(context: "Context") -> dict[str, int]:
    """Send one piece of news; return the status of the answer.

    Raises:
        RetryLater: the other side says when to come back.
        Permanent: it says that this will never do.
        OSError: anything else, to be retried by the job's policy.
    """
    news = cast(dict[str, object], context.payload)
    if urlsplit(str(news["url"])).scheme not in ("http", "https"):
        raise Permanent(f"{news['url']!r} is no http or https address")
    request = urllib.request.Request(
        str(news["url"]),
        data=json.dumps({name: news[name] for name in news if name != "url"}).encode(),
        method="POST",
        headers={
            "Content-Type": "application/json",
            "Idempotency-Key": context.effect_key,
            "User-Agent": "killproof",
        },
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_SECONDS) as got:
            return {"status": int(got.status)}
    except urllib.error.HTTPError as error:
        with error:
            _judge(error)
    except HTTPException as error:
        raise OSError(f"{type(error).__name__}: no answer in HTTP from {news['url']}") from error
    raise AssertionError("an error is always judged")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A POST that is sent elsewhere would arrive as a GET, without the news."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> None:
        """Follow nothing."""


def _judge(error: urllib.error.HTTPError) -> None:
    """Raise what the answer means for the job."""
    after = error.headers.get("Retry-After", "")
    text = f"{error.code} {error.reason} from {error.url}"
    if error.code in (429, 503) and after.isdecimal():
        raise RetryLater(min(int(after), RETRY_AFTER_SECONDS_MAX), text)
    if 300 <= error.code < 500 and error.code not in (408, 425, 429):
        raise Permanent(text)
    raise OSError(text)


VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'webhook'"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('webhook', :version)"

FIND_TABLE: Final = "SELECT 1 FROM sqlite_schema WHERE lower(name) = 'webhook'"

CREATE: Final = """
    CREATE TABLE webhook (url TEXT NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID"""

# A death that is not news costs the test of the WHEN clause.  The fence tells two deaths of a job
# that was replayed apart.

ON_DEATH: Final = """
    CREATE TRIGGER killproof_webhook AFTER UPDATE OF state ON job
      WHEN NEW.state = 'dead' AND OLD.state <> 'dead' AND NEW.kind <> 'killproof.webhook'
     BEGIN
        INSERT INTO job (kind, state, payload, priority, due_ms, key, max_attempts, retry,
                         created_ms, updated_ms)
        SELECT 'killproof.webhook', 'available',
               json_object('url', url, 'job', NEW.id, 'kind', NEW.kind, 'key', NEW.key,
                           'attempts', NEW.deliveries - NEW.forgiven,
                           'error_class', NEW.error_class,
                           'error_message', substr(NEW.error_message, 1, 1000),
                           'died_ms', NEW.finished_ms),
               1, NEW.updated_ms, 'killproof.webhook:' || NEW.id || ':' || NEW.fence || ':' || url,
               10, 'exponential:5', NEW.updated_ms, NEW.updated_ms
          FROM webhook;
       END"""


def _ensure_table(tx: Transaction) -> None:
    version = tx.row(VERSION)
    if version == (SCHEMA_VERSION,):
        return
    if version is not None or tx.row(FIND_TABLE) is not None:
        raise FileRefused(
            f"{tx.path} has a table 'webhook' that is not this killproof's: "
            "rename it, or upgrade killproof"
        )
    tx.change(CREATE)
    tx.change(ON_DEATH)
    tx.change(SET_VERSION, {"version": SCHEMA_VERSION})
