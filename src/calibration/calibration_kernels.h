// What multiplied dense weights and summed Gram matrices of a calibration on its devices, where they have a
// choice (Backend::kernel_choices()): for plan, log and report. Several devices try a shape each for itself;
// what all of them did alike is said once, else each is named.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "device/backend.h"

namespace llmq {

class CalibrationKernels {
 public:
  // From here on: what they were asked for before, such as by a prediction of time, is left out. They outlive
  // this.
  explicit CalibrationKernels(std::vector<const Backend*> devices);
  std::vector<KernelChoice> chosen() const;

 private:
  std::vector<const Backend*> devices_;
  std::vector<std::vector<KernelChoice>> before_;  // of each
};

// Why the own kernels multiply whatever is asked for, as a warning; empty where they need not.
std::string own_products(std::span<const std::shared_ptr<Backend>> devices);

// [{what, kernel, why}], why null where the library was taken.
Json kernels_json(std::span<const KernelChoice> kernels);

}  // namespace llmq
