// The bytes of an answer as HTTP/1.1 wants them; Boost.Beast writes them.
#pragma once
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace llmq {

// Without the body, which has a length. `id`: of the request (request_id.h); empty where it has none.
std::string head_of_reply(const HttpReply& reply, bool keep_alive, const std::string& id);
// A stream that is not `chunked` ends with its connection.
std::string head_of_stream(const std::string& content_type, bool keep_alive, bool chunked,
                           const std::string& id);
std::string chunk_of(std::string_view text);
std::string last_chunk();

}  // namespace llmq
