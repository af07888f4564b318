// Names and sizes as gguf-py 0.19 reads them (Metadata.get_model_id_components, id_to_title, size_label gave
// these).
#include <gtest/gtest.h>

#include "export/gguf/gguf_metadata.h"

namespace llmq {
namespace {

struct Case {
  const char* id;
  std::uint64_t parameters;
  const char *title, *organization, *basename, *finetune, *version, *size_label;
};

TEST(ModelName, SaysWhatGgufPyReadsFromIt) {
  const Case cases[] = {
      {"smollm2", 134515008u, "Smollm2", "", "", "", "", ""},
      {"SmolLM2-135M-Instruct", 134515008u, "SmolLM2 135M Instruct", "", "SmolLM2", "Instruct", "", "135M"},
      {"org/SmolLM2-135M-Instruct", 134515008u, "SmolLM2 135M Instruct", "Org", "SmolLM2", "Instruct", "",
       "135M"},
      {"Qwen/Qwen2.5-7B-Instruct-1M", 7615616512u, "Qwen2.5 7B Instruct 1M", "Qwen", "Qwen2.5", "Instruct-1m",
       "", "7B"},
      {"Meta-Llama-3.1-8B-Instruct", 8030261248u, "Meta Llama 3.1 8B Instruct", "", "Meta-Llama-3.1",
       "Instruct", "", "8B"},
      {"Mistral-7B-v0.1", 7241732096u, "Mistral 7B v0.1", "", "Mistral", "", "v0.1", "7B"},
      {"mistralai/Mistral-Nemo-Instruct-2407", 12247782400u, "Mistral Nemo Instruct 2407", "Mistralai",
       "Mistral-Nemo", "Instruct", "2407", ""},
      {"smollm2-135M-8k-Lc100K-Mix1-Ep2", 134515008u, "Smollm2 135M 8k Lc100K Mix1 Ep2", "", "smollm2",
       "8k-Lc100K-Mix1-Ep2", "", "135M"},
      {"tinystories-656k", 656256u, "Tinystories 656k", "", "tinystories", "", "", "656K"},
      {"Qwen3-0.6B", 596049920u, "Qwen3 0.6B", "", "Qwen3", "", "", "0.6B"},
      {"bloom-7b1", 7069016064u, "Bloom 7b1", "", "bloom", "", "", "7.1B"},
      {"My model name", 5u, "My Model Name", "", "", "", "", ""},
      {"gpt-small", 1000u, "Gpt Small", "", "gpt", "", "", "small"},
      {"phi-3-mini-4k-instruct", 3821079552u, "Phi 3 Mini 4k Instruct", "", "phi-3", "4k-instruct", "",
       "mini"},
      {"a", 1u, "A", "", "", "", "", ""},
      {"v1.5", 10u, "v1.5", "", "", "", "v1.5", ""},
      {"x--y-Q4_K", 10u, "X Y Q4_K", "", "", "", "", ""},
      {"Llama-2-7b-chat-hf", 6738415616u, "Llama 2 7b Chat Hf", "", "Llama-2", "chat-hf", "", "7B"},
      {"./x/y", 3u, "X/Y", "", "", "", "", ""},
      {"TinyLlama-1.1B-Chat-v1.0", 1100048384u, "TinyLlama 1.1B Chat v1.0", "", "TinyLlama", "Chat", "v1.0",
       "1.1B"},
  };
  for (const Case& c : cases) {
    const ModelNameParts parts = parse_model_name(c.id, c.parameters);
    EXPECT_EQ(parts.title, c.title) << c.id;
    EXPECT_EQ(parts.organization, c.organization) << c.id;
    EXPECT_EQ(parts.basename, c.basename) << c.id;
    EXPECT_EQ(parts.finetune, c.finetune) << c.id;
    EXPECT_EQ(parts.version, c.version) << c.id;
    EXPECT_EQ(parts.size_label, c.size_label) << c.id;
  }
}

TEST(ModelName, SizeHasTwoDigitsAtLeast) {
  const std::pair<std::uint64_t, const char*> cases[] = {
      {134515008u, "135M"},  {656256u, "656K"},     {7615616512u, "7.6B"},    {1u, "0.00K"},
      {999999u, "1000K"},    {1000000u, "1000K"},   {1000001u, "1.0M"},       {9949999999u, "10B"},
      {12247782400u, "12B"}, {72706203648u, "73B"}, {2000000000000u, "2.0T"}, {999u, "1.0K"},
  };
  for (const auto& [parameters, label] : cases) EXPECT_EQ(size_label(parameters), label) << parameters;
}

}  // namespace
}  // namespace llmq
