// What requests, answers and calls are named.
#pragma once
#include <string>
#include <string_view>

namespace llmq {

// `prefix` and 24 hexadecimal digits that no other has. Any thread.
std::string unique_name(const std::string& prefix = {});

// `sent`, the X-Request-Id of a client or proxy, where it is 1 to 128 letters, digits and "-_.:/+=@~": such a
// text breaks no header, log line or JSON. Anything else is forgotten, and a name is made here.
std::string request_id(std::string_view sent);

// The trace of a `traceparent` as W3C's Trace Context writes it (00-<32 hex>-<16 hex>-<2 hex>); empty for
// anything else.
std::string trace_id(std::string_view traceparent);

}  // namespace llmq
