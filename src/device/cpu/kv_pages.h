// Keys and values to and from the CPU's pages, whose order kernels/cpu/kv_layout.h has; packed ones are rows.
#pragma once
#include <span>

#include "device/cpu/cpu_work.h"

namespace llmq {

// Backend::store_kv and load_kv.
void store_in_pages(ThreadPool& pool, const KvPages& pages, const TensorView& k, const TensorView& v,
                    std::span<const std::int64_t> slots);
void load_from_pages(ThreadPool& pool, const TensorView& k, const TensorView& v, const KvPages& pages,
                     std::span<const std::int64_t> slots);

}  // namespace llmq
