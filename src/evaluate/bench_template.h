// bench_page.html, put into the program when it is built: the template of every page of `llmq bench`.
#pragma once
#include <string_view>

namespace llmq {

extern const std::string_view kBenchTemplate;  // over the document of bench_page.cpp

}  // namespace llmq
