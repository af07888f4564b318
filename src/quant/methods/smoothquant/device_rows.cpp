#include "quant/methods/smoothquant/device_rows.h"

#include <algorithm>

#include "device/low_precision.h"
#include "device/row_sums.h"
#include "quant/methods/scaled_rows.h"

namespace llmq {
namespace {

std::int64_t many(std::size_t count) { return static_cast<std::int64_t>(count); }

class DeviceSmoothRows final : public SmoothRows {
 public:
  DeviceSmoothRows(const SmoothProblem& problem, Backend& backend, RowSums& sums, DifferenceMaker& maker)
      : problem_(problem),
        backend_(backend),
        row_sums_(sums),
        maker_(maker),
        inputs_(put_rows(problem.inputs)),
        weights_(put_rows(problem.weights)),
        difference_(array<float>(problem.weights.values.size() * problem.channels)),
        weight_energy_(put(problem.weight_energy)),
        input_energy_(put(problem.input_energy)),
        scales_(array<float>(2 * problem.channels)),
        factor_(array<double>(problem.channels)),
        share_(array<double>(problem.channels)),
        soft_(array<SoftRow>(std::max(problem.inputs.values.size(), problem.weights.values.size()))),
        sums_(array<double>(
            std::max(problem.inputs.values.size() * problem.groups(), problem.weights.values.size()))) {}

  void input_errors(std::span<const float> s, std::span<const float> inverse, std::optional<float> scale,
                    std::span<double> sums) override {
    put_scales(s, inverse);
    InputErrors errors;
    errors.rows = many(problem_.inputs.values.size());
    errors.columns = many(problem_.channels);
    errors.group = many(problem_.group);
    errors.x = inputs_.values.as<float>();
    errors.s = scales_.as<float>();
    errors.inverse = scales_.as<float>() + problem_.channels;
    errors.weight = weight_energy_.as<double>();
    errors.sums = sums_.as<double>();
    errors.top = input_top(problem_.activations->weight_type);
    errors.least = kLeastInputScale;
    errors.scale = scale.value_or(0.0f);
    errors.one_scale = scale.has_value();
    errors.float8 = problem_.activations->weight_type == WeightType::kFloat8;
    row_sums_.sum_input_errors(errors);
    take(sums, sums_);
  }

  void weight_errors(std::span<const float> s, std::span<const float> inverse,
                     std::span<double> sums) override {
    put_scales(s, inverse);
    const std::int64_t rows = many(sums.size()), columns = many(problem_.channels);
    make_scaled_differences(
        maker_, {rows, columns, weights_.values.as<float>(), scales_.as<float>(), difference_.as<float>()},
        [&](std::int64_t n) { return problem_.weight_scheme[static_cast<std::size_t>(n)]; });
    row_sums_.sum_squares(
        {rows, columns, difference_.as<float>(), input_energy_.as<double>(), sums_.as<double>()});
    take(sums, sums_);
  }

  void soften(Side side, std::span<const double> factor, std::span<double> energy,
              std::span<double> share) override {
    const Held& held = side == Side::kInputs ? inputs_ : weights_;
    put_into(factor_, factor);
    ColumnShares shares;
    shares.rows = {many(energy.size()),  many(problem_.channels),       held.values.as<float>(),
                   factor_.as<double>(), held.step_weight.as<double>(), soft_.as<SoftRow>()};
    shares.share = share_.as<double>();
    row_sums_.soften_rows(shares.rows);
    row_sums_.share_columns(shares);
    std::vector<SoftRow> soft(energy.size());
    take(std::span(soft), soft_);
    for (std::size_t r = 0; r < soft.size(); ++r) energy[r] = soft[r].energy;
    take(share, share_);
  }

 private:
  struct Held {
    Buffer values, step_weight;
  };

  template <class T>
  Buffer array(std::size_t count) {
    return backend_.allocate(std::max<std::size_t>(1, count * sizeof(T)));
  }
  template <class T>
  void put_into(const Buffer& to, std::span<const T> values, std::size_t at = 0) {
    const TensorView bytes =
        to.view(DType::kU8, {many(to.bytes()), 1}).row_slice(many(at * sizeof(T)), many(values.size_bytes()));
    if (!values.empty()) backend_.upload(bytes, values.data());
  }
  Buffer put(std::span<const double> values) {
    Buffer buffer = array<double>(values.size());
    put_into(buffer, values);
    return buffer;
  }
  Held put_rows(const SampledRows& rows) {
    Held held{array<float>(rows.values.size() * problem_.channels), put(rows.step_weight)};
    for (std::size_t r = 0; r < rows.values.size(); ++r)
      put_into(held.values, std::span(rows.values[r], problem_.channels), r * problem_.channels);
    return held;
  }
  void put_scales(std::span<const float> s, std::span<const float> inverse) {
    put_into(scales_, s);
    put_into(scales_, inverse, problem_.channels);
  }
  template <class T>
  void take(std::span<T> values, const Buffer& from) {
    if (!values.empty()) backend_.download(values.data(), from.view(DType::kU8, {many(values.size_bytes())}));
  }

  const SmoothProblem& problem_;
  Backend& backend_;
  RowSums& row_sums_;
  DifferenceMaker& maker_;
  Held inputs_, weights_;
  Buffer difference_, weight_energy_, input_energy_;
  Buffer scales_, factor_, share_, soft_, sums_;  // scales: s, then 1 / s
};

}  // namespace

std::unique_ptr<SmoothRows> make_device_smooth_rows(const SmoothProblem& problem, Backend& backend) {
  const Extensions& can = backend.extensions();
  if (can.row_sums == nullptr || can.difference_maker == nullptr) return nullptr;
  return std::make_unique<DeviceSmoothRows>(problem, backend, *can.row_sums, *can.difference_maker);
}

std::uint64_t device_smooth_bytes(const SmoothSizes& n) {
  return (n.inputs + 2 * n.weights) * n.channels * sizeof(float) + (n.inputs + n.weights) * sizeof(double) +
         n.channels * (2 * sizeof(float) + 4 * sizeof(double)) +
         std::max(n.inputs, n.weights) * sizeof(SoftRow) +
         std::max(n.inputs * n.groups, n.weights) * sizeof(double);
}

}  // namespace llmq
