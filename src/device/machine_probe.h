// What this machine does per second, measured in about a second: the rates by which times are predicted.
//
//   one row times weights      bytes of prepared weights / time      (decoding: weights pass once per token)
//   many rows times weights    2 M N K / time                        (prefill, calibration)
//   gram matrix                T K (K + 1) / time                    (calibration statistics)
//   one call                   time of a product too small to count  (threads woken and joined)
//   SHA-256                    bytes / time                          (manifests)
//
// Each is the best of several runs: a neighbour only ever makes it slower. The weights are 96 MiB, more than
// the caches of most machines; the probe holds about 130 MiB while it runs.
#pragma once
#include "device/backend.h"

namespace llmq {

struct MachineProbe {
  std::string backend;
  bool on_device = false;  // one with a memory of its own
  double decode_bytes_per_second = 0;
  double linear_flops = 0;
  double gram_flops = 0;
  double call_seconds = 0;
  double hash_bytes_per_second = 0;
  double seconds = 0;  // that the probe took
};

MachineProbe probe_machine(Backend& backend, Compute compute);

}  // namespace llmq
