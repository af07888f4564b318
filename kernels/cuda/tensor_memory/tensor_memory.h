// Tensor memory of a block of 128 threads, 128 lanes x kColumns words, and the products that read and write
// it: tcgen05 of the sm_100 family.
//
//   allocate   before all else, by all threads
//   store      a word a thread to its own lane of one column: warp w has lanes 32w .. 32w + 31
//   publish    what was stored there and written to shared memory is there for products
//   multiply   starts one product; between publish() and finish(), in the order of calls
//   finish     waits for the products that were started: shared memory and columns are free again
//   load8      eight columns of a thread's lane
//   release    after all else
// All stand outside of each(), as collectives do (kernels/cuda/block.h).
//
// Scales of row r of an operand lie in lane r % 32 of column r / 32 of theirs, the same in each of the four
// quarters of the lanes; sum (m, n) in lane m, column n.
//
// finish() tries a bounded number of times: a device whose product never arrives does not hang; arrived() is
// false, and the kernel's result a wrong one that the trial refuses (device/cuda/float4_trial.cpp).
#pragma once
#include "kernels/cuda/block.h"
#include "kernels/cuda/tensor_memory/descriptors.h"

#ifdef __CUDACC__
#include "kernels/cuda/tensor_memory/tensor_memory_device.h"
#else
#include "kernels/cuda/tensor_memory/tensor_memory_emulated.h"
#endif
