// A writer that keeps what it is given, and the real model that comes with the tests.
#pragma once
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "export/output/model_writer.h"
#include "model/open_checkpoint.h"
#include "quant/pipeline/pipeline.h"
#include "quant/plan/plan_costs.h"

namespace llmq {

struct CapturedOutput final : UnpublishedWriter {
  struct Dense {
    DType dtype;
    Shape shape;
    std::vector<std::byte> bytes;
    bool operator==(const Dense&) const = default;
  };
  std::map<std::string, QuantizedMatrix> quantized;
  std::map<std::string, Dense> dense;

  void add_quantized(const std::string& module, const QuantizedMatrix& matrix) override {
    quantized[module] = matrix;
  }
  void add_dense(const std::string& tensor, DType dtype, const Shape& shape,
                 std::span<const std::byte> bytes) override {
    dense[tensor] = {dtype, shape, std::vector<std::byte>(bytes.begin(), bytes.end())};
  }
  void append_dense(const std::string& tensor, DType dtype, const Shape& shape,
                    std::span<const std::byte> bytes) override {
    Dense& into = dense[tensor];
    into.dtype = dtype;
    into.shape = shape;
    into.bytes.insert(into.bytes.end(), bytes.begin(), bytes.end());
  }
};

inline Checkpoint stories() {
  return open_checkpoint(system_io(), std::string(LLMQ_SOURCE_DIR) + "/tests/models/tinystories-656k");
}

// Of a plan for it, on one thread.
inline PlanCosts costs_of(const Plan& plan) {
  const Checkpoint checkpoint = stories();
  return estimate_costs(plan, checkpoint, ModelSpec::read(checkpoint), 1);
}

enum class ResidualPlace { kDevice, kHost };  // where the residual stream lies

// Samples of pseudo-random ids: enough for every stage to run.
inline CalibrationSet some_samples(std::int64_t samples, std::int64_t length) {
  CalibrationSet set;
  std::uint32_t state = 1;
  for (std::int64_t s = 0; s < samples; ++s) {
    std::vector<std::int32_t>& ids = set.samples.emplace_back();
    for (std::int64_t t = 0; t < length; ++t)
      ids.push_back(static_cast<std::int32_t>((state = state * 1664525u + 1013904223u) >> 21));
  }
  return set;
}

}  // namespace llmq
