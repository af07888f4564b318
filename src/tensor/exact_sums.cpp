#include "tensor/exact_sums.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/common/exact_addition.h"

namespace llmq {
namespace {

constexpr std::size_t kRun = 512;         // added between two looks at the errors
constexpr std::size_t kLeastRoom = 4096;  // residues, of short sums
constexpr std::size_t kPlacesPerResidue = 64;

// Numbers of rising magnitude that do not overlap and whose real sum is that of all that were added
// (Shewchuk's expansion).
class Expansion {
 public:
  void clear() { parts_.clear(); }
  void add(double value) {
    std::size_t kept = 0;
    for (double part : parts_) {
      const double error = add_exactly(value, part);
      if (error != 0) parts_[kept++] = error;
    }
    parts_.resize(kept);
    if (value != 0) parts_.push_back(value);
  }
  const std::vector<double>& parts() const { return parts_; }

  // The real sum, rounded once, half to even: below the first part that the sum of those above it does not
  // hold, only the sign matters, and that only where this part is half a step.
  double rounded() const {
    if (parts_.empty()) return 0;
    std::size_t at = parts_.size() - 1;
    double sum = parts_[at], error = 0;
    while (at > 0 && error == 0) error = add_exactly(sum, parts_[--at]);
    if (at > 0 && (error < 0) == (parts_[at - 1] < 0)) {
      const double twice = error * 2, next = sum + twice;
      if (next - sum == twice) sum = next;
    }
    return sum;
  }

 private:
  std::vector<double> parts_;
};

}  // namespace

std::size_t ExactSums::room_for(std::size_t count) { return std::max(kLeastRoom, count / kPlacesPerResidue); }

ExactSums::ExactSums(std::size_t count)
    : totals_(count), room_(room_for(count)), mutex_(std::make_unique<std::mutex>()) {}

template <class From, class Run>
void ExactSums::add_runs(std::size_t first, std::span<const From> values, const Run& run) {
  double errors[kRun];
  std::vector<Residue> left;
  for (std::size_t at = 0; at < values.size(); at += kRun) {
    const std::size_t count = std::min(kRun, values.size() - at), place = first + at;
    if (!run(totals_.data() + place, errors, values.data() + at, static_cast<std::int64_t>(count))) continue;
    for (std::size_t i = 0; i < count; ++i)
      if (errors[i] != 0 && std::isfinite(errors[i])) left.push_back({place + i, errors[i]});
  }
  keep(left);
}

void ExactSums::add(std::size_t first, std::span<const float> values, AddRun run) {
  add_runs(first, values, run);
}

void ExactSums::add(std::size_t first, std::span<const float> values) {
  add_runs(first, values, add_run_exactly<float>);
}

void ExactSums::add(std::size_t first, std::span<const double> values) {
  add_runs(first, values, add_run_exactly<double>);
}

void ExactSums::add(ExactSums&& other) {
  add(0, std::span<const double>(other.totals_.data(), other.size()));
  keep(other.residues_);
  other = {};
}

void ExactSums::keep(std::span<const Residue> residues) {
  if (residues.empty()) return;
  const std::lock_guard lock(*mutex_);
  residues_.insert(residues_.end(), residues.begin(), residues.end());
}

std::vector<Residue> ExactSums::take_sorted() {
  std::sort(residues_.begin(), residues_.end(),
            [](const Residue& a, const Residue& b) { return a.place < b.place; });
  return std::exchange(residues_, {});
}

// visit(total, the expansion of it and its residues) of each place that has some and is finite; they go.
template <class Visit>
void ExactSums::each_place(const Visit& visit) {
  const std::vector<Residue> sorted = take_sorted();
  Expansion sum;
  for (std::size_t at = 0; at < sorted.size();) {
    const std::uint64_t place = sorted[at].place;
    double& total = totals_[place];
    sum.clear();
    sum.add(total);
    for (; at < sorted.size() && sorted[at].place == place; ++at)
      if (std::isfinite(total)) sum.add(sorted[at].error);
    if (std::isfinite(total)) visit(place, total, sum);
  }
}

void ExactSums::trim() {
  if (residues_.size() <= room_) return;
  each_place([&](std::uint64_t place, double& total, const Expansion& sum) {
    total = 0;
    for (const double part : sum.parts()) {
      if (total != 0) residues_.push_back({place, total});
      total = part;
    }
  });
  outgrown_ = outgrown_ || residues_.size() > room_for(size());
  room_ = std::max(room_for(size()), 2 * residues_.size());
}

ZeroedNumbers<double> ExactSums::round() && {
  each_place([](std::uint64_t, double& total, const Expansion& sum) { total = sum.rounded(); });
  return std::move(totals_);
}

ZeroedNumbers<double> ExactSums::round(std::size_t places, const RoundBand& round_band) && {
  std::vector<Residue> sorted = take_sorted();
  std::span<Residue> left = sorted;
  for (std::size_t first = 0; first < size(); first += places) {
    const std::size_t count = std::min(places, size() - first);
    std::size_t own = 0;
    while (own < left.size() && left[own].place < first + count) left[own++].place -= first;
    round_band({totals_.data() + first, count}, left.first(own));
    left = left.subspan(own);
  }
  return std::move(totals_);
}

}  // namespace llmq
