#include "quant/mixed_precision/perturbed_streams.h"

#include <algorithm>

#include "base/error.h"
#include "model/embedding.h"
#include "model/mixers/mixer.h"
#include "model/output_head.h"
#include "quant/pipeline/activation_stream.h"

namespace llmq {
namespace {

constexpr std::int64_t kBatchTokens = 4096;
constexpr std::int64_t kLogitBytes = 16 << 20;
// Neighbouring positions tell much the same; logits of a large vocabulary are the dear part.
constexpr std::int64_t kScoredEvery = 2;

std::size_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements) * static_cast<std::size_t>(element_bytes(dtype));
}

std::int64_t scored_tokens(std::int64_t tokens) { return (tokens + kScoredEvery - 1) / kScoredEvery; }

std::int64_t scored_at_once(const ModelSpec& spec, std::int64_t scored) {
  return std::clamp<std::int64_t>(kLogitBytes / (spec.vocab_size * 4), std::min<std::int64_t>(16, scored),
                                  scored);
}

}  // namespace

std::uint64_t ProbeStreams::bytes(const ModelSpec& spec, Compute compute, std::int64_t tokens,
                                  std::int64_t most) {
  const std::int64_t batch = std::max(kBatchTokens, tokens);
  return bytes_of(most * tokens * spec.hidden_size, DType::kF32) +
         bytes_of(2 * batch * spec.widest_page(), activation_dtype(compute));
}

std::uint64_t ProbeStreams::scoring_bytes(const ModelSpec& spec, Compute compute, std::int64_t tokens) {
  const std::int64_t scored = scored_tokens(tokens);
  return bytes_of(2 * scored_at_once(spec, scored) * spec.vocab_size, DType::kF32) +
         bytes_of(scored * spec.hidden_size, DType::kF32) +
         bytes_of(scored * spec.hidden_size, activation_dtype(compute));
}

ProbeStreams::ProbeStreams(const ForwardContext& context, const Checkpoint& checkpoint,
                           std::span<const std::vector<std::int32_t>> samples, std::int64_t most)
    : context_(context),
      most_(most),
      length_(static_cast<std::int64_t>(samples.front().size())),
      samples_(static_cast<std::int64_t>(samples.size())),
      tokens_(length_ * samples_),
      at_once_(std::max<std::int64_t>(1, kBatchTokens / tokens_)) {
  const ModelSpec& spec = context.spec;
  hidden_ = context.backend.allocate(bytes_of(most_ * tokens_ * spec.hidden_size, DType::kF32));
  const std::int64_t pages_each = (length_ + kPageTokens - 1) / kPageTokens;
  for (std::int64_t s = 0; s < at_once_ * samples_; ++s) {
    std::vector<std::int32_t>& table = tables_.emplace_back();
    for (std::int64_t p = 0; p < pages_each; ++p)
      table.push_back(static_cast<std::int32_t>(s * pages_each + p));
  }
  const DType dtype = activation_dtype(context.compute);
  pages_ = at_once_ * samples_ * pages_each;
  keys_ = context.backend.allocate(bytes_of(pages_ * kPageTokens * spec.widest_page(), dtype));
  values_ = context.backend.allocate(bytes_of(pages_ * kPageTokens * spec.widest_page(), dtype));
  embed_samples(context.backend, spec, checkpoint, samples, stream(0));
}

TensorView ProbeStreams::stream(std::int64_t index) const {
  return hidden_.view(DType::kF32, {most_ * tokens_, context_.spec.hidden_size})
      .row_slice(index * tokens_, tokens_);
}

