/* The shim: every file call of a process, seen from underneath (LD_PRELOAD).
 *
 * It stands between a program and libc's file calls, whatever the program's language, and watches
 * the files whose absolute name begins with one prefix.  It counts the calls; it kills or stops
 * the process before or after the n-th; it fails the n-th of a kind with an errno or a short
 * write; it records the calls of all processes in one log; and it shifts the wall clock.
 *
 * The supervisor and all processes share one mapped file, `struct control`: rules and the clock go
 * in, counters come out.  `control.py` mirrors it, `calls.py` the enums, `log.py` the records.
 *
 * The log is a total order.  Each record is one writev() on an O_APPEND descriptor, which Linux
 * appends under the file's lock.  A call has a record before it and one after it, so its effect
 * lies between the two; a process killed in between leaves a BEGIN without an END, and the reader
 * must then believe both that the call happened and that it did not.  What a process does after a
 * call is recorded after that call's END: a lock handed on, an acknowledgement, another's fsync.
 *
 * Rules of this file.  The real calls are made with syscall(), so nothing here can meet itself and
 * no symbol must be looked up first.  No lock and no allocation: it runs in signal handlers and in
 * forked children of threaded processes.  Files that are watched are never opened by it, because
 * closing a descriptor drops the process's POSIX locks; an O_PATH descriptor of a folder does not.
 *
 * It does not see: stores to mapped memory (the -shm), calls that libc makes inside itself (stdio,
 * lockf, aio), splice, io_uring, a truncating open through a link from outside the prefix, a child
 * whose environment was emptied, and programs without libc (Go, static binaries).  The offset of a
 * write is where the descriptor stood just before it, or at the end just after: wrong where
 * processes that share one write at once.  A wait until a wall clock time (sem_timedwait) goes by
 * the true clock, whatever the shifted one says: under a shift, wait on the monotonic clock.
 */

#undef _FORTIFY_SOURCE /* Its inline versions of open and read would collide with ours. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8, "64-bit Linux only: on it off_t and off64_t are one type");

/* ---- What is shared with Python. */

enum kind {
    KIND_NONE, KIND_OPEN, KIND_CLOSE, KIND_WRITE, KIND_FSYNC, KIND_FDATASYNC, KIND_SYNC_RANGE,
    KIND_TRUNCATE, KIND_ALLOCATE, KIND_RENAME, KIND_UNLINK, KIND_MKDIR, KIND_RMDIR, KIND_LINK,
    KIND_LOCK, KIND_UNLOCK, KIND_GETLOCK, KIND_MAP, KINDS = 20
};

enum file {
    FILE_NONE, FILE_DATABASE, FILE_WAL, FILE_SHM, FILE_JOURNAL, FILE_TURNSTILE, FILE_GATE,
    FILE_WORKERS, FILE_FAILED, FILE_DIRECTORY, FILE_OTHER, FILES = 12
};

enum action { ACTION_NONE, ACTION_SIGNAL_BEFORE, ACTION_SIGNAL_AFTER, ACTION_FAIL, ACTION_SHORT };

enum type { TYPE_NONE, TYPE_START, TYPE_BEGIN, TYPE_END, TYPE_NOTE, TYPE_SIGNAL, TYPE_SEEN,
            TYPE_BLIND };

#define MAGIC 0x314b4f4f5250504bULL  /* "KPPROOK1" in memory */
#define TAIL 0x454e4f44U             /* "DONE": the last four bytes of a whole record */
#define RULES 16
#define SLOT_RULE 0x80000000U        /* no pid is that large */
#define MARK_INJECTED 1              /* the result is the shim's, not the kernel's */
#define MARK_AFTER 2                 /* of a SIGNAL: after the call, not before it */

struct rule {
    uint32_t enabled;
    uint32_t epoch;                  /* changes when the rule does: its counts start anew */
    uint32_t kinds, files;           /* bit masks over the enums */
    uint32_t pid;                    /* 0: any process; SLOT_RULE | slot: the one in that slot */
    uint32_t action;
    int64_t value;                   /* signal, errno, or bytes (0: half) */
    uint64_t first;                  /* fires at the first-th matching call of a process, from 1 */
    uint64_t times;                  /* how often it fires, over all processes */
    uint64_t hits;                   /* how often it has */
    uint64_t victim;                 /* of the newest hit: pid | file << 32; 0: none yet */
};

struct slot {                        /* one per process, written by it alone; outlives it */
    uint32_t pid;
    uint32_t armed;                  /* calls are counted and rules apply only while it is set */
    uint64_t calls;                  /* since it was armed */
    uint64_t total;                  /* since the process began */
    uint64_t last;                   /* kind | file << 8 | inside << 16 of the newest call */
    uint64_t matches[RULES];         /* epoch << 48 | matching calls since armed */
    uint64_t counts[KINDS][FILES];
    uint8_t spare[4096 - 32 - 8 * RULES - 8 * KINDS * FILES];
};

struct control {
    uint64_t magic;
    uint32_t slots;                  /* how many follow */
    uint32_t start_armed;            /* a new process begins armed */
    uint32_t record;                 /* bit mask of the kinds that go into the log */
    uint32_t used;                   /* slots handed out */
    int64_t clock_ns;                /* added to the wall clock */
    uint64_t lost;                   /* records that could not be written: the log is not whole */
    uint8_t spare[4096 - 40 - 64 * RULES];
    struct rule rules[RULES];
    char prefix[PATH_MAX], log[PATH_MAX], notes[PATH_MAX];
    struct slot slot[];
};

