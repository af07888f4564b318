// The scale search; the clip search is in quant/methods/awq/clip_search.cpp.
#include "quant/methods/awq/scale_search.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "quant/methods/gram_loss.h"
#include "quant/methods/rounding.h"

namespace llmq {
namespace {

constexpr float kSmallestScale = 1e-4f;     // AutoAWQ's clamp
constexpr std::int64_t kSampledRows = 128;  // judged for every candidate
constexpr std::size_t kFinalists = 3;       // judged again on all rows, beside the identity

struct Candidate {
  std::vector<float> s;
  double loss = 0;
};

struct RowPlace {
  std::size_t reader;
  std::int64_t row;
};

// Mean over channels that one producer feeds, given back to each of them.
void average_over_producers(std::vector<double>& values, std::span<const std::int32_t> producer_of) {
  if (producer_of.empty()) return;
  const auto producers =
      static_cast<std::size_t>(*std::max_element(producer_of.begin(), producer_of.end())) + 1;
  std::vector<double> sum(producers), count(producers);
  for (std::size_t c = 0; c < values.size(); ++c) {
    sum[static_cast<std::size_t>(producer_of[c])] += values[c];
    count[static_cast<std::size_t>(producer_of[c])] += 1;
  }
  for (std::size_t c = 0; c < values.size(); ++c)
    values[c] =
        sum[static_cast<std::size_t>(producer_of[c])] / count[static_cast<std::size_t>(producer_of[c])];
}

// Mean over all readers' rows of |w| / (max |w| of its group + 1e-6), per channel.
std::vector<double> mean_relative_weight(const ScaleProblem& problem, std::int64_t channels) {
  std::vector<double> mean(static_cast<std::size_t>(channels));
  std::int64_t rows = 0;
  for (const ScaleReader& reader : problem.readers) {
    rows += reader.out_features;
    const std::int64_t group = reader.scheme.group_of(channels);
    for (std::int64_t row = 0; row < reader.out_features; ++row)
      for (std::int64_t first = 0; first < channels; first += group) {
        const float* w = reader.weight.data() + row * channels + first;
        const std::int64_t count = std::min(group, channels - first);
        const GroupRange range = find_range(w, count);
        const float inverse = 1.0f / (std::max(-range.low, range.high) + 1e-6f);
        for (std::int64_t k = 0; k < count; ++k)
          mean[static_cast<std::size_t>(first + k)] += static_cast<double>(std::fabs(w[k]) * inverse);
      }
  }
  for (double& value : mean) value /= static_cast<double>(rows);
  return mean;
}

// Silent channels (mean |x| = 0) keep s = 1 and do not bend the normalization; what is not finite becomes 1.
std::vector<float> scales_for(double ratio, bool duo, const std::vector<double>& x,
                              const std::vector<double>& w) {
  std::vector<float> s(x.size(), 1.0f);
  float least = INFINITY, most = 0;
  for (std::size_t c = 0; c < x.size(); ++c) {
    if (x[c] == 0) continue;
    const double value = std::pow(x[c], ratio) / (duo ? std::pow(w[c], 1 - ratio) + 1e-4 : 1.0);
    s[c] = std::max(static_cast<float>(value), kSmallestScale);
    if (!std::isfinite(s[c])) continue;
    least = std::min(least, s[c]);
    most = std::max(most, s[c]);
  }
  const float norm = std::sqrt(most * least);
  for (std::size_t c = 0; c < x.size(); ++c) {
    if (x[c] != 0) s[c] /= norm;
    if (!std::isfinite(s[c]) || s[c] <= 0) s[c] = 1.0f;
  }
  return s;
}

std::vector<Candidate> make_candidates(const ScaleProblem& problem, const AwqOptions& options,
                                       std::int64_t channels) {
  std::vector<double> x = problem.stats->mean_absolute(), w = mean_relative_weight(problem, channels);
  average_over_producers(x, problem.producer_of);
  average_over_producers(w, problem.producer_of);
  std::vector<Candidate> candidates = {{std::vector<float>(x.size(), 1.0f), 0}};
  for (const bool duo : {false, true}) {
    if (duo ? options.duo_scaling == AwqOptions::Duo::kNo : options.duo_scaling == AwqOptions::Duo::kYes)
      continue;
    for (int i = duo ? 0 : 1; i < options.grid; ++i) {  // plain with r = 0 is the identity
      const double ratio = static_cast<double>(i) / options.grid;
      candidates.push_back({scales_for(ratio, duo, x, w), 0});
    }
  }
  return candidates;
}

// Of each candidate.
std::vector<double> losses_of(const ScaleProblem& problem, std::span<const std::vector<float>* const> s,
                              std::span<const RowPlace> rows, GramLoss& gram, ThreadPool& pool) {
  const std::int64_t channels = problem.stats->channels();
  const auto row_of = [&](std::int64_t i) {
    const RowPlace place = rows[static_cast<std::size_t>(i)];
    const ScaleReader& reader = problem.readers[place.reader];
    return GramLoss::Row{reader.weight.data() + place.row * channels, &reader.scheme};
  };
  const std::vector<std::vector<double>> losses =
      gram.scaled_losses(static_cast<std::int64_t>(rows.size()), row_of, s, pool);
  std::vector<double> sums;
  sums.reserve(losses.size());
  for (const std::vector<double>& loss : losses) sums.push_back(sum_in_order(loss));
  return sums;
}

void judge(std::vector<Candidate>& candidates, const ScaleProblem& problem, std::span<const RowPlace> rows,
           GramLoss& gram, ThreadPool& pool) {
  std::vector<const std::vector<float>*> s;
  s.reserve(candidates.size());
  for (const Candidate& c : candidates) s.push_back(&c.s);
  const std::vector<double> losses = losses_of(problem, s, rows, gram, pool);
  for (std::size_t c = 0; c < losses.size(); ++c) candidates[c].loss = losses[c];
}

std::vector<RowPlace> all_rows(const ScaleProblem& problem) {
  std::vector<RowPlace> rows;
  for (std::size_t r = 0; r < problem.readers.size(); ++r)
    for (std::int64_t row = 0; row < problem.readers[r].out_features; ++row) rows.push_back({r, row});
  return rows;
}

}  // namespace

double awq_scale_loss(const ScaleProblem& problem, std::span<const float> s, Backend& backend) {
  ThreadPool& pool = backend.workers();
  std::optional<GramLoss> made;
  GramLoss& gram = gram_of(problem, made, backend, problem.compute);
  const std::vector<float> own_s(s.begin(), s.end());
  const std::vector<float>* const only[] = {&own_s};
  return losses_of(problem, only, all_rows(problem), gram, pool).front();
}

AwqScales search_awq_scales(const ScaleProblem& problem, const AwqOptions& options, Backend& backend) {
  const std::int64_t channels = problem.stats->channels();
  const std::vector<RowPlace> all = all_rows(problem);
  std::vector<RowPlace> sampled;
  const std::size_t stride = std::max<std::size_t>(1, all.size() / static_cast<std::size_t>(kSampledRows));
  for (std::size_t i = 0; i < all.size(); i += stride) sampled.push_back(all[i]);

  ThreadPool& pool = backend.workers();
  std::optional<GramLoss> made;
  GramLoss& gram = gram_of(problem, made, backend, problem.compute);
  std::vector<Candidate> candidates = make_candidates(problem, options, channels);
  judge(candidates, problem, sampled, gram, pool);
  // A loss that is not finite never wins; equal losses keep the order of the grid.
  const auto better = [](const Candidate& a, const Candidate& b) {
    return std::isfinite(a.loss) && (!std::isfinite(b.loss) || a.loss < b.loss);
  };
  std::stable_sort(candidates.begin() + 1, candidates.end(), better);
  candidates.resize(std::min(candidates.size(), kFinalists + 1));
  if (stride > 1) judge(candidates, problem, all, gram, pool);

  const auto best = std::min_element(candidates.begin(), candidates.end(), better);
  AwqScales result;
  result.identity_loss = candidates.front().loss;
  result.loss = best->loss;
  result.identity = best == candidates.begin();
  result.s = std::move(best->s);
  return result;
}

}  // namespace llmq
