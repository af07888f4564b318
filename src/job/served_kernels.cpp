#include "job/served_kernels.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"

namespace llmq {

HeadWeight head_weight(const std::string& word) {
  if (word == "stored") return HeadWeight::kStored;
  if (word == "int8") return HeadWeight::kInt8;
  fail(ErrorKind::kUsage, {"head '" + word + "' is not known", {}, "--head", "use stored or int8"});
}

void log_kernels(const Engine& engine) {
  std::string line = engine.device_name() + ": ";
  for (const Engine::Served& s : engine.served())
    line += fmt::format("{}{} as {}", line.ends_with(": ") ? "" : "; ",
                        s.linears == 1 ? s.weights : fmt::format("{} {} linears", s.linears, s.weights),
                        s.kernel);
  Log::get().note(line);
  for (const std::string& reason : engine.slower_than_possible()) Log::get().warn(reason);
}

Json kernels_json(const Engine& engine) {
  Json list = Json::array();
  for (const Engine::Served& s : engine.served())
    list.push_back(Json::object(
        {{"weights", s.weights}, {"kernel", s.kernel}, {"linears", s.linears}, {"bytes", s.bytes}}));
  return list;
}

}  // namespace llmq
