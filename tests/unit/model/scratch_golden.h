// A committed golden model (tests/golden/models) to be bent by a test: its config, and its tensors as they
// are stored.
#pragma once
#include <string>

#include "base/io.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "scratch_model.h"

namespace llmq {

class ScratchGolden : public ScratchModel {
 public:
  explicit ScratchGolden(const std::string& name) {
    const Path folder = Path(LLMQ_SOURCE_DIR) / "tests/golden/models" / name / "model";
    config = Json::parse(read_text(system_io(), folder / "config.json"), "config.json");
    tensors.clear();
    const auto file = system_io().open(folder / "model.safetensors");
    const auto mapping = file->map();
    for (const SafetensorsEntry& entry : parse_safetensors(mapping->bytes(), name).entries) {
      ScratchTensor& tensor = tensors[entry.name];
      tensor.dtype = dtype_row(entry.dtype).name;
      for (int axis = 0; axis < entry.shape.rank(); ++axis) tensor.shape.push_back(entry.shape[axis]);
      const auto bytes = mapping->bytes().subspan(entry.offset, entry.bytes);
      tensor.bytes.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
};

}  // namespace llmq
