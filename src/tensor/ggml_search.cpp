#include "tensor/ggml_search.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstddef>

#include "tensor/ggml_lanes.h"

namespace llmq {
namespace {

std::uint8_t code(float scaled, int low, int high) {
  return static_cast<std::uint8_t>(std::clamp(nearest_int(scaled), low, high) - low);
}

// sum w x q and sum w q^2 of a candidate; the scale that fits its codes best is their quotient, and what that
// leaves is sum w x^2 - xq^2 / qq.
struct Products {
  float xq = 0, qq = 0;
};

// The number of largest magnitude, with its sign; the first of equals.
float largest(WeightedRun run) {
  float best = 0;
  for (int i = 0; i < run.size; ++i)
    if (std::fabs(run.x[i]) > std::fabs(best)) best = run.x[i];
  return best;
}

// Up to five sweeps that give one number at a time the code that the scale of all the others asks for, kept
// if the run then fits better. Codes are signed here. `others` : a number that alone has a code other than 0
// stays.
void sweep(WeightedRun run, int low, int high, bool others, int* q, Products& sums) {
  for (int round = 0; round < 5; ++round) {
    bool changed = false;
    for (int i = 0; i < run.size; ++i) {
      const float w = run.weight[i], x = run.x[i], old = static_cast<float>(q[i]);
      Products rest{sums.xq - w * x * old, sums.qq - w * old * old};
      if (!(rest.xq > 0) || (others && !(rest.qq > 0))) continue;
      const int asked = std::clamp(nearest_int(x * rest.qq / rest.xq), low, high);
      if (asked == q[i]) continue;
      const auto l = static_cast<float>(asked);
      rest.xq += w * x * l;
      rest.qq += w * l * l;
      if (!(rest.qq > 0) || !(rest.xq * rest.xq * sums.qq > sums.xq * sums.xq * rest.qq)) continue;
      q[i] = asked;
      sums = rest;
      changed = true;
    }
    if (!changed) return;
  }
}

}  // namespace

float search_symmetric(WeightedRun run, int zero, std::uint8_t* q) {
  const float extreme = largest(run);
  if (std::fabs(extreme) < kNoNumbers) {
    std::fill_n(q, run.size, std::uint8_t{0});
    return 0;
  }
  // Candidate 0 gives the largest number the lowest code; the others miss it by 0.1 to 0.9 either way.
  constexpr int kCandidates = 20;  // the last repeats the first, to fill the lanes
  alignas(16) std::array<float, kCandidates> inverse{};
  const auto reach = static_cast<float>(zero);
  inverse[0] = inverse[kCandidates - 1] = -reach / extreme;
  for (int is = -9, c = 1; is <= 9; ++is)
    if (is != 0) inverse[static_cast<std::size_t>(c++)] = -(reach + 0.1f * static_cast<float>(is)) / extreme;

  float scale = 0, best = 0;
  std::size_t chosen = 0;
  for (std::size_t first = 0; first < kCandidates; first += kLanes) {
    Lanes inv, xq = {}, qq = {};
    std::memcpy(&inv, &inverse[first], sizeof inv);
    for (int i = 0; i < run.size; ++i) {
      const Lanes l = rounded(inv * run.x[i], all_lanes(-reach), all_lanes(reach - 1));
      const Lanes w = all_lanes(run.weight[i]);
      xq += w * run.x[i] * l;
      qq += w * l * l;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::size_t c = first + static_cast<std::size_t>(lane);
      const bool better = c == 0 || (qq[lane] > 0 && xq[lane] * xq[lane] > best * qq[lane]);
      if (!better || c == kCandidates - 1) continue;
      scale = qq[lane] != 0 ? xq[lane] / qq[lane] : 0.f;
      best = scale * xq[lane];
      chosen = c;
    }
  }
  for (int i = 0; i < run.size; ++i) q[i] = code(inverse[chosen] * run.x[i], -zero, zero - 1);
  return scale;
}

float sweep_symmetric(WeightedRun run, int zero, std::uint8_t* q) {
  const float extreme = largest(run);
  if (std::fabs(extreme) < kNoNumbers) {
    std::fill_n(q, run.size, std::uint8_t{0});
    return 0;
  }
  const float inverse = -static_cast<float>(zero) / extreme;
  std::array<int, kLongestSubBlock> codes{};
  Products sums;
  for (int i = 0; i < run.size; ++i) {
    int& l = codes[static_cast<std::size_t>(i)];
    l = std::clamp(nearest_int(inverse * run.x[i]), -zero, zero - 1);
    const float w = run.weight[i], value = static_cast<float>(l);
    sums.xq += w * run.x[i] * value;
    sums.qq += w * value * value;
  }
  sweep(run, -zero, zero - 1, false, codes.data(), sums);
  for (int i = 0; i < run.size; ++i)
    q[i] = static_cast<std::uint8_t>(codes[static_cast<std::size_t>(i)] + zero);
  return sums.qq > 0 ? sums.xq / sums.qq : 0;
}

float search_positive(WeightedRun run, int top, std::uint8_t* q) {
  const float extreme = std::max(0.f, *std::max_element(run.x, run.x + run.size));
  if (extreme < kNoNumbers) {
    std::fill_n(q, run.size, std::uint8_t{0});
    return 0;
  }
  const auto high = static_cast<float>(top);
  const auto left_by = [&](float inverse) {
    const float scale = 1 / inverse;
    float left = 0;
    for (int i = 0; i < run.size; ++i) {
      const float diff =
          run.x[i] - scale * static_cast<float>(std::min(nearest_int(inverse * run.x[i]), top));
      left += run.weight[i] * diff * diff;
    }
    return left;
  };
  float inverse = high / extreme, least = left_by(inverse);
  for (int is = -4; is <= 4; ++is) {
    if (is == 0) continue;
    const float candidate = (0.1f * static_cast<float>(is) + high) / extreme, left = left_by(candidate);
    if (left < least) {
      least = left;
      inverse = candidate;
    }
  }
  std::array<int, kLongestSubBlock> codes{};
  Products sums;
  for (int i = 0; i < run.size; ++i) {
    int& l = codes[static_cast<std::size_t>(i)];
    l = std::min(nearest_int(inverse * run.x[i]), top);
    const float w = run.weight[i], value = static_cast<float>(l);
    sums.xq += w * run.x[i] * value;
    sums.qq += w * value * value;
  }
  sweep(run, 0, top, true, codes.data(), sums);
  for (int i = 0; i < run.size; ++i) q[i] = static_cast<std::uint8_t>(codes[static_cast<std::size_t>(i)]);
  return sums.qq > 0 ? sums.xq / sums.qq : 0;
}

namespace {

// Codes where code 0 stands for `lowest`. A range so small that its inverse is no number gives every number
// the code 0, as nearest_int() does.
void round_from(const RunLanes& runs, Lanes inverse, Lanes lowest, Lanes top, Lanes* q) {
  inverse = inverse <= FLT_MAX ? inverse : Lanes{};
  for (std::size_t i = 0; i < runs.size; ++i) q[i] = rounded(inverse * (runs.x[i] - lowest), Lanes{}, top);
}

Lanes left_by(const RunLanes& runs, Lanes scale, Lanes lowest, const Lanes* q, bool absolute) {
  Lanes sum = {};
  for (std::size_t i = 0; i < runs.size; ++i) {
    const Lanes diff = scale * q[i] + lowest - runs.x[i];
    sum += runs.weight[i] * (absolute ? (diff < 0.f ? -diff : diff) : diff * diff);
  }
  return sum;
}

}  // namespace

void search_affine(WeightedRun first, int top, AffineCandidates candidates, AffineFit* fits,
                   std::uint8_t* codes) {
  const RunLanes runs(first.x, first.weight, first.size);
  Lanes lowest = runs.x[0], highest = runs.x[0], sum_w = runs.weight[0], sum_x = runs.weight[0] * runs.x[0];
  for (std::size_t i = 1; i < runs.size; ++i) {
    const Lanes x = runs.x[i], w = runs.weight[i];
    lowest = x < lowest ? x : lowest;
    highest = x > highest ? x : highest;
    sum_w += w;
    sum_x += w * x;
  }
  lowest = lowest > 0.f ? Lanes{} : lowest;
  const LaneMask constant = highest == lowest;
  const Lanes high = all_lanes(static_cast<float>(top));
  std::array<Lanes, kLongestSubBlock> q;
  Lanes inverse = high / (highest - lowest), start = lowest;  // which give the best codes so far
  Lanes scale = 1 / inverse;
  round_from(runs, inverse, start, high, q.data());
  Lanes least = left_by(runs, scale, lowest, q.data(), candidates.absolute);
  for (int c = 0; c < candidates.count; ++c) {
    const float reach = candidates.first + candidates.step * static_cast<float>(c) + static_cast<float>(top);
    const Lanes candidate = reach / (highest - lowest);
    round_from(runs, candidate, lowest, high, q.data());
    // The least-squares line through (code, number). One that would have all codes above 0 passes through 0
    // instead.
    Lanes sum_q = {}, sum_qq = {}, sum_xq = {};
    for (std::size_t i = 0; i < runs.size; ++i) {
      const Lanes wq = runs.weight[i] * q[i];
      sum_q += wq;
      sum_qq += wq * q[i];
      sum_xq += wq * runs.x[i];
    }
    const Lanes determinant = sum_w * sum_qq - sum_q * sum_q;
    const Lanes slope = (sum_w * sum_xq - sum_x * sum_q) / determinant,
                offset = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
    const LaneMask above = offset > 0.f;
    const Lanes line = select(above, sum_xq / sum_qq, slope), foot = select(above, Lanes{}, offset);
    const Lanes left = left_by(runs, line, foot, q.data(), candidates.absolute);
    const LaneMask better = (determinant > 0.f) & (left < least);
    least = select(better, left, least);
    scale = select(better, line, scale);
    inverse = select(better, candidate, inverse);
    start = select(better, lowest, start);
    lowest = select(better, foot, lowest);  // where later candidates start from
  }
  round_from(runs, inverse, start, high, q.data());
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    fits[lane] = {constant[lane] != 0 ? 0.f : scale[lane], -lowest[lane]};
    for (std::size_t i = 0; i < runs.size; ++i)
      codes[lane * runs.size + i] = static_cast<std::uint8_t>(q[i][lane]);
  }
}

}  // namespace llmq
