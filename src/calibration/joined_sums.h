// What ranks know together of the samples of which each saw a part: on every rank the same, to the bit.
//
// A sum over all samples is the real sum of what each rank added, rounded once (tensor/exact_sums.h), so
// neither the number of ranks nor their order is to be seen in it. Places are cut into bands; band b is that
// of rank b mod N, to which the others give their totals and residues, and which gives back the rounded sums.
//
// Traffic of a rank (Ranks::traffic()) for P places: 2 * 8 * P * (N - 1) / N bytes, and 16 for each residue
// that goes to another. Memory beside the sums: a band of every rank at its owner, joining_bytes() in all.
//
// Each of these is of all ranks, and of one rank alone it does nothing that takes time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/zeroed_numbers.h"
#include "ranks/ranks.h"
#include "tensor/exact_sums.h"

namespace llmq {

// As many places on every rank. `band`: places that an owner is given at a time; 0: as many as memory allows.
ZeroedNumbers<double> round_together(ExactSums&& sums, Ranks& ranks, std::uint64_t band = 0);
// Of one place, of so many ranks: a band of each, with the residues that room is planned for.
std::uint64_t joining_bytes(std::uint64_t places, std::uint64_t ranks);

// values[i] of all ranks added up, or the largest of them.
void add_up(std::span<std::int64_t> values, Ranks& ranks);
void take_largest(std::span<float> values, Ranks& ranks);
// Numbers of which each is known to one rank, and 0 on the others.
void join_known(std::span<float> values, Ranks& ranks);
void join_known(std::span<double> values, Ranks& ranks);

// Of `units` that are dealt in contiguous runs those of rank r of N: from r units / N to (r + 1) units / N.
struct Dealt {
  std::size_t first = 0, end = 0;
};
Dealt dealt_to(int rank, std::size_t units, const Ranks& ranks);
inline Dealt own_part(std::size_t units, const Ranks& ranks) { return dealt_to(ranks.rank(), units, ranks); }
// `values` are of `units` that are dealt so, `of_each` of every one but the last, and each rank has made its
// own: all of them, on every rank.
void join_bytes(std::span<std::byte> values, std::size_t units, std::size_t of_each, Ranks& ranks);
template <class T>
void join_parts(std::span<T> values, std::size_t units, std::size_t of_each, Ranks& ranks) {
  join_bytes(std::as_writable_bytes(values), units, of_each * sizeof(T), ranks);
}

}  // namespace llmq
