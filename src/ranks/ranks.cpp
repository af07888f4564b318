#include "ranks/ranks.h"

namespace llmq {

std::string broadcast_text(Ranks& ranks, int from, std::string_view text) {
  std::uint64_t size = text.size();
  ranks.broadcast(from, std::as_writable_bytes(std::span(&size, 1)));
  std::string said(ranks.rank() == from ? text : std::string_view());
  said.resize(size);
  ranks.broadcast(from, std::as_writable_bytes(std::span(said)));
  return said;
}

}  // namespace llmq
