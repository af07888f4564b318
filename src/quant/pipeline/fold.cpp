#include "quant/pipeline/fold.h"

#include <cmath>
#include <optional>

#include "tensor/stored_float.h"

namespace llmq {

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

std::vector<std::int32_t> tied_channels(const SiteSpec& site) {
  std::vector<std::int32_t> first;
  const auto* const made = std::get_if<LinearRows>(&site.producer);
  if (made == nullptr || made->head_dim == 1) return first;
  const std::int64_t head_dim = made->head_dim;
  for (std::int64_t c = 0; c < site.channels; ++c)
    first.push_back(static_cast<std::int32_t>(c / head_dim / made->repeat * head_dim + c % head_dim));
  return first;
}

std::vector<float> Fold::storable(std::vector<float> s) const {
  const auto* const made = std::get_if<NormGain>(&site_.producer);
  if (made == nullptr) return s;
  const NormSpec& norm = block_.at(made->norm);
  const StoredTensor& stored = run_.source.checkpoint().at(norm.gain.tensor);
  const std::vector<float> gain = run_.source.tensor(stored.name, run_.options.allow_nonfinite);
  for (std::size_t c = 0; c < s.size(); ++c) {
    const float fresh =
        norm.multiplier(stored_float(norm.stored(norm.multiplier(gain[c]) / s[c]), written_dtype(stored)));
    s[c] = norm.multiplier(gain[c]) / fresh;
    if (!std::isfinite(s[c]) || s[c] <= 0) s[c] = 1.0f;
  }
  return s;
}

void Fold::move(const std::vector<float>& s, LinearWorks& works, std::span<BlockWeights> weights) const {
  for (const LinearId reader : site_.readers)
    if (run_.planned.count(block_.at(reader).module) == 0) scale_dense(block_.at(reader), s, weights);
  for (auto& [id, work] : works) take_part(s, work);
  if (const auto* norm = std::get_if<NormGain>(&site_.producer)) divide_norm(*norm, s, weights);
  if (const auto* made = std::get_if<LinearRows>(&site_.producer)) divide_bias(*made, s, weights);
}

void Fold::take_part(const std::vector<float>& s, LinearWork& work) const {
  if (&block_.at(work.spec->site) == &site_) multiply_columns(s, work);
  const auto* const made = std::get_if<LinearRows>(&site_.producer);
  if (made != nullptr && made->rows.linear == work.spec->id) divide_rows(*made, s, work);
}

void Fold::multiply_columns(const std::vector<float>& s, LinearWork& work) const {
  work.in_scale = s;
  work.change_rows(run_.pool(), [&](std::size_t, std::span<const float> from, std::span<float> into) {
    for (std::size_t c = 0; c < s.size(); ++c) into[c] = from[c] * s[c];
  });
}

std::vector<float> Fold::scales_of_rows(const LinearRows& made, const std::vector<float>& s) const {
  const LinearSpec& linear = block_.at(made.rows.linear);
  const auto first = static_cast<std::size_t>(linear.first_row(made.rows.part));
  std::vector<float> scales(static_cast<std::size_t>(linear.out_features), 1.0f);
  for (std::size_t c = 0; c < s.size(); ++c)
    scales[first + static_cast<std::size_t>(made.row_of(static_cast<std::int64_t>(c)))] = s[c];
  return scales;
}

void Fold::divide_rows(const LinearRows& made, const std::vector<float>& s, LinearWork& work) const {
  work.out_scale = scales_of_rows(made, s);
  work.change_rows(run_.pool(), [&](std::size_t row, std::span<const float> from, std::span<float> into) {
    for (std::size_t c = 0; c < into.size(); ++c) into[c] = from[c] / work.out_scale[row];
  });
}

void Fold::divide_norm(const NormGain& made, const std::vector<float>& s,
                       std::span<BlockWeights> weights) const {
  const NormSpec& norm = block_.at(made.norm);
  const auto divided = [&](const TensorPlace& place, auto&& from, auto&& to) {
    const StoredTensor& stored = run_.source.checkpoint().at(place.tensor);
    std::vector<float> values = run_.source.tensor(stored.name, run_.options.allow_nonfinite);
    for (std::size_t c = 0; c < s.size(); ++c)
      values[c] = stored_float(to(from(values[c]) / s[c]), written_dtype(stored));
    run_.changed_dense[stored.name] = values;
    return values;
  };
  const auto as_is = [](float value) { return value; };
  const std::vector<float> gain = divided(
      norm.gain, [&](float value) { return norm.multiplier(value); },
      [&](float value) { return norm.stored(value); });
  const std::vector<float> bias =
      norm.bias.exists() ? divided(norm.bias, as_is, as_is) : std::vector<float>();
  const std::vector<Backend*> devices = run_.devices();
  for (std::size_t i = 0; i < devices.size(); ++i)
    weights[i].at(made.norm) = load_norm(*devices[i], norm, gain, bias);
}

void Fold::scale_dense(const LinearSpec& linear, const std::vector<float>& s,
                       std::span<BlockWeights> weights) const {
  const StoredTensor& stored = run_.source.checkpoint().at(linear.weight.tensor);
  std::vector<float> values = run_.source.tensor(stored.name, run_.options.allow_nonfinite);
  const DType dtype = written_dtype(stored);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = stored_float(values[i] * s[i % s.size()], dtype);
  const TensorView view(values.data(), DType::kF32, {linear.out_features, linear.in_features});
  const std::vector<Backend*> devices = run_.devices();
  for (std::size_t i = 0; i < devices.size(); ++i)
    set_weight(*devices[i], run_.plan.compute, linear, view, weights[i].at(linear.id));
  run_.changed_dense[stored.name] = std::move(values);
}

void Fold::divide_bias(const LinearRows& made, const std::vector<float>& s,
                       std::span<BlockWeights> weights) const {
  const LinearSpec& linear = block_.at(made.rows.linear);
  std::optional<std::vector<float>> bias = run_.source.bias(linear, run_.options.allow_nonfinite);
  if (!bias) return;
  const std::vector<float> scales = scales_of_rows(made, s);
  const StoredTensor& stored = run_.source.checkpoint().at(linear.bias.tensor);
  for (std::size_t r = 0; r < bias->size(); ++r)
    (*bias)[r] = stored_float((*bias)[r] / scales[r], written_dtype(stored));
  const std::vector<Backend*> devices = run_.devices();
  for (std::size_t i = 0; i < devices.size(); ++i)
    set_bias(*devices[i], linear, *bias, weights[i].at(linear.id));
  run_.changed_dense[stored.name] = std::move(*bias);
}

}  // namespace llmq
