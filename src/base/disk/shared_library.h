// A shared library that is opened when it is needed: the program neither links it nor needs it to start.
#pragma once
#include <string>
#include <vector>

namespace llmq {

struct SharedLibrary {
  void* handle = nullptr;  // dlopen()'s; stays open as long as the process
  std::string path;        // the file that was opened
  std::string missing;     // why there is none: what the loader says of each place
};
// The first of `places` that can be opened; a place is a file, or a name for the loader to look for.
SharedLibrary open_shared_library(const std::vector<std::string>& places);

}  // namespace llmq
