// What requests, answers and calls are named.
#pragma once
#include <string>
#include <string_view>

#include "base/disk/trace_file.h"

namespace llmq {

// `prefix` and 24 hexadecimal digits that no other has. Any thread.
std::string unique_name(const std::string& prefix = {});

// `sent`, the X-Request-Id of a client or proxy, where it is 1 to 128 letters, digits and "-_.:/+=@~": such a
// text breaks no header, log line or JSON. Anything else is forgotten, and a name is made here.
std::string request_id(std::string_view sent);

// What a `traceparent` says (W3C's Trace Context, level 1, 3.2: 00-<32 hex>-<16 hex>-<2 hex>, ids not all 0).
// Of a version to come what version 00 has of it is read; anything else is as if it were not there.
TraceContext read_traceparent(std::string_view header);

}  // namespace llmq
