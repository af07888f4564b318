// Cutting, choosing and hashing samples, through files of ready ids and a small byte-level tokenizer.
#include "calibration/calibration_text.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/json.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CalibrationText : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        std::filesystem::path(::testing::TempDir()) /
        ("llmq_calibration_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name, std::ios::binary) << text;
    return (directory_ / name).string();
  }

  // Byte-level BPE over "a".."e" and the space (written as U+0120), without merges: one id per character.
  static Tokenizer letters() {
    return Tokenizer::parse(Json::parse(R"({"version":"1.0","added_tokens":[],"normalizer":null,
          "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,
          "decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
          "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,
          "byte_fallback":false,"vocab":{"a":0,"b":1,"c":2,"d":3,"e":4,"\u0120":5,"\u010a":6},"merges":[]}})",
                                        "t"),
                            "t");
  }
  static CalibrationRequest request(const std::string& text, std::int64_t samples, std::int64_t length,
                                    bool shuffle) {
    CalibrationRequest r;
    r.text = {text};
    r.samples = samples;
    r.sequence_length = length;
    r.shuffle = shuffle;
    return r;
  }
  static std::string error_of(const CalibrationRequest& r) {
    try {
      load_calibration(system_io(), r, letters());
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(exit_code(e.kind()), 2);
      return e.what();
    }
  }

  std::filesystem::path directory_;
};

TEST(SeededPermutation, IsAPermutationThatDependsOnTheSeedAlone) {
  const std::vector<std::size_t> order = seeded_permutation(1000, 42);
  EXPECT_EQ(std::set<std::size_t>(order.begin(), order.end()).size(), 1000u);
  EXPECT_EQ(*std::max_element(order.begin(), order.end()), 999u);
  EXPECT_EQ(order, seeded_permutation(1000, 42));
  EXPECT_NE(order, seeded_permutation(1000, 43));
}

// The order that the documented generator gives, worked out by an independent program (SplitMix64,
// multiply-shift, Fisher-Yates in Python).
TEST(SeededPermutation, IsTheDocumentedOne) {
  EXPECT_THAT(seeded_permutation(8, 42), ElementsAre(4, 3, 2, 0, 7, 6, 1, 5));
}

TEST_F(CalibrationText, CutsConsecutiveSamplesWithoutShuffle) {
  const std::string ids = file("x.json", "[0,1,2,3,4,5,6,0,1,2]");
  const CalibrationSet set = load_calibration(system_io(), request(ids, 2, 4, false), letters());
  EXPECT_THAT(set.samples, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 0)));
  EXPECT_EQ(set.tokens(), 8);
  // printf '\0\0\0\0\1\0\0\0...' | sha256sum
  EXPECT_EQ(set.sha256, "13909c4481ab6cc81b585cfa3944ab90cb0b1683065b6ad0826b3c780362d711");
}

TEST_F(CalibrationText, ShufflesAmongAllSamplesOfTheText) {
  std::string ids = "[";
  for (int i = 0; i < 7 * 8; ++i) ids += (i ? "," : "") + std::to_string(i / 8);
  const std::string path = file("x.json", ids + "]");
  CalibrationRequest r = request(path, 3, 8, true);
  const CalibrationSet set = load_calibration(system_io(), r, letters());
  const std::vector<std::size_t> order = seeded_permutation(7, 42);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(set.samples[i], std::vector<std::int32_t>(8, static_cast<std::int32_t>(order[i])));
  r.seed = 7;
  EXPECT_NE(load_calibration(system_io(), r, letters()).sha256, set.sha256);
}

