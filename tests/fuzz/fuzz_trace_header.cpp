// Any bytes as a `traceparent`: ids of their forms or none at all, whatever follows them; and as the words of
// a span, whose line stays one line of JSON that says the same.
#include <cstdlib>
#include <string>

#include "base/json.h"
#include "http/request_id.h"

namespace {

bool is_id(const std::string& id, std::size_t digits) {
  return id.size() == digits && id.find_first_not_of("0123456789abcdef") == std::string::npos &&
         id.find_first_not_of('0') != std::string::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  const llmq::TraceContext context = llmq::read_traceparent(text);
  const bool none = context == llmq::TraceContext{};
  if (!none && !(is_id(context.trace_id, 32) && is_id(context.span_id, 16))) std::abort();
  if (!none && text.find(context.trace_id) != 3) std::abort();
  const std::string id = llmq::request_id(text);
  if (id.empty() || id.size() > 128) std::abort();
  const llmq::Span span{id, llmq::Span::Kind::kServer, context, 1, 2, {}, {}};
  const std::string line = llmq::span_request(span, context, "0").dump();
  if (line.find('\n') != std::string::npos || llmq::Json::parse(line, "span").dump() != line) std::abort();
  return 0;
}
