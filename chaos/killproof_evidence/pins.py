"""Pinned versions of other people's queues, dependencies too; the queue itself comes first.

Judge and bench run the same versions, so that a number and a verdict are about the same code; an
environment that one of them has made serves the other as well.

The hashes are of wheels that are the same on every platform. Where a package ships a wheel per
platform the version alone is pinned, and pip takes its environment without --require-hashes.
"""

from killproof_evidence.isolated import Package

_AIOSQLITE = Package(
    name="aiosqlite",
    version="0.22.1",
    sha256=("21c002eb13823fad740196c5a2e9d8e62f6243bd9e7e4a1f87fb5e44ecb4fceb",),
)
_CLICK = Package(
    name="click",
    version="8.5.1",
    sha256=("8bb5376d2006950386f8c6427613334a2acadc5f559cb80e638d00b4df957e37",),
)
_CRONITER = Package(
    name="croniter",
    version="7.0.0",
    sha256=("92090bce3cef195a037a46b78430c4cdd6250e90671d9d7dcd9e486147daaca4",),
)
_PYTHON_DATEUTIL = Package(
    name="python-dateutil",
    version="4.0.0",
    sha256=("a5e246f79eb80475e691bf93862cead98decd8a498cf53ba0516fcdc0f50dc1c",),
)
_TZDATA = Package(
    name="tzdata",
    version="2026.6",
    sha256=("0a10eec6e13ef16b627fabed9a5f2ba61a62b1c67f327305f4e7e412a70b4aec",),
)

TINYJOBS = (
    Package(
        name="tinyjobs",
        version="0.6.0",
        sha256=("3895f70ae1c19e0e8c00d80479e5da5bdb717a8c76442c2217640975dacd0ac9",),
    ),
)
LOCALQUEUE = (Package(name="localqueue", version="1.4.1"),)
LITEQUEUE = (
    Package(
        name="litequeue",
        version="0.9",
        sha256=("344312748f9d118253ecaa2fb82d432ab6f63dd3bd5c40922a63933bc47cd2e3",),
    ),
)
HUEY = (
    Package(
        name="huey",
        version="3.5.4",
        sha256=("a3b68953fc62fbbbfe15cd6c48bef9d8072a267234c647121c31ec466e35e8e8",),
    ),
)
PERSIST_QUEUE = (
    Package(
        name="persist-queue",
        version="1.1.0",
        sha256=("be431ad90cd57621be5563dcd2424e21d81db3bb8cdfb918ade722369d640763",),
    ),
)
SIMPLEBROKER = (
    Package(
        name="simplebroker",
        version="8.7.2",
        sha256=("12abe632110905ee45911d4a21a690f100bddb8dc94ab9969f2ece588291e352",),
    ),
)
POTATOQ = (
    Package(
        name="potatoq",
        version="26.1a8",
        sha256=("3d696f55c1fd701adf0a7bb4f3cabe1f81ec0bf4cfa6768f8228969a1afe8809",),
    ),
)
GIGQ = (
    Package(
        name="gigq",
        version="0.5.1",
        sha256=("f9908e96090c153cfba64a8b48d29a8ffaf452939518fe822e4f0ff13e105cca",),
    ),
)
SPOOLCTL = (
    Package(
        name="spoolctl",
        version="0.4.11",
        sha256=("aa12d28e82865a56a6ceb66489b9d04553f013f992c70cb7619e28fe3032a06f",),
    ),
)
FIRM_QUEUE = (
    Package(
        name="firm-queue",
        version="1.0.0",
        sha256=("c3692d5db57c84ea01445a9f67b6b5cf05f4879842f31efb948f9c35af397980",),
    ),
    Package(
        name="firm-core",
        version="1.0.0",
        sha256=("5773e0f8add3b98d210f858da43adbd7f64b8ab399af879553dcacc1703777a2",),
    ),
    Package(name="sqlalchemy", version="2.1.9"),
    Package(
        name="alembic",
        version="1.20.1",
        sha256=("9970712cfb81ea26c8658d378aaa5b8f6ff9146e5bb111d70497c164016cf598",),
    ),
    Package(
        name="mako",
        version="1.4.3",
        sha256=("723296007c870bfd6b3f0c3230dba7198096e5269297ebf5e4eff9e7ffa39d4f",),
    ),
    Package(name="markupsafe", version="3.0.4"),
    _CLICK,
    _CRONITER,
    _PYTHON_DATEUTIL,
    _TZDATA,
    Package(
        name="typing-extensions",
        version="4.16.0",
        sha256=("481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8",),
    ),
)
BALLAST = (
    Package(
        name="ballast.py",
        version="0.1.1",
        sha256=("188cf57f397c6c873935e01fc2c33b3e8bdd595e4fb2d72429da9c7105489b41",),
    ),
)
UNHINGED = (
    Package(
        name="unhinged",
        version="0.2.0",
        sha256=("1e6bc42ea73bc29ac73b573166b999e7050522d74eb3e3657f0e0d86abad9d41",),
    ),
)
CAIRNQ = (
    Package(
        name="cairnq",
        version="0.15.1",
        sha256=("57c77c15a367831d37a6d1d940cc27d49a873d5b8e6cd3d01b0b46435ce36e52",),
    ),
    _AIOSQLITE,
)
PULSE_QUEUE = (
    Package(
        name="pulse-queue",
        version="0.1.0",
        sha256=("5fc1e1a09138d933abd54314ad68394d34dce3c297ae08d2ae572a301b60d6e2",),
    ),
)
QLER = (
    Package(
        name="qler",
        version="0.5.1",
        sha256=("0fdb4096006f5625adb10df3e5343d826c43c30680f174c8d56c2490d2fd5643",),
    ),
    Package(
        name="sqler",
        version="1.2026.4.4",
        sha256=("8227c76d92e9db8155278dc055b7f734a3b09467424c69dcf50b491a4ea471e4",),
    ),
    _AIOSQLITE,
    Package(
        name="python-ulid",
        version="4.1.0",
        sha256=("46992012f74638f286fcaff33904ba2510e51d9018b73af8c3f9b65014d52c1b",),
    ),
    _CLICK,
    _CRONITER,
    _PYTHON_DATEUTIL,
    _TZDATA,
    Package(name="pydantic", version="2.14.4"),
    Package(name="pydantic-core", version="2.50.5"),
    Package(name="annotated-types", version="0.8.0"),
    Package(name="typing-inspection", version="0.4.5"),
    Package(name="typing-extensions", version="4.16.0"),
)

#: For Node; what these need in turn is npm's choice within the ranges that they declare.
PLAINJOB = (
    Package(name="plainjob", version="0.0.14"),
    Package(name="better-sqlite3", version="11.10.0"),
    Package(name="cron-parser", version="4.9.0"),
)
LITEQUE = (
    Package(name="liteque", version="0.8.0"),
    Package(name="better-sqlite3", version="11.3.0"),
    Package(name="drizzle-orm", version="0.33.0"),
    Package(name="async-mutex", version="0.4.1"),
)
