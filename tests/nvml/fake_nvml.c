/* Tests only: a stand-in for libnvidia-ml.so.1 that shows H100s as a text file says, read anew at every call.
 *
 *   gcc -shared -fPIC -o libnvidia-ml.so.1 fake_nvml.c
 *
 * FAKE_NVML_COUNT: GPUs in the machine (8). FAKE_NVML_STATE: the file. Its lines:
 *
 *   init CODE                    nvmlInit returns this error
 *   wait CODE                    waiting for events returns this error, when there is none
 *   event NUMBER GPU XID         an XID event; a process hears those whose number is above all it saw at its start
 *   GPU KEY VALUE KEY VALUE ...  GPU is the physical number, or * for all; later lines win
 *
 * Keys: gone 1 (not listed, the others are numbered anew), lost 1 (every call: GPU is lost), error CODE (every call but
 * the handle's), power_error CODE and ecc_error CODE (those calls alone), hang 1 (reading its power never returns), slow MS (before its power), temp, power (mW), limit (mW),
 * clk, reasons (bit mask, 0x allowed), sbe, ecc, ecc_agg, remap_pending, remap_failed, recovery, mem (MiB used), numa,
 * mig, mig_pending, instances (1g.10gb+1g.10gb), links (number), links_down (the first n), direct 1 (links go to the
 * neighbours in a ring instead of to switches), procs (PID:MIB+PID:MIB), deaf 1 (events can't be registered).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int R;
typedef void *D;
typedef unsigned long long u64;

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, LOST = 15 };

static int initialized = 0;
static long heard = -1;

static int machine_count(void) {
    char *text = getenv("FAKE_NVML_COUNT");
    return text ? atoi(text) : 8;
}

/* The value of a key of a GPU as text, "" where the file does not name it. */
static const char *text_of(int gpu, const char *key, char *out, size_t size) {
    out[0] = 0;
    char *path = getenv("FAKE_NVML_STATE"), line[8192];
    FILE *file = path ? fopen(path, "r") : 0;
    if (!file) return out;
    while (fgets(line, sizeof line, file)) {
        char *save = 0, *word = strtok_r(line, " \t\n", &save);
        if (!word || !(strcmp(word, "*") == 0 || (word[0] >= '0' && word[0] <= '9' && atoi(word) == gpu))) continue;
        while ((word = strtok_r(0, " \t\n", &save))) {
            char *value = strtok_r(0, " \t\n", &save);
            if (!value) break;
            if (strcmp(word, key) == 0) snprintf(out, size, "%s", value);
        }
    }
    fclose(file);
    return out;
}

static u64 number(int gpu, const char *key, u64 otherwise) {
    char text[256];
    text_of(gpu, key, text, sizeof text);
    return text[0] ? strtoull(text, 0, 0) : otherwise;
}

static int code_of(const char *what, int otherwise) {
    char *path = getenv("FAKE_NVML_STATE"), line[8192], word[64];
    FILE *file = path ? fopen(path, "r") : 0;
    int code = otherwise, found;
    if (!file) return code;
    while (fgets(line, sizeof line, file)) if (sscanf(line, "%63s %d", word, &found) == 2 && !strcmp(word, what)) code = found;
    fclose(file);
    return code;
}

/* Handles: physical number + 1 for a GPU, (physical number + 1) * 1000 + n + 1 for its MIG instance n. */
static int gpu_of(D handle) {
    long n = (long)(intptr_t)handle;
    return (int)(n >= 1000 ? n / 1000 : n) - 1;
}
static int instance_of(D handle) {
    long n = (long)(intptr_t)handle;
    return n >= 1000 ? (int)(n % 1000) - 1 : -1;
}

static R check(D handle) {
    if (!initialized) return UNINITIALIZED;
    if (number(gpu_of(handle), "lost", 0) || number(gpu_of(handle), "gone", 0)) return LOST;
    return (R)number(gpu_of(handle), "error", 0);
}
#define CHECK(d) do { R r_ = check(d); if (r_) return r_; } while (0)