struct key {                         /* a file, and not another one that got its inode number */
    uint64_t device, inode, generation;
};

struct record {
    uint64_t magic;
    uint32_t bytes;                  /* of the whole record: this, path, target, data, TAIL */
    uint16_t type, kind, file, marks;
    uint32_t slot, pid, thread;
    uint64_t call;                   /* numbers the calls of a process; BEGIN and END share it */
    uint64_t number;                 /* since the process was armed; 0 when it is not */
    uint64_t time_ns;                /* CLOCK_MONOTONIC */
    struct key key;
    int64_t at;                      /* of a write: offset; -1: the end, not known before it */
    uint64_t length;                 /* asked for; END of an open: the file's size */
    int64_t result;
    uint32_t flags;
    int32_t error;
    uint32_t path_bytes, target_bytes, data_bytes, spare;
};

_Static_assert(sizeof(struct rule) == 64, "as in control.py");
_Static_assert(sizeof(struct slot) == 4096, "as in control.py");
_Static_assert(sizeof(struct control) == 4 * 4096, "as in control.py");
_Static_assert(sizeof(struct record) == 128, "as in log.py");

/* ---- What a process keeps to itself. */

struct call {
    uint32_t kind, file;
    struct key key;
    const char *path, *target;
    const struct iovec *data;        /* of a write or a note */
    int pieces;
    int append;                      /* the descriptor writes at the end, wherever that is */
    int64_t at;
    uint64_t length, flags;
    /* Filled in by enter() and leave(). */
    uint64_t id, number;
    int64_t result;
    int error, kept_errno, injected, signal;
    uint64_t bytes_max;              /* of an injected short write; 0: none */
};

enum state { UNKNOWN, IGNORED, WATCHED, NOTES }; /* UNKNOWN is looked up at first use. */

struct descriptor {
    uint32_t state, file;
    int append;
    struct key key;
};

#define DESCRIPTORS 4096             /* above it each use is looked up */
#define PIECES_MAX 512               /* of one writev that is recorded: the rest is a short write */
#define LOG_DESCRIPTOR_MIN 500       /* out of the way of shells that use small numbers */

static struct control *control;
static struct slot *slot;
static uint32_t slot_number;
static pid_t self;
static int log_descriptor = -1;
static struct stat log_file;
static size_t prefix_length, folder_length;
static struct descriptor descriptors[DESCRIPTORS];
static int (*real_clock_gettime)(clockid_t, struct timespec *);

#define ADD(place, amount) __atomic_fetch_add(place, amount, __ATOMIC_SEQ_CST)
#define GET(place) __atomic_load_n(place, __ATOMIC_SEQ_CST)
#define SET(place, value) __atomic_store_n(place, value, __ATOMIC_SEQ_CST)

/* Whether this process is observed.  A vforked child runs in its parent's memory: it is not. */
static int is_observed(void)
{
    return slot && getpid() == self;
}

static int clock_now(clockid_t clock, struct timespec *now)
{
    if (real_clock_gettime)
        return real_clock_gettime(clock, now);
    return (int)syscall(SYS_clock_gettime, clock, now);
}

/* ---- The log. */

/* Open the log if it is not open.  A program may close every descriptor it finds (daemons do) and
 * get ours for its database; so before each record it is shown to be the log still. */
