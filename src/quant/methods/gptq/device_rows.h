// GPTQ of many rows on a device (device/column_rounder.h): the weights of the rows go up once, codes, scales
// and zeros come down once, and nothing of them crosses in between. The codes are the host's bit for bit
// (quant/methods/gptq/host_rows.h).
//
// Cost per row of K columns: as quant/methods/gptq/gptq.h says, with 12 K bytes on the device and what one
// group takes; 4 K bytes up, K and the scales down.
#pragma once
#include <cstdint>

#include "device/column_rounder.h"
#include "quant/methods/gptq/host_rows.h"

namespace llmq {

// What a device holds for the rounding of a linear: the factor and the square by panels (FP32), the factors
// of blocks, values by place, and as many rows as go at once.
std::uint64_t gptq_device_bytes(std::uint64_t out_features, std::uint64_t columns,
                                std::uint64_t device_scratch);

// While the factor of an input is made there: what it is made of, the factor and its panels; of several
// devices each has the square alone.
std::uint64_t gptq_factor_device_bytes(std::uint64_t columns, bool alone);

InputOnDevice put_input(const GptqInput& input, Backend& backend);
// With panels that the device has already: of unit_upper, and of the descent's square where there is one.
InputOnDevice put_input(const GptqInput& input, Buffer unit_upper, Buffer of_descent, Backend& backend);

// Rounds all rows of the problem and writes them, on the backend and the problem's further devices, all of
// them ColumnRounders: each takes batches of rows in turn, and no row depends on another. linear.input has
// been put on every device.
void round_on_devices(const GptqLinear& linear, const RoundingProblem& problem, QuantizedMatrix& matrix,
                      Backend& backend);

}  // namespace llmq