/* ---------------------------------------------------------------- the library, the devices */

R nvmlInitWithFlags(unsigned flags) { (void)flags; R code = code_of("init", OK); initialized = !code; return code; }
R nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
R nvmlInit(void) { return nvmlInitWithFlags(0); }
R nvmlShutdown(void) { initialized = 0; return OK; }
const char *nvmlErrorString(R code) {
    return code == OK ? "Success" : code == LOST ? "GPU is lost" : code == NOT_SUPPORTED ? "Not Supported" : "Error";
}
R nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "580.65.06"); return OK; }

R nvmlDeviceGetCount_v2(unsigned *count) {
    if (!initialized) return UNINITIALIZED;
    *count = 0;
    for (int gpu = 0; gpu < machine_count(); gpu++) *count += !number(gpu, "gone", 0);
    return OK;
}
R nvmlDeviceGetHandleByIndex_v2(unsigned index, D *handle) {
    if (!initialized) return UNINITIALIZED;
    for (int gpu = 0; gpu < machine_count(); gpu++) {
        if (number(gpu, "gone", 0)) continue;
        if (index-- == 0) {
            *handle = (D)(intptr_t)(gpu + 1);
            return number(gpu, "lost", 0) ? LOST : OK;
        }
    }
    return INVALID;
}
R nvmlDeviceGetIndex(D d, unsigned *index) { CHECK(d); *index = (unsigned)gpu_of(d); return OK; }

static const char *profile_of(D d, char *out, size_t size) {
    char all[4096], *save = 0;
    text_of(gpu_of(d), "instances", all, sizeof all);
    char *word = strtok_r(all, "+", &save);
    for (int n = instance_of(d); word && n > 0; n--) word = strtok_r(0, "+", &save);
    snprintf(out, size, "%s", word ? word : "");
    return out;
}
R nvmlDeviceGetName(D d, char *out, unsigned size) {
    char profile[64];
    CHECK(d);
    if (instance_of(d) < 0) snprintf(out, size, "NVIDIA H100 80GB HBM3");
    else snprintf(out, size, "NVIDIA H100 80GB HBM3 MIG %s", profile_of(d, profile, sizeof profile));
    return OK;
}
R nvmlDeviceGetUUID(D d, char *out, unsigned size) {
    CHECK(d);
    if (instance_of(d) < 0) snprintf(out, size, "GPU-%08d-0000-0000-0000-000000000000", gpu_of(d));
    else snprintf(out, size, "MIG-%08d-0000-0000-0000-%012d", gpu_of(d), instance_of(d));
    return OK;
}
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;
static void pci_of(int gpu, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x10u + (unsigned)gpu;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
}
R nvmlDeviceGetPciInfo_v3(D d, Pci *pci) { CHECK(d); pci_of(gpu_of(d), pci); return OK; }
R nvmlDeviceGetMemoryAffinity(D d, unsigned size, unsigned long *set, unsigned scope) {
    (void)scope;
    CHECK(d);
    memset(set, 0, size * sizeof *set);
    set[0] = 1ul << number(gpu_of(d), "numa", (u64)gpu_of(d) / 4);
    return OK;
}

/* ---------------------------------------------------------------- readings */

