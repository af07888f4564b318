#include "quant/pipeline/imatrix_collection.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "base/threads.h"
#include "model/gguf/gguf_names.h"
#include "quant/pipeline/activation_stream.h"

namespace llmq {
namespace {

constexpr std::size_t kColumnsPerItem = 256;

// Sums of squares by channel.
class SquareSums {
 public:
  SquareSums(Backend& backend, ThreadPool& pool) : backend_(backend), pool_(pool) {}

  void add(const TensorView& x) {
    const auto rows = static_cast<std::size_t>(x.rows()), columns = static_cast<std::size_t>(x.cols());
    host_.resize(static_cast<std::size_t>(x.bytes()));
    backend_.download(host_.data(), x);
    sums_.resize(columns);
    const bool half = x.dtype == DType::kBF16;
    pool_.parallel_for((columns + kColumnsPerItem - 1) / kColumnsPerItem, [&](std::size_t item, int) {
      const std::size_t first = item * kColumnsPerItem, last = std::min(columns, first + kColumnsPerItem);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t k = first; k < last; ++k) {
          const auto value =
              static_cast<double>(half ? bfloat16_at(r * columns + k) : float_at(r * columns + k));
          sums_[k] += value * value;
        }
    });
    tokens_ += x.rows();
  }

  ImatrixEntry entry() const {
    ImatrixEntry entry;
    for (const double sum : sums_) entry.sums.push_back(static_cast<float>(sum));
    entry.counts.assign(1, static_cast<float>(tokens_));
    return entry;
  }

 private:
  float bfloat16_at(std::size_t i) const {
    BFloat16 value;
    std::memcpy(&value, host_.data() + 2 * i, sizeof value);
    return to_float(value);
  }
  float float_at(std::size_t i) const {
    float value;
    std::memcpy(&value, host_.data() + 4 * i, sizeof value);
    return value;
  }

  Backend& backend_;
  ThreadPool& pool_;
  std::vector<std::byte> host_;
  std::vector<double> sums_;
  std::int64_t tokens_ = 0;
};

}  // namespace

Imatrix collect_importance(const Checkpoint& checkpoint, const ModelSpec& spec,
                           const CalibrationSet& calibration, Backend& backend,
                           const ImportanceOptions& options) {
  const auto length = static_cast<std::int64_t>(calibration.samples.front().size());
  const LinearSource source = LinearSource::open(checkpoint);
  const ForwardContext context = make_forward_context(spec, backend, options.compute, length);
  ActivationStream stream(context, calibration, options.chunk_tokens, options.keep_inputs);
  stream.embed(checkpoint, calibration);
  ThreadPool& pool = backend.workers();
  const GgufFamily* const family = gguf_family(spec.family);
  if (family == nullptr)
    fail(ErrorKind::kUnsupported, "an importance matrix has GGUF's names, and family {} has none",
         spec.family);
  Imatrix imatrix;
  imatrix.chunk_count = static_cast<std::uint32_t>(calibration.samples.size());
  imatrix.chunk_size = static_cast<std::uint32_t>(length);
  for (std::size_t index = 0; index < spec.blocks.size(); ++index) {
    const BlockSpec& block = spec.blocks[index];
    const int number = static_cast<int>(index);
    if (index + 1 < spec.blocks.size())
      for (const LinearSpec& linear : spec.blocks[index + 1].linears) source.read_ahead(linear);
    const BlockWeights weights = load_block(backend, options.compute, source, block);
    for (std::size_t part = 0; part < block.sublayers.size(); ++part) {
      for (const SiteId site : block.sublayers[part].sites) {
        SquareSums sums(backend, pool);
        stream.each_input(site, number, weights, Samples::kAll, [&](const TensorView& x) { sums.add(x); });
        for (const LinearId reader : block.at(site).readers)
          imatrix.entries[gguf_name(*family, block.at(reader).weight.tensor)] = sums.entry();
      }
      stream.finish(part, number, weights);
    }
    if (options.on_block) options.on_block(number);
  }
  return imatrix;
}

}  // namespace llmq
