// watch_memory LIMIT PROGRAM [ARGUMENT ...]: runs PROGRAM (a path), kills it above LIMIT bytes (0: never),
// and says what it took as one line of JSON on stderr. Exits as the program did, or with 99 when it was
// killed for its memory.
#include <cstdio>
#include <string>

#include "memory/watched_program.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("watch_memory LIMIT PROGRAM [ARGUMENT ...]\n", stderr);
    return 2;
  }
  const llmq::testing::Watched w = llmq::testing::run_watched({argv + 2, argv + argc}, std::stoull(argv[1]));
  std::fprintf(stderr,
               "{\"peak_bytes\": %llu, \"resident_peak_bytes\": %llu, \"looks\": %llu, \"disk_read\": %llu, "
               "\"disk_written\": %llu, \"seconds\": %.2f, \"above_limit\": %s}\n",
               static_cast<unsigned long long>(w.peak_bytes),
               static_cast<unsigned long long>(w.resident_peak_bytes),
               static_cast<unsigned long long>(w.looks), static_cast<unsigned long long>(w.disk_read),
               static_cast<unsigned long long>(w.disk_written), w.seconds, w.above_limit ? "true" : "false");
  return w.above_limit ? 99 : w.exit_code;
}