typedef struct { u64 total, free, used; } Memory;
R nvmlDeviceGetMemoryInfo(D d, Memory *memory) {
    CHECK(d);
    memory->total = 81559ull << 20;
    memory->used = number(gpu_of(d), "mem", 0) << 20;
    memory->free = memory->total - memory->used;
    return OK;
}
typedef struct { unsigned gpu, memory; } Use;
R nvmlDeviceGetUtilizationRates(D d, Use *use) { CHECK(d); use->gpu = use->memory = 0; return OK; }
R nvmlDeviceGetTemperature(D d, unsigned sensor, unsigned *out) {
    (void)sensor;
    CHECK(d);
    *out = (unsigned)number(gpu_of(d), "temp", 35);
    return OK;
}
R nvmlDeviceGetPowerUsage(D d, unsigned *out) {
    CHECK(d);
    usleep((useconds_t)number(gpu_of(d), "slow", 0) * 1000);
    while (number(gpu_of(d), "hang", 0)) usleep(100000);
    *out = (unsigned)number(gpu_of(d), "power", 70000);
    return (R)number(gpu_of(d), "power_error", 0);
}
R nvmlDeviceGetEnforcedPowerLimit(D d, unsigned *out) {
    CHECK(d);
    *out = (unsigned)number(gpu_of(d), "limit", 700000);
    return OK;
}
R nvmlDeviceGetClockInfo(D d, unsigned type, unsigned *out) {
    (void)type;
    CHECK(d);
    *out = (unsigned)number(gpu_of(d), "clk", 1980);
    return OK;
}
R nvmlDeviceGetMaxClockInfo(D d, unsigned type, unsigned *out) { (void)type; CHECK(d); *out = 1980; return OK; }
R nvmlDeviceGetCurrentClocksEventReasons(D d, u64 *out) { CHECK(d); *out = number(gpu_of(d), "reasons", 1); return OK; }
R nvmlDeviceGetTotalEccErrors(D d, unsigned type, unsigned counter, u64 *out) {
    CHECK(d);
    *out = type == 0 ? number(gpu_of(d), "sbe", 0) : number(gpu_of(d), counter ? "ecc_agg" : "ecc", 0);
    return (R)number(gpu_of(d), "ecc_error", 0);
}
R nvmlDeviceGetRemappedRows(D d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    CHECK(d);
    *corrected = *uncorrected = 0;
    *pending = (unsigned)number(gpu_of(d), "remap_pending", 0);
    *failed = (unsigned)number(gpu_of(d), "remap_failed", 0);
    return OK;
}
typedef struct {
    uint32_t field, scope;
    int64_t stamp, latency;
    int type;
    R code;
    union { double d; unsigned u; u64 ull; } value;
} Field;
R nvmlDeviceGetFieldValues(D d, int count, Field *fields) {
    CHECK(d);
    for (int n = 0; n < count; n++) {
        fields[n].code = fields[n].field == 230 ? OK : NOT_SUPPORTED;
        fields[n].value.u = (unsigned)number(gpu_of(d), "recovery", 0);
    }
    return OK;
}
typedef struct { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; } Process;
R nvmlDeviceGetComputeRunningProcesses_v3(D d, unsigned *count, Process *out) {
    char all[4096], *save = 0;
    unsigned found = 0;
    CHECK(d);
    text_of(gpu_of(d), "procs", all, sizeof all);
    for (char *word = strtok_r(all, "+", &save); word; word = strtok_r(0, "+", &save), found++) {
        if (found >= *count) continue;
        char *mib = strchr(word, ':');
        out[found] = (Process){(unsigned)atoi(word), mib ? strtoull(mib + 1, 0, 10) << 20 : 0, 0xFFFFFFFF, 0xFFFFFFFF};
    }
    R code = found > *count ? SMALL : OK;
    *count = found;
    return code;
}
R nvmlDeviceGetGraphicsRunningProcesses_v3(D d, unsigned *count, Process *out) {
    (void)out;
    CHECK(d);
    *count = 0;
    return OK;
}

/* ---------------------------------------------------------------- MIG */

