// Runs every file of a corpus directory through one fuzz target, without libFuzzer: regressions are seen in
// any build. All targets are in one program.   fuzz_replay TARGET DIR
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

struct FuzzTarget {
  std::string_view name;
  int (*run)(const unsigned char* bytes, std::size_t size);
};

#include "replay_targets.h"  // each fuzz_<name>.cpp with its entry named so, and kFuzzTargets

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto* target = std::find_if(std::begin(kFuzzTargets), std::end(kFuzzTargets),
                                    [&](const FuzzTarget& known) { return known.name == argv[1]; });
  if (target == std::end(kFuzzTargets)) return 2;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[2])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    std::fprintf(stderr, "%s\n", file.c_str());  // the last one printed is the one that failed
    std::ifstream stream(file, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    target->run(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  }
  std::fprintf(stderr, "%zu inputs replayed\n", files.size());
  return files.empty() ? 1 : 0;
}