TEST_F(CalibrationText, ReadsTextJsonLinesAndIds) {
  EXPECT_THAT(
      load_calibration(system_io(), request(file("x.txt", "ab\ncd"), 1, 5, false), letters()).samples[0],
      ElementsAre(0, 1, 6, 2, 3));
  const std::string lines = file("x.jsonl",
                                 "{\"text\":\"ab\"}\n\n{\"messages\":[{\"role\":\"user\",\"content\":\"c\"},{"
                                 "\"role\":\"assistant\",\"content\":\"d\"}]}\n[4, 5]\n");
  EXPECT_THAT(load_calibration(system_io(), request(lines, 1, 8, false), letters()).samples[0],
              ElementsAre(0, 1, 2, 6, 6, 3, 4, 5));
  CalibrationRequest both = request(file("y.txt", "ab"), 1, 4, false);
  both.text.push_back(file("z.utf8", "cd"));
  EXPECT_THAT(load_calibration(system_io(), both, letters()).samples[0], ElementsAre(0, 1, 2, 3));
}

TEST_F(CalibrationText, SaysWhatIsWrong) {
  EXPECT_THAT(error_of(request(file("x.txt", "abc"), 2, 4, false)),
              HasSubstr("has 3 tokens, 2 samples of 4 need 8"));
  EXPECT_THAT(error_of(request(file("w.txt", "abcdeab"), 2, 4, false)), HasSubstr("at most 1 samples"));
  EXPECT_THAT(error_of(request(file("i.json", "[0, 7]"), 1, 1, false)),
              HasSubstr("id 7 is outside the vocabulary of 7"));
  EXPECT_THAT(error_of(request(file("n.json", "[0, -1]"), 1, 1, false)), HasSubstr("id -1"));
  EXPECT_THAT(error_of(request(file("s.json", "{\"a\": 1}"), 1, 1, false)),
              HasSubstr("expected an array of ids"));
  EXPECT_THAT(error_of(request(file("l.jsonl", "{\"text\":\"a\"}\n{\"txt\":\"a\"}\n"), 1, 1, false)),
              HasSubstr("line 2"));
  EXPECT_THAT(error_of(request((directory_ / "none.txt").string(), 1, 1, false)), HasSubstr("none.txt"));
  EXPECT_THAT(error_of(request("builtin:c5", 1, 1, false)), HasSubstr("builtin:c4"));
}

// What Transformers' apply_chat_template() makes of the same chats (tests/golden/chat/make_golden.py): the
// ids one after the other, and where a template refuses a chat, its line.
TEST_F(CalibrationText, ReadsChatsAsTransformersDoes) {
  const Path golden = Path(LLMQ_SOURCE_DIR) / "tests/golden/chat",
             fixtures = Path(LLMQ_SOURCE_DIR) / "tests/fixtures";
  const Json known = Json::parse(read_text(system_io(), golden / "calibration.json"), "calibration.json");
  const Json::Array& lines = known.at("lines").items();
  std::size_t compared = 0, refused = 0;
  for (const Json& one : known.at("cases").items()) {
    const std::string name = one.at("tokenizer").as_string() + ".json",
                      written = one.at("template").as_string();
    SCOPED_TRACE(name + ", " + written);
    const Tokenizer tokenizer =
        Tokenizer::parse(Json::parse(read_text(system_io(), fixtures / "tokenizers" / name), name), name);
    const std::optional<ChatTemplate> chat =
        ChatTemplate::parse(read_text(system_io(), golden / written), written, one.at("special_tokens"));
    std::string text;
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const Json& of_line = one.at("ids").items()[i];
      if (!of_line.is_null()) {
        text += lines[i].dump() + "\n";
        for (const Json& id : of_line.items()) ids.push_back(static_cast<std::int32_t>(id.as_integer()));
        continue;
      }
      CalibrationRequest alone = request(file("refused.jsonl", "\n" + lines[i].dump() + "\n"), 1, 1, false);
      alone.chat_template = true;
      try {
        load_calibration(system_io(), alone, tokenizer, chat);
        ADD_FAILURE() << "line " << i << " was taken";
      } catch (const Error& e) {
        EXPECT_EQ(exit_code(e.kind()), 2);
        EXPECT_THAT(e.what(),
                    HasSubstr("refused.jsonl: line 2: the model's chat template refuses this chat: "));
        ++refused;
      }
    }
    CalibrationRequest all =
        request(file("chats.jsonl", text), 1, static_cast<std::int64_t>(ids.size()), false);
    all.chat_template = true;
    EXPECT_EQ(load_calibration(system_io(), all, tokenizer, chat).samples.at(0), ids);
    compared += ids.size();
  }
  EXPECT_GT(compared, 4000u);
  EXPECT_GE(refused, 6u);
}

