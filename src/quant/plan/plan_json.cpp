#include "quant/plan/plan_json.h"

#include "base/io.h"
#include "export/formats/output_format.h"

namespace llmq {

Json plan_json(const Plan& plan, const PlanCosts& costs) {
  Json planned = Json::array();
  for (const PlannedModule& m : plan.packed())
    planned.push_back(Json::object({{"module", Json(m.module)},
                                    {"scheme", Json(m.scheme.text())},
                                    {"shape", Json::array({Json(m.out_features), Json(m.in_features)})}}));
  return Json::object({{"schema", Json("llmq.plan/1")},
                       {"method", Json(plan.method)},
                       {"format", Json(plan.format)},
                       {"compute", Json(compute_name(plan.compute))},
                       {"bits_per_weight", Json(plan.bits_per_weight())},
                       {"bytes_in", Json(costs.bytes_in)},
                       {"bytes_out", Json(costs.bytes_out)},
                       {"bytes_written", Json(costs.bytes_written())},
                       {"bytes_read", Json(total_bytes(costs.reads))},
                       {"reads", named_bytes_json(costs.reads)},
                       {"flops", Json(costs.flops)},
                       {"chunk_tokens", Json(plan.chunk_tokens)},
                       {"experts_at_once", Json(plan.experts_at_once)},
                       {"keep_inputs", Json(plan.keep_inputs)},
                       {"activations_in_file", Json(plan.activations_in_file)},
                       {"activations_on_host", Json(plan.activations_on_host)},
                       {"peak_bytes", Json(costs.peak_bytes)},
                       {"devices", text_list(plan.devices)},
                       {"device_bytes", Json(costs.device_bytes)},
                       {"device_free_bytes", plan.device_room ? Json(plan.device_room->free_bytes) : Json()},
                       {"device_memory", named_bytes_json(costs.device_memory)},
                       {"memory", named_bytes_json(costs.memory)},
                       {"modules", planned},
                       {"ignored", text_list(plan.ignored)},
                       {"mixed", plan.mixed ? plan.mixed->to_json() : Json()},
                       {"warnings", text_list(plan.warnings)}});
}

Json plan_json(const GgufPlan& plan, const PlanCosts& costs) {
  Json list = Json::array();
  for (const GgufPlan::Tensor& tensor : plan.tensors)
    list.push_back(Json::object({{"tensor", Json(tensor.name)},
                                 {"type", Json(dtype_row(tensor.dtype).name)},
                                 {"shape", Json(tensor.shape.text())}}));
  return Json::object({{"schema", "llmq.plan/1"},
                       {"method", plan.method},
                       {"format", kGgufFormat},
                       {"scheme", gguf_type_name(*plan.file_type)},
                       {"importance", plan.importance},
                       {"search", plan.search == BlockSearch::kBest ? "best" : "ggml"},
                       {"compute", compute_name(plan.compute)},
                       {"bits_per_weight", plan.bits_per_weight()},
                       {"bytes_in", Json(costs.bytes_in)},
                       {"bytes_out", Json(costs.bytes_out)},
                       {"flops", Json(costs.flops)},
                       {"peak_bytes", Json(costs.peak_bytes)},
                       {"memory", named_bytes_json(costs.memory)},
                       {"reads", named_bytes_json(costs.reads)},
                       {"tensors", list},
                       {"warnings", text_list(plan.warnings)}});
}

}  // namespace llmq
