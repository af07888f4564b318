#include "base/disk/trace_file.h"

#include <fmt/core.h>
#include <unistd.h>

#include <random>
#include <span>

#include "base/error.h"
#include "base/log.h"
#include "base/seconds_since.h"

namespace llmq {
namespace {

constexpr int kStatusError = 2;  // STATUS_CODE_ERROR

// `digits` hexadecimal digits, not all 0; the mutex of TraceFile is held.
std::string random_digits(int digits) {
  static std::mt19937_64 numbers{(std::uint64_t{std::random_device()()} << 32) | std::random_device()()};
  std::string text;
  for (; digits > 0; digits -= 16) text += fmt::format("{:016x}", numbers() | 1);
  return text;
}

Json any_value(const Json& value) {
  if (value.is_bool()) return Json::object({{"boolValue", value}});
  if (value.is_integer()) return Json::object({{"intValue", std::to_string(value.as_integer())}});
  if (value.is_number()) return Json::object({{"doubleValue", value}});
  return Json::object({{"stringValue", value.is_string() ? value : Json(value.dump())}});
}

Json attribute_list(const Json& attributes) {
  Json list = Json::array();
  if (attributes.is_object())
    for (const Json::Member& one : attributes.members())
      list.push_back(Json::object({{"key", one.first}, {"value", any_value(one.second)}}));
  return list;
}

}  // namespace

Json span_request(const Span& span, const TraceContext& own, const std::string& version) {
  Json written = Json::object({{"traceId", own.trace_id}, {"spanId", own.span_id}});
  if (!span.parent.span_id.empty()) written["parentSpanId"] = span.parent.span_id;
  written["name"] = span.name;
  written["kind"] = static_cast<int>(span.kind);
  written["startTimeUnixNano"] = std::to_string(span.started_ns);
  written["endTimeUnixNano"] = std::to_string(span.ended_ns);
  written["attributes"] = attribute_list(span.attributes);
  written["status"] = span.failure.empty()
                          ? Json::object()
                          : Json::object({{"code", kStatusError}, {"message", span.failure}});
  const Json scope = Json::object({{"name", "llmq"}, {"version", version}});
  const Json resource = Json::object({{"service.name", "llmq"},
                                      {"service.version", version},
                                      {"process.pid", static_cast<std::int64_t>(::getpid())}});
  return Json::object(
      {{"resourceSpans",
        Json::array({Json::object(
            {{"resource", Json::object({{"attributes", attribute_list(resource)}})},
             {"scopeSpans",
              Json::array({Json::object({{"scope", scope}, {"spans", Json::array({written})}})})}})})}});
}

TraceFile& TraceFile::get() {
  static TraceFile file;
  return file;
}

void TraceFile::open(Io& io, const Path& path, const std::string& version) {
  const std::lock_guard lock(mutex_);
  file_ = io.exists(path) ? io.open_to_write(path) : io.create(path);
  size_ = file_->size();
  version_ = version;
  command_ = {random_digits(32), random_digits(16)};
  started_ns_ = unix_time_ns();
  open_ = true;
}

// With the mutex held.
void TraceFile::write_line(const Span& span, const TraceContext& own) {
  const std::string line = span_request(span, own, version_).dump() + "\n";
  try {
    file_->write_at(size_, std::as_bytes(std::span(line)));
    size_ += line.size();
  } catch (const Error& error) {
    open_ = false;
    Log::get().warn(fmt::format("no more spans are written: {}", error.what()));
  }
}

void TraceFile::write(const Span& span) {
  const std::lock_guard lock(mutex_);
  if (!open_ || !span.parent.sampled) return;
  const std::string trace = span.parent.trace_id.empty() ? random_digits(32) : span.parent.trace_id;
  write_line(span, {trace, random_digits(16)});
}

void TraceFile::close(const std::string& name, Json attributes, const std::string& failure) {
  const std::lock_guard lock(mutex_);
  if (open_)
    write_line({name, Span::Kind::kInternal, {}, started_ns_, unix_time_ns(), std::move(attributes), failure},
               command_);
  open_ = false;
  file_.reset();
  command_ = {};
}

}  // namespace llmq
