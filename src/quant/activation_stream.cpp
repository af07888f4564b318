#include "quant/activation_stream.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tensor/tensor_view.h"

namespace llmq {
namespace {

constexpr int kBlockSize = 16;
constexpr std::size_t kEmbeddedAtOnce = 256;
constexpr std::int64_t kSearchTokens = 4096;  // at least, where there are as many

std::size_t bytes_for(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements) * static_cast<std::size_t>(element_bytes(dtype));
}

// Tokens of a chunk: a whole number of samples, all of one length.
std::int64_t longest_chunk(const CalibrationSet& calibration, std::int64_t chunk_tokens) {
  const auto length = static_cast<std::int64_t>(calibration.samples.front().size());
  const std::int64_t per_chunk = std::max<std::int64_t>(1, chunk_tokens / length);
  return std::min(per_chunk, static_cast<std::int64_t>(calibration.samples.size())) * length;
}

}  // namespace

std::size_t search_stride(std::size_t chunks, std::int64_t chunk_tokens) {
  const auto wanted = static_cast<std::size_t>((kSearchTokens + chunk_tokens - 1) / chunk_tokens);
  return std::max<std::size_t>(1, chunks / wanted);
}

void embed_samples(const ForwardContext& context, const Checkpoint& checkpoint,
                   std::span<const std::vector<std::int32_t>> samples, const TensorView& hidden) {
  const StoredTensor& table = checkpoint.at(context.spec.embedding);
  const std::int64_t width = table.view.cols();
  const std::uint64_t row_bytes = table.view.bytes() / static_cast<std::uint64_t>(table.view.rows());
  const auto* const bytes = static_cast<const std::byte*>(table.view.pointer);
  std::vector<float> rows;
  std::vector<Lease> leases;  // to the end: a row that comes again is not read again
  std::int64_t row = 0;
  for (const std::vector<std::int32_t>& sample : samples)
    for (std::size_t first = 0; first < sample.size(); first += kEmbeddedAtOnce) {
      const std::size_t count = std::min(kEmbeddedAtOnce, sample.size() - first);
      rows.resize(count * static_cast<std::size_t>(width));
      for (std::size_t i = 0; i < count; ++i) {
        const std::int32_t id = sample[first + i];
        if (id < 0 || id >= context.spec.vocab_size)
          fail(ErrorKind::kBadInput, "calibration id {} is outside the model's vocabulary of {}", id,
               context.spec.vocab_size);
        leases.push_back(checkpoint.hold_rows(table, id, 1));
        to_float32(
            TensorView(static_cast<const void*>(bytes + static_cast<std::uint64_t>(id) * row_bytes),
                       table.view.dtype, {1, width}),
            std::span(rows).subspan(i * static_cast<std::size_t>(width), static_cast<std::size_t>(width)));
      }
      context.backend.upload(hidden.row_slice(row, static_cast<std::int64_t>(count)), rows.data());
      row += static_cast<std::int64_t>(count);
      checkpoint.release(table);  // the kernel maps the neighbours of each row too
    }
}

ActivationStream::ActivationStream(const ForwardContext& context, const CalibrationSet& calibration,
                                   std::int64_t chunk_tokens, bool keep_inputs, std::unique_ptr<File> file)
    : context_(context),
      tokens_(calibration.tokens()),
      longest_chunk_(longest_chunk(calibration, chunk_tokens)),
      keep_inputs_(keep_inputs),
      hidden_(context.backend, tokens_, context.spec.hidden_size, longest_chunk_, std::move(file)) {
  const auto length = static_cast<std::int64_t>(calibration.samples.front().size());
  const auto samples = static_cast<std::int64_t>(calibration.samples.size());
  const std::int64_t per_chunk = longest_chunk_ / length, pages_each = (length + kBlockSize - 1) / kBlockSize;
  for (std::int64_t place = 0; place < std::min(per_chunk, samples); ++place) {
    std::vector<std::int32_t>& table = tables_.emplace_back();
    for (std::int64_t p = 0; p < pages_each; ++p)
      table.push_back(static_cast<std::int32_t>(place * pages_each + p));
  }
  for (std::int64_t first = 0; first < samples; first += per_chunk) {
    Chunk& chunk = chunks_.emplace_back();
    chunk.first = first * length;
    for (std::int64_t place = 0; place < std::min(per_chunk, samples - first); ++place) {
      for (std::int64_t p = 0; p < length; ++p) {
        chunk.rows.positions.push_back(static_cast<std::int32_t>(p));
        chunk.rows.slots.push_back(place * pages_each * kBlockSize + p);
      }
      chunk.rows.sequences.push_back({place * length, length, 0, tables_[static_cast<std::size_t>(place)]});
    }
  }
  const ModelSpec& spec = context.spec;
  const DType dtype = activation_dtype(context.compute);
  const std::int64_t widest = std::max(width(InputSite::kOutput), width(InputSite::kDown));
  near_ = context.backend.allocate(bytes_for(longest_chunk_ * spec.hidden_size, dtype));
  far_ = context.backend.allocate(bytes_for((keep_inputs ? tokens_ : longest_chunk_) * widest, dtype));
  const Shape pages{static_cast<std::int64_t>(tables_.size()) * pages_each, kBlockSize, spec.kv_heads,
                    spec.head_dim};
  keys_ = context.backend.allocate(bytes_for(pages.elements(), dtype));
  values_ = context.backend.allocate(bytes_for(pages.elements(), dtype));
  pages_ = {keys_.view(dtype, pages), values_.view(dtype, pages), kBlockSize};
}