R nvmlDeviceGetMigMode(D d, unsigned *current, unsigned *pending) {
    CHECK(d);
    *current = (unsigned)number(gpu_of(d), "mig", 0);
    *pending = (unsigned)number(gpu_of(d), "mig_pending", *current);
    return OK;
}
R nvmlDeviceGetMaxMigDeviceCount(D d, unsigned *count) { CHECK(d); *count = 7; return OK; }
R nvmlDeviceGetMigDeviceHandleByIndex(D d, unsigned index, D *out) {
    char profile[64];
    CHECK(d);
    D handle = (D)(intptr_t)((gpu_of(d) + 1) * 1000 + (int)index + 1);
    if (!profile_of(handle, profile, sizeof profile)[0]) return NOT_FOUND;
    *out = handle;
    return OK;
}
R nvmlDeviceGetGpuInstanceId(D d, unsigned *out) { CHECK(d); *out = (unsigned)instance_of(d) + 1; return OK; }
R nvmlDeviceGetComputeInstanceId(D d, unsigned *out) { CHECK(d); *out = 0; return OK; }
typedef struct { unsigned sm, copy, decoder, encoder, jpeg, ofa, slices, compute_slices; u64 memory_mib; } Attributes;
R nvmlDeviceGetAttributes_v2(D d, Attributes *out) {
    char profile[64];
    CHECK(d);
    if (instance_of(d) < 0) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    profile_of(d, profile, sizeof profile);
    char *dot = strchr(profile, '.');
    out->slices = out->compute_slices = (unsigned)atoi(profile);
    out->memory_mib = dot ? strtoull(dot + 1, 0, 10) * 1024 : 0;
    return OK;
}

/* ---------------------------------------------------------------- NVLink */

static R link_of(D d, unsigned link) {
    return link < number(gpu_of(d), "links", 18) ? OK : INVALID;
}
R nvmlDeviceGetNvLinkState(D d, unsigned link, unsigned *up) {
    CHECK(d);
    *up = link >= number(gpu_of(d), "links_down", 0);
    return link_of(d, link);
}
R nvmlDeviceGetNvLinkRemotePciInfo_v2(D d, unsigned link, Pci *pci) {
    CHECK(d);
    int count = machine_count(), gpu = gpu_of(d);
    if (number(gpu, "direct", 0)) pci_of((gpu + (link % 2 ? 1 : count - 1)) % count, pci);
    else pci_of(0xA0 + (int)link % 4, pci);
    return link_of(d, link);
}
R nvmlDeviceGetNvLinkRemoteDeviceType(D d, unsigned link, unsigned *type) {
    CHECK(d);
    *type = number(gpu_of(d), "direct", 0) ? 0 : 2;
    return link_of(d, link);
}

/* ---------------------------------------------------------------- events */

typedef struct { D device; u64 type, data; unsigned gpu_instance, compute_instance; } Event;

/* The first event after `heard`; with `newest` the last one there is, without taking it. */
static long next_event(Event *event, int newest) {
    char *path = getenv("FAKE_NVML_STATE"), line[8192];
    FILE *file = path ? fopen(path, "r") : 0;
    long found = newest ? 0 : -1, seq;
    int gpu;
    u64 xid;
    if (!file) return found;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "event %ld %d %llu", &seq, &gpu, &xid) != 3) continue;
        if (newest ? seq > found : seq > heard && (found < 0 || seq < found)) {
            found = seq;
            if (event) *event = (Event){(D)(intptr_t)(gpu + 1), 8, xid, 0xFFFFFFFF, 0xFFFFFFFF};
        }
    }
    fclose(file);
    return found;
}
R nvmlEventSetCreate(D *set) {
    static int one;
    *set = &one;
    if (heard < 0) heard = next_event(0, 1);
    return OK;
}
R nvmlEventSetFree(D set) { (void)set; return OK; }
R nvmlDeviceRegisterEvents(D d, u64 types, D set) {
    (void)types, (void)set;
    CHECK(d);
    return number(gpu_of(d), "deaf", 0) ? NOT_SUPPORTED : OK;
}
R nvmlEventSetWait_v2(D set, Event *event, unsigned timeout_ms) {
    (void)set, (void)timeout_ms;
    long seq = next_event(event, 0);
    if (seq < 0) return code_of("wait", TIMEOUT);
    heard = seq;
    return OK;
}
