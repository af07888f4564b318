#include "quant/pipeline/fold.h"

#include <cmath>
#include <optional>

#include "base/half.h"

namespace llmq {
namespace {

float rounded_to(float value, DType dtype) {
  if (dtype == DType::kBF16) return to_float(to_bfloat16(value));
  if (dtype == DType::kF16) return to_float(to_float16(value));
  return value;
}

}  // namespace

void LinearWork::change_rows(
    ThreadPool& pool,
    const std::function<void(std::size_t row, std::span<const float> from, std::span<float> into)>& change) {
  const bool first = unscaled.size() == 0;
  if (first) {
    unscaled = std::move(weight);
    weight = ZeroedNumbers<float>(unscaled.size());
  }
  const auto columns = static_cast<std::size_t>(spec->in_features);
  const std::span<const float> from = first ? unscaled : weight;
  pool.parallel_for(static_cast<std::size_t>(spec->out_features), [&](std::size_t row, int) {
    change(row, from.subspan(row * columns, columns), std::span(weight).subspan(row * columns, columns));
  });
}

std::vector<std::int32_t> Fold::producer_rows(std::int64_t channels) const {
  std::vector<std::int32_t> rows;
  if (spec_.producer != FoldSpec::Producer::kGroupedValueRows) return rows;
  const std::int64_t head_dim = run_.spec.head_dim;
  for (std::int64_t c = 0; c < channels; ++c)
    rows.push_back(static_cast<std::int32_t>(c / head_dim / spec_.repeat * head_dim + c % head_dim));
  return rows;
}

std::vector<float> Fold::storable(std::vector<float> s) const {
  if (spec_.producer != FoldSpec::Producer::kNormGain) return s;
  const StoredTensor& stored = run_.source.checkpoint().at(spec_.producer_module + ".weight");
  const std::vector<float> gain = run_.source.tensor(stored.name, run_.options.allow_nonfinite);
  for (std::size_t c = 0; c < s.size(); ++c) {
    const float fresh = rounded_to(gain[c] / s[c], written_dtype(stored));
    s[c] = gain[c] / fresh;
    if (!std::isfinite(s[c]) || s[c] <= 0) s[c] = 1.0f;
  }
  return s;
}

void Fold::move(const std::vector<float>& s, LinearWorks& works, std::span<BlockWeights> weights) const {
  for (const LinearRole role : spec_.readers) {
    LinearWork& work = works.at(role);
    work.in_scale = s;
    work.change_rows(run_.pool(), [&](std::size_t, std::span<const float> from, std::span<float> into) {
      for (std::size_t c = 0; c < s.size(); ++c) into[c] = from[c] * s[c];
    });
  }
  if (spec_.producer == FoldSpec::Producer::kNormGain) {
    divide_gain(s, weights);
    return;
  }
  const LinearRole role =
      spec_.producer == FoldSpec::Producer::kGroupedValueRows ? LinearRole::kValue : LinearRole::kUp;
  LinearWork& work = works.at(role);
  work.out_scale.assign(static_cast<std::size_t>(work.spec->out_features), 1.0f);
  const std::vector<std::int32_t> rows = producer_rows(static_cast<std::int64_t>(s.size()));
  for (std::size_t c = 0; c < s.size(); ++c)
    work.out_scale[rows.empty() ? c : static_cast<std::size_t>(rows[c])] = s[c];
  work.change_rows(run_.pool(), [&](std::size_t row, std::span<const float> from, std::span<float> into) {
    for (std::size_t c = 0; c < into.size(); ++c) into[c] = from[c] / work.out_scale[row];
  });
  divide_bias(work, weights);
}

void Fold::divide_gain(const std::vector<float>& s, std::span<BlockWeights> weights) const {
  const StoredTensor& stored = run_.source.checkpoint().at(spec_.producer_module + ".weight");
  std::vector<float> gain = run_.source.tensor(stored.name, run_.options.allow_nonfinite);
  for (std::size_t c = 0; c < s.size(); ++c) gain[c] = rounded_to(gain[c] / s[c], written_dtype(stored));
  const std::vector<Backend*> devices = run_.devices();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Buffer& buffer =
        spec_.site == InputSite::kAttention ? weights[i].input_norm : weights[i].post_attention_norm;
    devices[i]->upload(buffer.view(DType::kF32, {static_cast<std::int64_t>(gain.size())}), gain.data());
  }
  run_.changed_dense[stored.name] = std::move(gain);
}

void Fold::divide_bias(const LinearWork& work, std::span<BlockWeights> weights) const {
  std::optional<std::vector<float>> bias = run_.source.bias(*work.spec, run_.options.allow_nonfinite);
  if (!bias) return;
  const StoredTensor& stored = run_.source.checkpoint().at(work.spec->module + ".bias");
  for (std::size_t r = 0; r < bias->size(); ++r)
    (*bias)[r] = rounded_to((*bias)[r] / work.out_scale[r], written_dtype(stored));
  const std::vector<Backend*> devices = run_.devices();
  for (std::size_t i = 0; i < devices.size(); ++i)
    devices[i]->upload(weights[i].linear(work.spec->role).bias.view(DType::kF32, {work.spec->out_features}),
                       bias->data());
  run_.changed_dense[stored.name] = std::move(*bias);
}

}  // namespace llmq
