// Queues of a GPU beside the one on which torch computes. Written against c10's guards, which need no header of CUDA: the library that
// has them is loaded where there is a GPU.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "guard.h"
#include "shim.h"

struct ShimStream {
  c10::Stream stream;
};

struct ShimEvent {
  c10::Event event;
};

int shim_stream_open(int device, ShimStream **stream) {
  return shim_guard([&] {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    c10::Device gpu(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
    guard.setDevice(gpu);
    *stream = new ShimStream{guard.getStreamFromGlobalPool(gpu, /*isHighPriority=*/true)};
  });
}

int shim_stream_wait_current(ShimStream *stream, void **handle) {
  return shim_guard([&] {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    c10::Event computed(c10::kCUDA);
    computed.record(guard.getStream(stream->stream.device()));
    computed.block(stream->stream);
    *handle = stream->stream.native_handle();
  });
}

int shim_stream_record_event(ShimStream *stream, ShimEvent **event) {
  return shim_guard([&] {
    c10::Event done(c10::kCUDA);
    done.record(stream->stream);
    *event = new ShimEvent{std::move(done)};
  });
}

void shim_stream_close(ShimStream *stream) { delete stream; }

int shim_event_block(ShimEvent *event) {
  return shim_guard([&] {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    event->event.block(guard.getStream(event->event.device()));
  });
}

int shim_event_query(ShimEvent *event, bool *done) {
  return shim_guard([&] { *done = event->event.query(); });
}

void shim_event_free(ShimEvent *event) { delete event; }
