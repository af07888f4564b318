// Round to nearest: the baseline that every report shows. It sees no inputs; each group's range gives scale
// and zero (quant/methods/rounding.h).
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "base/threads.h"
#include "quant/methods/float_groups.h"
#include "quant/methods/method.h"
#include "quant/methods/method_options.h"
#include "quant/methods/rounding.h"

namespace llmq {

// Ranges of all groups, [rows, groups] (per tensor or block: one range, repeated).
std::vector<GroupRange> find_ranges(std::span<const float> weight, std::int64_t rows, std::int64_t columns,
                                    const QuantScheme& scheme, ThreadPool& pool);
// Codes of every row against the grids that `ranges` give.
QuantizedMatrix round_in_ranges(std::span<const float> weight, std::int64_t rows, std::int64_t columns,
                                const QuantScheme& scheme, std::span<const GroupRange> ranges,
                                ThreadPool& pool);
// `how` is of schemes whose scales are no plain numbers.
QuantizedMatrix round_to_nearest(std::span<const float> weight, std::int64_t rows, std::int64_t columns,
                                 const QuantScheme& scheme, ThreadPool& pool,
                                 const FloatGroupRounding& how = {});

// `compute` is of the loss it reports when statistics are given.
std::unique_ptr<Method> make_rtn(Compute compute, const FloatGroupOptions& floats = {});

}  // namespace llmq
