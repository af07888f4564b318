// Any bytes as the body of a request to each path: a typed request, or an error of the client with a status
// of its own.
#include <cstdlib>
#include <string_view>

#include "serve/api_error.h"
#include "serve/requests/completion_request.h"

namespace {

template <typename Parse>
void read(const Parse& parse, std::string_view text) {
  llmq::RequestLimits limits;
  limits.vocabulary_size = 1000;
  try {
    parse(text, limits);
  } catch (const llmq::ApiError& error) {
    if (error.status() != 400 && error.status() != 413) std::abort();
    // a body is not sent back
    if (error.body().dump().size() > 4096 + 4 * error.param().size()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  read(llmq::parse_text_request, text);
  read(llmq::parse_chat_request, text);
  read(llmq::parse_tokenize_request, text);
  read(llmq::parse_detokenize_request, text);
  return 0;
}
