#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace llmq {
namespace {

std::string json_refusal(std::string_view text, JsonLimits limits = {}) {
  try {
    Json::parse(text, "f.json", limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_EQ(error.detail().file, "f.json");
    return error.what();
  }
  return "accepted";
}

TEST(Json, KeepsIntegersDoublesAndOrder) {
  const std::string text =
      R"({"z":1,"a":[1.0,-0.0,1e-05,9223372036854775807,-9223372036854775808,true,null],"m":{}})";
  const Json value = Json::parse(text, "f.json");
  EXPECT_EQ(value.dump(), text);
  EXPECT_TRUE(value.at("a").items()[3].is_integer());
  EXPECT_FALSE(value.at("a").items()[0].is_integer());
  EXPECT_EQ(value.members()[1].first, "a");
}

TEST(Json, IntegersBeyondInt64BecomeDoubles) {
  EXPECT_EQ(Json::parse("18446744073709551615", "f").as_double(), 18446744073709551615.0);
  EXPECT_FALSE(Json::parse("9223372036854775808", "f").is_integer());
  EXPECT_EQ(Json(std::uint64_t{1} << 63).as_double(), 0x1p63);
}

TEST(Json, DoublesPrintShortestAndReadBackEqual) {
  for (const double d : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 1e23, 123456789.0, -0.0}) {
    const Json back = Json::parse(Json(d).dump(), "f");
    EXPECT_EQ(back.as_double(), d) << Json(d).dump();
    EXPECT_EQ(std::signbit(back.as_double()), std::signbit(d));
    EXPECT_FALSE(back.is_integer());
  }
  EXPECT_EQ(Json(0.1).dump(), "0.1");
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(HUGE_VAL).dump(), "null");
}

TEST(Json, StringsSurvive) {
  const std::string text =
      "quote \" slash \\ line \n tab \t bell \x07 e\xcc\x81 \xf0\x9f\x98\x80 nul " + std::string(1, '\0');
  EXPECT_EQ(Json::parse(Json(text).dump(), "f").as_string(), text);
  EXPECT_EQ(Json::parse(R"("\ud83d\ude00\u00e9")", "f").as_string(), "\xf0\x9f\x98\x80\xc3\xa9");
}

TEST(Json, StrayBytesAreReplacedWhenWritten) {
  EXPECT_EQ(Json(std::string("a\xff\xc0\x80z")).dump(), "\"a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\"");
  EXPECT_EQ(Json(std::string("\xed\xa0\x80")).dump(), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST(Json, IndentsAsAsked) {
  const Json value = Json::object({{"a", Json::array({1, 2})}, {"b", Json::object()}});
  EXPECT_EQ(value.dump(2), "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
}

TEST(Json, RefusesDuplicateKeysInSmallAndLargeObjects) {
  EXPECT_NE(json_refusal(R"({"a":1,"b":2,"a":3})").find("'a' occurs twice"), std::string::npos);
  EXPECT_NE(json_refusal(R"({"x":{"\u0061":1,"a":3}})").find("byte 23"), std::string::npos)
      << json_refusal(R"({"x":{"\u0061":1,"a":3}})");
  std::string many = "{";
  for (int i = 0; i < 1000; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  EXPECT_EQ(json_refusal(many + "\"k1000\":0}"), "accepted");
  EXPECT_NE(json_refusal(many + "\"k517\":0}").find("'k517' occurs twice"), std::string::npos);
}

TEST(Json, RefusesWhatIsNotJsonAndSaysWhere) {
  const struct {
    std::string text;
    const char* expected;
  } cases[] = {
      {"", "byte 1"},
      {"{} x", "byte 4"},
      {"{}{}", "byte 3"},
      {std::string("{}\0{", 4), "byte 3: is not valid JSON: a zero byte"},
      {"\xef\xbb\xbf{}", "byte order mark"},
      {"[1,]", "byte 4"},
      {"{\"a\":1,}", "byte 8"},
      {"[01]", "byte 3"},
      {"[1.]", "byte 4"},
      {"[.5]", "byte 2"},
      {"[+1]", "byte 2"},
      {"[NaN]", "byte 2"},
      {"[Infinity]", "byte 2"},
      {"1e999", "overflow"},
      {"['a']", "byte 2"},
      {"[\"a", "byte"},
      {"[\"\\x41\"]", "byte 4"},
      {"[\"\\ud800\"]", "byte"},
      {"[\"\\udc00\"]", "byte"},
      {"[\"\\ud800\\u0041\"]", "byte"},
      {"[\"\xc0\x80\"]", "byte 3"},
      {"[\"\xed\xa0\x80\"]", "byte 4"},
      {"[\"\xff\"]", "byte 3"},
      {"[\"\n\"]", "byte 3"},
      {"// c\n{}", "byte 1"},
      {"[1 2]", "byte 4"},
      {"{1:2}", "byte 2"},
      {"tru", "byte 4"},
  };
  for (const auto& c : cases)
    EXPECT_NE(json_refusal(c.text).find(c.expected), std::string::npos)
        << c.text << " -> " << json_refusal(c.text);
}

TEST(Json, RefusesTooDeepAndTooLong) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_EQ(json_refusal(nested(128)), "accepted");
  EXPECT_NE(json_refusal(nested(129)).find("byte 129: is nested deeper than 128 levels"), std::string::npos)
      << json_refusal(nested(129));
  EXPECT_NE(json_refusal("[1,2,3]", {6, 128}).find("7 bytes of JSON, more than the 6"), std::string::npos);
}

TEST(Json, TypedReadsNameBothKinds) {
  const Json value = Json::parse(R"({"n":1,"s":"x"})", "f");
  EXPECT_EQ(value.find("absent"), nullptr);
  EXPECT_EQ(value.at("n").find("anything"), nullptr);
  try {
    value.at("n").as_string();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "expected a string, found an integer");
  }
  EXPECT_THROW(value.at("s").as_double(), Error);
  EXPECT_THROW(value.at("s").members(), Error);
  try {
    value.at("q");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "key 'q' is missing");
  }
}

TEST(Json, BuildsAndEdits) {
  Json value;
  value["b"] = 1;
  value["a"]["c"] = "x";
  value["list"].push_back(2.5);
  value["b"] = 2;
  EXPECT_EQ(value.dump(), R"({"b":2,"a":{"c":"x"},"list":[2.5]})");
  EXPECT_TRUE(value.erase("b"));
  EXPECT_FALSE(value.erase("b"));
  EXPECT_EQ(value, Json::parse(R"({"a":{"c":"x"},"list":[2.5]})", "f"));
}

}  // namespace
}  // namespace llmq
