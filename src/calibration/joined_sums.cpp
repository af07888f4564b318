#include "calibration/joined_sums.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace llmq {
namespace {

constexpr std::uint64_t kGatheredBytes = std::uint64_t{64} << 20;  // of the totals of all ranks at an owner
constexpr std::uint64_t kLeastBand = 1 << 16;                      // places

std::uint64_t band_places(std::uint64_t ranks) {
  return std::max(kLeastBand, kGatheredBytes / sizeof(double) / ranks);
}

// Totals, then residues.
RankBytes band_bytes(std::span<const double> totals, std::span<const Residue> residues) {
  RankBytes bytes(totals.size_bytes() + residues.size_bytes());
  std::memcpy(bytes.data(), totals.data(), totals.size_bytes());
  if (!residues.empty())
    std::memcpy(bytes.data() + totals.size_bytes(), residues.data(), residues.size_bytes());
  return bytes;
}

void add_band(ExactSums& sums, const RankBytes& bytes) {
  const std::size_t totals = sums.size() * sizeof(double);
  sums.add(0, {reinterpret_cast<const double*>(bytes.data()), sums.size()});
  sums.keep(
      {reinterpret_cast<const Residue*>(bytes.data() + totals), (bytes.size() - totals) / sizeof(Residue)});
  sums.trim();
}

// Their bits are added up as whole numbers: what is 0 everywhere else stays as it is.
template <class Bits, class Number>
void join_bits(std::span<Number> values, Ranks& ranks) {
  if (ranks.size() == 1) return;
  std::vector<std::int64_t> bits(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    bits[i] = static_cast<std::int64_t>(std::bit_cast<Bits>(values[i]));
  add_up(bits, ranks);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::bit_cast<Number>(static_cast<Bits>(bits[i]));
}

}  // namespace

ZeroedNumbers<double> round_together(ExactSums&& sums, Ranks& ranks, std::uint64_t band) {
  if (ranks.size() == 1) return std::move(sums).round();
  int next = 0;  // the owner of the next band
  return std::move(sums).round(band != 0 ? band : band_places(static_cast<std::uint64_t>(ranks.size())),
                               [&](std::span<double> totals, std::span<const Residue> residues) {
                                 const int owner = next;
                                 next = (next + 1) % ranks.size();
                                 const std::vector<RankBytes> given =
                                     ranks.gather(owner, band_bytes(totals, residues));
                                 if (ranks.rank() == owner) {
                                   ExactSums all(totals.size());
                                   for (const RankBytes& bytes : given) add_band(all, bytes);
                                   const ZeroedNumbers<double> rounded = std::move(all).round();
                                   std::copy(rounded.begin(), rounded.end(), totals.begin());
                                 }
                                 ranks.broadcast(owner, std::as_writable_bytes(totals));
                               });
}

std::uint64_t joining_bytes(std::uint64_t places, std::uint64_t ranks) {
  if (ranks < 2) return 0;
  const std::uint64_t band = std::min(places, band_places(ranks)),
                      bytes = band * sizeof(double) + ExactSums::residue_bytes(band);
  return (ranks + 2) * bytes;  // of each rank, of this one as it is sent, and their sum
}

void add_up(std::span<std::int64_t> values, Ranks& ranks) {
  ranks.sum_to(0, values);
  ranks.broadcast(0, std::as_writable_bytes(values));
}

void take_largest(std::span<float> values, Ranks& ranks) {
  if (ranks.size() == 1) return;
  for (const RankBytes& bytes : ranks.gather(0, std::as_bytes(values))) {
    const auto* const theirs = reinterpret_cast<const float*>(bytes.data());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::max(values[i], theirs[i]);
  }
  ranks.broadcast(0, std::as_writable_bytes(values));
}

Dealt dealt_to(int rank, std::size_t units, const Ranks& ranks) {
  const auto own = static_cast<std::size_t>(rank), size = static_cast<std::size_t>(ranks.size());
  return {own * units / size, (own + 1) * units / size};
}

void join_bytes(std::span<std::byte> values, std::size_t units, std::size_t of_each, Ranks& ranks) {
  if (ranks.size() == 1) return;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Dealt part = dealt_to(rank, units, ranks);
    const std::size_t first = std::min(part.first * of_each, values.size()),
                      end = std::min(part.end * of_each, values.size());
    if (first < end) ranks.broadcast(rank, values.subspan(first, end - first));
  }
}

void join_known(std::span<float> values, Ranks& ranks) { join_bits<std::uint32_t>(values, ranks); }
void join_known(std::span<double> values, Ranks& ranks) { join_bits<std::uint64_t>(values, ranks); }

}  // namespace llmq
