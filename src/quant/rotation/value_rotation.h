// The channels of each head, rotated between the linear that makes values and the one that reads what
// attention makes of them (R2 of SpinQuant, Liu et al. 2024; Hadamard matrices as in QuaRot, Ashkboos et al.
// 2024). Of every KV head, with H orthogonal and I its queries' heads:
//
//   V' = H V,  b' = H b,  O' = O (I x H)^T   so that   O' attention(V' x + b') = O attention(V x + b)
//
// Attention gives weighted sums of values, so a rotation of their channels passes it. H is Sylvester's matrix
// of the greatest power of two that divides head_dim, divided by its root, and several of them beside one
// another where that is less than head_dim: signs alone, symmetric, its own inverse.
//
// Sums are FP32 and pairwise, in the order of the fast transform, so no bit depends on threads; what comes
// out is rounded once (export/changed_tensor.h). Cost of a reading: log2(n) additions a weight.
#pragma once
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "export/formats/rotated_heads.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"
#include "quant/recipe/recipe.h"
#include "tensor/planned_module.h"

namespace llmq {

// In place, n a power of two: of each w < width the numbers[i * stride + w], i < n, become H times them.
void rotate_by_hadamard(std::span<float> numbers, std::int64_t n, std::int64_t stride, std::int64_t width);

// n of a head of so many channels.
std::int64_t hadamard_size(std::int64_t head_dim);

// The checkpoint with all of these linears rotated. Error(kUnsupported) naming the block and what is between
// values and their reader, where something is that no rotation passes. While a tensor is read, Error naming
// it: kBadInput where a number is not finite, kUnsupported where its type does not hold one any more.
// `source`: the recipe's file.
Checkpoint with_rotated_values(const Checkpoint& checkpoint, const ModelSpec& spec,
                               const std::string& source);

// Their modules. Error(kUnsupported) as above.
std::set<std::string> rotated_modules(const ModelSpec& spec, const std::string& source);

// Those of them that a config has words for, where the recipe rotates values, by the sizes of H: not linears
// that make values among other things (a stored qkv). Error(kUnsupported) as above; Error(kUsage) naming the
// first that stays dense: it would lose by being rounded once more, and gain nothing.
std::vector<RotatedHeads> rotated_heads(const Recipe& recipe, const ModelSpec& spec,
                                        std::span<const PlannedModule> modules);

}  // namespace llmq