TEST_F(CalibrationText, SaysWhichLineIsNoChat) {
  const std::optional<ChatTemplate> chat =
      ChatTemplate::parse("{% for m in messages %}{{ m.content }}{% endfor %}", "t.jinja");
  const auto error_at = [&](const std::string& source) -> std::string {
    CalibrationRequest asked = request(source, 1, 1, false);
    asked.chat_template = true;
    try {
      load_calibration(system_io(), asked, letters(), chat);
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(exit_code(e.kind()), 2);
      return e.what();
    }
  };
  const auto of_line = [&](const std::string& line) {
    return error_at(file("x.jsonl", R"({"messages":[{"role":"user","content":"a"}]})"
                                    "\n" +
                                        line + "\n"));
  };
  EXPECT_EQ(of_line(R"({"messages":[{"role":"assistant","content":"a"}]})"), "");
  for (const char* none :
       {R"({"text":"a"})", "[1, 2]", "3", R"({"messages":[]})", R"({"messages":{"role":"user"}})"})
    EXPECT_THAT(of_line(none), HasSubstr("x.jsonl: line 2: the line has no 'messages'")) << none;
  EXPECT_THAT(of_line(R"({"messages":["a"]})"),
              HasSubstr("line 2, messages[0]: a message is an object, found"));
  EXPECT_THAT(of_line(R"({"messages":[{"content":"a"}]})"),
              HasSubstr("line 2, messages[0]: a message has no 'role'"));
  EXPECT_THAT(
      of_line(R"({"messages":[{"role":"user","content":"a"},{"role":"gpt","content":"a"}]})"),
      HasSubstr("line 2, messages[1]: a message has the role \"gpt\"; roles are system, developer, user"));
  EXPECT_THAT(of_line(R"({"messages":[{"role":"user"}]})"), HasSubstr("a message has no 'content'"));
  EXPECT_THAT(of_line("{\"messages\":"), HasSubstr("x.jsonl: line 2"));
  for (const char* plain : {"builtin:c4", "x.txt"})
    EXPECT_THAT(error_at(plain), HasSubstr("a chat template needs chats: a .jsonl file")) << plain;
}

// The same bytes on any day.
TEST_F(CalibrationText, TemplatesAreToldOneDay) {
  const std::optional<ChatTemplate> chat = ChatTemplate::parse(
      "{% if strftime_now('%d %b %Y') == '26 Jul 2024' %}{{ messages[0].content }}{% endif %}", "t.jinja");
  CalibrationRequest asked =
      request(file("x.jsonl", R"({"messages":[{"role":"user","content":"ab"}]})"), 1, 2, false);
  asked.chat_template = true;
  EXPECT_THAT(load_calibration(system_io(), asked, letters(), chat).samples.at(0), ElementsAre(0, 1));
}

TEST(ResolveText, FindsWhatShipsWithLlmq) {
  EXPECT_EQ(std::filesystem::file_size(resolve_text(system_io(), "builtin:wikitext-2")), 1290590u);
  EXPECT_EQ(std::filesystem::file_size(resolve_text(system_io(), "builtin:c4")), 1338229u);
  EXPECT_EQ(std::filesystem::file_size(resolve_text(system_io(), "builtin:code")), 1357117u);
  EXPECT_EQ(std::filesystem::file_size(resolve_text(system_io(), "builtin:technical")), 350054u);
  EXPECT_EQ(resolve_text(system_io(), "a/b.txt"), Path("a/b.txt"));
}

}  // namespace
}  // namespace llmq
