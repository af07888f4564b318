// Bytes and seconds as people read them, the same in every table, page and message. Sizes are decimal, as
// those of disks and of GB/s are; machines get plain bytes and seconds.
#pragma once
#include <cstdint>
#include <string>

namespace llmq {

std::string bytes_text(std::uint64_t bytes);  // "512 B", "269.1 MB", "12.34 GB"
// Of a figure that another program may have written: held to 0 .. 1e18.
std::string figure_bytes_text(double bytes);
std::string seconds_text(double seconds);  // "48.2 s", "12 min 05 s", "3 h 20 min"

}  // namespace llmq
