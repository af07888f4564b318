// The scale search; the clip search is in quant/methods/awq/clip_search.cpp.
#include "quant/methods/awq/scale_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
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

// What one look at all readers gives.
struct SeenReaders {
  std::vector<double> relative_weight;      // of each channel, the mean over rows by their share
  std::vector<float> sampled;               // an even sample of their rows
  std::vector<const ScaleReader*> readers;  // of each of these
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

// Adds |w| / (max |w| of its group + 1e-6) of each row to its channel.
void add_relative_weights(const ScaleReader& reader, std::span<const float> weight, std::int64_t channels,
                          std::vector<double>& sums) {
  const std::int64_t group = reader.scheme.group_of(channels);
  const std::int64_t rows = static_cast<std::int64_t>(weight.size()) / channels;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t first = 0; first < channels; first += group) {
      const float* w = weight.data() + row * channels + first;
      const std::int64_t count = std::min(group, channels - first);
      const GroupRange range = find_range(w, count);
      const float inverse = 1.0f / (std::max(-range.low, range.high) + 1e-6f);
      for (std::int64_t k = 0; k < count; ++k)
        sums[static_cast<std::size_t>(first + k)] +=
            reader.share * static_cast<double>(std::fabs(w[k]) * inverse);
    }
}

std::int64_t stride_between(std::span<const std::int64_t> readers) {
  return scale_sample_stride(std::accumulate(readers.begin(), readers.end(), std::int64_t{0}),
                             *std::min_element(readers.begin(), readers.end()));
}

std::vector<std::int64_t> rows_of_readers(const ScaleProblem& problem) {
  std::vector<std::int64_t> rows;
  for (const ScaleReader& reader : problem.readers) rows.push_back(reader.out_features);
  return rows;
}

SeenReaders see_readers(const ScaleProblem& problem, std::int64_t channels, std::int64_t stride) {
  SeenReaders seen;
  seen.relative_weight.resize(static_cast<std::size_t>(channels));
  std::int64_t rows = 0, next = 0;  // of all before this reader; the place of the next sampled row
  double counted = 0;
  for (const ScaleReader& reader : problem.readers) {
    look_at(reader, [&](std::span<const float> weight) {
      add_relative_weights(reader, weight, channels, seen.relative_weight);
      for (; next < rows + reader.out_features; next += stride) {
        const auto row = weight.subspan(static_cast<std::size_t>((next - rows) * channels),
                                        static_cast<std::size_t>(channels));
        seen.sampled.insert(seen.sampled.end(), row.begin(), row.end());
        seen.readers.push_back(&reader);
      }
    });
    rows += reader.out_features;
    counted += reader.share * static_cast<double>(reader.out_features);
  }
  for (double& value : seen.relative_weight) value /= counted;
  return seen;
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

// Beside the identity, which plain with r = 0 is.
struct Exponent {
  bool duo = false;
  double ratio = 0;
};
std::vector<Exponent> exponents_of(const AwqOptions& options) {
  std::vector<Exponent> all;
  for (const bool duo : {false, true}) {
    if (duo ? options.duo_scaling == AwqOptions::Duo::kNo : options.duo_scaling == AwqOptions::Duo::kYes)
      continue;
    for (int i = duo ? 0 : 1; i < options.grid; ++i)
      all.push_back({duo, static_cast<double>(i) / options.grid});
  }
  return all;
}

std::vector<Candidate> make_candidates(const ScaleProblem& problem, const AwqOptions& options,
                                       std::vector<double> w) {
  std::vector<double> x = problem.stats->mean_absolute();
  average_over_producers(x, problem.producer_of);
  average_over_producers(w, problem.producer_of);
  std::vector<Candidate> candidates = {{std::vector<float>(x.size(), 1.0f), 0}};
  for (const Exponent& exponent : exponents_of(options))
    candidates.push_back({scales_for(exponent.ratio, exponent.duo, x, w), 0});
  return candidates;
}

using Scales = std::vector<const std::vector<float>*>;

Scales scales_of(const std::vector<Candidate>& candidates) {
  Scales s;
  s.reserve(candidates.size());
  for (const Candidate& c : candidates) s.push_back(&c.s);
  return s;
}

// Of each of the scales, on the sample.
std::vector<double> sampled_losses(const SeenReaders& seen, const Scales& s, std::int64_t channels,
                                   GramLoss& gram, ThreadPool& pool) {
  std::vector<const QuantScheme*> schemes;  // one object for neighbours that share it
  for (const ScaleReader* reader : seen.readers)
    schemes.push_back(schemes.empty() || reader->scheme != *schemes.back() ? &reader->scheme
                                                                           : schemes.back());
  const auto row_of = [&](std::int64_t i) {
    return GramLoss::Row{seen.sampled.data() + i * channels, schemes[static_cast<std::size_t>(i)]};
  };
  const std::vector<std::vector<double>> losses =
      gram.scaled_losses(static_cast<std::int64_t>(schemes.size()), row_of, s, pool);
  std::vector<double> sums(s.size());
  for (std::size_t c = 0; c < s.size(); ++c)
    for (std::size_t i = 0; i < losses[c].size(); ++i) sums[c] += seen.readers[i]->share * losses[c][i];
  return sums;
}

// The same on all rows, which are added one by one, whoever they belong to.
std::vector<double> whole_losses(const ScaleProblem& problem, const Scales& s, GramLoss& gram,
                                 ThreadPool& pool) {
  const std::int64_t channels = problem.stats->channels();
  std::vector<double> sums(s.size());
  for (const ScaleReader& reader : problem.readers)
    look_at(reader, [&](std::span<const float> weight) {
      const auto row_of = [&](std::int64_t row) {
        return GramLoss::Row{weight.data() + row * channels, &reader.scheme};
      };
      const std::vector<std::vector<double>> losses =
          gram.scaled_losses(reader.out_features, row_of, s, pool);
      for (std::size_t c = 0; c < s.size(); ++c)
        for (const double loss : losses[c]) sums[c] += reader.share * loss;
    });
  return sums;
}

void take_losses(const std::vector<double>& losses, std::vector<Candidate>& candidates) {
  for (std::size_t c = 0; c < losses.size(); ++c) candidates[c].loss = losses[c];
}

}  // namespace

