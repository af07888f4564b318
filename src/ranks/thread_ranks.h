// Ranks that are threads of one process: what tests and ThreadSanitizer see of a job that is shared.
//
// Unlike MPI it notices ranks that do not do the same: another verb, another owner or other lengths are an
// Error(kInternal) that names both, on every rank.
#pragma once
#include <functional>

#include "ranks/ranks.h"

namespace llmq {

// work(ranks) once for each rank: on the calling thread for rank 0, each other one on a thread of its own;
// returns when all have ended. An error of one ends the waiting of the others, and is thrown here: of several
// the first that happened. `size` >= 1.
void run_as_ranks(int size, const std::function<void(Ranks&)>& work);

}  // namespace llmq