static int log_is_open(void)
{
    struct stat now;
    if (log_descriptor >= 0 && fstat(log_descriptor, &now) == 0 && now.st_ino == log_file.st_ino
        && now.st_dev == log_file.st_dev)
        return 1;
    int small = (int)syscall(SYS_openat, AT_FDCWD, control->log, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (small < 0)
        return 0;
    int high = (int)syscall(SYS_fcntl, small, F_DUPFD_CLOEXEC, LOG_DESCRIPTOR_MIN);
    if (high >= 0)
        syscall(SYS_close, small);
    log_descriptor = high >= 0 ? high : small;
    return fstat(log_descriptor, &log_file) == 0;
}

/* Append one record, whole or not at all; a lost one is counted, and then no log is believed. */
static void record(const struct call *call, enum type type, uint16_t marks)
{
    int saved = errno, begins = type != TYPE_END && type != TYPE_SIGNAL;
    int is_call = type == TYPE_BEGIN || type == TYPE_END;
    if (!control->log[0] || (is_call && !(GET(&control->record) >> call->kind & 1)))
        return;
    static const uint32_t tail = TAIL;
    struct timespec now = {0};
    struct iovec parts[PIECES_MAX + 4];
    int count = 3;
    clock_now(CLOCK_MONOTONIC, &now);
    struct record head = {
        .magic = MAGIC, .type = (uint16_t)type, .kind = (uint16_t)call->kind,
        .file = (uint16_t)call->file, .marks = marks, .slot = slot_number,
        .pid = (uint32_t)self, .thread = (uint32_t)syscall(SYS_gettid),
        .call = call->id, .number = call->number,
        .time_ns = (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec,
        .key = call->key, .at = call->at, .length = call->length, .result = call->result,
        .flags = (uint32_t)call->flags, .error = call->error,
        .path_bytes = begins && call->path ? (uint32_t)strlen(call->path) : 0,
        .target_bytes = begins && call->target ? (uint32_t)strlen(call->target) : 0,
    };
    parts[0] = (struct iovec){&head, sizeof head};
    parts[1] = (struct iovec){(void *)call->path, head.path_bytes};
    parts[2] = (struct iovec){(void *)call->target, head.target_bytes};
    for (int i = 0; begins && i < call->pieces && i < PIECES_MAX; i++) {
        parts[count++] = call->data[i];
        head.data_bytes += (uint32_t)call->data[i].iov_len;
    }
    parts[count++] = (struct iovec){(void *)&tail, sizeof tail};
    head.bytes = (uint32_t)sizeof head + head.path_bytes + head.target_bytes + head.data_bytes
        + (uint32_t)sizeof tail;
    if (!log_is_open() || syscall(SYS_writev, log_descriptor, parts, count) != (long)head.bytes)
        ADD(&control->lost, 1);
    errno = saved;
}

/* ---- Which file is it? */

static int ends_with(const char *name, const char *suffix)
{
    size_t length = strlen(name), wanted = strlen(suffix);
    return length >= wanted && memcmp(name + length - wanted, suffix, wanted) == 0;
}

static uint32_t file_of_name(const char *path)
{
    static const struct { const char *suffix; uint32_t file; } suffixes[] = {
        {"-wal", FILE_WAL}, {"-shm", FILE_SHM}, {"-journal", FILE_JOURNAL},
        {".turnstile", FILE_TURNSTILE}, {".gate", FILE_GATE}, {".workers", FILE_WORKERS},
        {".failed", FILE_FAILED}, {".db", FILE_DATABASE}, {".sqlite", FILE_DATABASE},
        {".sqlite3", FILE_DATABASE},
    };
    if (strcmp(path, control->prefix) == 0)
        return FILE_DATABASE;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (ends_with(path, suffixes[i].suffix))
            return suffixes[i].file;
    return FILE_OTHER;
}

/* Also the folder that the prefix lies in: its fsync makes names durable. */
static int is_watched_name(const char *path)
{
    return strncmp(path, control->prefix, prefix_length) == 0
        || (strlen(path) == folder_length && memcmp(path, control->prefix, folder_length) == 0);
}

/* Find the key of a file without opening it.  Inode numbers are used again at once, so the third
 * part is what the file system itself tells apart by: the handle that it gives to NFS servers;
 * where it has none, the time of birth, which repeats within one tick of the kernel's clock. */
static int identify(int folder, const char *name, int flags, struct key *key, struct stat *status)
{
    _Alignas(struct file_handle) unsigned char space[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    struct file_handle *handle = (void *)space;
    struct statx born;
    int mount, follow = flags & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) ? 0 : AT_SYMLINK_FOLLOW;
    uint64_t hash = 0xcbf29ce484222325ULL; /* FNV-1a */
    if (fstatat(folder, name, status, flags) != 0)
        return 0;
    *key = (struct key){status->st_dev, status->st_ino, 0};
    handle->handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(folder, name, handle, &mount, (flags & AT_EMPTY_PATH) | follow) == 0) {
        for (unsigned i = 0; i < handle->handle_bytes; i++)
            hash = (hash ^ space[sizeof *handle + i]) * 0x100000001b3ULL;
        key->generation = hash;
    } else if (statx(folder, name, flags, STATX_BTIME, &born) == 0) {
        key->generation = (uint64_t)born.stx_btime.tv_sec * 1000000000U + born.stx_btime.tv_nsec;
    }
    return 1;
}

/* Write the name of a descriptor's file into path; 0 where it has none. */
static int name_of_descriptor(int descriptor, char path[PATH_MAX])
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0 || path[0] != '/')
        return 0;
    path[length] = 0;
    return 1;
}

/* Write the absolute name into path, with its folder as the kernel resolves it. */
static int absolute(int folder, const char *name, char path[PATH_MAX])
{
    char above[PATH_MAX];
    size_t length = name ? strlen(name) : 0;
    while (length > 1 && name[length - 1] == '/')
        length--;
    if (length == 0 || length >= PATH_MAX)
        return 0;
    memcpy(above, name, length);
    above[length] = 0;
    char *slash = strrchr(above, '/'), *last = slash ? slash + 1 : above;
    char base[NAME_MAX + 1] = "";
    if (strcmp(last, ".") != 0 && strcmp(last, "..") != 0) { /* Else the whole is a folder. */
        if (strlen(last) > NAME_MAX)
            return 0;
        strcpy(base, last);
        *last = 0;
    }
    int opened = (int)syscall(SYS_openat, folder, above[0] ? above : ".",
                              O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0)
        return 0;
    int found = name_of_descriptor(opened, path);
    syscall(SYS_close, opened);
    size_t used = found ? strlen(path) : 0;
    if (!found || used + 1 + strlen(base) >= PATH_MAX)
        return 0;
    if (base[0])
        snprintf(path + used, PATH_MAX - used, used == 1 ? "%s" : "/%s", base);
    return 1;
}

/* Fill in the call if it is about a watched name. */
static int on_path(struct call *call, int folder, const char *name, char path[PATH_MAX])
{
    int saved = errno, found = 0;
    struct stat status;
    if (is_observed() && absolute(folder, name, path) && is_watched_name(path)) {
        found = 1;
        call->path = path;
        call->file = file_of_name(path);
        if (identify(folder, name, AT_SYMLINK_NOFOLLOW, &call->key, &status)) {
            if (S_ISDIR(status.st_mode))
                call->file = FILE_DIRECTORY;
        } else {
            call->key = (struct key){0, 0, 0};
        }
    }
    errno = saved;
    return found;
}

static void forget(int descriptor)
{
    if (descriptor >= 0 && descriptor < DESCRIPTORS)
        __atomic_store_n(&descriptors[descriptor].state, UNKNOWN, __ATOMIC_RELEASE);
}

