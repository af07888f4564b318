// What a lock says of who holds it.
#pragma once
#include <string>

namespace llmq {

// "process 4711 on node7 since 2026-11-27 22:33 UTC\n"
std::string lock_words();

}  // namespace llmq
