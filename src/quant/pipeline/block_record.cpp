#include "quant/pipeline/block_record.h"

#include <cmath>

#include "base/disk/trace_file.h"
#include "base/error.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

// Json has no NaN: it comes back from null.
double number(const Json& value) { return value.is_null() ? std::nan("") : value.as_double(); }

Json module_json(const ModuleReport& m) {
  return Json::object({{"module", Json(m.module)},
                       {"method", Json(m.method)},
                       {"loss", Json(m.loss)},
                       {"rtn_loss", Json(m.rtn_loss)},
                       {"relative_error", Json(m.relative_error)},
                       {"weight_error", Json(m.weight_error)},
                       {"input_error", Json(m.input_error)},
                       {"lambda", Json(m.lambda)},
                       {"scales", m.scales.to_json()}});
}

ModuleReport read_module(const QuantizeRun& run, const Json& json) {
  ModuleReport m;
  m.module = json.at("module").as_string();
  const auto planned = run.planned.find(m.module);
  if (planned == run.planned.end())
    fail(ErrorKind::kInternal, "the journal names {}, which is not planned", m.module);
  m.scheme = planned->second->scheme;
  m.method = json.at("method").as_string();
  m.loss = number(json.at("loss"));
  m.rtn_loss = number(json.at("rtn_loss"));
  m.relative_error = number(json.at("relative_error"));
  m.weight_error = number(json.at("weight_error"));
  m.input_error = number(json.at("input_error"));
  m.lambda = number(json.at("lambda"));
  m.scales.first_octave = static_cast<int>(json.at("scales").at("first_octave").as_integer());
  for (const Json& count : json.at("scales").at("counts").items())
    m.scales.counts.push_back(count.as_integer());
  return m;
}

}  // namespace

ReportMark mark_report(const QuantizeReport& report) {
  return {report.modules.size(), report.fallbacks.size(), report.warnings.size(), report.mixtures.size()};
}

Json block_record_json(const QuantizeReport& report, const ReportMark& since,
                       const std::set<std::string>& changed) {
  Json modules = Json::array(), dense = Json::array(), mixtures = Json::array();
  for (std::size_t i = since.modules; i < report.modules.size(); ++i)
    modules.push_back(module_json(report.modules[i]));
  for (std::size_t i = since.mixtures; i < report.mixtures.size(); ++i)
    mixtures.push_back(report.mixtures[i]);
  for (const std::string& name : changed) dense.push_back(Json(name));
  return Json::object({{"modules", modules},
                       {"fallbacks", fallbacks_json(std::span(report.fallbacks).subspan(since.fallbacks))},
                       {"warnings", text_list(std::span(report.warnings).subspan(since.warnings))},
                       {"mixtures", mixtures},
                       {"changed", dense}});
}

std::set<std::string> take_record(QuantizeRun& run, const Json& findings) {
  for (const Json& module : findings.at("modules").items())
    run.report.modules.push_back(read_module(run, module));
  for (const Json& fallback : findings.at("fallbacks").items())
    run.report.fallbacks.push_back({fallback.at("module").as_string(), fallback.at("reason").as_string()});
  for (const Json& warning : findings.at("warnings").items())
    run.report.warnings.push_back(warning.as_string());
  for (const Json& mixture : findings.at("mixtures").items()) run.report.mixtures.push_back(mixture);
  std::set<std::string> changed;
  for (const Json& name : findings.at("changed").items()) changed.insert(name.as_string());
  return changed;
}

void finish_block(QuantizeRun& run, const ReportMark& before) {
  std::set<std::string> changed;
  for (const auto& [name, values] : run.changed_dense) {
    const StoredTensor& tensor = run.source.checkpoint().at(name);
    const DType dtype = written_dtype(tensor);
    if (run.writing.writer().writes(name))
      run.writing.add_dense(name, dtype, tensor.view.shape, stored_floats(values, dtype));
    changed.insert(name);
  }
  run.writing.commit(block_record_json(run.report, before, changed));
  run.written_dense.merge(changed);
  run.changed_dense.clear();
  run.memory.mark();
  run.clock.charge("writing");
}

void trace_block(const QuantizeRun& run, std::size_t block, const ReportMark& before,
                 std::int64_t started_ns) {
  if (!TraceFile::get().is_open()) return;
  double loss = 0, rounding_loss = 0;
  for (std::size_t i = before.modules; i < run.report.modules.size(); ++i) {
    loss += run.report.modules[i].loss;
    rounding_loss += run.report.modules[i].rtn_loss;
  }
  Json found =
      Json::object({{"llmq.block", static_cast<std::int64_t>(block)},
                    {"llmq.blocks", static_cast<std::int64_t>(run.spec.blocks.size())},
                    {"llmq.modules", static_cast<std::int64_t>(run.report.modules.size() - before.modules)}});
  if (run.plan.needs_calibration) {
    found["llmq.loss"] = loss;
    found["llmq.rounding_loss"] = rounding_loss;
  }
  TraceFile::get().write({run.spec.blocks[block].prefix, Span::Kind::kInternal, TraceFile::get().command(),
                          started_ns, unix_time_ns(), std::move(found)});
}

}  // namespace llmq
