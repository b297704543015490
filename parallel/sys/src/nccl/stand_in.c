// NCCL's calls on memory of the host, for ranks that are threads of one process: the tests run against it where there is no GPU.
// It does what NCCL's documentation says of a call, at once; the tests pass no stream.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 8, GROUPS = 64, INVALID = 4, INT64 = 4, FLOAT32 = 7 };

typedef struct {
  char internal[128];
} ncclUniqueId;

struct message {
  const void *from;
  size_t bytes;
};

struct group {
  int size;
  pthread_barrier_t barrier;
  const void *input[RANKS];
  struct message sent[RANKS][RANKS];
};

struct communicator {
  struct group *group;
  int rank;
};

struct receipt {
  struct communicator *communicator;
  void *to;
  size_t bytes;
  int peer;
};

static struct group groups[GROUPS];
static int made;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local char last_error[128];
static _Thread_local struct receipt receipts[RANKS];
static _Thread_local int receipt_count, depth;
static _Thread_local struct communicator *busy;

static size_t width(int kind) {
  static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return widths[kind];
}

static void meet(struct communicator *own) { pthread_barrier_wait(&own->group->barrier); }

int ncclGetUniqueId(ncclUniqueId *id) {
  pthread_mutex_lock(&lock);
  memset(id, 0, sizeof *id);
  id->internal[127] = (char)made++;
  pthread_mutex_unlock(&lock);
  return 0;
}

int ncclCommInitRank(struct communicator **communicator, int size, ncclUniqueId id, int rank) {
  struct group *group = &groups[(int)id.internal[127]];
  pthread_mutex_lock(&lock);
  if (group->size == 0) {
    group->size = size;
    pthread_barrier_init(&group->barrier, NULL, (unsigned)size);
  }
  pthread_mutex_unlock(&lock);
  *communicator = malloc(sizeof **communicator);
  **communicator = (struct communicator){group, rank};
  meet(*communicator);
  return 0;
}

int ncclCommDestroy(struct communicator *communicator) {
  free(communicator);
  return 0;
}

int ncclCommGetAsyncError(struct communicator *communicator, int *state) {
  (void)communicator;
  *state = 0;
  return 0;
}

const char *ncclGetErrorString(int code) { return code == INVALID ? "invalid argument" : "no error"; }

const char *ncclGetLastError(struct communicator *communicator) {
  (void)communicator;
  return last_error;
}

static double number(const void *values, int kind, size_t place) {
  return kind == INT64 ? (double)((const int64_t *)values)[place] : (double)((const float *)values)[place];
}

// The reduction of the numbers from `first` on, of every rank's input.
static int reduce(void *output, const void *input, size_t first, size_t count, int kind, int operation,
                  struct communicator *own, void *stream) {
  if (stream != NULL || (kind != INT64 && kind != FLOAT32)) return INVALID;
  struct group *group = own->group;
  group->input[own->rank] = input;
  double *result = malloc((count + 1) * sizeof *result);
  meet(own);
  for (size_t place = 0; place < count; place++) {
    double value = number(group->input[0], kind, first + place);
    for (int rank = 1; rank < group->size; rank++) {
      double other = number(group->input[rank], kind, first + place);
      if (operation == 0) value += other;
      if (operation == 2 && other > value) value = other;
      if (operation == 3 && other < value) value = other;
    }
    result[place] = value;
  }
  meet(own);
  for (size_t place = 0; place < count; place++) {
    if (kind == INT64) ((int64_t *)output)[place] = (int64_t)result[place];
    if (kind == FLOAT32) ((float *)output)[place] = (float)result[place];
  }
  free(result);
  return 0;
}

int ncclAllReduce(const void *input, void *output, size_t count, int kind, int operation, struct communicator *own,
                  void *stream) {
  return reduce(output, input, 0, count, kind, operation, own, stream);
}

int ncclReduceScatter(const void *input, void *output, size_t count, int kind, int operation,
                      struct communicator *own, void *stream) {
  return reduce(output, input, count * (size_t)own->rank, count, kind, operation, own, stream);
}

int ncclAllGather(const void *input, void *output, size_t count, int kind, struct communicator *own, void *stream) {
  if (stream != NULL) return INVALID;
  size_t bytes = count * width(kind);
  own->group->input[own->rank] = input;
  meet(own);
  for (int rank = 0; rank < own->group->size; rank++) {
    memcpy((char *)output + bytes * (size_t)rank, own->group->input[rank], bytes);
  }
  meet(own);
  return 0;
}

int ncclBroadcast(const void *input, void *output, size_t count, int kind, int root, struct communicator *own,
                  void *stream) {
  if (stream != NULL || root >= own->group->size) {
    snprintf(last_error, sizeof last_error, "root %d of %d ranks", root, own->group->size);
    return INVALID;
  }
  own->group->input[own->rank] = input;
  meet(own);
  if (own->rank != root) memcpy(output, own->group->input[root], count * width(kind));
  meet(own);
  return 0;
}

int ncclGroupStart(void) {
  depth++;
  return 0;
}

int ncclSend(const void *from, size_t count, int kind, int peer, struct communicator *own, void *stream) {
  if (stream != NULL || depth == 0) return INVALID;
  own->group->sent[own->rank][peer] = (struct message){from, count * width(kind)};
  busy = own;
  return 0;
}

int ncclRecv(void *to, size_t count, int kind, int peer, struct communicator *own, void *stream) {
  if (stream != NULL || depth == 0) return INVALID;
  receipts[receipt_count++] = (struct receipt){own, to, count * width(kind), peer};
  busy = own;
  return 0;
}

// Every rank of the tests sends or receives something.
int ncclGroupEnd(void) {
  if (--depth > 0 || busy == NULL) return 0;
  int result = 0;
  meet(busy);
  for (int place = 0; place < receipt_count; place++) {
    struct receipt *receipt = &receipts[place];
    struct message *message = &busy->group->sent[receipt->peer][busy->rank];
    if (message->bytes != receipt->bytes) result = INVALID;
    if (result == 0) memcpy(receipt->to, message->from, receipt->bytes);
  }
  meet(busy);
  receipt_count = 0;
  busy = NULL;
  return result;
}