std::int64_t ActivationStream::width(InputSite site) const {
  const ModelSpec& spec = context_.spec;
  if (site == InputSite::kOutput) return std::int64_t{spec.heads} * spec.head_dim;
  return site == InputSite::kDown ? spec.intermediate_size : spec.hidden_size;
}

TensorView ActivationStream::residual(const Chunk& chunk) {
  return hidden_.load(chunk.first, static_cast<std::int64_t>(chunk.rows.positions.size()));
}

void ActivationStream::embed(const Checkpoint& checkpoint, const CalibrationSet& calibration) {
  const std::span<const std::vector<std::int32_t>> samples = calibration.samples;
  std::size_t first = 0;
  for (const Chunk& chunk : chunks_) {
    const std::size_t count = chunk.rows.sequences.size();
    embed_samples(context_, checkpoint, samples.subspan(first, count),
                  hidden_.begin(chunk.first, static_cast<std::int64_t>(chunk.rows.positions.size())));
    hidden_.save();
    first += count;
  }
}

TensorView ActivationStream::far_input(InputSite site, const Chunk& chunk) const {
  const auto rows = static_cast<std::int64_t>(chunk.rows.positions.size());
  const TensorView all =
      far_.view(activation_dtype(context_.compute), {keep_inputs_ ? tokens_ : longest_chunk_, width(site)});
  return all.row_slice(keep_inputs_ ? chunk.first : 0, rows);
}

TensorView ActivationStream::run_to(InputSite site, int block, const BlockWeights& weights,
                                    const Chunk& chunk) {
  const DType dtype = activation_dtype(context_.compute);
  const TensorView hidden = residual(chunk);
  const TensorView near = near_.view(dtype, {hidden.rows(), context_.spec.hidden_size});
  if (site == InputSite::kAttention || site == InputSite::kOutput)
    attention_input(context_, weights, hidden, near);
  else
    mlp_input(context_, weights, hidden, near);
  if (site == InputSite::kAttention || site == InputSite::kMlp) return near;
  const TensorView far = far_input(site, chunk);
  if (site == InputSite::kOutput) {
    attend(context_, block, weights, near, chunk.rows, pages_, far);
    take_kv_extremes(chunk);
  } else {
    gate(context_, weights, near, far);
  }
  return far;
}

std::size_t ActivationStream::stride_of(Samples samples) const {
  return samples == Samples::kAll ? 1 : search_stride(chunks_.size(), longest_chunk_);
}

void ActivationStream::each_input(InputSite site, int block, const BlockWeights& weights, Samples samples,
                                  const std::function<void(const TensorView&)>& see) {
  kept_.reset();
  if (site == InputSite::kOutput) kv_extremes_ = {};
  for (std::size_t i = 0; i < chunks_.size(); i += stride_of(samples))
    see(run_to(site, block, weights, chunks_[i]));
  if (keep_inputs_ && samples == Samples::kAll && (site == InputSite::kOutput || site == InputSite::kDown))
    kept_ = site;
}

InputStats ActivationStream::statistics(InputSite site, int block, const BlockWeights& weights,
                                        Samples samples, RowSample* rows, std::int64_t gram_tokens) {
  InputStats stats(width(site));
  if (rows != nullptr) {
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < chunks_.size(); i += stride_of(samples))
      tokens += static_cast<std::int64_t>(chunks_[i].rows.positions.size());
    *rows = RowSample(tokens, width(site));
  }
  StatsCollector collector(context_.backend, stats, gram_tokens);
  each_input(site, block, weights, samples, [&](const TensorView& x) {
    collector.add(x);
    if (rows != nullptr) rows->add(context_.backend, x);
  });
  collector.finish();
  return stats;
}

// Pages hold what longer chunks left behind, too: only the slots of this one count.
void ActivationStream::take_kv_extremes(const Chunk& chunk) {
  if (!measures_kv_) return;
  const Shape shape{static_cast<std::int64_t>(chunk.rows.slots.size()), pages_.keys.shape[2],
                    pages_.keys.shape[3]};
  const auto bytes = static_cast<std::size_t>(shape.elements()) * sizeof(float);
  const Buffer keys = context_.backend.allocate(bytes), values = context_.backend.allocate(bytes);
  const TensorView k = keys.view(DType::kF32, shape), v = values.view(DType::kF32, shape);
  context_.backend.load_kv(k, v, pages_, chunk.rows.slots);
  const auto largest = [&](const TensorView& view) {
    std::vector<float> numbers(static_cast<std::size_t>(shape.elements()));
    context_.backend.download(numbers.data(), view);
    float most = 0;
    for (const float number : numbers) most = std::max(most, std::fabs(number));
    return most;
  };
  kv_extremes_.keys = std::max(kv_extremes_.keys, largest(k));
  kv_extremes_.values = std::max(kv_extremes_.values, largest(v));
}

void ActivationStream::finish(InputSite site, LinearRole role, int block, const BlockWeights& weights) {
  if (site == InputSite::kOutput && kept_ != site) kv_extremes_ = {};
  for (const Chunk& chunk : chunks_) {
    add_linear(context_, weights, role,
               kept_ == site ? far_input(site, chunk) : run_to(site, block, weights, chunk), residual(chunk));
    hidden_.save();
  }
  kept_.reset();
}

void ActivationStream::finish_attention(int block, const BlockWeights& weights) {
  finish(InputSite::kOutput, LinearRole::kOutput, block, weights);
}

void ActivationStream::finish_mlp(const BlockWeights& weights) {
  finish(InputSite::kDown, LinearRole::kDown, 0, weights);
}

}  // namespace llmq
