// One file as a tar archive, the same bytes for the same file: "models/" and "models/NAME", of user and
// group 0 and of time 0. ustar (POSIX.1-1988), with a pax header (POSIX.1-2001) where a name or a size is
// too long for it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace llmq {

// What stands before the bytes of the file, and behind them; together a multiple of 512 bytes with them.
struct TarFile {
  std::string before, after;
};
TarFile tar_file(std::string_view directory, std::string_view name, std::uint64_t bytes);

}  // namespace llmq