static void remember(int descriptor, const struct descriptor *known)
{
    if (descriptor < DESCRIPTORS) {
        forget(descriptor);
        descriptors[descriptor].file = known->file;
        descriptors[descriptor].append = known->append;
        descriptors[descriptor].key = known->key;
        __atomic_store_n(&descriptors[descriptor].state, known->state, __ATOMIC_RELEASE);
    }
}

/* A copy of a watched descriptor is one; of any other it is looked up at first use. */
static void remember_copy(int descriptor, int copy)
{
    if (copy < 0)
        return;
    if (descriptor >= 0 && descriptor < DESCRIPTORS && descriptors[descriptor].state == WATCHED)
        remember(copy, &descriptors[descriptor]);
    else
        forget(copy);
}

/* Find out what a descriptor is that was inherited, received or opened through a link. */
static struct descriptor look_up(int descriptor)
{
    struct descriptor known = {.state = IGNORED};
    struct stat status;
    char path[PATH_MAX];
    if (!identify(descriptor, "", AT_EMPTY_PATH, &known.key, &status))
        return known;
    if (name_of_descriptor(descriptor, path)) {
        size_t length = strlen(path);
        if (status.st_nlink == 0 && ends_with(path, " (deleted)"))
            path[length - strlen(" (deleted)")] = 0;
        known.append = (fcntl(descriptor, F_GETFL) & O_APPEND) != 0;
        if (control->notes[0] && strcmp(path, control->notes) == 0) {
            known.state = NOTES;
        } else if (is_watched_name(path)) {
            known.state = WATCHED;
            known.file = S_ISDIR(status.st_mode) ? FILE_DIRECTORY : file_of_name(path);
            struct call seen = {.file = known.file, .key = known.key, .path = path};
            record(&seen, TYPE_SEEN, 0);
        }
    }
    remember(descriptor, &known);
    return known;
}

/* Fill in the call if it is about a descriptor of a watched file, or writes to the notes. */
static int on_descriptor(struct call *call, int descriptor)
{
    int saved = errno;
    struct descriptor known = {.state = UNKNOWN};
    struct stat now;
    if (descriptor < 0 || !is_observed())
        return 0;
    if (descriptor < DESCRIPTORS) {
        known.state = __atomic_load_n(&descriptors[descriptor].state, __ATOMIC_ACQUIRE);
        known.file = descriptors[descriptor].file;
        known.append = descriptors[descriptor].append;
        known.key = descriptors[descriptor].key;
    }
    /* libc may have closed it behind our back, and the number be another file's by now. */
    if (known.state == UNKNOWN || fstat(descriptor, &now) != 0
        || now.st_ino != known.key.inode || now.st_dev != known.key.device)
        known = look_up(descriptor);
    call->file = known.file;
    call->key = known.key;
    call->append = known.append;
    errno = saved;
    return known.state == WATCHED || (known.state == NOTES && call->kind == KIND_WRITE);
}

/* ---- What befalls a call. */

