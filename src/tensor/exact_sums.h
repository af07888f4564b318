// Many sums that no order changes: of each place the real sum of its finite addends, rounded once to FP64.
//
//   total + value = total' + error,  all of them FP64          (kernels/common/exact_addition.h)
//
// Addends are FP32 numbers, 24 bits where a total has 53: errors are rare, and each that is not 0 is kept in
// a list beside the totals, with its place. At the end a place with such residues becomes the correctly
// rounded sum of its total and them (Shewchuk 1997; Python's math.fsum); every other total is exact already.
// So threads, devices and processes may add in any order and any groups: the bits are one by definition.
// A sum that meets infinities or NaN is what IEEE addition makes of them.
//
// Memory: 8 bytes a place; 16 a residue, of which room_for() are planned for. A list that outgrows its room
// is merged, place by place; one that is still larger grows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/zeroed_numbers.h"

namespace llmq {

struct Residue {
  std::uint64_t place = 0;
  double error = 0;  // finite, not 0
};

class ExactSums {
 public:
  // A kernel's add_run_exactly().
  using AddRun = bool (*)(double* totals, double* errors, const float* values, std::int64_t count);

  ExactSums() = default;
  explicit ExactSums(std::size_t count);  // of 0 each
  std::size_t size() const { return totals_.size(); }

  // At places first, first + 1, ... Several threads may add at once, each at places of its own.
  void add(std::size_t first, std::span<const float> values, AddRun run);
  void add(std::size_t first, std::span<const float> values);
  void add(std::size_t first, std::span<const double> values);
  void add(ExactSums&& other);                   // of as many places
  void keep(std::span<const Residue> residues);  // of places that anybody adds at
  // Merges the list where it is larger than its room. Nobody adds meanwhile.
  void trim();

  std::size_t residues() const { return residues_.size(); }
  bool outgrown() const { return outgrown_; }  // whether the list was larger than its room when merged
  ZeroedNumbers<double> round() &&;
  // The same by the caller, so many places at a time: totals[i] is to become what its place is rounded to.
  // The residues lie at places of this band, in rising order.
  using RoundBand = std::function<void(std::span<double> totals, std::span<const Residue> residues)>;
  ZeroedNumbers<double> round(std::size_t places, const RoundBand& round_band) &&;

  // How many residues a list for so many places has room for.
  static std::size_t room_for(std::size_t count);
  static std::uint64_t residue_bytes(std::uint64_t count) { return room_for(count) * sizeof(Residue); }

 private:
  template <class From, class Run>
  void add_runs(std::size_t first, std::span<const From> values, const Run& run);
  std::vector<Residue> take_sorted();
  template <class Visit>
  void each_place(const Visit& visit);

  ZeroedNumbers<double> totals_;
  std::vector<Residue> residues_;
  std::size_t room_ = 0;
  bool outgrown_ = false;
  std::unique_ptr<std::mutex> mutex_;  // of the list
};

// Of element (i, i) of a symmetric [k, k] in its triangle, rows from the diagonal on.
inline std::size_t triangle_place(std::int64_t i, std::int64_t k) {
  return static_cast<std::size_t>(i * k - i * (i - 1) / 2);
}

}  // namespace llmq
