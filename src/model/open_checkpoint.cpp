#include "model/open_checkpoint.h"

#include "model/families/wrapper.h"
#include "model/gguf/gguf_model.h"

namespace llmq {
namespace {

std::optional<SlabNames> slabs_of_family(const Json& config, const std::string& tensor) {
  const Json* const type = config.find("model_type");
  if (type == nullptr || !type->is_string()) return std::nullopt;
  if (const Wrapper* const wrapper = find_wrapper(type->as_string())) {
    const Family* const family = wrapped_family(*wrapper, config);
    if (family == nullptr || family->find_slabs == nullptr) return std::nullopt;
    return family->find_slabs(config, tensor);
  }
  for (const Family* const family : families())
    if (type->as_string() == family->model_type)
      return family->find_slabs == nullptr ? std::nullopt : family->find_slabs(config, tensor);
  return std::nullopt;
}

}  // namespace

Checkpoint open_checkpoint(Io& io, const std::string& model) {
  return Checkpoint::open(io, model, read_gguf_model, slabs_of_family);
}

}  // namespace llmq
