#include "job/job_identity.h"

#include "export/formats/output_format.h"
#include "model/adapters/lora_adapter.h"

namespace llmq {
namespace {

Json model_digests(const Checkpoint& checkpoint, const std::function<std::string(const Path&)>& sha256) {
  Json files = Json::object();
  const auto add = [&](const Path& path) { files[path.filename().string()] = sha256(path); };
  for (const Path& config : checkpoint.config_files()) add(config);
  for (const Path& companion : checkpoint.companion_files()) add(companion);
  for (const Path& shard : checkpoint.shards()) add(shard);
  return files;
}

Json program_json(const Program& program) {
  return Json::object({{"version", program.version}, {"commit", program.commit}});
}

// Under the key "adapter", where there is one.
void add_adapter(Json& job, const std::string& adapter,
                 const std::function<std::string(const Path&)>& sha256) {
  if (adapter.empty()) return;
  for (const Path& path : LoraAdapter::files(system_io(), adapter))
    job["adapter"][path.filename().string()] = sha256(path);
}

void add_facts(std::vector<Fact>& facts, const std::string& name, const char* between, const Json& value,
               const std::string& hint) {
  if (value.is_object())
    for (const auto& [key, member] : value.members())
      add_facts(facts, name + between + key, between, member, hint);
  else
    facts.push_back({name, value.is_string() ? value.as_string() : value.dump(), hint});
}

}  // namespace

std::vector<Fact> job_facts(const Json& job) {
  std::vector<Fact> facts;
  for (const auto& [key, value] : job.members()) {
    const bool files = key == "model" || key == "adapter";
    add_facts(facts, key, files ? "/" : ".", value,
              files                 ? "give every rank the same files"
              : key == "llmq"       ? "start the same program on every machine"
              : key == "arithmetic" ? "use machines of one kind, or add --portable"
                                    : "start every rank with the same words");
  }
  return facts;
}

Json make_job(const Recipe& recipe, const LoadedModel& model, const CalibrationSet& calibration,
              const JobSettings& settings, bool allow_nonfinite,
              const std::function<std::string(const Path&)>& sha256) {
  Json asked = recipe.to_json();
  for (const char* elsewhere : {"source", "model", "adapter", "output", "evaluate", "notes"})
    asked.erase(elsewhere);
  asked["calibration"].erase("text");  // whatever its name, the ids are below
  Json job = Json::object({{"llmq", program_json(settings.program)},
                           {"model", model_digests(model.checkpoint, sha256)},
                           {"recipe", asked},
                           {"calibration", calibration.sha256.empty() ? Json() : Json(calibration.sha256)},
                           {"compute", compute_name(settings.compute)},
                           {"arithmetic", settings.backend().arithmetic()},
                           {"allow_nonfinite", allow_nonfinite}});
  add_adapter(job, recipe.adapter, sha256);
  return job;
}

Json make_conversion_job(const ConvertRequest& request, const Checkpoint& checkpoint, const Program& program,
                         const std::function<std::string(const Path&)>& sha256) {
  Json job = Json::object(
      {{"llmq", program_json(program)},
       {"model", model_digests(checkpoint, sha256)},
       {"convert",
        Json::object({{"to", request.to}, {"dtype", request.dtype ? Json(*request.dtype) : Json()}})},
       {"name", is_one_file(request.to) ? Json(request.source) : Json()}});
  if (request.split_max_size != 0) job["convert"]["split_max_size"] = request.split_max_size;
  if (request.double_quant) job["convert"]["double_quant"] = true;
  if (!request.tensor_types.empty()) job["convert"]["tensor_types"] = tensor_types_json(request.tensor_types);
  add_adapter(job, request.adapter, sha256);
  return job;
}

}  // namespace llmq
