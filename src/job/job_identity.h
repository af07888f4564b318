// What decides every byte of an output: two runs with equal jobs write the same files, loader by loader and
// byte by byte. Threads, memory limits, paths and times are not in it.
#pragma once
#include <functional>
#include <string>

#include "base/json.h"
#include "calibration/calibration_text.h"
#include "export/convert.h"
#include "job/job_settings.h"
#include "job/loaded_model.h"
#include "quant/recipe/recipe.h"
#include "ranks/agreement.h"

namespace llmq {

// {llmq: {version, commit}, model: {file: SHA-256}, recipe: {...}, calibration: SHA-256 of the ids, compute,
// arithmetic, allow_nonfinite}, and with an adapter {file: SHA-256} of it
Json make_job(const Recipe& recipe, const LoadedModel& model, const CalibrationSet& calibration,
              const JobSettings& settings, bool allow_nonfinite,
              const std::function<std::string(const Path&)>& sha256);

// The same of a conversion: {llmq, model, convert: {to, dtype}, name}; the name stands in a GGUF. With an
// adapter its digests, too.
Json make_conversion_job(const ConvertRequest& request, const Checkpoint& checkpoint, const Program& program,
                         const std::function<std::string(const Path&)>& sha256);

// What ranks that share a job have to have in common: every value of it, "model/config.json",
// "recipe.scheme.bits".
std::vector<Fact> job_facts(const Json& job);

}  // namespace llmq
