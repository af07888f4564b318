// GPTQ of many rows where a device makes the products and rounds the columns (device/column_rounder.h); scales are chosen on the host, tile
// by tile, from what the device hands over a group at a time. The codes are the host's bit for bit (quant/gptq_rows.h).
//
// Memory for each row of K columns: 12 K bytes on the device, and as much on the host. Copies per row: a few times 4 K bytes each way.
#pragma once
#include <cstdint>

#include "device/column_rounder.h"
#include "quant/gptq_rows.h"

namespace llmq {

// `inverse` may be empty.
DevicePanels put_panels(const ColumnPanels& panels, const ColumnOrder& order, std::span<const float> inverse, Backend& backend);

// Rounds all rows of the problem and writes them, on the backend and the problem's further devices, all of them ColumnRounders: each takes
// batches of rows in turn, and no row depends on another. linear.input has its panels on every device.
void round_on_devices(const GptqLinear& linear, const RoundingProblem& problem, QuantizedMatrix& matrix, Backend& backend);

}  // namespace llmq
