#include "quant/plan/gguf_time.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/seconds_since.h"
#include "base/sha256.h"
#include "export/gguf/tensor_source.h"
#include "quant/pipeline/imatrix_collection.h"
#include "tensor/ggml_quantize.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int64_t kElements = std::int64_t{1} << 18;
constexpr int kTimes = 4;
constexpr double kLong = 0.02;  // seconds, below which a kind is rounded again

// Seconds to read and round some rows of a tensor, for each of its elements.
double rounding_seconds(GgufTensorSource& source, std::size_t index, DType type, bool weighted,
                        BlockSearch search, ThreadPool& pool) {
  const GgufMixTensor& tensor = source.tensors()[index];
  const std::int64_t columns = std::max<std::int64_t>(tensor.shape.back(), 1),
                     all = tensor.shape.elements() / columns,
                     rows = std::clamp<std::int64_t>(kElements / columns, 1, std::max<std::int64_t>(all, 1));
  const std::vector<float> importance(weighted ? static_cast<std::size_t>(columns) : 0, 1.0f);
  std::vector<std::byte> bytes(static_cast<std::size_t>(ggml_row_bytes(type, columns)) *
                               static_cast<std::size_t>(rows));
  // What reading the first rows takes on top is of the whole matrix, where that is made of codes or changed
  // by an adapter.
  const Clock::time_point opened = Clock::now();
  source.rows(index, 0, rows);
  const double opening = seconds_since(opened);
  const std::int64_t of_matrix =
      columns * (tensor.shape.rank() > 1 ? tensor.shape[tensor.shape.rank() - 2] : 1);
  double least = 0;
  for (int times = 0; times < kTimes && least < kLong; ++times) {
    const Clock::time_point start = Clock::now();
    const std::vector<float> values = source.rows(index, 0, rows);
    if (type != DType::kF32) quantize_ggml_rows(type, values, columns, importance, search, bytes, pool);
    const double found = seconds_since(start);
    least = times == 0 ? found : std::min(least, found);
  }
  source.release(index);
  return least / static_cast<double>(rows * columns) +
         opening / static_cast<double>(std::max<std::int64_t>(of_matrix, 1));
}

double hashing_seconds() {
  const std::vector<std::byte> piece(std::size_t{1} << 22, std::byte{1});
  const Clock::time_point start = Clock::now();
  sha256_hex(piece);
  return seconds_since(start) / static_cast<double>(piece.size());
}

}  // namespace

TimePrediction predict_gguf_time(const GgufPlan& plan, Io& model_io, const Checkpoint& checkpoint,
                                 const ModelSpec& spec, Backend& backend, Io& io, const Path& directory) {
  const Clock::time_point start = Clock::now();
  TimePrediction prediction;
  try {
    if (plan.needs_calibration()) {
      const BlockTimer timer = [&](const Checkpoint& from, const ModelSpec& one, std::int64_t samples) {
        const CalibrationSet set = made_up_samples(samples, plan.calibration.sequence_length, one.vocab_size);
        const Clock::time_point begin = Clock::now();
        collect_importance(from, one, set, backend, {plan.compute, plan.chunk_tokens, plan.keep_inputs, {}});
        return SecondsByPart{{"forward", seconds_since(begin)}};
      };
      for (const auto& [part, seconds] : predict_blocks(plan.forward(), checkpoint, spec, timer))
        prediction.add("importance", seconds);
    }
    const std::unique_ptr<GgufTensorSource> source =
        open_gguf_tensors(model_io, checkpoint, spec, is_of_converter(*plan.file_type));
    std::map<std::tuple<DType, bool, bool>, double> rates;
    double rounding = 0;
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
      const GgufPlan::Tensor& tensor = plan.tensors[i];
      const bool matrix = tensor.shape.rank() > 1, weighted = plan.importance != "none" && matrix &&
                                                              is_block_type(tensor.dtype) &&
                                                              tensor.name != "token_embd.weight";
      const auto kind = std::make_tuple(tensor.dtype, weighted, matrix);
      if (rates.count(kind) == 0)
        rates[kind] = rounding_seconds(*source, i, tensor.dtype, weighted, plan.search, backend.workers());
      rounding += rates[kind] * static_cast<double>(tensor.shape.elements());
    }
    prediction.add("rounding", rounding);
  } catch (const Error& error) {  // the run says what is wrong, and where
    if (error.kind() == ErrorKind::kInternal) throw;
    prediction.unknown = error.detail().message;
    return prediction;
  }
  try {
    const WritingRates rates = writing_rates(io, directory);
    prediction.add("writing", static_cast<double>(plan.bytes_out()) * (rates.synced + 2 * hashing_seconds()) +
                                  2 * static_cast<double>(spec.blocks.size()) * rates.sync);
  } catch (const Error& error) {  // a dry run needs no place to write to
    if (error.kind() == ErrorKind::kInternal) throw;
  }
  prediction.probe_seconds = seconds_since(start);
  return prediction;
}

}  // namespace llmq