void ProbeStreams::run(int block, const BlockWeights& weights, std::int64_t first, std::int64_t count) {
  const PagesSpec& spec = context_.spec.blocks[static_cast<std::size_t>(block)].pages;
  const DType dtype = activation_dtype(context_.compute);
  const Shape page{pages_, kPageTokens, spec.kv_heads, spec.head_dim};
  for (std::int64_t from = first; from < first + count; from += at_once_) {
    const std::int64_t sequences = std::min(at_once_, first + count - from) * samples_;
    BatchRows rows;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::vector<std::int32_t>& table = tables_[static_cast<std::size_t>(s)];
      for (std::int64_t p = 0; p < length_; ++p) {
        rows.positions.push_back(static_cast<std::int32_t>(p));
        rows.slots.push_back(std::int64_t{table.front()} * kPageTokens + p);
      }
      rows.sequences.push_back({s * length_, length_, 0, table});
    }
    const TensorView hidden = hidden_.view(DType::kF32, {most_ * tokens_, context_.spec.hidden_size});
    run_block({&context_,
               &weights,
               {keys_.view(dtype, page), values_.view(dtype, page), kPageTokens},
               hidden.row_slice(from * tokens_, sequences * length_)},
              block, rows);
  }
}

void ProbeStreams::fork(int block, const BlockWeights& weights) {
  if (streams_ == most_) fail(ErrorKind::kInternal, "{} probe streams are one too few", most_);
  std::vector<float> copy(static_cast<std::size_t>(tokens_ * context_.spec.hidden_size));
  context_.backend.download(copy.data(), stream(0));
  context_.backend.upload(stream(streams_), copy.data());
  run(block, weights, streams_, 1);
  ++streams_;
}

void ProbeStreams::advance(int block, const BlockWeights& weights) {
  run(block, weights, 0, settled_);
  settled_ = streams_;
}

std::vector<double> ProbeStreams::divergences(const LinearSource& source) const {
  Backend& backend = context_.backend;
  const ModelSpec& spec = context_.spec;
  const DType dtype = activation_dtype(context_.compute);
  const NormWeights norm = load_norm(backend, source, spec.final_norm);
  const std::unique_ptr<PreparedWeight> head = prepare_head(backend, context_.compute, source, spec);

  const std::int64_t scored = scored_tokens(tokens_), tile = scored_at_once(spec, scored);
  const Buffer picked = backend.allocate(bytes_of(scored * spec.hidden_size, DType::kF32));
  const Buffer normed = backend.allocate(bytes_of(scored * spec.hidden_size, dtype));
  const Buffer logits[2] = {backend.allocate(bytes_of(tile * spec.vocab_size, DType::kF32)),
                            backend.allocate(bytes_of(tile * spec.vocab_size, DType::kF32))};
  const auto predict = [&](std::int64_t index, std::int64_t first, std::int64_t rows, const Buffer& into) {
    const TensorView view = picked.view(DType::kF32, {rows, spec.hidden_size});
    std::vector<float> row(static_cast<std::size_t>(spec.hidden_size));
    for (std::int64_t r = 0; r < rows; ++r) {
      backend.download(row.data(), stream(index).row_slice((first + r) * kScoredEvery, 1));
      backend.upload(view.row_slice(r, 1), row.data());
    }
    const TensorView x = normed.view(dtype, {rows, spec.hidden_size});
    run_norm(backend, spec.final_norm, norm, view, x);
    const TensorView y = into.view(DType::kF32, {rows, spec.vocab_size});
    backend.linear(y, x, *head, {});
    if (spec.logit_softcap != 0) backend.softcap(y, spec.logit_softcap);
    return y;
  };
  std::vector<double> sum(static_cast<std::size_t>(streams_ - 1));
  for (std::int64_t first = 0; first < scored; first += tile) {
    const std::int64_t rows = std::min(tile, scored - first);
    const TensorView original = predict(0, first, rows, logits[0]);
    std::vector<double> kl(static_cast<std::size_t>(rows));
    for (std::int64_t i = 1; i < streams_; ++i) {
      backend.divergence(original, predict(i, first, rows, logits[1]), kl);
      for (const double value : kl) sum[static_cast<std::size_t>(i - 1)] += value;
    }
  }
  for (double& value : sum) value /= static_cast<double>(scored);
  return sum;
}

}  // namespace llmq
