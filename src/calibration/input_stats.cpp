// Memory: K (K + 1) / 2 doubles on the host and what they lack (ExactSums); while an input is collected, F32
// [K, K] on each device, and the same triangle where devices with memory of their own add up.
#include "calibration/input_stats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "calibration/joined_sums.h"

namespace llmq {
namespace {

constexpr std::uint64_t kMagic = 0x3174617473716c6c;  // "llqstat1"
constexpr std::int64_t kMostChannels = 1 << 20;

std::size_t triangle_size(std::int64_t channels) { return triangle_place(channels, channels); }

template <typename T>
void put(std::vector<std::byte>& bytes, const T* values, std::size_t count) {
  const auto* raw = reinterpret_cast<const std::byte*>(values);
  bytes.insert(bytes.end(), raw, raw + count * sizeof(T));
}

// `from` has at least count * sizeof(T) bytes: load() checked the whole size.
template <typename T>
void take(std::span<const std::byte>& from, T* values, std::size_t count) {
  std::memcpy(values, from.data(), count * sizeof(T));
  from = from.subspan(count * sizeof(T));
}

}  // namespace

InputStats::InputStats(std::int64_t channels)
    : channels_(channels),
      absolute_sum_(static_cast<std::size_t>(channels)),
      absolute_max_(static_cast<std::size_t>(channels)),
      triangle_(triangle_size(channels)) {}

const TensorView& GramSquare::view() {
  if (storage_.bytes() != 0) return view_;
  storage_ = backend_.allocate(static_cast<std::size_t>(channels_ * channels_) * sizeof(float));
  view_ = storage_.view(DType::kF32, {channels_, channels_});
  if (backend_.device().kind != DeviceKind::kHost) {
    backend_.clear(view_);
    return view_;
  }
  // On the host memory below the diagonal is not touched, and so takes no room.
  const std::vector<float> zeros(static_cast<std::size_t>(channels_));
  for (std::int64_t i = 0; i < channels_; ++i)
    backend_.upload(TensorView(view_.row<float>(i) + i, DType::kF32, {1, channels_ - i}, view_.device),
                    zeros.data());
  return view_;
}

StatsCollector::StatsCollector(std::int64_t channels, std::int64_t gram_tokens)
    : channels_(channels),
      gram_tokens_(gram_tokens),
      gram_(triangle_size(channels)),
      magnitudes_(static_cast<std::size_t>(channels)),
      absolute_max_(static_cast<std::size_t>(channels)) {}

GramTotal* StatsCollector::total_on(Backend& backend) {
  GramTotals* const totals = backend.extensions().gram_totals;
  if (totals == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = totals_.try_emplace(&backend);
  if (fresh) at->second = totals->gram_total(channels_);
  return at->second.get();
}

void StatsCollector::add(GramSquare& square, const TensorView& x, std::int64_t before) {
  Backend& backend = square.backend();
  std::vector<double> sums(static_cast<std::size_t>(channels_));
  std::vector<float> most(sums.size());
  backend.channel_stats(x, sums, most);
  const std::int64_t wanted = std::clamp<std::int64_t>(gram_tokens_ - before, 0, x.rows());
  for (std::int64_t first = 0; first < wanted; first += kGramChunkRows) {
    const TensorView& gram = square.view();
    backend.gram(gram, x.row_slice(first, std::min(kGramChunkRows, wanted - first)));
    if (GramTotal* const total = total_on(backend)) {
      total->drain(gram);
      continue;
    }
    const std::lock_guard lock(mutex_);
    backend.drain_gram(gram_, gram);
    gram_.trim();
  }
  const std::lock_guard lock(mutex_);
  magnitudes_.add(0, std::span<const double>(sums));
  magnitudes_.trim();
  for (std::size_t k = 0; k < most.size(); ++k) absolute_max_[k] = std::max(absolute_max_[k], most[k]);
  seen_ += x.rows();
  summed_ += wanted;
}

InputStats StatsCollector::finish(Ranks& ranks) {
  for (auto& [backend, total] : totals_) {
    if (total) total->read(gram_);
    total.reset();
  }
  if (gram_.outgrown())
    Log::get().warn(fmt::format(
        "the sum of an input of {} channels lacks more than was planned for: its memory lies above the plan",
        channels_));
  std::array<std::int64_t, 2> rows = {seen_, summed_};
  add_up(rows, ranks);
  const auto [seen, summed] = rows;
  InputStats stats(0);
  stats.channels_ = channels_;
  stats.tokens_ = seen;
  stats.triangle_ = summed == 0 ? std::move(gram_).round() : round_together(std::move(gram_), ranks);
  const ZeroedNumbers<double> magnitudes = round_together(std::move(magnitudes_), ranks);
  stats.absolute_sum_.assign(magnitudes.begin(), magnitudes.end());
  stats.absolute_max_ = std::move(absolute_max_);
  take_largest(stats.absolute_max_, ranks);
  if (summed == seen || summed == 0) return stats;
  const double share = static_cast<double>(seen) / static_cast<double>(summed);
  for (double& sum : stats.triangle_) sum *= share;
  return stats;
}

void InputStats::add(Backend& backend, const TensorView& x) {
  StatsCollector collector(channels_);
  GramSquare square(backend, channels_);
  collector.add(square, x, 0);
  merge(collector.finish());
}

void InputStats::merge(const InputStats& other) {
  if (other.channels_ != channels_)
    fail(ErrorKind::kInternal, "statistics of {} and {} channels do not merge", channels_, other.channels_);
  tokens_ += other.tokens_;
  for (std::size_t i = 0; i < absolute_sum_.size(); ++i) {
    absolute_sum_[i] += other.absolute_sum_[i];
    absolute_max_[i] = std::max(absolute_max_[i], other.absolute_max_[i]);
  }
  for (std::size_t i = 0; i < triangle_.size(); ++i) triangle_[i] += other.triangle_[i];
}

void InputStats::add_prior(const InputStats& other, std::int64_t tokens, double square) {
  if (other.channels_ != channels_ || other.tokens_ == 0)
    fail(ErrorKind::kInternal, "statistics of {} rows and {} channels are no prior for {} channels",
         other.tokens_, other.channels_, channels_);
  const double share = static_cast<double>(tokens) / static_cast<double>(other.tokens_);
  tokens_ += tokens;
  for (std::size_t i = 0; i < absolute_sum_.size(); ++i) {
    absolute_sum_[i] += share * std::sqrt(square) * other.absolute_sum_[i];
    absolute_max_[i] = std::max(absolute_max_[i], other.absolute_max_[i]);
  }
  for (std::size_t i = 0; i < triangle_.size(); ++i) triangle_[i] += share * square * other.triangle_[i];
}

std::vector<double> InputStats::mean_absolute() const {
  std::vector<double> mean = absolute_sum_;
  for (double& value : mean) value /= static_cast<double>(std::max<std::int64_t>(tokens_, 1));
  return mean;
}

std::vector<double> InputStats::gram_diagonal() const {
  std::vector<double> diagonal;
  for (std::int64_t k = 0; k < channels_; ++k) diagonal.push_back(gram_at(k, k));
  return diagonal;
}

ZeroedNumbers<float> InputStats::gram_square(ThreadPool& pool) const {
  const std::int64_t k = channels_;
  ZeroedNumbers<float> square(static_cast<std::size_t>(k * k));
  // a line of the cache: the mirror image would miss it with every element
  constexpr std::int64_t kTile = 16;
  // [j] for j >= i
  const auto row_of = [&](std::int64_t i) { return triangle_.data() + (i * (k - 1) - i * (i - 1) / 2); };
  pool.parallel_for(static_cast<std::size_t>((k + kTile - 1) / kTile), [&](std::size_t item, int) {
    const std::int64_t top = static_cast<std::int64_t>(item) * kTile, end = std::min(k, top + kTile);
    for (std::int64_t j = 0; j < end; ++j)
      for (std::int64_t i = std::max(top, j + 1); i < end; ++i)
        square[static_cast<std::size_t>(i * k + j)] = static_cast<float>(row_of(j)[i]);
    for (std::int64_t i = top; i < end; ++i)
      for (std::int64_t j = i; j < k; ++j)
        square[static_cast<std::size_t>(i * k + j)] = static_cast<float>(row_of(i)[j]);
  });
  return square;
}

void InputStats::divide_channels(std::span<const float> s) {
  const auto k = static_cast<std::size_t>(channels_);
  for (std::size_t i = 0, at = 0; i < k; ++i) {
    absolute_sum_[i] /= static_cast<double>(s[i]);
    absolute_max_[i] /= s[i];
    for (std::size_t j = i; j < k; ++j)
      triangle_[at++] /= static_cast<double>(s[i]) * static_cast<double>(s[j]);
  }
}

std::vector<std::byte> InputStats::save() const {
  std::vector<std::byte> bytes;
  put(bytes, &kMagic, 1);
  put(bytes, &channels_, 1);
  put(bytes, &tokens_, 1);
  put(bytes, absolute_sum_.data(), absolute_sum_.size());
  put(bytes, absolute_max_.data(), absolute_max_.size());
  put(bytes, triangle_.data(), triangle_.size());
  return bytes;
}

InputStats InputStats::load(std::span<const std::byte> bytes, const std::string& file) {
  const auto bad = [&](const std::string& what) {
    fail(ErrorKind::kBadInput, {what, file, {}, "take the statistics again"});
  };
  std::uint64_t magic = 0;
  std::int64_t channels = 0, tokens = 0;
  constexpr std::size_t kHeader = sizeof magic + sizeof channels + sizeof tokens;
  if (bytes.size() < kHeader)
    bad(fmt::format("{} bytes are too few for calibration statistics", bytes.size()));
  std::span<const std::byte> rest = bytes;
  take(rest, &magic, 1);
  take(rest, &channels, 1);
  take(rest, &tokens, 1);
  if (magic != kMagic) bad("this is not a file of calibration statistics");
  if (channels < 1 || channels > kMostChannels || tokens < 0)
    bad(fmt::format("it claims {} channels and {} tokens", channels, tokens));
  const std::size_t expected = static_cast<std::size_t>(channels) * (sizeof(double) + sizeof(float)) +
                               triangle_size(channels) * sizeof(double);
  if (rest.size() != expected)
    bad(fmt::format("{} channels need {} bytes, it has {}", channels, expected + kHeader, bytes.size()));
  InputStats stats(channels);
  stats.tokens_ = tokens;
  take(rest, stats.absolute_sum_.data(), stats.absolute_sum_.size());
  take(rest, stats.absolute_max_.data(), stats.absolute_max_.size());
  take(rest, stats.triangle_.data(), stats.triangle_.size());
  const auto negative_or_odd = [](auto value) { return !(std::isfinite(value) && value >= 0); };
  if (std::any_of(stats.absolute_sum_.begin(), stats.absolute_sum_.end(), negative_or_odd) ||
      std::any_of(stats.absolute_max_.begin(), stats.absolute_max_.end(), negative_or_odd) ||
      !std::all_of(stats.triangle_.begin(), stats.triangle_.end(), [](double v) { return std::isfinite(v); }))
    bad("it holds a value that no statistics have");
  return stats;
}

}  // namespace llmq