std::int64_t scale_sample_stride(std::int64_t rows, std::int64_t smallest) {
  const std::int64_t even = std::max<std::int64_t>(1, rows / kSampledRows);
  if (smallest == 1) return even;
  const std::int64_t stride = std::min(even, smallest - 1);
  const bool repeats = stride > 1 && smallest % stride == 0 && smallest / stride < 4;
  return stride - (repeats ? 1 : 0);
}

std::uint64_t scale_search_losses(std::span<const std::int64_t> readers, const AwqOptions& options) {
  const std::int64_t rows = std::accumulate(readers.begin(), readers.end(), std::int64_t{0}),
                     stride = stride_between(readers), sampled = (rows + stride - 1) / stride;
  const std::uint64_t candidates = 1 + exponents_of(options).size(),
                      again = stride > 1 ? std::min<std::uint64_t>(candidates, kFinalists + 1) : 0;
  return static_cast<std::uint64_t>(sampled) * candidates + static_cast<std::uint64_t>(rows) * again;
}

double awq_scale_loss(const ScaleProblem& problem, std::span<const float> s, Backend& backend) {
  ThreadPool& pool = backend.workers();
  std::optional<GramLoss> made;
  GramLoss& gram = gram_of(problem, made, backend, problem.compute);
  const std::vector<float> own_s(s.begin(), s.end());
  return whole_losses(problem, {&own_s}, gram, pool).front();
}

AwqScales search_awq_scales(const ScaleProblem& problem, const AwqOptions& options, Backend& backend) {
  const std::int64_t channels = problem.stats->channels();
  const std::int64_t stride = stride_between(rows_of_readers(problem));
  const SeenReaders seen = see_readers(problem, channels, stride);
  ThreadPool& pool = backend.workers();
  std::optional<GramLoss> made;
  GramLoss& gram = gram_of(problem, made, backend, problem.compute);
  std::vector<Candidate> candidates = make_candidates(problem, options, seen.relative_weight);
  take_losses(sampled_losses(seen, scales_of(candidates), channels, gram, pool), candidates);
  // A loss that is not finite never wins; equal losses keep the order of the grid.
  const auto better = [](const Candidate& a, const Candidate& b) {
    return std::isfinite(a.loss) && (!std::isfinite(b.loss) || a.loss < b.loss);
  };
  std::stable_sort(candidates.begin() + 1, candidates.end(), better);
  candidates.resize(std::min(candidates.size(), kFinalists + 1));
  if (stride > 1) take_losses(whole_losses(problem, scales_of(candidates), gram, pool), candidates);

  const auto best = std::min_element(candidates.begin(), candidates.end(), better);
  AwqScales result;
  result.identity_loss = candidates.front().loss;
  result.loss = best->loss;
  result.identity = best == candidates.begin();
  result.s = std::move(best->s);
  return result;
}

}  // namespace llmq
