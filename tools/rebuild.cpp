#include "tools/rebuild.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "export/convert.h"
#include "export/first_difference.h"
#include "export/output/published_output.h"
#include "export/provenance/manifest.h"
#include "quant/pipeline/pipeline.h"
#include "tools/bit_choice.h"
#include "tools/interrupt.h"
#include "tools/loaded_model.h"
#include "tools/provenance.h"
#include "tools/quantize_gguf.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

// These say how long a run took, so that no two are alike.
bool tells_the_time(const std::string& name) {
  return name == kReportFile || name.ends_with(".gguf.report.json") || name == "report.html" ||
         name == "README.md";
}

ProvenanceFacts read_facts(Io& io, const Path& output) {
  const Path file = manifest_path(output);
  return manifest_facts(Json::parse(read_text(io, file), file.string()), file.string());
}

std::vector<NamedDigest> recorded_files(Io& io, const Path& output) {
  const Path file = manifest_path(output);
  std::vector<NamedDigest> files =
      manifest_subjects(Json::parse(read_text(io, file), file.string()), file.string());
  std::erase_if(files, [](const NamedDigest& one) { return tells_the_time(one.name); });
  return files;
}

Recipe recorded_recipe(const ProvenanceFacts& facts, const Path& output) {
  Recipe recipe = Recipe::from_json(facts.recipe, manifest_path(output).string());
  recipe.gguf.imatrix_out.clear();
  recipe.evaluate.reset();
  recipe.versioned = false;
  recipe.keep = 0;
  return recipe;
}

// Beside the output; where that is one version of several, beside them all.
Path scratch_for(Io& io, const Path& output) {
  Path place = tidy_path(output);
  if (const std::string version = io.read_link(place); !version.empty()) place = parent_of(place) / version;
  const std::string name = place.filename().string();
  const std::vector<std::string> versions = versions_in(io, parent_of(place));
  if (std::find(versions.begin(), versions.end(), name) != versions.end())
    place = parent_of(place).string() + "-" + name;
  return place.string() + ".rebuild";
}

// Of NAME.gguf: NAME.rebuild.gguf beside it.
Path scratch_file_for(const Path& output) {
  return parent_of(output) / (output.stem().string() + ".rebuild.gguf");
}

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

// Two of one name, such as texts from two directories, are told apart by their order.
void number_names(std::vector<NamedDigest>& files) {
  std::map<std::string, int> seen;
  for (NamedDigest& file : files)
    if (const int number = ++seen[file.name]; number > 1) file.name += fmt::format(" ({})", number);
}

// The file of the recipe is not read again: what it meant stands in the manifest.
bool is_recipe_file(const std::string& name) { return name.starts_with("recipe/"); }

std::vector<Mismatch> changed_inputs(Io& io, std::vector<NamedDigest> recorded,
                                     const std::vector<InputFile>& files) {
  std::erase_if(recorded, [](const NamedDigest& file) { return is_recipe_file(file.name); });
  DirectoryListing found;
  for (const InputFile& file : files) {
    throw_if_interrupted();
    if (!is_recipe_file(file.name) && io.exists(file.path))
      found.files.push_back({file.name, 0, file_sha256(io, file.path)});
  }
  // Recorded by name, and those of one name as they came.
  std::stable_sort(found.files.begin(), found.files.end(),
                   [](const NamedDigest& a, const NamedDigest& b) { return a.name < b.name; });
  number_names(recorded);
  number_names(found.files);
  return compare_listing(recorded, found);
}

// "cuda" of "cuda sm_90, cuSOLVER 12.0.4", "emulated" of "cuda emulated".
std::string device_of(const std::string& arithmetic) {
  return arithmetic == "cuda emulated" ? "emulated" : arithmetic.substr(0, arithmetic.find(' '));
}

std::shared_ptr<Backend> recorded_backend(const ProvenanceFacts& facts, GlobalOptions globals,
                                          std::vector<OtherMaking>& otherwise) {
  std::shared_ptr<Backend> backend;
  const bool cpu = facts.backend.starts_with("cpu ");
  if (globals.device == "auto" && !cpu) globals.device = device_of(facts.backend);
  try {
    backend = chosen_backend(globals, cpu ? facts.backend : "");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported && error.kind() != ErrorKind::kUsage) throw;
    globals.device = "auto";
    backend = chosen_backend(globals);
  }
  if (backend->arithmetic() != facts.backend)
    otherwise.push_back({"arithmetic", facts.backend, backend->arithmetic()});
  return backend;
}

