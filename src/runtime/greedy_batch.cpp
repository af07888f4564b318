#include "runtime/greedy_batch.h"

#include <algorithm>

#include "runtime/sampler.h"

namespace llmq {

GreedyBatch::GreedyBatch(Engine& engine, std::int64_t sequences)
    : engine_(engine), tokens_(static_cast<std::size_t>(sequences)), steps_(tokens_.size()) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    sequences_.push_back(engine.cache().open_sequence());
    steps_[i] = {sequences_[i], std::span(tokens_).subspan(i, 1)};
  }
}

GreedyBatch::~GreedyBatch() {
  for (const std::uint64_t sequence : sequences_) engine_.cache().close_sequence(sequence);
}

std::int32_t GreedyBatch::prefill(std::size_t sequence, std::span<const std::int32_t> prompt,
                                  std::int64_t chunk) {
  const DType dtype = activation_dtype(engine_.options().compute);
  const auto most = static_cast<std::size_t>(chunk);
  for (std::size_t first = 0; first < prompt.size(); first += most) {
    const Engine::Step step{sequences_.at(sequence),
                            prompt.subspan(first, std::min(most, prompt.size() - first))};
    const Buffer normed = engine_.forward(std::span(&step, 1));
    if (first + step.tokens.size() < prompt.size()) continue;
    const auto rows = static_cast<std::int64_t>(step.tokens.size());
    choose(normed.view(dtype, {rows, engine_.spec().hidden_size}).row_slice(rows - 1, 1),
           std::span(tokens_).subspan(sequence, 1));
  }
  return tokens_[sequence];
}

std::span<const std::int32_t> GreedyBatch::step() {
  const Buffer normed = engine_.forward(steps_);
  choose(normed.view(activation_dtype(engine_.options().compute),
                     {static_cast<std::int64_t>(tokens_.size()), engine_.spec().hidden_size}),
         tokens_);
  return tokens_;
}

void GreedyBatch::choose(const TensorView& normed_rows, std::span<std::int32_t> tokens) {
  const TensorView logits = engine_.logits(normed_rows);
  const auto width = static_cast<std::size_t>(logits.cols());
  const float* values = logits.as<const float>();
  if (engine_.backend().device() != Device{}) {
    host_logits_.resize(width * tokens.size());
    engine_.backend().download(host_logits_.data(), logits);
    values = host_logits_.data();
  }
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = greedy_token(std::span(values + i * width, width));
}

}  // namespace llmq
