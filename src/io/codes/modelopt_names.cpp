// Directories of NVIDIA's ModelOpt, as far as they differ in names and places from others:
//
//   hf_quant_config.json            has what config.json's quantization_config says, alone in older ones: it
//                                   takes that place
//   NAME.k_proj.k_scale, F32 []     the scale of a KV cache's keys, NAME.v_proj.v_scale of its values: they
//                                   become NAME.k_scale and NAME.v_scale, F32 [1]
//
// What model/packed/modelopt_config.cpp reads of the config. No value is looked at here.
#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "io/checkpoint_reader.h"

namespace llmq {
namespace {

bool is_of_modelopt(const Json& config) {
  const Json* const quantization = config.find("quantization_config");
  const Json* const method =
      quantization == nullptr || !quantization->is_object() ? nullptr : quantization->find("quant_method");
  return method != nullptr && method->is_string() && method->as_string().starts_with("modelopt");
}

}  // namespace

void CheckpointReader::take_modelopt_config(Json file) {
  const Json* const own = state_->config.find("quantization_config");
  if (own != nullptr && !own->is_null()) return;
  if (file.find("quant_method") == nullptr) file["quant_method"] = "modelopt";
  state_->config["quantization_config"] = std::move(file);
  state_->quantization_file = kModeloptFile;
}

void CheckpointReader::rename_modelopt_scales() {
  if (!is_of_modelopt(state_->config)) return;
  for (StoredTensor& tensor : state_->tensors) {
    if (tensor.name.ends_with("_proj_weight_scale"))
      fail(ErrorKind::kUnsupported,
           {"belongs to experts that modelopt stored as one stack, which are not read",
            shard(tensor).string(), tensor.name, "export them anew: newer versions store each expert apart"});
    for (const char* which : {"k", "v"}) {
      const std::string scale = fmt::format(".{}_scale", which), place = fmt::format(".{}_proj", which);
      if (!tensor.name.ends_with(place + scale)) continue;
      tensor.name.erase(tensor.name.size() - scale.size() - place.size(), place.size());
      if (tensor.view.shape.rank() == 0)
        tensor.view = TensorView(tensor.view.pointer, tensor.view.dtype, Shape{1});
    }
  }
}

}  // namespace llmq
