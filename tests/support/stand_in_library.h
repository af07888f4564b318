// A stand-in for a library of dense products on an emulated device: chains of fused multiply-adds, which have
// the bits of the emulated kernels, and algorithms that give a row other bits, or fail, where they are told
// to.
#pragma once
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "support/recording_device.h"

namespace llmq::testing {

struct StandInAlgorithm {
  std::optional<std::int64_t> other_row = {};  // of a product or a panel: it is summed from its other end
  std::int64_t of_rows = 0;                    // in products of so many rows; 0: in all
  std::int64_t refused = 0;                    // products of so many rows are not taken
  std::optional<ErrorKind> error = {};         // of a product of `of_rows` rows, and of a panel

  void fail_as_told(std::int64_t rows) const {
    if (error && (of_rows == 0 || of_rows == rows)) fail(*error, "the stand-in fails at {} rows", rows);
  }
};

// What was asked of it, in order: rows of products, first rows of panels.
struct StandInCalls {
  std::vector<std::int64_t> rows, panels;
};

// `start` + sum_k x[k * x_step] w[k * w_step], as the emulated kernels add it up, or from its other end.
struct StandInSum {
  const BFloat16 *x, *w;
  std::int64_t x_step = 1, w_step = 1, count = 0;
  float start = 0;
  float value(bool falling = false) const {
    float sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t k = falling ? count - 1 - i : i;
      sum = std::fma(to_float(x[k * x_step]), to_float(w[k * w_step]), sum);
    }
    return start + sum;
  }
};

class StandInLibrary final : public DenseLibrary {
 public:
  StandInLibrary(std::vector<StandInAlgorithm> algorithms, StandInCalls& calls)
      : algorithms_(std::move(algorithms)), calls_(calls) {}
  std::string name() const override { return "stand-in 1.2.3"; }
  std::int64_t least_numbers() const override { return 0; }
  std::vector<std::unique_ptr<DensePlan>> plans(const DenseShape& full) override {
    return all<DensePlan, Product>(full);
  }
  std::vector<std::unique_ptr<PanelPlan>> plans(const GramPanel& panel) override {
    return all<PanelPlan, Panel>(panel);
  }

 private:
  template <class Algorithm, class Made, class Of>
  std::vector<std::unique_ptr<Algorithm>> all(const Of& of) {
    std::vector<std::unique_ptr<Algorithm>> plans;
    for (std::size_t i = 0; i < algorithms_.size(); ++i)
      plans.push_back(std::make_unique<Made>(of, "algorithm " + std::to_string(i), algorithms_[i], calls_));
    return plans;
  }

  class Product final : public DensePlan {
   public:
    Product(const DenseShape& shape, std::string text, const StandInAlgorithm& algorithm, StandInCalls& calls)
        : shape_(shape), text_(std::move(text)), algorithm_(algorithm), calls_(calls) {}
    std::string text() const override { return text_; }
    bool takes(std::int64_t rows) const override { return rows != algorithm_.refused; }
    void multiply(float* y, const BFloat16* x, const BFloat16* w, std::int64_t rows) override {
      calls_.rows.push_back(rows);
      algorithm_.fail_as_told(rows);
      const bool odd = algorithm_.other_row && (algorithm_.of_rows == 0 || algorithm_.of_rows == rows);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t n = 0; n < shape_.features; ++n)
          y[r * shape_.features + n] =
              StandInSum{x + r * shape_.columns, w + n * shape_.columns, 1, 1, shape_.columns}.value(
                  odd && r == *algorithm_.other_row);
    }

   private:
    const DenseShape shape_;
    const std::string text_;
    const StandInAlgorithm algorithm_;
    StandInCalls& calls_;
  };

  // As a library's, it writes below the diagonal, too.
  class Panel final : public PanelPlan {
   public:
    Panel(const GramPanel& panel, std::string text, const StandInAlgorithm& algorithm, StandInCalls& calls)
        : panel_(panel), text_(std::move(text)), algorithm_(algorithm), calls_(calls) {}
    std::string text() const override { return text_; }
    void add(float* panel, const BFloat16* x) override {
      calls_.panels.push_back(panel_.first);
      algorithm_.fail_as_told(panel_.rows);
      for (std::int64_t i = panel_.first; i < panel_.first + panel_.count; ++i)
        for (std::int64_t j = panel_.first; j < panel_.channels; ++j) {
          float& sum = panel[(i - panel_.first) * panel_.stride + j - panel_.first];
          sum = StandInSum{x + i, x + j, panel_.channels, panel_.channels, panel_.rows, sum}.value(
              algorithm_.other_row == i);
        }
    }

   private:
    const GramPanel panel_;
    const std::string text_;
    const StandInAlgorithm algorithm_;
    StandInCalls& calls_;
  };

  const std::vector<StandInAlgorithm> algorithms_;
  StandInCalls& calls_;
};

// New memory holds what is no number, of any type.
struct PoisonedMemory final : MemoryResource {
  std::shared_ptr<MemoryResource> inner;
  explicit PoisonedMemory(std::shared_ptr<MemoryResource> from) : inner(std::move(from)) {}
  void* allocate(std::size_t bytes) override { return std::memset(inner->allocate(bytes), 0xff, bytes); }
  void deallocate(void* pointer, std::size_t bytes) noexcept override { inner->deallocate(pointer, bytes); }
  Device device() const override { return inner->device(); }
};

// An emulated device that has the library; it owns what is noted where nobody else does.
class StandInDevice : public RecordingDevice {
 public:
  explicit StandInDevice(std::vector<StandInAlgorithm> algorithms = {{}}, StandInCalls* calls = nullptr,
                         std::int64_t scratch_bytes = 64 << 10, int index = 0)
      : RecordingDevice(notes_, index),
        scratch_bytes_(scratch_bytes),
        library_(std::move(algorithms), calls == nullptr ? calls_ : *calls) {}
  std::shared_ptr<MemoryResource> memory() override { return memory_; }
  std::int64_t scratch_bytes() const override { return scratch_bytes_; }
  DenseLibrary* dense_library() override { return &library_; }

 private:
  DeviceNotes notes_;
  StandInCalls calls_;
  const std::shared_ptr<MemoryResource> memory_ = std::make_shared<PoisonedMemory>(RecordingDevice::memory());
  std::int64_t scratch_bytes_;
  StandInLibrary library_;
};

// An emulated device whose library is not there.
class DeviceWithoutLibrary final : public RecordingDevice {
 public:
  explicit DeviceWithoutLibrary(int index = 0) : RecordingDevice(notes_, index) {}
  std::string why_no_dense_library() const override { return "cuBLASLt cannot be opened: it is not there"; }

 private:
  DeviceNotes notes_;
};

// For calibration.
inline std::shared_ptr<Backend> stand_in_backend(std::vector<StandInAlgorithm> algorithms = {{}},
                                                 StandInCalls* calls = nullptr,
                                                 std::int64_t scratch_bytes = 64 << 10, int index = 0) {
  return make_backend_on(std::make_unique<StandInDevice>(std::move(algorithms), calls, scratch_bytes, index),
                         1, DeviceUse::kCalibration);
}

}  // namespace llmq::testing