/* Count a call that matches a rule, from 1; a changed rule or a new arming starts anew. */
static uint64_t count_match(uint64_t *cell, uint64_t epoch)
{
    uint64_t old = GET(cell), next;
    do {
        next = old >> 48 == (epoch & 0xffff) ? old + 1 : (epoch & 0xffff) << 48 | 1;
    } while (!__atomic_compare_exchange_n(cell, &old, next, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return next & 0xffffffffffffULL;
}

/* Take one of the times that a rule may fire: two processes never take the same one. */
static int take_hit(struct rule *rule)
{
    uint64_t hits = GET(&rule->hits);
    while (hits < GET(&rule->times))
        if (__atomic_compare_exchange_n(&rule->hits, &hits, hits + 1, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            return 1;
    return 0;
}

static const struct rule *firing_rule(const struct call *call)
{
    const struct rule *fired = NULL;
    for (int i = 0; i < RULES; i++) {
        struct rule *rule = &control->rules[i];
        if (GET(&rule->enabled) && rule->kinds >> call->kind & 1 && rule->files >> call->file & 1
            && (rule->pid == 0 || rule->pid == (uint32_t)self
                || rule->pid == (SLOT_RULE | slot_number))
            && count_match(&slot->matches[i], rule->epoch) >= rule->first
            && !fired && take_hit(rule)) {
            SET(&rule->victim, (uint32_t)self | (uint64_t)call->file << 32);
            fired = rule;
        }
    }
    return fired;
}

/* Signal this very thread, so that nothing more runs: SIGKILL ends, SIGSTOP waits for SIGCONT. */
static void strike(struct call *call, int signal, uint16_t marks)
{
    call->result = signal;
    record(call, TYPE_SIGNAL, marks);
    syscall(SYS_tgkill, self, syscall(SYS_gettid), signal);
}

/* Stand before a call: 1, make it; 0, it has failed already and errno says how. */
static int enter(struct call *call)
{
    call->kept_errno = errno;
    call->id = ADD(&slot->total, 1) + 1;
    SET(&slot->last, call->kind | call->file << 8 | 1U << 16);
    if (GET(&slot->armed)) {
        call->number = ADD(&slot->calls, 1) + 1;
        ADD(&slot->counts[call->kind][call->file], 1);
        const struct rule *rule = firing_rule(call);
        if (rule && rule->action == ACTION_SIGNAL_BEFORE)
            strike(call, (int)rule->value, 0);
        else if (rule && rule->action == ACTION_SIGNAL_AFTER)
            call->signal = (int)rule->value;
        else if (rule && rule->action == ACTION_SHORT && call->kind == KIND_WRITE)
            call->bytes_max = rule->value ? (uint64_t)rule->value : (call->length + 1) / 2;
        else if (rule && rule->action == ACTION_FAIL)
            call->error = (int)rule->value;
    }
    record(call, TYPE_BEGIN, 0);
    if (!call->error)
        return 1;
    call->result = -1;
    record(call, TYPE_END, MARK_INJECTED);
    SET(&slot->last, call->kind | call->file << 8);
    errno = call->error;
    return 0;
}

/* Stand after a call, and hand its result on. */
static long leave(struct call *call, long result)
{
    call->result = result;
    call->error = result < 0 ? errno : 0;
    record(call, TYPE_END, call->injected ? MARK_INJECTED : 0);
    SET(&slot->last, call->kind | call->file << 8);
    if (call->signal)
        strike(call, call->signal, MARK_AFTER);
    errno = result < 0 ? call->error : call->kept_errno;
    return result;
}

/* Make a call: as it is where it is not watched, else between its two records. */
#define MAKE(is_watched, call, real) \
    (!(is_watched) ? (real) : enter(&(call)) ? leave(&(call), (real)) : -1)

/* ---- Notes: what a client knows, in the same order as what the disk was told. */

/* Count and apply rules in this process, from the next call on. */
void killproof_arm(void)
{
    if (!is_observed())
        return;
    SET(&slot->armed, 0);
    SET(&slot->calls, 0);
    memset(slot->matches, 0, sizeof slot->matches);
    memset(slot->counts, 0, sizeof slot->counts);
    SET(&slot->armed, 1);
}

/* Stop counting; what was counted stays. */
void killproof_disarm(void)
{
    if (is_observed())
        SET(&slot->armed, 0);
}

static int is_word(const struct iovec *text, const char *word)
{
    size_t length = strlen(word);
    return (text->iov_len == length || (text->iov_len == length + 1
            && ((const char *)text->iov_base)[length] == '\n'))
        && memcmp(text->iov_base, word, length) == 0;
}

static void take_note(const struct iovec *text, int pieces)
{
    struct call note = {.data = text, .pieces = pieces};
    if (pieces == 1 && is_word(text, "killproof:arm"))
        killproof_arm();
    else if (pieces == 1 && is_word(text, "killproof:disarm"))
        killproof_disarm();
    else
        record(&note, TYPE_NOTE, 0);
}

/* Write a note into the log.  A program without C calls writes a line to the file of notes. */
void killproof_note(const char *text, size_t length)
{
    struct iovec piece = {(void *)text, length};
    if (is_observed())
        take_note(&piece, 1);
}

/* Find the key of a file by name, for a reader of the log; 0 when there is none. */
int killproof_file_key(const char *name, struct key *key)
{
    struct stat status;
    return identify(AT_FDCWD, name, AT_SYMLINK_NOFOLLOW, key, &status);
}

/* ---- The calls: opening and closing. */

static int open_file(int folder, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    struct call call = {.kind = KIND_OPEN, .flags = (uint64_t)flags};
    if (!on_path(&call, folder, name, path)) {
        int other = (int)syscall(SYS_openat, folder, name, flags, mode);
        forget(other);
        return other;
    }
    if (!enter(&call))
        return -1;
    int opened = (int)syscall(SYS_openat, folder, name, flags, mode), error = errno;
    struct stat status;
    struct descriptor known = {.state = WATCHED, .append = (flags & O_APPEND) != 0};
    if (opened >= 0 && identify(opened, "", AT_EMPTY_PATH, &call.key, &status)) {
        known.key = call.key;
        known.file = S_ISDIR(status.st_mode) ? FILE_DIRECTORY : file_of_name(path);
        call.file = known.file;
        call.length = (uint64_t)status.st_size;
        if (control->notes[0] && strcmp(path, control->notes) == 0)
            known = (struct descriptor){.state = NOTES, .append = known.append, .key = known.key};
        remember(opened, &known);
    }
    errno = error;
    return (int)leave(&call, opened);
}

#define MODE(flags, mode)                                        \
    mode_t mode = 0;                                             \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode = va_arg(rest, mode_t);                             \
        va_end(rest);                                            \
    }

int open(const char *name, int flags, ...)
{
    MODE(flags, mode)
    return open_file(AT_FDCWD, name, flags, mode);
}

int openat(int folder, const char *name, int flags, ...)
{
    MODE(flags, mode)
    return open_file(folder, name, flags, mode);
}

int creat(const char *name, mode_t mode)
{
    return open_file(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

/* What programs built with _FORTIFY_SOURCE call when they give no mode. */
int __open_2(const char *name, int flags);
int __openat_2(int folder, const char *name, int flags);

int __open_2(const char *name, int flags)
{
    return open_file(AT_FDCWD, name, flags, 0);
}

int __openat_2(int folder, const char *name, int flags)
{
    return open_file(folder, name, flags, 0);
}

int close(int descriptor)
{
    struct call call = {.kind = KIND_CLOSE};
    if (descriptor < 0 || descriptor >= DESCRIPTORS || descriptors[descriptor].state != WATCHED
        || !on_descriptor(&call, descriptor)) {
        forget(descriptor);
        return (int)syscall(SYS_close, descriptor);
    }
    int allowed = enter(&call);
    forget(descriptor);
    if (!allowed) {
        syscall(SYS_close, descriptor); /* Linux closes it, whatever close() says. */
        errno = call.error;
        return -1;
    }
    return (int)leave(&call, syscall(SYS_close, descriptor));
}

int dup(int descriptor)
{
    int copy = (int)syscall(SYS_dup, descriptor);
    remember_copy(descriptor, copy);
    return copy;
}

int dup2(int descriptor, int copy)
{
    int result = descriptor == copy ? (int)syscall(SYS_fcntl, descriptor, F_GETFD)
                                    : (int)syscall(SYS_dup3, descriptor, copy, 0);
    if (result >= 0 && descriptor != copy)
        remember_copy(descriptor, copy);
    return result < 0 ? -1 : copy;
}

int dup3(int descriptor, int copy, int flags)
{
    int result = (int)syscall(SYS_dup3, descriptor, copy, flags);
    if (result >= 0)
        remember_copy(descriptor, copy);
    return result;
}

/* ---- The calls: writing. */

static ssize_t write_pieces(struct call *call, int descriptor, const struct iovec *pieces,
                            int count, off_t at, int flags)
{
    struct iovec part;
    if (call->file == FILE_NONE) { /* The file of notes. */
        take_note(pieces, count);
        return syscall(SYS_pwritev2, descriptor, pieces, count, at, 0, flags);
    }
    if (count > PIECES_MAX)
        count = PIECES_MAX;
    call->data = pieces;
    call->pieces = count;
    call->flags = (uint64_t)flags;
    for (int i = 0; i < count; i++)
        call->length += pieces[i].iov_len;
    call->append |= (flags & RWF_APPEND) != 0; /* At the end, whatever the offset. */
    call->at = call->append ? -1 : at >= 0 ? at : lseek(descriptor, 0, SEEK_CUR);
    if (!enter(call))
        return -1;
    if (call->bytes_max && count > 0 && call->bytes_max < call->length) {
        part = pieces[0];
        part.iov_len = part.iov_len < call->bytes_max ? part.iov_len : call->bytes_max;
        pieces = &part;
        count = 1;
        call->injected = 1;
    }
    ssize_t result = syscall(SYS_pwritev2, descriptor, pieces, count, at, 0, flags);
    struct stat now;
    if (call->append && result >= 0) /* One that names an offset does not move the descriptor. */
        call->at = (at < 0 || fstat(descriptor, &now) != 0 ? lseek(descriptor, 0, SEEK_CUR)
                                                           : now.st_size) - result;
    return leave(call, result);
}

ssize_t write(int descriptor, const void *data, size_t bytes)
{
    struct iovec piece = {(void *)data, bytes};
    struct call call = {.kind = KIND_WRITE};
    if (!on_descriptor(&call, descriptor))
        return syscall(SYS_write, descriptor, data, bytes);
    return write_pieces(&call, descriptor, &piece, 1, -1, 0);
}

ssize_t pwrite(int descriptor, const void *data, size_t bytes, off_t at)
{
    struct iovec piece = {(void *)data, bytes};
    struct call call = {.kind = KIND_WRITE};
    if (at < 0 || !on_descriptor(&call, descriptor))
        return syscall(SYS_pwrite64, descriptor, data, bytes, at);
    return write_pieces(&call, descriptor, &piece, 1, at, 0);
}

ssize_t writev(int descriptor, const struct iovec *pieces, int count)
{
    struct call call = {.kind = KIND_WRITE};
    if (!on_descriptor(&call, descriptor))
        return syscall(SYS_writev, descriptor, pieces, count);
    return write_pieces(&call, descriptor, pieces, count, -1, 0);
}

ssize_t pwritev2(int descriptor, const struct iovec *pieces, int count, off_t at, int flags)
{
    struct call call = {.kind = KIND_WRITE};
    if (at < -1 || !on_descriptor(&call, descriptor))
        return syscall(SYS_pwritev2, descriptor, pieces, count, at, 0, flags);
    return write_pieces(&call, descriptor, pieces, count, at, flags);
}

ssize_t pwritev(int descriptor, const struct iovec *pieces, int count, off_t at)
{
    if (at < 0) { /* Here -1 is an error, not "where the descriptor stands". */
        errno = EINVAL;
        return -1;
    }
    return pwritev2(descriptor, pieces, count, at, 0);
}

/* Copies inside the kernel show no bytes.  They are refused as file systems without them do, and
 * the program falls back to writes. */
ssize_t sendfile(int to, int from, off_t *at, size_t bytes)
{
    struct call call = {.kind = KIND_WRITE};
    if (on_descriptor(&call, to)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_sendfile, to, from, at, bytes);
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t bytes,
                        unsigned flags)
{
    struct call call = {.kind = KIND_WRITE};
    if (on_descriptor(&call, to)) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return syscall(SYS_copy_file_range, from, from_at, to, to_at, bytes, flags);
}

/* A writable map changes a file unseen: the log says so, and the reader must not trust its images.
 * The -shm and the turnstile are memory that processes share: both start anew after a crash. */
void *mmap(void *where, size_t bytes, int protection, int flags, int descriptor, off_t at)
{
    struct call call = {.kind = KIND_MAP, .at = at, .length = bytes};
    int shared = (flags & MAP_TYPE) == MAP_SHARED || (flags & MAP_TYPE) == MAP_SHARED_VALIDATE;
    if (descriptor >= 0 && shared && protection & PROT_WRITE && on_descriptor(&call, descriptor)) {
        if (GET(&slot->armed))
            ADD(&slot->counts[KIND_MAP][call.file], 1);
        if (call.file != FILE_SHM && call.file != FILE_TURNSTILE)
            record(&call, TYPE_BLIND, 0);
    }
    return (void *)syscall(SYS_mmap, where, bytes, protection, flags, descriptor, at);
}

/* ---- The calls: making durable, cutting, reserving. */

int fsync(int descriptor)
{
    struct call call = {.kind = KIND_FSYNC};
    return (int)MAKE(on_descriptor(&call, descriptor), call, syscall(SYS_fsync, descriptor));
}

int fdatasync(int descriptor)
{
    struct call call = {.kind = KIND_FDATASYNC};
    return (int)MAKE(on_descriptor(&call, descriptor), call, syscall(SYS_fdatasync, descriptor));
}

int sync_file_range(int descriptor, off64_t at, off64_t bytes, unsigned flags)
{
    struct call call = {
        .kind = KIND_SYNC_RANGE, .at = at, .length = (uint64_t)bytes, .flags = flags};
    return (int)MAKE(on_descriptor(&call, descriptor), call,
                     syscall(SYS_sync_file_range, descriptor, at, bytes, flags));
}

int ftruncate(int descriptor, off_t bytes)
{
    struct call call = {.kind = KIND_TRUNCATE, .length = (uint64_t)bytes};
    return (int)MAKE(on_descriptor(&call, descriptor), call,
                     syscall(SYS_ftruncate, descriptor, bytes));
}

int truncate(const char *name, off_t bytes)
{
    char path[PATH_MAX];
    struct call call = {.kind = KIND_TRUNCATE, .length = (uint64_t)bytes};
    return (int)MAKE(on_path(&call, AT_FDCWD, name, path), call,
                     syscall(SYS_truncate, name, bytes));
}

int fallocate(int descriptor, int mode, off_t at, off_t bytes)
{
    struct call call = {
        .kind = KIND_ALLOCATE, .at = at, .length = (uint64_t)bytes, .flags = (uint64_t)mode};
    return (int)MAKE(on_descriptor(&call, descriptor), call,
                     syscall(SYS_fallocate, descriptor, mode, at, bytes));
}

int posix_fallocate(int descriptor, off_t at, off_t bytes)
{
    int saved = errno, failed = fallocate(descriptor, 0, at, bytes) != 0 ? errno : 0;
    errno = saved;
    return failed;
}

/* ---- The calls: names. */

/* Fill in a call on two names: the one it is about, and the one it makes. */
static int on_two_paths(struct call *call, int folder, const char *name, char path[PATH_MAX],
                        int target_folder, const char *target, char target_path[PATH_MAX])
{
    struct call made = {.kind = call->kind};
    int from = on_path(call, folder, name, path);
    int to = on_path(&made, target_folder, target, target_path);
    struct stat status;
    if (!from && !to)
        return 0;
    if (!from) { /* It comes from outside the prefix. */
        call->file = file_of_name(target_path);
        call->path = absolute(folder, name, path) ? path : NULL;
        identify(folder, name, AT_SYMLINK_NOFOLLOW, &call->key, &status);
    }
    call->target = to || absolute(target_folder, target, target_path) ? target_path : NULL;
    return 1;
}

static int rename_file(int folder, const char *name, int target_folder, const char *target,
                       unsigned flags)
{
    char path[PATH_MAX], target_path[PATH_MAX];
    struct call call = {.kind = KIND_RENAME, .flags = flags};
    if (on_two_paths(&call, folder, name, path, target_folder, target, target_path)
        && !enter(&call))
        return -1;
    long result = syscall(SYS_renameat2, folder, name, target_folder, target, flags);
    return (int)(call.id ? leave(&call, result) : result);
}

int rename(const char *name, const char *target)
{
    return rename_file(AT_FDCWD, name, AT_FDCWD, target, 0);
}

int renameat(int folder, const char *name, int target_folder, const char *target)
{
    return rename_file(folder, name, target_folder, target, 0);
}

int renameat2(int folder, const char *name, int target_folder, const char *target, unsigned flags)
{
    return rename_file(folder, name, target_folder, target, flags);
}

int linkat(int folder, const char *name, int target_folder, const char *target, int flags)
{
    char path[PATH_MAX], target_path[PATH_MAX];
    struct call call = {.kind = KIND_LINK, .flags = (uint64_t)flags};
    struct stat status;
    if (on_two_paths(&call, folder, name, path, target_folder, target, target_path)) {
        if (flags & (AT_SYMLINK_FOLLOW | AT_EMPTY_PATH)) /* How a nameless file gets a name. */
            identify(folder, name, flags & AT_EMPTY_PATH, &call.key, &status);
        if (!enter(&call))
            return -1;
    }
    long result = syscall(SYS_linkat, folder, name, target_folder, target, flags);
    return (int)(call.id ? leave(&call, result) : result);
}

int link(const char *name, const char *target)
{
    return linkat(AT_FDCWD, name, AT_FDCWD, target, 0);
}

int unlinkat(int folder, const char *name, int flags)
{
    char path[PATH_MAX];
    struct call call = {.kind = flags & AT_REMOVEDIR ? KIND_RMDIR : KIND_UNLINK};
    return (int)MAKE(on_path(&call, folder, name, path), call,
                     syscall(SYS_unlinkat, folder, name, flags));
}

int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

int rmdir(const char *name)
{
    return unlinkat(AT_FDCWD, name, AT_REMOVEDIR);
}

int remove(const char *name)
{
    struct stat status;
    int is_folder = lstat(name, &status) == 0 && S_ISDIR(status.st_mode);
    return unlinkat(AT_FDCWD, name, is_folder ? AT_REMOVEDIR : 0);
}

int mkdirat(int folder, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    struct call call = {.kind = KIND_MKDIR};
    struct stat status;
    if (!on_path(&call, folder, name, path))
        return (int)syscall(SYS_mkdirat, folder, name, mode);
    call.file = FILE_DIRECTORY;
    if (!enter(&call))
        return -1;
    long result = syscall(SYS_mkdirat, folder, name, mode);
    if (result == 0)
        identify(folder, name, AT_SYMLINK_NOFOLLOW, &call.key, &status);
    return (int)leave(&call, result);
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

/* ---- The calls: locks. */

static int fcntl_any(int descriptor, int command, void *argument)
{
    const struct flock *lock = argument;
    struct call call = {.kind = KIND_NONE};
    switch (command) {
    case F_SETLK: case F_SETLKW: case F_OFD_SETLK: case F_OFD_SETLKW:
        call.kind = lock->l_type == F_UNLCK ? KIND_UNLOCK : KIND_LOCK;
        break;
    case F_GETLK: case F_OFD_GETLK:
        call.kind = KIND_GETLOCK;
        break;
    default: {
        int result = (int)syscall(SYS_fcntl, descriptor, command, argument);
        if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
            remember_copy(descriptor, result);
        else if (command == F_SETFL)
            forget(descriptor); /* O_APPEND may have changed. */
        return result;
    }
    }
    call.at = lock->l_start;
    call.length = (uint64_t)lock->l_len;
    call.flags = (uint64_t)command | (uint64_t)lock->l_type << 16;
    return (int)MAKE(on_descriptor(&call, descriptor), call,
                     syscall(SYS_fcntl, descriptor, command, argument));
}

int fcntl(int descriptor, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return fcntl_any(descriptor, command, argument);
}

int flock(int descriptor, int operation)
{
    struct call call = {
        .kind = operation & LOCK_UN ? KIND_UNLOCK : KIND_LOCK, .flags = (uint64_t)operation};
    return (int)MAKE(on_descriptor(&call, descriptor), call,
                     syscall(SYS_flock, descriptor, operation));
}

/* ---- The wall clock.  CLOCK_MONOTONIC never moves, nor does what the kernel itself waits for. */

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = clock_now(clock, now);
    if (result == 0 && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t shift = GET(&control->clock_ns);
        now->tv_sec += shift / 1000000000;
        now->tv_nsec += shift % 1000000000;
        if (now->tv_nsec < 0) {
            now->tv_sec -= 1;
            now->tv_nsec += 1000000000;
        } else if (now->tv_nsec >= 1000000000) {
            now->tv_sec += 1;
            now->tv_nsec -= 1000000000;
        }
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    if (zone)
        *(struct timezone *)zone = (struct timezone){0, 0};
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
        return -1;
    *now = (struct timeval){precise.tv_sec, precise.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *copy)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (copy)
        *copy = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

/* ---- The second names: on 64-bit Linux off_t and off64_t are one type. */

#if __has_attribute(copy) /* GCC warns of an alias with other attributes; clang has no such one. */
#define ALIAS(name, of) extern __typeof(of) name __attribute__((alias(#of), copy(of)))
#else
#define ALIAS(name, of) extern __typeof(of) name __attribute__((alias(#of)))
#endif

ALIAS(open64, open);
ALIAS(openat64, openat);
ALIAS(creat64, creat);
ALIAS(__open64_2, __open_2);
ALIAS(__openat64_2, __openat_2);
ALIAS(pwrite64, pwrite);
ALIAS(pwritev64, pwritev);
ALIAS(pwritev64v2, pwritev2);
ALIAS(sendfile64, sendfile);
ALIAS(mmap64, mmap);
ALIAS(ftruncate64, ftruncate);
ALIAS(truncate64, truncate);
ALIAS(fallocate64, fallocate);
ALIAS(posix_fallocate64, posix_fallocate);
ALIAS(fcntl64, fcntl);

/* ---- The beginning of a process, and of a forked child. */

static void attach(void)
{
    uint32_t number = ADD(&control->used, 1);
    self = getpid();
    slot = NULL;
    if (number >= control->slots) /* The supervisor sees `used` beyond `slots`, and says so. */
        return;
    slot_number = number;
    slot = &control->slot[number];
    SET(&slot->armed, control->start_armed);
    SET(&slot->pid, (uint32_t)self);
    struct iovec name = {program_invocation_short_name, strlen(program_invocation_short_name)};
    struct call call = {.data = &name, .pieces = 1};
    record(&call, TYPE_START, 0);
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("KILLPROOF_SHIM");
    struct stat status;
    struct control *mapped = MAP_FAILED;
    *(void **)&real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (!path || !path[0])
        return;
    int descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (descriptor >= 0 && fstat(descriptor, &status) == 0)
        mapped = (void *)syscall(SYS_mmap, NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                                 descriptor, 0);
    syscall(SYS_close, descriptor);
    if (mapped == MAP_FAILED || (size_t)status.st_size < sizeof *mapped || mapped->magic != MAGIC
        || (size_t)status.st_size < sizeof *mapped + mapped->slots * sizeof *slot) {
        dprintf(2, "killproof shim: %s is no control file of this version\n", path);
        return;
    }
    prefix_length = strlen(mapped->prefix);
    const char *slash = strrchr(mapped->prefix, '/');
    folder_length = slash ? (size_t)(slash - mapped->prefix) : 0;
    control = mapped;
    pthread_atfork(NULL, NULL, attach);
    attach();
}