void note_version(const ProvenanceFacts& facts, std::vector<OtherMaking>& otherwise) {
  const auto text = [](const std::string& version, const std::string& commit) {
    return fmt::format("{} ({})", version, commit);
  };
  const std::string then = text(facts.version, facts.commit), now = text(version_text(), commit_text());
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

void compare(Io& io, const std::vector<NamedDigest>& recorded, const Path& output, const Path& rebuilt,
             Rebuild& result) {
  result.compared = recorded.size();
  result.outputs = compare_listing(recorded, list_directory(io, rebuilt, {}));
  for (const Mismatch& one : result.outputs) {
    if (!one.expected || !one.found || !result.first_tensor.empty()) continue;
    result.first_tensor = first_difference(io, output / one.path, rebuilt / one.path);
  }
}

// Of a single file its report is not compared, which says how long a run took.
void compare_file(Io& io, const Path& output, const Path& rebuilt, const std::string& sha256,
                  Rebuild& result) {
  const std::string name = output.filename().string();
  for (const NamedDigest& file : recorded_files(io, output)) {
    if (file.name != name) continue;
    ++result.compared;
    if (file.sha256 == sha256) continue;
    result.outputs.push_back({name, file.sha256, sha256});
    result.first_tensor = first_difference(io, output, rebuilt);
  }
}

void rebuild_directory(Io& io, const Path& output, const Recipe& recipe, const ProvenanceFacts& facts,
                       const LoadedModel& model, const std::shared_ptr<Backend>& backend,
                       const GlobalOptions& globals, Rebuild& result) {
  const Path scratch = scratch_for(io, output);
  Plan plan = make_plan(recipe, model.checkpoint, model.spec, chosen_compute(globals, Compute::kBFloat16),
                        backend->threads(), parse_bytes(globals.memory_limit, "--memory-limit"),
                        planned_devices({&backend, 1}));
  CalibrationSet calibration;
  if (plan.needs_calibration || plan.target_bits)
    calibration = load_calibration(io, plan.calibration, model.tokenizer);
  if (plan.target_bits) choose_bits(plan, recipe, model, calibration, *backend, globals);
  const auto writer = open_writer(io, plan.format, OutputTarget{scratch}, model.checkpoint, model.spec,
                                  plan.modules, plan.ignored, plan.kv_cache);
  PipelineOptions options;
  options.allow_nonfinite = facts.allow_nonfinite;
  options.scratch_directory = parent_of(scratch);
  options.on_step = [](const std::string&, const std::string&) { throw_if_interrupted(); };
  run_pipeline(plan, model.checkpoint, model.spec, calibration, *backend, *writer, options);
  writer->complete();
  compare(io, recorded_files(io, output), output, writer->directory(), result);
}

void rebuild_file(Io& io, const Path& output, const Recipe& recipe, const LoadedModel& model,
                  Backend& backend, const GlobalOptions& globals, Rebuild& result) {
  const GgufPlan plan =
      make_gguf_plan(io, recipe, model.checkpoint, model.spec, chosen_compute(globals, Compute::kBFloat16),
                     parse_bytes(globals.memory_limit, "--memory-limit"));
  CalibrationSet calibration;
  if (plan.needs_calibration()) calibration = load_calibration(io, plan.calibration, model.tokenizer);
  GgufRequest request = gguf_request(recipe, plan, OutputTarget{scratch_file_for(output)});
  request.on_tensor = [](const std::string&) { throw_if_interrupted(); };
  GgufOutput rebuilt(io, model.checkpoint, model.spec, std::move(request));
  const GgufWritten written = write_gguf(plan, calibration, model, backend, rebuilt);
  compare_file(io, output, rebuilt.file(), written.sha256, result);
}

Rebuild rebuild_conversion(Io& io, const Path& output, const std::string& source_instead,
                           const ProvenanceFacts& facts, const GlobalOptions& globals) {
  Rebuild result;
  note_version(facts, result.otherwise);
  warn_of(result.otherwise);
  ConvertRequest request = conversion_request(facts.recipe, manifest_path(output).string());
  check_form(output, request.to == "gguf");
  const Checkpoint checkpoint = open_recorded(
      request.source, source_instead, [&](const std::string& name) { return Checkpoint::open(io, name); });
  result.inputs = changed_inputs(io, facts.inputs, conversion_files(io, checkpoint, request));
  if (!result.inputs.empty()) return result;
  const bool file = request.to == "gguf";
  request.target = OutputTarget{file ? scratch_file_for(output) : scratch_for(io, output)};
  request.threads = globals.threads;
  request.on_tensor = [](const std::string&) { throw_if_interrupted(); };
  request.on_whole = [&](const Path& made) {
    if (file)
      compare_file(io, output, made, file_sha256(io, made), result);
    else
      compare(io, recorded_files(io, output), output, made, result);
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
                       {"compared", static_cast<std::int64_t>(compared)},
                       {"otherwise", others},
                       {"inputs", mismatches_json(inputs)},
                       {"outputs", mismatches_json(outputs)},
                       {"first_tensor", first_tensor.empty() ? Json() : Json(first_tensor)}});
}

Rebuild rebuild_output(Io& io, const Path& output, const std::string& model_instead,
                       const GlobalOptions& asked) {
  const ProvenanceFacts facts = read_facts(io, output);
  if (facts.kind == BuildKind::kConvert) return rebuild_conversion(io, output, model_instead, facts, asked);
  const Recipe recipe = recorded_recipe(facts, output);
  Rebuild result;
  note_version(facts, result.otherwise);
  GlobalOptions globals = asked;
  globals.compute = facts.compute;
  const std::shared_ptr<Backend> backend = recorded_backend(facts, globals, result.otherwise);
  warn_of(result.otherwise);
  check_form(output, recipe.format == "gguf");
  const LoadedModel model = open_recorded(recipe.model, model_instead,
                                          [&](const std::string& name) { return open_model(io, name); });
  const bool calibrates = std::any_of(facts.inputs.begin(), facts.inputs.end(), [](const NamedDigest& file) {
    return file.name.starts_with("calibration/");
  });
  result.inputs = changed_inputs(io, facts.inputs, input_files(io, recipe, calibrates, model.checkpoint));
  if (!result.inputs.empty()) return result;
  if (recipe.format == "gguf")
    rebuild_file(io, output, recipe, model, *backend, globals, result);
  else
    rebuild_directory(io, output, recipe, facts, model, backend, globals, result);
  return result;
}

}  // namespace llmq::tools
