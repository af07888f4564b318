#include "job/rebuild.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "export/convert.h"
#include "export/formats/output_format.h"
#include "job/changed_weights.h"
#include "job/planned_job.h"
#include "job/recorded_job.h"
#include "job/run_adapter.h"
#include "model/open_checkpoint.h"

namespace llmq {
namespace {

// The model that the manifest names, or `instead`; `open` is asked for it.
template <typename Open>
auto open_recorded(const std::string& recorded, const std::string& instead, const Open& open) {
  if (!instead.empty()) return open(instead);
  try {
    return open(recorded);
  } catch (const Error& error) {
    ErrorDetail detail = error.detail();
    detail.hint = "the manifest names this model; --model PATH names it anew" +
                  (detail.hint.empty() ? "" : "; " + detail.hint);
    throw Error(error.kind(), detail);
  }
}

// "cuda" of "cuda sm_90, cuSOLVER 12.0.4", "emulated" of "cuda emulated".
std::string device_of(const std::string& arithmetic) {
  return arithmetic == "cuda emulated" ? "emulated" : arithmetic.substr(0, arithmetic.find(' '));
}

// The device that computes as the recorded one did, where there is one.
std::shared_ptr<Backend> recorded_backend(const ProvenanceFacts& facts, BackendRequest asked,
                                          std::vector<OtherMaking>& otherwise) {
  std::shared_ptr<Backend> backend;
  asked.use = DeviceUse::kCalibration;
  const bool cpu = facts.backend.starts_with("cpu ");
  if (asked.device == "auto" && !cpu) asked.device = device_of(facts.backend);
  try {
    asked.arithmetic = cpu ? facts.backend : "";
    backend = make_backend(asked);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported && error.kind() != ErrorKind::kUsage) throw;
    asked.device = "auto";
    asked.arithmetic.clear();
    backend = make_backend(asked);
  }
  if (backend->arithmetic() != facts.backend)
    otherwise.push_back({"arithmetic", facts.backend, backend->arithmetic()});
  return backend;
}

void note_version(const ProvenanceFacts& facts, const Program& program, std::vector<OtherMaking>& otherwise) {
  const auto text = [](const std::string& version, const std::string& commit) {
    return fmt::format("{} ({})", version, commit);
  };
  const std::string then = text(facts.version, facts.commit), now = text(program.version, program.commit);
  if (then != now) otherwise.push_back({"llmq", then, now});
}

void warn_of(const std::vector<OtherMaking>& otherwise) {
  for (const OtherMaking& one : otherwise)
    Log::get().warn(
        fmt::format("{} was {} and is {}: other bytes would not be a surprise", one.what, one.then, one.now));
}

// A manifest that somebody put beside an output of the other form would compare nothing.
void check_form(const Path& output, bool makes_a_file) {
  if (makes_a_file == (output.extension() == ".gguf")) return;
  fail(ErrorKind::kBadInput,
       {fmt::format("speaks of a job that writes a {}", makes_a_file ? ".gguf file" : "directory"),
        manifest_path(output).string(),
        {},
        "it is not the manifest of this output"});
}

Compute recorded_compute(const ProvenanceFacts& facts, const Path& output) {
  if (const std::optional<Compute> compute = compute_named(facts.compute)) return *compute;
  fail(ErrorKind::kBadInput, {"'" + facts.compute + "' is not an arithmetic of the forward pass",
                              manifest_path(output).string(),
                              {},
                              "float32 and bfloat16 are"});
}

Rebuild rebuild_conversion(Io& io, const RebuildRequest& asked, const ProvenanceFacts& facts) {
  Rebuild result;
  const Path& output = asked.output;
  note_version(facts, asked.program, result.otherwise);
  warn_of(result.otherwise);
  ConvertRequest request = conversion_request(facts.recipe, manifest_path(output).string());
  const bool file = is_one_file(request.to);
  check_form(output, file);
  const Checkpoint checkpoint = open_recorded(
      request.source, asked.model, [&](const std::string& name) { return open_checkpoint(io, name); });
  result.inputs = changed_inputs(io, facts.inputs, conversion_files(io, checkpoint, request), asked.on_step);
  if (!result.inputs.empty()) return result;
  request.target = OutputTarget{file ? rebuilt_file(output) : rebuilt_directory(io, output)};
  request.threads = asked.backend.threads;
  request.on_tensor = [&](const std::string&) { asked.on_step(); };
  request.on_whole = [&](const Path& made) {
    result.files = compare_rebuilt(io, output, made);
    return false;
  };
  convert(io, checkpoint, request);
  return result;
}

}  // namespace

Json Rebuild::to_json() const {
  Json others = Json::array();
  for (const OtherMaking& one : otherwise)
    others.push_back(Json::object({{"what", one.what}, {"then", one.then}, {"now", one.now}}));
  return Json::object({{"ok", ok()},
                       {"compared", static_cast<std::int64_t>(files.compared)},
                       {"otherwise", others},
                       {"inputs", mismatches_json(inputs)},
                       {"outputs", mismatches_json(files.outputs)},
                       {"first_tensor", files.first_tensor.empty() ? Json() : Json(files.first_tensor)}});
}

Rebuild rebuild_output(Io& io, const RebuildRequest& asked) {
  const Path& output = asked.output;
  const ProvenanceFacts facts = recorded_facts(io, output);
  if (facts.kind == BuildKind::kConvert) return rebuild_conversion(io, asked, facts);
  const Recipe recipe = recorded_recipe(facts, output);
  Rebuild result;
  note_version(facts, asked.program, result.otherwise);
  JobSettings settings;
  settings.compute = recorded_compute(facts, output);
  settings.memory_limit = asked.memory_limit;
  settings.program = asked.program;
  settings.on_step = asked.on_step;
  settings.devices = {recorded_backend(facts, asked.backend, result.otherwise)};
  warn_of(result.otherwise);
  const bool file = is_one_file(recipe.format);
  check_form(output, file);
  LoadedModel model = open_recorded(recipe.model, asked.model, [&](const std::string& name) {
    return open_to_round(io, name, recipe.adapter);
  });
  const bool calibrates = std::any_of(facts.inputs.begin(), facts.inputs.end(), [](const NamedDigest& input) {
    return input.name.starts_with("calibration/");
  });
  result.inputs =
      changed_inputs(io, facts.inputs, input_files(io, recipe, calibrates, model.checkpoint), asked.on_step);
  if (!result.inputs.empty()) return result;
  change_weights(io, recipe, facts.allow_nonfinite, model);
  PlannedJob job({recipe, model, settings, io, io, io, facts.allow_nonfinite});
  job.choose_bits();
  JobOutcome rebuilt;
  job.write(OutputTarget{file ? rebuilt_file(output) : rebuilt_directory(io, output)}, rebuilt);
  result.files = compare_rebuilt(io, output, job.form().place());
  return result;
}

}  // namespace llmq
