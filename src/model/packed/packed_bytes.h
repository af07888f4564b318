// A byte a code, as compressed-tensors (int-quantized, float-quantized, mxfp8-quantized: the layout stands in
// export/formats/compressed_codes.h) and modelopt (export/formats/modelopt.cpp) store them.
#pragma once
#include <string>

#include "model/packed/packed_tensors.h"

namespace llmq {

// Whether the weight holds codes, under the name of a dense one: types that only they have. Those of
// modelopt, which are E4M3 or pairs of E2M1.
bool holds_codes(const StoredTensor* weight, PackedFormat format);

// Shapes checked. Errors: kBadInput with the tensor's name.
PackedTensors open_packed_bytes(const Checkpoint& checkpoint, const std::string& module,
                                const QuantScheme& scheme, PackedFormat format);

}  // namespace llmq
