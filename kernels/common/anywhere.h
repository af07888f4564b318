// How a function of a header is marked that the host's compiler and nvcc both inline: these are no constant
// expressions, so nvcc has to be told.
#pragma once
#include "base/half.h"

#ifdef __CUDACC__
#define LLMQ_ANYWHERE LLMQ_INLINE __host__ __device__
#else
#define LLMQ_ANYWHERE LLMQ_INLINE
#endif
