// What a device with units and memory of its own can do at most, as machine_peaks.h says of a processor:
// Extensions::device_peaks of a backend that can measure itself.
#pragma once
#include <string>

#include "device/machine_peaks.h"

namespace llmq {

class DevicePeaks {
 public:
  virtual ~DevicePeaks() = default;
  // Bytes per second of a pass that does nothing but read, over more than its caches hold. Best of several.
  virtual double measure_reading() = 0;
  // Operations per second on operands in registers, a multiplication and an addition counted as two: by the
  // instructions that this program's kernels use. Best of several.
  virtual double measure_products(ArithmeticKind kind) = 0;
};

}  // namespace llmq
